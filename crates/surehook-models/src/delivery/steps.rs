//! The steps, named after the functions of the product that they mirror. Touch the given state alone.

use super::state::{
    COUNT_MAX, Database, Event, HELD_FOR_ALIVE, LATE, Lane, Power, Report, Row, Run, Seen, State, TIMEOUT, Worker,
};
use super::{Answer, Delivery, Guards, Step};

/// Takes one step.
pub fn take(state: &mut State, step: Step, model: &Delivery) {
    let guards = model.guards;
    state.event = Event::None;
    match step {
        Step::Tick => tick(state),
        Step::DatabaseAway | Step::DatabaseFrozen => {
            state.used.outages += 1;
            state.database = Database::Down;
            if step == Step::DatabaseAway {
                for worker in &mut state.workers {
                    worker.seen.fill(None);
                    worker.doomed = None;
                }
            }
        }
        Step::DatabaseBack => state.database = Database::Up,
        Step::Kill(index) => {
            state.used.kills += 1;
            let (workers, lanes) = (state.workers.len(), state.lanes.len());
            state.workers[index] = Worker { power: Power::Dead, since_beat: 0, ..Worker::new(workers, lanes) };
        }
        Step::Stop(index) => {
            state.used.stops += 1;
            let worker = &mut state.workers[index];
            (worker.power, worker.was_stopped) = (Power::Stopped, true);
        }
        Step::Continue(index) => state.workers[index].power = Power::Running,
        Step::Enqueue(lane) => {
            state.used.later += 1;
            let lane = &mut state.lanes[lane];
            lane.last += 1;
            lane.ready = lane.ready.or(Some(0));
        }
        Step::Watch(index, is_answered) => watch(state, index, is_answered, model),
        Step::DeclareDead(index) => declare_dead(state, index, guards),
        Step::Look(index) => {
            let worker = &mut state.workers[index];
            (worker.chosen, worker.chosen_in_old_life) = (true, false);
        }
        Step::Claim(index, is_answered) => claim(state, index, is_answered, model),
        Step::GiveBackUnknown(index) => give_back_unknown(state, index),
        Step::IsClearToSend(index, run) => is_clear_to_send(state, index, run, guards),
        Step::Send(index, run, answer) => send(state, index, run, answer, guards),
        Step::Record(index, lane, is_answered) => record(state, index, lane, is_answered, model),
    }
}

fn older(age: &mut u8, max: u8) {
    *age = (*age + 1).min(max);
}

fn tick(state: &mut State) {
    for lane in &mut state.lanes {
        lane.ready = lane.ready.map(|left| left.saturating_sub(1));
    }
    for worker in state.workers.iter_mut().filter(|worker| worker.power != Power::Dead) {
        older(&mut worker.fence_age, HELD_FOR_ALIVE);
        older(&mut worker.since_beat, LATE + 1);
        worker.seen.iter_mut().flatten().for_each(|seen| older(&mut seen.age, HELD_FOR_ALIVE));
        for run in &mut worker.runs {
            run.lease = run.lease.saturating_sub(1);
            run.under_way.iter_mut().for_each(|age| older(age, TIMEOUT));
        }
    }
}

/// One more beat. Counters are kept small: the newest stays where it is, and who knew it knows the one before.
fn beat(state: &mut State, index: usize) -> u8 {
    let count = state.rows[index].count.map_or(1, |count| count + 1);
    if count > COUNT_MAX {
        let known = &mut state.workers[index].count;
        *known = (*known).min(COUNT_MAX - 1);
        for worker in &mut state.workers {
            worker.seen[index].iter_mut().filter(|seen| seen.count == COUNT_MAX).for_each(|seen| seen.count = 0);
            if worker.doomed == Some((index, COUNT_MAX)) {
                worker.doomed = Some((index, 0));
            }
        }
    }
    let count = count.min(COUNT_MAX);
    state.rows[index].count = Some(count);
    count
}

fn watch(state: &mut State, index: usize, is_answered: bool, model: &Delivery) {
    let guards = model.guards;
    let count = beat(state, index);
    let rows = state.rows.clone();
    let worker = &mut state.workers[index];
    let was_late = std::mem::take(&mut worker.since_beat) > LATE;
    if !is_answered {
        state.used.lost_answers += 1;
        worker.seen.fill(None);
        return;
    }
    // `Fence::beaten`.
    let died = if model.mends.deaths_told { rows[index].died && worker.count > 0 } else { count <= worker.count };
    (worker.count, worker.fence_age) = (count, 0);
    if died {
        worker.runs.iter_mut().for_each(|run| run.old_life = true);
        worker.chosen_in_old_life = worker.chosen;
    }
    if was_late && guards.late {
        worker.seen.fill(None);
    }
    for (other, row) in rows.iter().enumerate().filter(|(other, _)| *other != index) {
        let seen = worker.seen[other];
        worker.seen[other] = match (row.count, seen) {
            (None, _) => None,
            (Some(count), _) if !guards.counter => {
                worker.doomed = Some((other, count));
                None
            }
            (Some(count), Some(seen)) if seen.count == count && seen.age >= HELD_FOR_ALIVE => {
                worker.doomed = Some((other, count));
                None
            }
            (Some(count), Some(seen)) if seen.count == count => Some(seen),
            (Some(count), _) => Some(Seen { count, age: 0 }),
        };
    }
    state.rows[index].died = false;
}

fn declare_dead(state: &mut State, index: usize, guards: Guards) {
    let Some((dead, count)) = state.workers[index].doomed.take() else { return };
    let stands = state.rows[dead].count;
    if stands.is_none() || (stands != Some(count) && guards.still_stands) {
        return;
    }
    state.rows[dead] = Row { count: None, died: true };
    if state.workers[dead].power == Power::Running && !state.workers[dead].was_stopped {
        state.event = Event::Wronged;
    }
    for lane in state.lanes.iter_mut().filter(|lane| lane.owner == Some(dead) && lane.ready.is_some()) {
        lane.ready = Some(0);
    }
}

fn claim(state: &mut State, index: usize, is_answered: bool, model: &Delivery) {
    let (guards, lease) = (model.guards, model.bounds.lease);
    let worker = &mut state.workers[index];
    let old_life = std::mem::take(&mut worker.chosen_in_old_life);
    worker.chosen = false;
    if !is_answered {
        state.used.lost_answers += 1;
        worker.doubt = guards.doubt;
    }
    for (number, lane) in state.lanes.iter_mut().enumerate().filter(|(_, lane)| lane.is_due(guards)) {
        if lane.owner.is_some_and(|owner| owner != index) {
            state.event = Event::TookOver;
        }
        lane.owner = Some(index);
        lane.epoch += 1;
        lane.ready = Some(lease);
        if is_answered {
            worker.held[number] = Some(lane.epoch);
            worker.runs.push(Run {
                lane: number,
                epoch: lane.epoch,
                done: lane.done,
                last: lane.last,
                lease,
                old_life,
                lost: false,
                under_way: None,
            });
        }
    }
}

fn give_back_unknown(state: &mut State, index: usize) {
    let worker = &mut state.workers[index];
    worker.doubt = false;
    for (number, lane) in state.lanes.iter_mut().enumerate() {
        if lane.ready.is_some() && lane.owner == Some(index) && worker.held[number] != Some(lane.epoch) {
            (lane.owner, lane.ready) = (None, Some(0));
            lane.epoch += 1;
        }
    }
}

fn is_clear_to_send(state: &mut State, index: usize, place: usize, guards: Guards) {
    let worker = &mut state.workers[index];
    if worker.would_send(&worker.runs[place], guards) {
        worker.runs[place].under_way = Some(0);
        return;
    }
    let run = worker.runs.remove(place);
    if !run.lost {
        add(worker, run.lane, Report { epoch: run.epoch, done: run.done, dead: 0, release: true }, guards);
    }
}

fn send(state: &mut State, index: usize, place: usize, answer: Answer, guards: Guards) {
    if answer != Answer::Ok {
        state.used.bad_answers += 1;
    }
    let worker = &mut state.workers[index];
    let mut run = worker.runs.remove(place);
    let lane = &mut state.lanes[run.lane];
    // Without the order the newest that is known goes out first, the others follow as if nothing were.
    let seq = if guards.in_turn { run.done + 1 } else { run.last - run.done };
    let is_heard = answer != Answer::SilentUnheard;
    if is_heard && hear(lane, seq, answer == Answer::Refused) {
        state.event = Event::Repeated;
    }
    let mut report = Report { epoch: run.epoch, done: run.done + 1, dead: 0, release: false };
    match answer {
        Answer::SilentHeard | Answer::SilentUnheard if guards.silence => {
            (report.done, report.release) = (run.done, true);
        }
        Answer::Refused => report.dead = 1 << seq,
        Answer::Ok | Answer::SilentHeard | Answer::SilentUnheard => {}
    }
    report.release |= report.done >= run.last;
    (run.done, run.under_way) = (report.done, None);
    let (number, goes_on) = (run.lane, !report.release);
    add(worker, number, report, guards);
    if goes_on {
        worker.runs.push(run);
    }
}

/// The receiver gets it, and takes or refuses it; it remembers ids. True: it had taken this one before.
fn hear(lane: &mut Lane, seq: u8, is_refused: bool) -> bool {
    let has_had = |seq: u8| lane.arrived.contains(&seq) || lane.refused >> seq & 1 == 1;
    lane.out_of_order |= !has_had(seq) && !(1..seq).all(has_had);
    let is_known = lane.arrived.contains(&seq);
    if is_refused {
        lane.refused |= 1 << seq;
    } else if !is_known {
        lane.arrived.push(seq);
    }
    is_known
}

/// `Waiting::add`.
fn add(worker: &mut Worker, lane: usize, mut report: Report, guards: Guards) {
    if let Some(old) = &worker.waiting[lane] {
        if old.epoch == report.epoch {
            report.dead |= old.dead;
        } else if old.epoch > report.epoch && guards.newer_report {
            return;
        }
    }
    worker.waiting[lane] = Some(report);
}

fn record(state: &mut State, index: usize, number: usize, is_answered: bool, model: &Delivery) {
    let (guards, lease) = (model.guards, model.bounds.lease);
    let (worker, lane) = (&mut state.workers[index], &mut state.lanes[number]);
    let Some(report) = worker.waiting[number].take() else { return };
    let is_mine = lane.epoch == report.epoch && lane.owner == Some(index);
    let has_ended = lane.epoch == report.epoch && lane.owner.is_none();
    if is_mine || !guards.epoch {
        lane.dead |= report.dead & !((2 << lane.done) - 1);
        lane.done = report.done;
        let renewed = if lane.ready.is_none_or(|left| left * 2 < lease) { Some(lease) } else { lane.ready };
        let all_done = lane.last == lane.done;
        lane.ready = if all_done {
            None
        } else if report.release {
            Some(0)
        } else {
            renewed
        };
        if report.release || all_done {
            lane.owner = None;
        }
    }
    if !is_answered {
        state.used.lost_answers += 1;
        worker.waiting[number] = Some(report);
        return;
    }
    let holds = worker.held[number] == Some(report.epoch);
    let is_lost = !is_mine && !has_ended && guards.epoch;
    if is_lost {
        state.event = Event::Discarded;
    }
    if !holds {
        return;
    }
    let run = worker.runs.iter_mut().find(|run| run.lane == number && run.epoch == report.epoch);
    if report.release || has_ended || is_lost || lane.owner.is_none() {
        worker.held[number] = None;
        // Told only if another has it, or nothing is left.
        if let Some(run) = run.filter(|_| is_lost || !report.release) {
            run.lost = !has_ended || is_lost;
        }
    } else if let Some(run) = run {
        (run.last, run.lease) = (run.last.max(lane.last), lane.ready.unwrap_or(0));
    }
}
