//! What is in the database, in the workers and at the receiver. Plain values; nothing outside of them is touched.

use super::{Bounds, Guards};

/// Ticks that a counter must stand before its worker is held for dead, and that a beat keeps the fence open.
pub const HELD_FOR_ALIVE: u8 = 3;
/// A beat that comes more ticks after the one before is late.
pub const LATE: u8 = 1;
/// Ticks that a request takes at most.
pub const TIMEOUT: u8 = 1;
/// Counters are told apart up to here: this is the newest, what was the newest before is one less.
pub const COUNT_MAX: u8 = 3;

/// Whether the database answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Database {
    /// It does.
    Up,
    /// It does not.
    Down,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Power {
    /// It does.
    Running,
    /// It stands where it stood.
    Stopped,
    /// It is gone for good.
    Dead,
}

/// What the last step brought that is worth a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Nothing.
    None,
    /// A lane was claimed that still bore another's name.
    TookOver,
    /// RECORD discarded what was said of a lane that another has.
    Discarded,
    /// Something arrived that had arrived before.
    Repeated,
    /// A worker was declared dead that was never stopped.
    Wronged,
}

/// How much has happened of what is bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Used {
    /// See [`Bounds`].
    pub later: u8,
    /// See [`Bounds`].
    pub kills: u8,
    /// See [`Bounds`].
    pub stops: u8,
    /// See [`Bounds`].
    pub outages: u8,
    /// See [`Bounds`].
    pub lost_answers: u8,
    /// See [`Bounds`].
    pub bad_answers: u8,
}

/// A row of `outbox_lanes`, its dead letters, and what the receiver got of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// The newest delivery.
    pub last: u8,
    /// Every delivery up to here has ended.
    pub done: u8,
    /// Whose it is.
    pub owner: Option<usize>,
    /// Grows with each claim.
    pub epoch: u8,
    /// Ticks until it is due; None: nothing is to do.
    pub ready: Option<u8>,
    /// Dead letters, a bit each.
    pub dead: u8,
    /// What the receiver took, in the order of first arrivals.
    pub arrived: Vec<u8>,
    /// What it refused, a bit each.
    pub refused: u8,
    /// It got something for the first time before it had got all that comes before.
    pub out_of_order: bool,
}

impl Lane {
    /// Whether a claim would take it.
    pub fn is_due(&self, guards: Guards) -> bool {
        self.ready == Some(0) && (self.owner.is_none() || guards.orphans)
    }
}

/// A row of `outbox_workers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Row {
    /// Its counter; None: there is no row.
    pub count: Option<u8>,
    /// It was declared dead and has had no answer to a beat since.
    pub died: bool,
}

/// A counter as seen, and for how many ticks it stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// The counter; 0: an older one.
    pub count: u8,
    /// Ticks.
    pub age: u8,
}

/// A lane's task.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    /// Its lane.
    pub lane: usize,
    /// The epoch of its claim.
    pub epoch: u8,
    /// What it has handled.
    pub done: u8,
    /// The newest delivery that it knows of.
    pub last: u8,
    /// Ticks left of its lease.
    pub lease: u8,
    /// The claim is of an earlier life of the worker.
    pub old_life: bool,
    /// It was told that another has the lane.
    pub lost: bool,
    /// A request has begun: so many ticks ago.
    pub under_way: Option<u8>,
}

/// What waits for the recorder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Report {
    /// The epoch of the claim.
    pub epoch: u8,
    /// What has ended.
    pub done: u8,
    /// Dead letters, a bit each.
    pub dead: u8,
    /// The lane is given back.
    pub release: bool,
}

/// A worker process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Worker {
    /// Whether it runs.
    pub power: Power,
    /// It was stopped once.
    pub was_stopped: bool,
    /// Its counter, as last answered.
    pub count: u8,
    /// Ticks since its last answered beat was sent.
    pub fence_age: u8,
    /// Ticks since its heartbeat last came round.
    pub since_beat: u8,
    /// What it saw of the others.
    pub seen: Vec<Option<Seen>>,
    /// Whom it is about to declare dead, and where the counter stood.
    pub doomed: Option<(usize, u8)>,
    /// The claim loop has looked at the fence and is about to claim.
    pub chosen: bool,
    /// It was declared dead after that.
    pub chosen_in_old_life: bool,
    /// The answer of a claim was lost.
    pub doubt: bool,
    /// The epochs of the lanes that it holds.
    pub held: Vec<Option<u8>>,
    /// The tasks.
    pub runs: Vec<Run>,
    /// The recorder's reports, per lane.
    pub waiting: Vec<Option<Report>>,
}

impl Worker {
    /// One that has just started.
    pub fn new(workers: usize, lanes: usize) -> Self {
        Self {
            power: Power::Running,
            was_stopped: false,
            count: 0,
            fence_age: HELD_FOR_ALIVE,
            since_beat: 1,
            seen: vec![None; workers],
            doomed: None,
            chosen: false,
            chosen_in_old_life: false,
            doubt: false,
            held: vec![None; lanes],
            runs: Vec::new(),
            waiting: vec![None; lanes],
        }
    }

    /// `Fence::life`.
    pub fn is_fence_open(&self, guards: Guards) -> bool {
        self.fence_age < HELD_FOR_ALIVE || !guards.fence
    }

    /// Whether the run, asked now, would begin a request.
    pub fn would_send(&self, run: &Run, guards: Guards) -> bool {
        self.power == Power::Running
            && !run.lost
            && run.done < run.last
            && (run.lease > TIMEOUT || !guards.lease)
            && (!run.old_life || !guards.life)
            && self.is_fence_open(guards)
    }
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Whether the database answers.
    pub database: Database,
    /// Its lanes.
    pub lanes: Vec<Lane>,
    /// Its rows of workers.
    pub rows: Vec<Row>,
    /// The processes.
    pub workers: Vec<Worker>,
    /// What has happened.
    pub used: Used,
    /// What the last step brought.
    pub event: Event,
}

impl State {
    /// Workers that have just started, lanes with something in them.
    pub fn new(bounds: Bounds) -> Self {
        let ready = (bounds.deliveries > 0).then_some(0);
        let lane = Lane {
            last: bounds.deliveries,
            done: 0,
            owner: None,
            epoch: 0,
            ready,
            dead: 0,
            arrived: Vec::new(),
            refused: 0,
            out_of_order: false,
        };
        Self {
            database: Database::Up,
            lanes: vec![lane; bounds.lanes],
            rows: vec![Row::default(); bounds.workers],
            workers: vec![Worker::new(bounds.workers, bounds.lanes); bounds.workers],
            used: Used::default(),
            event: Event::None,
        }
    }

    /// Whether a claim would take something.
    pub fn is_something_due(&self, guards: Guards) -> bool {
        self.lanes.iter().any(|lane| lane.is_due(guards))
    }

    /// Whether a tick may pass: who runs has beaten, if it could, and has ended its requests.
    pub fn may_tick(&self) -> bool {
        self.workers.iter().filter(|worker| worker.power == Power::Running).all(|worker| {
            (self.database == Database::Down || worker.since_beat == 0)
                && worker.runs.iter().all(|run| run.under_way.is_none_or(|age| age < TIMEOUT))
        })
    }

    /// The order of a worker's tasks means nothing.
    pub fn runs_in_order(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.runs.sort_unstable());
    }
}
