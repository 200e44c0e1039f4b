//! Delivery, as a model: workers that share lanes, are killed, stopped and cut off from the database. Touches its own state alone.
//!
//! What is in the database, in a worker and at the receiver is in [`state`], the steps of a worker in [`steps`], what must hold in
//! [`truth`]. A step is what nobody else can get between: one statement, one request, one look at the clock with what follows from it.
//!
//! Time goes in ticks, the same for all; only ages are kept, up to where they make no difference, so there are finitely many states.
//! A process that runs beats once a tick while the database answers, and ends a request within a tick; one that is stopped does
//! neither. Left out: several endpoints, windows, retention, suspects and the third crash, clean stops, locked lanes that are passed
//! over, cut statements that commit later, that nobody is judged right after an outage (what must hold, holds without), and how
//! long an endpoint waits before the next attempt.

pub mod state;
pub mod steps;
pub mod truth;

use stateright::{Model, Property};

use self::state::{Database, Power, State};

/// How much may happen.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Workers.
    pub workers: usize,
    /// Lanes.
    pub lanes: usize,
    /// Deliveries of each lane that are there from the beginning.
    pub deliveries: u8,
    /// Deliveries that are put into some lane later on.
    pub later: u8,
    /// How often a lane may be claimed.
    pub claims: u8,
    /// Ticks that a lane is held from a claim on.
    pub lease: u8,
    /// How many workers are killed.
    pub kills: u8,
    /// How often a worker is stopped, to go on at any time later.
    pub stops: u8,
    /// How often the database goes away, or stands still with all its connections.
    pub outages: u8,
    /// How often a statement takes effect and its answer is lost.
    pub lost_answers: u8,
    /// How often the receiver says nothing (having heard, or not), or refuses for good.
    pub bad_answers: u8,
}

impl Bounds {
    /// Two workers, one lane with two deliveries, no faults.
    pub const CALM: Self = Self {
        workers: 2,
        lanes: 1,
        deliveries: 2,
        later: 0,
        claims: 2,
        lease: 3,
        kills: 0,
        stops: 0,
        outages: 0,
        lost_answers: 0,
        bad_answers: 0,
    };
}

/// The protections; without one the model must fail.
#[derive(Clone, Copy, Debug)]
pub struct Guards {
    /// RECORD heeds only the claim that the lane bears: its epoch and its owner.
    pub epoch: bool,
    /// A worker is dead only if its counter stood still for [`state::HELD_FOR_ALIVE`]; without: as soon as it is looked at.
    pub counter: bool,
    /// It is declared dead only if its counter still stands there at that moment.
    pub still_stands: bool,
    /// Whoever was late itself forgets what it saw of others.
    pub late: bool,
    /// Without a fresh beat a worker claims nothing and begins no request.
    pub fence: bool,
    /// What was claimed before the worker was declared dead is not sent any more.
    pub life: bool,
    /// No request begins that might end after the lease.
    pub lease: bool,
    /// A delivery is sent after the one before it has ended.
    pub in_turn: bool,
    /// Silence is no success.
    pub silence: bool,
    /// What a claim took whose answer was lost is given back.
    pub doubt: bool,
    /// A lane that is due can be claimed although it bears a name.
    pub orphans: bool,
    /// `Waiting::add`: of the reports of two claims of a lane that of the newer claim counts; without: the later report.
    pub newer_report: bool,
}

impl Guards {
    /// All of them.
    pub const ALL: Self = Self {
        epoch: true,
        counter: true,
        still_stands: true,
        late: true,
        fence: true,
        life: true,
        lease: true,
        in_turn: true,
        silence: true,
        doubt: true,
        orphans: true,
        newer_report: true,
    };
}

/// What would close a gap that the code has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mends {
    /// A death shows at the next beat that is answered, whatever answers were lost before. With the counter alone, which begins
    /// again at 1, that is so only if no more answers are lost after the death than beats were counted before it.
    pub deaths_told: bool,
}

/// What the receiver does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Takes it and says so.
    Ok,
    /// Takes it, and the answer does not come.
    SilentHeard,
    /// Does not get it, and no answer comes.
    SilentUnheard,
    /// Refuses it for good: a dead letter.
    Refused,
}

/// One step; the numbers are worker, then lane, or the place of a run among those of its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A tick of time.
    Tick,
    /// The database goes away; connections break.
    DatabaseAway,
    /// The database stands still; connections stay.
    DatabaseFrozen,
    /// The database answers again.
    DatabaseBack,
    /// SIGKILL.
    Kill(usize),
    /// SIGSTOP.
    Stop(usize),
    /// SIGCONT.
    Continue(usize),
    /// Something is put into the lane.
    Enqueue(usize),
    /// `heartbeat::watch`: one round, a beat and a look at the others. `false`: the answer of the beat was lost.
    Watch(usize, bool),
    /// `workers::declare_dead`.
    DeclareDead(usize),
    /// `claims::look`, up to the statement.
    Look(usize),
    /// `claim::claim` and the tasks begun. `false`: the answer was lost.
    Claim(usize, bool),
    /// `workers::give_back_unknown`.
    GiveBackUnknown(usize),
    /// `LaneRun::is_clear_to_send`, or what ends the run before it.
    IsClearToSend(usize, usize),
    /// `LaneRun::send`, and the report of its answer.
    Send(usize, usize, Answer),
    /// `record::record`, and what the recorder does with the answer. `false`: the answer was lost.
    Record(usize, usize, bool),
}

/// The model.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// How much may happen.
    pub bounds: Bounds,
    /// What protects.
    pub guards: Guards,
    /// What would mend it.
    pub mends: Mends,
}

impl Delivery {
    /// The code as it is.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, guards: Guards::ALL, mends: Mends::default() }
    }

    /// What may happen that is no fault.
    pub fn fair(&self, state: &State, steps: &mut Vec<Step>) {
        if state.database == Database::Up {
            for index in 0..state.workers.len() {
                if state.workers[index].power == Power::Running {
                    self.statements(state, index, steps);
                }
            }
        }
        for (index, worker) in state.workers.iter().enumerate().filter(|(_, worker)| worker.power == Power::Running) {
            for (place, run) in worker.runs.iter().enumerate() {
                if run.under_way.is_some() {
                    steps.push(Step::Send(index, place, Answer::Ok));
                } else {
                    steps.push(Step::IsClearToSend(index, place));
                }
            }
            if !worker.chosen
                && !worker.doubt
                && worker.is_fence_open(self.guards)
                && state.is_something_due(self.guards)
            {
                steps.push(Step::Look(index));
            }
        }
        if state.may_tick() {
            steps.push(Step::Tick);
        }
    }

    fn statements(&self, state: &State, index: usize, steps: &mut Vec<Step>) {
        let worker = &state.workers[index];
        if worker.doomed.is_some() {
            steps.push(Step::DeclareDead(index));
        } else if worker.since_beat > 0 {
            steps.push(Step::Watch(index, true));
        }
        for lane in 0..state.lanes.len() {
            if worker.waiting[lane].is_some() {
                steps.push(Step::Record(index, lane, true));
            }
        }
        if worker.doubt {
            steps.push(Step::GiveBackUnknown(index));
        } else if worker.chosen {
            steps.push(Step::Claim(index, true));
        }
    }

    fn faults(&self, state: &State, steps: &mut Vec<Step>) {
        let used = state.used;
        if state.database != Database::Up {
            steps.push(Step::DatabaseBack);
        } else if used.outages < self.bounds.outages {
            steps.extend([Step::DatabaseAway, Step::DatabaseFrozen]);
        }
        for (index, worker) in state.workers.iter().enumerate() {
            if worker.power != Power::Dead && used.kills < self.bounds.kills {
                steps.push(Step::Kill(index));
            }
            match worker.power {
                Power::Running if used.stops < self.bounds.stops => steps.push(Step::Stop(index)),
                Power::Stopped => steps.push(Step::Continue(index)),
                Power::Running | Power::Dead => {}
            }
        }
        if used.later < self.bounds.later {
            steps.extend((0..state.lanes.len()).map(Step::Enqueue));
        }
    }
}

impl Model for Delivery {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.bounds)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        self.fair(state, steps);
        for step in steps.clone() {
            match step {
                Step::Watch(worker, true) if state.used.lost_answers < self.bounds.lost_answers => {
                    steps.push(Step::Watch(worker, false));
                }
                Step::Claim(worker, true) if state.used.lost_answers < self.bounds.lost_answers => {
                    steps.push(Step::Claim(worker, false));
                }
                Step::Record(worker, lane, true) if state.used.lost_answers < self.bounds.lost_answers => {
                    steps.push(Step::Record(worker, lane, false));
                }
                Step::Send(worker, run, Answer::Ok) if state.used.bad_answers < self.bounds.bad_answers => {
                    let answers = [Answer::SilentHeard, Answer::SilentUnheard, Answer::Refused];
                    steps.extend(answers.map(|answer| Step::Send(worker, run, answer)));
                }
                _ => {}
            }
        }
        self.faults(state, steps);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        steps::take(&mut next, step, self);
        next.runs_in_order();
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        truth::properties()
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.lanes.iter().all(|lane| lane.epoch <= self.bounds.claims)
    }
}
