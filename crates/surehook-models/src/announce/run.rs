//! One announce of one repository: `capture::run::Run::round`, `capture::snapshot::look`, `store::announce::accept_push`. Each
//! variant is a moment between two steps at which the process can die. Touches the model's state alone.

use super::disk::{HighWater, LogFile, Place, Value};
use super::pure::{Cursor, Derived, Evidence, Step, derive};
use super::push::run_begins;
use super::{Action, Announce, State, Told};

/// Where an announcer is, and what it has read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Announcer {
    /// Between two runs.
    #[default]
    Idle,
    /// It knows the cursor; crash point `announce.cursors_read`.
    CursorsRead(Cursor),
    /// It has read the log.
    LogRead(Cursor, Option<LogFile>),
    /// It has read the ref after the log.
    RefRead(Cursor, Option<LogFile>, Value),
    /// It has steps that no log explains.
    Doubtful(Cursor, Vec<Step>),
    /// It knows what to tell, and the high-water mark; crash point `announce.disk_read`.
    Prepared(Cursor, Vec<Step>, Option<HighWater>),
    /// It has committed; crash point `accept_push.committed`.
    Committed(HighWater),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Ok: all is told.
    Told,
    /// Ok, though the ref changed all the time.
    Unsettled,
    /// Err.
    Failed,
}

impl Announce {
    pub(super) fn actions_of_announcer(&self, state: &State, index: usize, actions: &mut Vec<Action>) {
        let may_break = state.used.outages < self.bounds.outages;
        match &state.announcers[index] {
            Announcer::Idle => {
                actions.push(Action::ReadRefs(index));
                return;
            }
            Announcer::CursorsRead(_) => actions.push(Action::ReadLog(index)),
            Announcer::LogRead(..) => actions.push(Action::ReadLoose(index)),
            Announcer::RefRead(_, log, _) => {
                actions.push(Action::LogStamp(index));
                if self.world.looks_run_out && LogFile::stamp(log.as_ref()) != LogFile::stamp(state.disk.log.as_ref()) {
                    actions.push(Action::GiveUpUnsettled(index));
                }
            }
            Announcer::Doubtful(..) => actions.push(Action::Confirm(index)),
            Announcer::Prepared(..) => {
                actions.push(Action::AcceptPush(index));
                if may_break {
                    actions.push(Action::AcceptPushUnheard(index));
                }
            }
            Announcer::Committed(_) => {
                actions.push(Action::WriteHighWater(index));
                return;
            }
        }
        if may_break {
            actions.push(Action::BreakOff(index));
        }
    }

    pub(super) fn announcer_steps(&self, state: &mut State, action: Action) -> Option<()> {
        let (Action::ReadRefs(index)
        | Action::ReadLog(index)
        | Action::ReadLoose(index)
        | Action::LogStamp(index)
        | Action::GiveUpUnsettled(index)
        | Action::Confirm(index)
        | Action::AcceptPush(index)
        | Action::AcceptPushUnheard(index)
        | Action::WriteHighWater(index)
        | Action::BreakOff(index)) = action
        else {
            return None;
        };
        let announcer = std::mem::take(&mut state.announcers[index]);
        match (action, announcer) {
            (Action::ReadRefs(_), Announcer::Idle) => {
                if index == 0 {
                    run_begins(state);
                }
                state.announcers[index] = Announcer::CursorsRead(state.database.cursor);
            }
            (Action::ReadLog(_), Announcer::CursorsRead(cursor)) => {
                state.announcers[index] = Announcer::LogRead(cursor, state.disk.log.clone());
            }
            (Action::ReadLoose(_), Announcer::LogRead(cursor, log)) => {
                state.announcers[index] = Announcer::RefRead(cursor, log, state.disk.value);
            }
            (Action::LogStamp(_), Announcer::RefRead(cursor, log, value)) => {
                self.log_stamp(state, index, cursor, log.as_ref(), value);
            }
            (Action::GiveUpUnsettled(_), _) => self.end(state, index, Outcome::Unsettled),
            (Action::Confirm(_), Announcer::Doubtful(cursor, steps)) => {
                if steps.last().is_some_and(|step| step.after == state.disk.value) {
                    self.prepared(state, index, cursor, steps);
                } else {
                    state.announcers[index] = Announcer::CursorsRead(state.database.cursor);
                }
            }
            (Action::AcceptPush(_), Announcer::Prepared(cursor, steps, mark)) => {
                state.announcers[index] = match self.accept_push(state, cursor, &steps, mark) {
                    Some(mark) => Announcer::Committed(mark),
                    // Raced: it looks again.
                    None => Announcer::CursorsRead(state.database.cursor),
                };
            }
            (Action::AcceptPushUnheard(_), Announcer::Prepared(cursor, steps, mark)) => {
                state.used.outages += 1;
                self.accept_push(state, cursor, &steps, mark);
                self.end(state, index, Outcome::Failed);
            }
            (Action::WriteHighWater(_), Announcer::Committed(mark)) => {
                state.disk.write_high_water(mark);
                self.end(state, index, Outcome::Told);
            }
            (Action::BreakOff(_), broken) => {
                state.used.outages += 1;
                if let (Announcer::Prepared(_, steps, _), true) = (&broken, self.mends.mark_before_commit) {
                    let sequence = u8::try_from(state.database.events.len() + steps.len()).unwrap_or(u8::MAX);
                    state.disk.write_high_water(HighWater { sequence, epoch: state.database.epoch });
                }
                self.end(state, index, Outcome::Failed);
            }
            _ => return None,
        }
        Some(())
    }

    /// A run is over.
    pub(super) fn end(&self, state: &mut State, index: usize, outcome: Outcome) {
        state.announcers[index] = Announcer::Idle;
        if index == 0 {
            self.run_ended(state, outcome);
        }
    }

    /// Only if the log did not change around the reading of the ref do the two belong together.
    fn log_stamp(&self, state: &mut State, index: usize, cursor: Cursor, log: Option<&LogFile>, value: Value) {
        let is_same = LogFile::stamp(log) == LogFile::stamp(state.disk.log.as_ref());
        if self.guards.log_looked_at_again && !is_same {
            state.announcers[index] = Announcer::CursorsRead(cursor);
            return;
        }
        let Derived { steps, moved } = self.derive(cursor, value, log);
        if steps.iter().any(|step| step.evidence == Evidence::Unexplained) {
            state.announcers[index] = Announcer::Doubtful(cursor, steps);
        } else if steps.is_empty() {
            // `store::announce::move_places`: only where the cursor has not moved meanwhile.
            if let Some(place) = moved
                && state.database.cursor.seq == cursor.seq
            {
                state.database.cursor.place = place;
            }
            self.end(state, index, Outcome::Told);
        } else {
            self.prepared(state, index, cursor, steps);
        }
    }

    fn derive(&self, cursor: Cursor, value: Value, log: Option<&LogFile>) -> Derived {
        let lines = log.map(|log| log.lines.as_slice());
        let mut derived = derive(cursor, value, lines);
        if !self.guards.place_stays
            && let (Some(lines), Some(newest)) = (lines, derived.steps.last_mut())
        {
            let count = u8::try_from(lines.len()).unwrap_or(u8::MAX);
            newest.place = Place { lines: count, line: lines.last().copied(), birth: lines.first().copied() };
        }
        derived
    }

    fn prepared(&self, state: &mut State, index: usize, cursor: Cursor, steps: Vec<Step>) {
        state.announcers[index] = Announcer::Prepared(cursor, steps, state.disk.mark);
    }

    /// The one transaction, which takes effect at once or not at all. None: raced.
    fn accept_push(
        &self,
        state: &mut State,
        read: Cursor,
        steps: &[Step],
        mark: Option<HighWater>,
    ) -> Option<HighWater> {
        let (first, last) = (steps.first()?, steps.last()?);
        let here = state.database.cursor;
        if self.guards.cursor_check && (here.seq != read.seq || here.value != first.before) {
            return None;
        }
        let last_sequence = u8::try_from(state.database.events.len()).unwrap_or(u8::MAX);
        let is_behind = mark.is_some_and(|mark| mark.epoch != state.database.epoch || mark.sequence > last_sequence);
        if is_behind && self.guards.high_water {
            state.used.epochs += 1;
            state.database.epoch = state.used.epochs;
        }
        for step in steps {
            state.database.events.push((step.before, step.after));
            // Git keeps no log of what it deletes.
            state.guessed |= step.after != 0 && step.evidence != Evidence::Exact;
            if self.bounds.restores > 0 {
                let sequence = u8::try_from(state.database.events.len()).unwrap_or(u8::MAX);
                let number = (state.database.epoch, sequence);
                state.told.insert(Told { number, step: (step.before, step.after) });
            }
        }
        let told = u8::try_from(steps.len()).unwrap_or(u8::MAX);
        state.database.cursor = Cursor { value: last.after, place: last.place, seq: read.seq + told };
        let mark = HighWater { sequence: last_sequence + told, epoch: state.database.epoch };
        if self.mends.mark_before_commit {
            state.disk.write_high_water(mark);
        }
        Some(mark)
    }
}
