//! What must hold in every state, and what must be reached. Reads states; the recovery works on a copy.

use stateright::Property;

use super::state::{Database, Event, Power, Row, State, Worker};
use super::{Answer, Delivery, Step, steps};

/// What is recorded as ended has arrived, or is a dead letter.
pub const NO_LOSS: &str = "what ended arrived or is a dead letter";
/// Nothing arrives, and nothing is buried, that was not put in.
pub const NO_INVENTION: &str = "only what was put in arrives";
/// The receiver gets a delivery for the first time only after it has got, and taken or refused, all that come before in its lane.
pub const ORDER: &str = "first arrivals are in order";
/// No two claims of a lane begin requests: whoever lost it knows that it may have, before another has it.
pub const ONE: &str = "one claim of a lane sends";
/// Nobody is declared dead for an outage of the database.
pub const INNOCENT: &str = "who was never stopped is not declared dead";
/// What bears a worker's name is being worked on, or said to be over, or looked for.
pub const IN_HAND: &str = "what bears a name is in hand";
/// From everywhere, everything is delivered once faults cease. See [`recovers`].
pub const RECOVERS: &str = "recovers";
/// Reached: a lane was taken over.
pub const TAKEOVER: &str = "a takeover";
/// Reached: a stale record was refused.
pub const DISCARDED: &str = "a stale record";
/// Reached: something was sent twice.
pub const REPEAT: &str = "a repeat on the wire";
/// Reached: a refusal was not written before the lease ended, so it was asked again, and this time the receiver took it, after
/// what follows it.
pub const CHANGED_MIND: &str = "a receiver takes late what it had refused";
/// Reached: everything was delivered.
pub const FINISHED: &str = "everything delivered";

/// Steps that a recovery may take; far more than it needs.
const RECOVERY_STEPS_MAX: usize = 300;

/// All of it.
pub fn properties() -> Vec<Property<Delivery>> {
    vec![
        Property::always(NO_LOSS, |_, state| is_nothing_lost(state)),
        Property::always(NO_INVENTION, |_, state: &State| {
            state.lanes.iter().all(|lane| {
                lane.arrived.iter().all(|seq| (1..=lane.last).contains(seq)) && u32::from(lane.dead) < 2 << lane.last
            })
        }),
        Property::always(ORDER, |_, state| is_in_order(state)),
        Property::always(ONE, one_sends),
        Property::always(INNOCENT, |_, state: &State| state.event != Event::Wronged),
        Property::always(IN_HAND, |_, state| is_in_hand(state)),
        Property::always(RECOVERS, recovers),
        Property::sometimes(TAKEOVER, |_, state: &State| state.event == Event::TookOver),
        Property::sometimes(DISCARDED, |_, state: &State| state.event == Event::Discarded),
        Property::sometimes(REPEAT, |_, state: &State| state.event == Event::Repeated),
        Property::sometimes(CHANGED_MIND, |_, state: &State| state.lanes.iter().any(|lane| !lane.arrived.is_sorted())),
        Property::sometimes(FINISHED, |_, state| is_finished(state)),
    ]
}

fn is_nothing_lost(state: &State) -> bool {
    state.lanes.iter().all(|lane| (1..=lane.done).all(|seq| lane.arrived.contains(&seq) || lane.dead >> seq & 1 == 1))
}

fn is_in_order(state: &State) -> bool {
    !state.lanes.iter().any(|lane| lane.out_of_order)
}

fn is_finished(state: &State) -> bool {
    state.lanes.iter().all(|lane| lane.done == lane.last && lane.owner.is_none() && lane.ready.is_none())
}

fn one_sends(model: &Delivery, state: &State) -> bool {
    (0..state.lanes.len()).all(|lane| {
        let runs = state.workers.iter().flat_map(|worker| worker.runs.iter().map(move |run| (worker, run)));
        runs.filter(|(worker, run)| run.lane == lane && worker.would_send(run, model.guards)).count() <= 1
    })
}

fn is_in_hand(state: &State) -> bool {
    state.lanes.iter().enumerate().all(|(number, lane)| {
        let Some(worker) = lane.owner.map(|owner| &state.workers[owner]) else { return true };
        let has_run = worker.runs.iter().any(|run| run.lane == number && run.epoch == lane.epoch && !run.lost);
        let has_report = worker.waiting[number].as_ref().is_some_and(|report| report.epoch == lane.epoch);
        worker.power == Power::Dead || worker.doubt || has_run || has_report
    })
}

/// Whether, once nothing fails any more, everything is delivered: the database answers, who was stopped goes on, one fresh worker
/// joins, the receiver takes everything. Then everybody does what there is to do, in a fixed order, time last.
///
/// This stands in for "eventually". The checker's own `eventually` looks at paths that end, and takes a path that comes back to a
/// state it was in for one that proves nothing; and without a word on fairness it would be false anyway, because faults and
/// idling may go on for ever. What an operator needs is that no state is a dead end: whatever has happened, *one* plain
/// way of going on, without luck and within bounded time, delivers. A state without such a way is a stuck lane.
pub fn recovers(model: &Delivery, state: &State) -> bool {
    let mut state = state.clone();
    state.database = Database::Up;
    let (workers, lanes) = (state.workers.len() + 1, state.lanes.len());
    for worker in &mut state.workers {
        worker.seen.push(None);
        if worker.power == Power::Stopped {
            worker.power = Power::Running;
        }
    }
    state.rows.push(Row::default());
    state.workers.push(Worker::new(workers, lanes));
    let mut choices = Vec::new();
    for _ in 0..RECOVERY_STEPS_MAX {
        if !is_nothing_lost(&state) || !is_in_order(&state) {
            return false;
        }
        if is_finished(&state) && state.workers.iter().all(|worker| worker.runs.is_empty()) {
            return true;
        }
        choices.clear();
        model.fair(&state, &mut choices);
        let Some(step) = choices.iter().min_by_key(|step| rank(step)) else { return false };
        steps::take(&mut state, *step, model);
    }
    false
}

fn rank(step: &Step) -> u8 {
    match step {
        Step::Watch(..) => 0,
        Step::DeclareDead(_) => 1,
        Step::Record(..) => 2,
        Step::GiveBackUnknown(_) => 3,
        Step::Send(_, _, Answer::Ok) => 4,
        Step::IsClearToSend(..) => 5,
        Step::Claim(..) => 6,
        Step::Look(_) => 7,
        _ => 8,
    }
}
