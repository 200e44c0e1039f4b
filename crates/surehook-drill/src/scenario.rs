//! The scenarios: what each sets up, and how much of it. Pure.

use clap::ValueEnum;
use serde::Serialize;
use surehook_testkit::pusher::{HABITS_OF_PEOPLE, Habit};

/// What a run is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// 100 pushes at once into 100 repositories, while half of the requests to the CI time out
    AcceptanceSpread,
    /// The same into 100 branches of one repository: one strict order
    AcceptanceOne,
    /// The receiver is away for 2 s and for 2 min
    Outage,
    /// Resets, lost and late answers, 5xx, garbage, a slow drip
    Flaky,
    /// Processes of git are killed, of clients and of the host
    KillGit,
    /// serve is killed, alone and with its gits
    KillServer,
    /// Workers are killed and made to stand still
    KillWorker,
    /// The receiver and its database are killed
    KillReceiver,
    /// PostgreSQL is killed, stopped, made to stand still, its sessions ended, its disk filled
    KillPostgres,
    /// serve is restarted softly, again and again
    RestartStorm,
    /// Pushes of a thousand refs
    Mirror,
    /// Many clients on one ref
    Race,
    /// The same, and they delete it too, and with it the log of what the others did
    RaceDeletions,
    /// Pushes past the server, over SSH and file://, to a repository that it follows
    Imported,
    /// All of it at once
    Everything,
}

/// What a scenario sets up.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Repositories that surehook hosts.
    pub hosted: usize,
    /// Repositories that it follows elsewhere.
    pub imported: usize,
    /// Clients of each repository; 0: each pushes once, all of them at the same moment.
    pub clients_each: usize,
    /// What they do.
    pub habits: Vec<Habit>,
    /// Whether the branch that all clients move is deleted now and then.
    pub deletes_shared: bool,
    /// Workers beside the one in serve.
    pub workers: usize,
    /// Further options of the endpoint.
    pub endpoint: Vec<&'static str>,
    /// How long it goes on unless somebody says otherwise.
    pub duration_s: u64,
    /// Pushes of those that push once.
    pub pushes: usize,
}

const PATIENT: [&str; 8] =
    ["--timeout", "2s", "--retry-max-delay", "2s", "--max-attempts", "1000", "--max-unanswered", "1000"];

impl Scenario {
    /// Every one that must pass, in the order of the manual.
    pub const ALL: [Self; 14] = [
        Self::AcceptanceSpread,
        Self::AcceptanceOne,
        Self::Outage,
        Self::Flaky,
        Self::KillGit,
        Self::KillServer,
        Self::KillWorker,
        Self::KillReceiver,
        Self::KillPostgres,
        Self::RestartStorm,
        Self::Mirror,
        Self::Race,
        Self::Imported,
        Self::Everything,
    ];

    /// Whether it is one of the two in which half of all requests must time out.
    pub fn is_acceptance(self) -> bool {
        matches!(self, Self::AcceptanceSpread | Self::AcceptanceOne)
    }

    /// Its name as it is typed.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// What it sets up.
    pub fn shape(self) -> Shape {
        let people = Shape {
            hosted: 2,
            imported: 0,
            clients_each: 3,
            habits: HABITS_OF_PEOPLE.to_vec(),
            deletes_shared: false,
            workers: 0,
            endpoint: PATIENT.to_vec(),
            duration_s: 60,
            pushes: 0,
        };
        match self {
            Self::AcceptanceSpread => Shape {
                hosted: 100,
                clients_each: 0,
                endpoint: vec!["--timeout", "2s", "--retry-max-delay", "5s"],
                duration_s: 300,
                pushes: 100,
                ..people
            },
            Self::AcceptanceOne => Shape {
                hosted: 1,
                clients_each: 0,
                endpoint: vec!["--timeout", "1s", "--retry-max-delay", "2s"],
                duration_s: 300,
                pushes: 100,
                ..people
            },
            Self::Outage => Shape { duration_s: 150, ..people },
            Self::KillWorker => Shape { workers: 3, ..people },
            Self::Mirror => {
                Shape { hosted: 1, clients_each: 1, habits: vec![Habit::Many(1000)], duration_s: 20, ..people }
            }
            Self::Race | Self::RaceDeletions => Shape {
                hosted: 1,
                clients_each: 8,
                habits: vec![Habit::MoveShared],
                deletes_shared: self == Self::RaceDeletions,
                ..people
            },
            Self::Imported => Shape { hosted: 0, imported: 1, clients_each: 4, ..people },
            Self::Everything => Shape { imported: 1, workers: 2, clients_each: 2, duration_s: 180, ..people },
            _ => people,
        }
    }
}
