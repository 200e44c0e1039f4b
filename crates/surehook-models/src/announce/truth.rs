//! What must hold of an announce in every state. Reads the model's state.

use super::run::Announcer;
use super::{Action, Announce, State, Told};
use crate::announce::push::{Phase, Turn, may_take_ref};
use stateright::Model;

/// An event exists only for what happened.
pub const INVENTED: &str = "nothing is invented, nothing comes twice, and the order is kept";
/// All that happened is told.
pub const LOST: &str = "nothing is lost";
/// A step is told with who and when, from its own line; deletions apart, and what a restored database no longer knows of.
pub const GUESSED: &str = "no step is told without its line";
/// Epoch and number name one event.
pub const NUMBERS: &str = "a number is given once, and none is left out within an epoch";
/// The server was killed between git and the announcement, and the event is there.
pub const MADE_GOOD: &str = "a kill between git and announcement is made good";
/// A database that was put back has led to a second event of the same step.
pub const TOLD_AGAIN: &str = "a restored database tells again, in a new epoch";
/// A push that reports success has its event.
pub const VERDICT: &str = "no verdict comes before its event";
/// The model is not empty.
pub const ALL_TOLD: &str = "all pushes move the ref, and all is told";

/// Steps that a recovery may take; far more than it needs.
const RECOVERY_STEPS_MAX: usize = 200;

/// What is told is what happened, step by step, as far as it is told. After a restore that much cannot be had: a step may be
/// told again, and steps whose log is gone are told as one. Then both values of an event must be true, and in this order.
pub fn nothing_is_invented(model: &Announce, state: &State) -> bool {
    let (events, history) = (&state.database.events, &state.history);
    if model.bounds.restores == 0 {
        return history.starts_with(events);
    }
    events.iter().all(|(before, after)| {
        let begins = history.iter().position(|step| step.0 == *before);
        begins.is_some_and(|begins| history[begins..].iter().any(|step| step.1 == *after))
    })
}

/// Whether nothing is left to tell.
pub fn is_all_told(model: &Announce, state: &State) -> bool {
    if model.bounds.restores == 0 {
        return state.database.events == state.history;
    }
    state.database.cursor.value == state.disk.value
        && state.history.iter().all(|step| state.told.iter().any(|told| told.step == *step))
}

/// From here on nothing fails and nobody pushes: all is told in the end.
///
/// Why one way of going on is enough, and a loop in the states is no way out. The way is made of the model's own steps. Each
/// state on every other way is a state of the model too, so this is asked there again. A way without faults on which something
/// stays untold for ever would have to go round in a loop: pushes end, since each step brings them further; then the disk
/// stands still; a run that begins then depends on nothing but cursor and disk, ends after a few steps, and either
/// tells the rest, or has lost the race against one that did. Fairness is needed only for "a run begins again", which a timer
/// does (`serve::scan`).
pub fn nothing_is_lost(model: &Announce, state: &State) -> bool {
    let mut state = state.clone();
    let mut idle_runs = 0;
    for _ in 0..RECOVERY_STEPS_MAX {
        let action = match fair_step(&state) {
            Some(action) => action,
            None if is_all_told(model, &state) => return true,
            None if idle_runs == 3 => return false,
            None => {
                idle_runs += 1;
                Action::ReadRefs(0)
            }
        };
        match model.next_state(&state, action) {
            Some(next) => state = next,
            None => return false,
        }
    }
    false
}

/// The next step of something that is under way.
fn fair_step(state: &State) -> Option<Action> {
    for (index, announcer) in state.announcers.iter().enumerate() {
        match announcer {
            Announcer::Idle => {}
            Announcer::CursorsRead(_) => return Some(Action::ReadLog(index)),
            Announcer::LogRead(..) => return Some(Action::ReadLoose(index)),
            Announcer::RefRead(..) => return Some(Action::LogStamp(index)),
            Announcer::Doubtful(..) => return Some(Action::Confirm(index)),
            Announcer::Prepared(..) => return Some(Action::AcceptPush(index)),
            Announcer::Committed(_) => return Some(Action::WriteHighWater(index)),
        }
    }
    for (index, push) in state.pushes.iter().enumerate() {
        match push.phase {
            Phase::BeforeRef if may_take_ref(state, push.new) => return Some(Action::TakeRef(index)),
            Phase::Given if state.disk.lock.is_none() => return Some(Action::GitLocks(index)),
            Phase::Locked => return Some(Action::GitWritesLog(index)),
            Phase::Logged => return Some(Action::GitMovesRef(index)),
            _ => {}
        }
    }
    let waits = |phase: Phase| {
        matches!(
            phase,
            Phase::BeforeGit(Turn::Asked) | Phase::BeforeDeletion(Turn::Asked) | Phase::Moved(Turn::Asked, _)
        )
    };
    state.pushes.iter().any(|push| waits(push.phase)).then_some(Action::ReadRefs(0))
}

/// A number that a receiver may have seen names one event for ever, and within an epoch no number is left out.
pub fn numbers_are_given_once(_: &Announce, state: &State) -> bool {
    let told: Vec<_> = state.told.iter().map(|told| told.number).collect();
    told.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].1 + 1 == pair[1].1)
}

/// Whether a receiver may have seen one step in two epochs, and all is told.
pub fn is_told_again(model: &Announce, state: &State) -> bool {
    let in_two_epochs = |one: &Told| state.told.iter().any(|two| one.step == two.step && one.number.0 != two.number.0);
    state.told.iter().any(in_two_epochs) && is_all_told(model, state)
}
