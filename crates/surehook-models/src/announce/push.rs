//! The way of a push through `git/http/push.rs`, `serve/backend.rs` and git. Touches the model's state alone.
//!
//! git (files backend) takes the lock of the ref and compares the old value under it. Then it appends to the log and renames
//! the lock over the ref; or, for a deletion, removes the log and then the ref.

use super::disk::{Line, Value};
use super::run::{Announcer, Outcome};
use super::{Action, Announce, State};

/// A call of `Turns::take` that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Turn {
    /// No run has begun since.
    Asked,
    /// One has.
    InRun,
}

/// Where a push is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// `prepare_push`: the first push after start-up waits until the repository was announced whole.
    BeforeGit(Turn),
    /// Only with `Mends::deletion_is_alone`: it waits for its ref.
    BeforeRef,
    /// `prepare_deletion`: nor has it now.
    BeforeDeletion(Turn),
    /// git has all commands.
    Given,
    /// git holds the lock, and the old value is right.
    Locked,
    /// git has written or removed the log.
    Logged,
    /// git has ended; `pushed` announces. The place of the step in the history says which event the verdict waits for.
    Moved(Turn, u8),
}

/// A push under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Push {
    /// Which push it is.
    pub serial: u8,
    /// The value that the client saw.
    pub old: Value,
    /// The value that it wants.
    pub new: Value,
    /// Where it is.
    pub phase: Phase,
    /// Its server lives.
    pub is_served: bool,
}

impl Push {
    /// Whether it has its ref, with `Mends::deletion_is_alone`.
    fn holds(&self) -> bool {
        match self.phase {
            Phase::BeforeGit(_) | Phase::BeforeRef => false,
            Phase::BeforeDeletion(_) | Phase::Given | Phase::Locked | Phase::Logged => true,
            Phase::Moved(..) => self.new == 0,
        }
    }
}

/// Whether it gets its ref: of two that name one ref and of which one deletes it, only one is inside.
pub(super) fn may_take_ref(state: &State, new: Value) -> bool {
    !state.pushes.iter().any(|other| other.holds() && (new == 0 || other.new == 0))
}

impl Announce {
    pub(super) fn actions_of_pushes(&self, state: &State, actions: &mut Vec<Action>) {
        if state.used.pushes < self.bounds.pushes && state.pushes.len() < self.bounds.at_once {
            let newest = if self.bounds.values == 0 { state.used.pushes + 1 } else { self.bounds.values };
            let oldest = if self.bounds.values == 0 { newest } else { 1 };
            // A ref that the client did not see can be deleted all the same: git then does so without a look at the value.
            let may_delete = state.disk.value != 0 || !self.guards.deletion_names_value;
            let deletion = (self.bounds.deletions && may_delete).then_some(0);
            let wanted = deletion.into_iter().chain((oldest..=newest).filter(|value| *value != state.disk.value));
            actions.extend(wanted.map(Action::ClientPushes));
        }
        for (index, push) in state.pushes.iter().enumerate() {
            match push.phase {
                Phase::BeforeRef if may_take_ref(state, push.new) => {
                    actions.push(Action::TakeRef(index));
                    continue;
                }
                Phase::Given if state.disk.lock.is_none() => actions.push(Action::GitLocks(index)),
                Phase::Locked => actions.push(Action::GitWritesLog(index)),
                Phase::Logged => actions.push(Action::GitMovesRef(index)),
                _ => continue,
            }
            if state.used.kills_of_git < self.bounds.kills_of_git {
                actions.push(Action::KillGit(index));
            }
        }
    }

    pub(super) fn client_pushes(&self, state: &mut State, new: Value) {
        state.used.pushes += 1;
        let phase = if state.is_caught_up { self.after_start(new) } else { Phase::BeforeGit(Turn::Asked) };
        let push = Push { serial: state.used.pushes, old: state.disk.value, new, phase, is_served: true };
        state.pushes.push(push);
        self.join_turns(state);
    }

    /// Where a push goes on once the repository is known to be announced.
    fn after_start(&self, new: Value) -> Phase {
        if self.mends.deletion_is_alone { Phase::BeforeRef } else { self.inside(new) }
    }

    pub(super) fn take_ref(&self, state: &mut State, index: usize) {
        state.pushes[index].phase = self.inside(state.pushes[index].new);
        self.join_turns(state);
    }

    fn inside(&self, new: Value) -> Phase {
        if new == 0 && self.guards.deletion_told_first { Phase::BeforeDeletion(Turn::Asked) } else { Phase::Given }
    }

    /// Without the guard, the outcome of a run that is under way counts for calls that come during it.
    pub(super) fn join_turns(&self, state: &mut State) {
        if !self.guards.turn_begins_after_call && state.announcers[0] != Announcer::Idle {
            run_begins(state);
        }
    }

    pub(super) fn git_locks(&self, state: &mut State, index: usize) {
        let push = &mut state.pushes[index];
        if push.old == 0 && push.new == 0 {
            push.old = state.disk.value;
        }
        if push.old == state.disk.value && push.old != push.new {
            let push = *push;
            state.disk.lock = Some(push.serial);
            state.pushes[index].phase = Phase::Locked;
        } else {
            state.pushes.remove(index);
        }
    }

    pub(super) fn git_writes_log(&self, state: &mut State, index: usize) {
        let push = state.pushes[index];
        if push.new == 0 {
            state.disk.log = None;
        } else {
            let second = if self.world.one_second { 1 } else { push.serial };
            let line = Line { old: push.old, new: push.new, second };
            state.disk.append(line, self.world.inodes_are_reused && !self.mends.log_is_held_open);
        }
        state.pushes[index].phase = Phase::Logged;
    }

    pub(super) fn git_moves_ref(&self, state: &mut State, index: usize) {
        let push = state.pushes[index];
        state.disk.value = push.new;
        state.disk.lock = None;
        let place = u8::try_from(state.history.len()).unwrap_or(u8::MAX);
        state.history.push((push.old, push.new));
        if push.is_served {
            state.pushes[index].phase = Phase::Moved(Turn::Asked, place);
            self.join_turns(state);
        } else {
            state.pushes.remove(index);
        }
    }

    /// The server's announcer has ended a run: those who waited for it go on.
    pub(super) fn run_ended(&self, state: &mut State, outcome: Outcome) {
        let is_told = outcome != Outcome::Failed;
        let is_unsettled = outcome == Outcome::Unsettled && self.mends.deletion_waits_for_settled;
        let mut stay = Vec::new();
        for mut push in std::mem::take(&mut state.pushes) {
            match push.phase {
                Phase::BeforeGit(Turn::InRun) => {
                    if !is_told {
                        continue;
                    }
                    state.is_caught_up = true;
                    push.phase = self.after_start(push.new);
                }
                Phase::BeforeDeletion(Turn::InRun) if !is_told || is_unsettled => continue,
                Phase::BeforeDeletion(Turn::InRun) => push.phase = Phase::Given,
                Phase::Moved(Turn::InRun, place) => {
                    if outcome == Outcome::Failed {
                        // The next push waits until this one is recorded.
                        state.is_caught_up = false;
                    } else if outcome == Outcome::Told && self.bounds.restores == 0 {
                        state.verdict_came_early |= state.database.events.len() <= usize::from(place);
                    }
                    continue;
                }
                _ => {}
            }
            stay.push(push);
        }
        state.pushes = stay;
    }
}

/// A run of the server's announcer begins: it counts for all who have asked.
pub(super) fn run_begins(state: &mut State) {
    for push in &mut state.pushes {
        push.phase = match push.phase {
            Phase::BeforeGit(_) => Phase::BeforeGit(Turn::InRun),
            Phase::BeforeDeletion(_) => Phase::BeforeDeletion(Turn::InRun),
            Phase::Moved(_, place) => Phase::Moved(Turn::InRun, place),
            other => other,
        };
    }
}

/// SIGKILL for the git of a push. What it held locked is free: its lock is removed before the next push.
pub(super) fn kill_git(state: &mut State, index: usize) {
    let push = state.pushes.remove(index);
    if state.disk.lock == Some(push.serial) {
        state.disk.lock = None;
    }
}

/// SIGKILL for the server. A git that has all commands goes on without it, unless it dies too.
pub(super) fn kill_server(state: &mut State, with_gits: bool) {
    state.announcers[0] = Announcer::Idle;
    state.is_caught_up = false;
    let told = state.database.events.len();
    state.died_untold |=
        state.pushes.iter().any(|push| matches!(push.phase, Phase::Moved(_, place) if usize::from(place) >= told));
    for index in (0..state.pushes.len()).rev() {
        match state.pushes[index].phase {
            Phase::Given | Phase::Locked | Phase::Logged if !with_gits => state.pushes[index].is_served = false,
            _ => kill_git(state, index),
        }
    }
}
