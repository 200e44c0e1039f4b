//! What is done to whom, and when: made from a seed, before anything runs. Pure: the same seed gives the same plan. What the
//! machine makes of it is different every time.

use serde::Serialize;
use surehook_testkit::dice::Dice;

use crate::scenario::Scenario;

/// A fault, and for how long if it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum Fault {
    /// Nobody listens where the receiver was.
    ReceiverAway {
        /// For how long.
        for_ms: u64,
    },
    /// So many of a hundred connections to the receiver get no answer; of half of them the request arrives.
    Timeouts {
        /// How many of a hundred.
        percent: u64,
        /// For how long.
        for_ms: u64,
    },
    /// So many of a hundred connections are reset.
    Resets {
        /// How many of a hundred.
        percent: u64,
        /// For how long.
        for_ms: u64,
    },
    /// Every answer is late by so much.
    Slow {
        /// How late.
        by_ms: u64,
        /// For how long.
        for_ms: u64,
    },
    /// The receiver's front door answers half of all requests with one of the ways in which front doors fail.
    FrontDoor {
        /// For how long.
        for_ms: u64,
    },
    /// SIGKILL for one of git's processes, of a client or of the host.
    KillGit,
    /// SIGKILL for `surehook serve`, and then it is started again.
    KillServer {
        /// With all the processes below it.
        tree: bool,
    },
    /// SIGTERM for `surehook serve`, and then it is started again.
    RestartServer,
    /// SIGKILL for a `surehook worker`, and then another is started.
    KillWorker,
    /// SIGSTOP for a worker, and SIGCONT later.
    FreezeWorker {
        /// For how long.
        for_ms: u64,
    },
    /// SIGKILL for `surehook receive`; its builds go on. Then it is started again.
    KillReceiver,
    /// SIGKILL for the sender's PostgreSQL, and a start at once.
    KillPostgres,
    /// The sender's PostgreSQL stands still.
    FreezePostgres {
        /// For how long.
        for_ms: u64,
    },
    /// The sender's PostgreSQL is stopped.
    StopPostgres {
        /// For how long.
        for_ms: u64,
    },
    /// An administrator ends every session with the sender's database.
    CutSessions,
    /// SIGKILL for the receiver's PostgreSQL, and a start at once.
    KillReceiverPostgres,
    /// The volume of the sender's PostgreSQL is full.
    FillDisk {
        /// For how long.
        for_ms: u64,
    },
}

/// A fault at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// When, from the first push on.
    pub at_ms: u64,
    /// What.
    #[serde(flatten)]
    pub fault: Fault,
}

/// All that is going to happen, by its beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// What it was made from.
    pub seed: u64,
    /// Which kind of faults.
    pub scenario: Scenario,
    /// When the last of them is to be over.
    pub duration_ms: u64,
    /// The faults.
    pub steps: Vec<Step>,
}

/// A fault without its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Away,
    LongAway,
    Timeouts,
    Resets,
    Slow,
    FrontDoor,
    Git,
    Server,
    Restart,
    Worker,
    Freeze,
    Receiver,
    Postgres,
    Sessions,
    Standstill,
    Stop,
    ReceiverPostgres,
    Disk,
}

/// Kinds that exclude each other, and how long it is quiet between two of them.
struct Track {
    kinds: &'static [Kind],
    pause_ms: (u64, u64),
}

impl Plan {
    /// The plan of this seed.
    pub fn new(scenario: Scenario, seed: u64, duration_ms: u64) -> Self {
        let mut dice = Dice::new(seed);
        let mut steps = Vec::new();
        if let Scenario::AcceptanceSpread | Scenario::AcceptanceOne = scenario {
            // From before the first push until all is delivered: that is asked of the sender, and nothing else.
            steps.push(Step { at_ms: 0, fault: Fault::Timeouts { percent: 50, for_ms: duration_ms } });
        }
        for track in tracks(scenario) {
            let mut dice = dice.split();
            let mut at_ms = dice.below(track.pause_ms.1);
            while at_ms < duration_ms {
                let fault = fault(*dice.pick(track.kinds), &mut dice, duration_ms - at_ms);
                steps.push(Step { at_ms, fault });
                at_ms += fault.lasts_ms() + between(&mut dice, track.pause_ms);
            }
        }
        steps.sort_by_key(|step| step.at_ms);
        Self { seed, scenario, duration_ms, steps }
    }
}

fn between(dice: &mut Dice, (least, most): (u64, u64)) -> u64 {
    least + dice.below(most - least)
}

fn tracks(scenario: Scenario) -> Vec<Track> {
    const NETWORK: &[Kind] = &[Kind::Away, Kind::Timeouts, Kind::Resets, Kind::Slow, Kind::FrontDoor];
    const HOST: &[Kind] = &[Kind::Server, Kind::Server, Kind::Restart, Kind::Worker, Kind::Freeze];
    const BOOKS: &[Kind] =
        &[Kind::Postgres, Kind::Sessions, Kind::Standstill, Kind::Stop, Kind::Receiver, Kind::ReceiverPostgres];
    let track = |kinds, least_ms, most_ms| Track { kinds, pause_ms: (least_ms, most_ms) };
    match scenario {
        Scenario::AcceptanceSpread | Scenario::AcceptanceOne => Vec::new(),
        Scenario::Outage => vec![track(&[Kind::Away, Kind::LongAway], 5_000, 15_000)],
        Scenario::Flaky => vec![track(&[Kind::Resets, Kind::FrontDoor, Kind::Slow, Kind::Timeouts], 500, 3_000)],
        Scenario::KillGit => vec![track(&[Kind::Git], 20, 300)],
        Scenario::KillServer => vec![track(&[Kind::Server], 500, 5_000)],
        Scenario::KillWorker => vec![track(&[Kind::Worker, Kind::Worker, Kind::Freeze], 500, 5_000)],
        Scenario::KillReceiver => vec![track(&[Kind::Receiver, Kind::Receiver, Kind::ReceiverPostgres], 500, 4_000)],
        Scenario::KillPostgres => {
            vec![track(&[Kind::Postgres, Kind::Sessions, Kind::Standstill, Kind::Stop, Kind::Disk], 1_000, 6_000)]
        }
        Scenario::RestartStorm => vec![track(&[Kind::Restart], 100, 1_500)],
        Scenario::Mirror => vec![track(&[Kind::Away, Kind::Timeouts], 2_000, 10_000)],
        Scenario::Race | Scenario::RaceDeletions => vec![track(NETWORK, 1_000, 5_000), track(&[Kind::Git], 200, 2_000)],
        Scenario::Imported => vec![track(&[Kind::Away], 5_000, 15_000), track(&[Kind::Server], 3_000, 10_000)],
        Scenario::Everything => vec![
            track(NETWORK, 1_000, 8_000),
            track(&[Kind::Git], 300, 4_000),
            track(HOST, 3_000, 15_000),
            track(BOOKS, 5_000, 25_000),
        ],
    }
}

fn fault(kind: Kind, dice: &mut Dice, left_ms: u64) -> Fault {
    let mut lasting = |least_ms, most_ms| between(dice, (least_ms, most_ms)).min(left_ms);
    match kind {
        Kind::Away => Fault::ReceiverAway { for_ms: 2_000.min(left_ms) },
        Kind::LongAway => Fault::ReceiverAway { for_ms: 120_000.min(left_ms) },
        Kind::Timeouts => Fault::Timeouts { for_ms: lasting(3_000, 15_000), percent: 50 },
        Kind::Resets => Fault::Resets { for_ms: lasting(2_000, 10_000), percent: 50 },
        Kind::Slow => Fault::Slow { for_ms: lasting(2_000, 10_000), by_ms: 100 + dice.below(900) },
        Kind::FrontDoor => Fault::FrontDoor { for_ms: lasting(3_000, 15_000) },
        Kind::Git => Fault::KillGit,
        Kind::Server => Fault::KillServer { tree: dice.one_in(2) },
        Kind::Restart => Fault::RestartServer,
        Kind::Worker => Fault::KillWorker,
        // Longer than others need to hold it for dead, as often as not.
        Kind::Freeze => Fault::FreezeWorker { for_ms: lasting(500, 15_000) },
        Kind::Receiver => Fault::KillReceiver,
        Kind::Postgres => Fault::KillPostgres,
        Kind::Sessions => Fault::CutSessions,
        Kind::Standstill => Fault::FreezePostgres { for_ms: lasting(500, 6_000) },
        Kind::Stop => Fault::StopPostgres { for_ms: lasting(500, 10_000) },
        Kind::ReceiverPostgres => Fault::KillReceiverPostgres,
        Kind::Disk => Fault::FillDisk { for_ms: lasting(2_000, 8_000) },
    }
}

impl Fault {
    /// How long it lasts; 0 if it is done as soon as it has begun.
    pub fn lasts_ms(self) -> u64 {
        match self {
            Self::ReceiverAway { for_ms }
            | Self::Timeouts { for_ms, .. }
            | Self::Resets { for_ms, .. }
            | Self::Slow { for_ms, .. }
            | Self::FrontDoor { for_ms }
            | Self::FreezeWorker { for_ms }
            | Self::FreezePostgres { for_ms }
            | Self::StopPostgres { for_ms }
            | Self::FillDisk { for_ms } => for_ms,
            _ => 0,
        }
    }

    /// In words, for people.
    pub fn words(self) -> String {
        match self {
            Self::ReceiverAway { .. } => "the receiver is away".into(),
            Self::Timeouts { percent, .. } => format!("{percent} % of the requests time out"),
            Self::Resets { percent, .. } => format!("{percent} % of the connections are reset"),
            Self::Slow { by_ms, .. } => format!("answers are late by {by_ms} ms"),
            Self::FrontDoor { .. } => "the front door fails: 503, 502, 500, lost answers, garbage, a drip".into(),
            Self::KillGit => "a git process is killed".into(),
            Self::KillServer { tree: false } => "serve is killed".into(),
            Self::KillServer { tree: true } => "serve is killed with all its gits".into(),
            Self::RestartServer => "serve is restarted softly".into(),
            Self::KillWorker => "a worker is killed".into(),
            Self::FreezeWorker { .. } => "a worker stands still".into(),
            Self::KillReceiver => "the receiver is killed".into(),
            Self::KillPostgres => "PostgreSQL is killed".into(),
            Self::FreezePostgres { .. } => "PostgreSQL stands still".into(),
            Self::StopPostgres { .. } => "PostgreSQL is stopped".into(),
            Self::CutSessions => "all sessions with PostgreSQL are ended".into(),
            Self::KillReceiverPostgres => "the receiver's PostgreSQL is killed".into(),
            Self::FillDisk { .. } => "PostgreSQL's disk is full".into(),
        }
    }

    /// The row of the picture that it stands in.
    pub fn lane(self) -> &'static str {
        match self {
            Self::ReceiverAway { .. }
            | Self::Timeouts { .. }
            | Self::Resets { .. }
            | Self::Slow { .. }
            | Self::FrontDoor { .. } => "network",
            Self::KillGit => "git",
            Self::KillServer { .. } | Self::RestartServer => "serve",
            Self::KillWorker | Self::FreezeWorker { .. } => "workers",
            Self::KillReceiver | Self::KillReceiverPostgres => "receiver",
            Self::KillPostgres
            | Self::FreezePostgres { .. }
            | Self::StopPostgres { .. }
            | Self::CutSessions
            | Self::FillDisk { .. } => "PostgreSQL",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_plan_and_another_seed_another() {
        for scenario in Scenario::ALL {
            let plan = Plan::new(scenario, 7, 60_000);
            assert_eq!(plan, Plan::new(scenario, 7, 60_000));
            assert!(!plan.steps.is_empty(), "{scenario:?}");
            assert!(plan.steps.is_sorted_by_key(|step| step.at_ms));
            assert!(plan.steps.iter().all(|step| step.at_ms + step.fault.lasts_ms() <= 60_000), "{scenario:?}");
            let is_drawn = !matches!(scenario, Scenario::AcceptanceSpread | Scenario::AcceptanceOne);
            assert_eq!(plan.steps != Plan::new(scenario, 8, 60_000).steps, is_drawn, "{scenario:?}");
        }
    }
}
