//! Announce, as a model: one ref with its log, pushes by gits that can be killed, announcers that can be killed at each step, a
//! database that goes away, loses the answer to a commit, or is put back to an older state. Touches its own state alone.
//!
//! `next_state` does one step of one of them, so what is between two steps is open to all others. The steps of an announcer are in
//! [`run`], those of a push in [`push`], what must hold in [`truth`].

pub mod disk;
pub mod pure;
pub mod push;
pub mod run;
pub mod settings;
pub mod truth;

use std::collections::BTreeSet;

use stateright::{Model, Property};

use self::disk::{Disk, Value};
use self::pure::Cursor;
use self::push::Push;
use self::run::Announcer;
pub use self::settings::{Bounds, Guards, Mends, World};

/// The model.
#[derive(Clone, Copy, Debug)]
pub struct Announce {
    /// How much may happen.
    pub bounds: Bounds,
    /// Protections.
    pub guards: Guards,
    /// What the world does.
    pub world: World,
    /// What would mend it.
    pub mends: Mends,
}

impl Announce {
    /// The code as it is, in an ordinary world.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, guards: Guards::ALL, world: World::default(), mends: Mends::default() }
    }
}

/// The tables `repository_refs`, `repositories` and `outbox_events`, as far as they tell of this ref.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Database {
    /// What was announced.
    pub cursor: Cursor,
    /// The values before and after of each event, in order.
    pub events: Vec<(Value, Value)>,
    /// `sequence_epoch`.
    pub epoch: u8,
}

/// An event with its number, as a receiver may have seen it. With one ref its number in the repository is that in the ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Told {
    /// Epoch and number.
    pub number: (u8, u8),
    /// Before and after.
    pub step: (Value, Value),
}

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The folder of the repository.
    pub disk: Disk,
    /// The database.
    pub database: Database,
    /// A copy of it, made earlier.
    pub copy: Option<Database>,
    /// Who announces.
    pub announcers: Vec<Announcer>,
    /// Pushes under way.
    pub pushes: Vec<Push>,
    /// The server has announced the repository whole since it started.
    pub is_caught_up: bool,
    /// What really happened to the ref.
    pub history: Vec<(Value, Value)>,
    /// Every event that was ever committed, also of states of the database that are gone; kept only where it is put back.
    pub told: BTreeSet<Told>,
    /// A step was told without the line that it has in the log.
    pub guessed: bool,
    /// A push was reported as done before its event was there.
    pub verdict_came_early: bool,
    /// The server was killed when git had moved a ref and nothing of it was announced.
    pub died_untold: bool,
    /// How much has happened.
    pub used: Used,
}

/// How much of the bounds is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Used {
    pub(crate) pushes: u8,
    pub(crate) epochs: u8,
    pub(crate) kills_of_server: u8,
    pub(crate) kills_of_git: u8,
    pub(crate) outages: u8,
    pub(crate) restores: u8,
    pub(crate) trims: u8,
}

/// A step; the number says whose, by its place among the announcers or pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A client pushes this value, or deletes the ref (0).
    ClientPushes(Value),
    /// With `Mends::deletion_is_alone`: the push gets its ref, alone for a deletion, else beside others.
    TakeRef(usize),
    /// git takes the lock and finds the old value that the client named; or does not, and refuses.
    GitLocks(usize),
    /// git appends to the log; or removes it, where the ref is deleted.
    GitWritesLog(usize),
    /// git moves or removes the ref, and the lock is gone.
    GitMovesRef(usize),
    /// SIGKILL for a git. A lock that it held is removed (`git::stale::clean`).
    KillGit(usize),
    /// `Turns::take` begins a run, which reads the cursor (`store::announce::read_refs`).
    ReadRefs(usize),
    /// `snapshot::read_log`.
    ReadLog(usize),
    /// `refs::read_loose`: reads the ref after its log.
    ReadLoose(usize),
    /// `snapshot::log_stamp`: looks at the log again; if it is the same, `transitions::derive` says what to tell.
    LogStamp(usize),
    /// `snapshot::settle` has looked for the last time, and the log has changed again.
    GiveUpUnsettled(usize),
    /// `snapshot::confirm`: a second read where no log explains the step.
    Confirm(usize),
    /// `store::announce::accept_push`, and its commit.
    AcceptPush(usize),
    /// The same, but the answer to the commit is lost.
    AcceptPushUnheard(usize),
    /// `folder::write_high_water`, the last step of a run.
    WriteHighWater(usize),
    /// The database breaks a run off.
    BreakOff(usize),
    /// SIGKILL for the server; its gits go on, or die too.
    KillServer {
        /// They die too.
        with_gits: bool,
    },
    /// The database is copied.
    CopyDatabase,
    /// The database is as it was when it was copied.
    RestoreDatabase,
    /// `trim::trim` takes told lines off the log.
    Trim,
}

impl Model for Announce {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { announcers: vec![Announcer::Idle; self.bounds.announcers], ..State::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.actions_of_pushes(state, actions);
        for announcer in 0..state.announcers.len() {
            self.actions_of_announcer(state, announcer, actions);
        }
        let (bounds, used) = (&self.bounds, &state.used);
        if used.kills_of_server < bounds.kills_of_server {
            actions.extend([false, true].map(|with_gits| Action::KillServer { with_gits }));
        }
        if used.restores < bounds.restores {
            actions.push(if state.copy.is_some() { Action::RestoreDatabase } else { Action::CopyDatabase });
        }
        if used.trims < bounds.trims && state.disk.lock.is_none() {
            actions.push(Action::Trim);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::ClientPushes(value) => self.client_pushes(&mut state, value),
            Action::TakeRef(push) => self.take_ref(&mut state, push),
            Action::GitLocks(push) => self.git_locks(&mut state, push),
            Action::GitWritesLog(push) => self.git_writes_log(&mut state, push),
            Action::GitMovesRef(push) => self.git_moves_ref(&mut state, push),
            Action::KillGit(push) => {
                state.used.kills_of_git += 1;
                push::kill_git(&mut state, push);
            }
            Action::KillServer { with_gits } => {
                state.used.kills_of_server += 1;
                push::kill_server(&mut state, with_gits);
            }
            Action::CopyDatabase => state.copy = Some(state.database.clone()),
            Action::RestoreDatabase => {
                state.used.restores += 1;
                // A run that is under way holds no session while it looks at the disk: it goes on and does not notice.
                state.database = state.copy.take()?;
            }
            Action::Trim => {
                state.used.trims += 1;
                let cursor = state.database.cursor;
                let log = state.disk.log.as_mut()?;
                let told = pure::lines_to_trim(cursor, &log.lines);
                let count = if self.guards.trim_only_told { told } else { log.lines.len() - 1 };
                log.lines.drain(..count);
                // The new log is another file.
                state.disk.inodes += 1;
                log.inode = state.disk.inodes;
                if count == 0 {
                    return None;
                }
            }
            other => self.announcer_steps(&mut state, other)?,
        }
        // What changes nothing is no step.
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(truth::INVENTED, truth::nothing_is_invented),
            Property::always(truth::LOST, truth::nothing_is_lost),
            Property::always(truth::GUESSED, |model: &Self, state: &State| model.bounds.restores > 0 || !state.guessed),
            Property::always(truth::NUMBERS, truth::numbers_are_given_once),
            Property::always(truth::VERDICT, |_, state: &State| !state.verdict_came_early),
            Property::sometimes(truth::MADE_GOOD, |model: &Self, state: &State| {
                state.died_untold && state.pushes.is_empty() && truth::is_all_told(model, state)
            }),
            Property::sometimes(truth::TOLD_AGAIN, truth::is_told_again),
            Property::sometimes(truth::ALL_TOLD, |model: &Self, state: &State| {
                state.used.pushes == model.bounds.pushes
                    && state.history.len() == usize::from(model.bounds.pushes)
                    && truth::is_all_told(model, state)
            }),
        ]
    }
}
