//! What a walk through the model of announce is about: how much may happen, which protections there are, what the world does.
//! Plain values; touches nothing.

use super::disk::Value;

/// How much may happen.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Pushes in all.
    pub pushes: u8,
    /// Pushes at the same time.
    pub at_once: usize,
    /// Different values that a ref may have; 0: each push brings one of its own.
    pub values: Value,
    /// Clients delete the ref too.
    pub deletions: bool,
    /// Processes that announce: the server, and perhaps another (a command, or the last words of a server that was killed).
    pub announcers: usize,
    /// How often the server is killed, alone or with its gits.
    pub kills_of_server: u8,
    /// How often a git is killed.
    pub kills_of_git: u8,
    /// How often the database goes away under an announcer, before or after a commit takes effect.
    pub outages: u8,
    /// How often the database is put back to the state that was copied.
    pub restores: u8,
    /// How often told lines are taken off the log.
    pub trims: u8,
}

impl Bounds {
    /// Three pushes, nothing else.
    pub const CALM: Self = Self {
        pushes: 3,
        at_once: 2,
        values: 2,
        deletions: true,
        announcers: 1,
        kills_of_server: 0,
        kills_of_git: 0,
        outages: 0,
        restores: 0,
        trims: 0,
    };
}

/// The protections of the code; without one the model must fail.
#[derive(Clone, Copy, Debug)]
pub struct Guards {
    /// `store::announce::advance_refs` moves a cursor only from where the steps begin.
    pub cursor_check: bool,
    /// A cursor's place is the end of the line that produced the value, and never lies behind lines that were skipped.
    pub place_stays: bool,
    /// `snapshot::settle` reads the state of the log again after the ref.
    pub log_looked_at_again: bool,
    /// `Backend::prepare_deletion`: what the log says is told before git deletes it.
    pub deletion_told_first: bool,
    /// `push_request::HeadError::BlindDeletion`: a deletion that names no value is refused. git would compare nothing.
    pub deletion_names_value: bool,
    /// `trim::keep_from` leaves a log alone of which something is not told.
    pub trim_only_told: bool,
    /// `turns::Turns::take`: the outcome of an announce counts for calls that came before it began.
    pub turn_begins_after_call: bool,
    /// `accept_push` begins a new epoch where the high-water mark is ahead of the database.
    pub high_water: bool,
}

impl Guards {
    /// The code as it is.
    pub const ALL: Self = Self {
        cursor_check: true,
        place_stays: true,
        log_looked_at_again: true,
        deletion_told_first: true,
        deletion_names_value: true,
        trim_only_told: true,
        turn_begins_after_call: true,
        high_water: true,
    };
}

/// What the world may do beyond what the code was made for.
#[derive(Clone, Copy, Debug, Default)]
pub struct World {
    /// A file that is made right after another was removed gets its inode, and the log has the same length again.
    pub inodes_are_reused: bool,
    /// The log changes around each look of an announce, as often as it looks; it ends and says that all is well.
    pub looks_run_out: bool,
    /// All pushes happen in the same second, by the same person.
    pub one_second: bool,
}

/// What would close a gap that the code has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mends {
    /// A deletion has its ref alone from before what the log says is told until the deletion is told; what moves the ref has it
    /// beside others until git has ended. What git inherits outlives a server that is killed.
    pub deletion_is_alone: bool,
    /// `Backend::prepare_deletion` refuses where the announce ended with unsettled refs.
    pub deletion_waits_for_settled: bool,
    /// `settle` keeps the log open until it has looked at it again, so that its inode stays taken.
    pub log_is_held_open: bool,
    /// The high-water mark is written before the commit.
    pub mark_before_commit: bool,
}
