//! The command line. Parses, and knows the defaults of each scenario.

use clap::{Parser, ValueEnum};

use crate::contender::{self, Setup};

/// What the program is asked to do by itself.
#[derive(Debug, Parser)]
pub(crate) enum Hidden {
    /// The receiver.
    Sink { endpoints: u16 },
    /// One of those who are measured.
    Contender {
        name: String,
        #[command(flatten)]
        setup: Setup,
    },
}

/// Measures surehook's delivery engine beside other workers over PostgreSQL, on the same server and the same receiver.
///
/// It starts a PostgreSQL of its own with default durability and a receiver, runs the contenders in rounds that take turns,
/// and prints medians (least to greatest in brackets), and surehook's median by that of the best other one.
/// Leave the machine alone meanwhile: all of it runs on the same processors.
#[derive(Debug, Parser)]
#[command(name = "peers", after_help = contenders(), max_term_width = 120)]
pub(crate) struct Options {
    /// What is measured.
    pub(crate) scenario: Scenario,
    /// Only these contenders, in this order.
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", value_parser = known)]
    pub(crate) only: Vec<String>,
    /// How often each contender runs.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// How many deliveries; the scenario has a number of its own.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) deliveries: Option<u32>,
    /// On how many lanes; the scenario has a number of its own.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) lanes: Option<u32>,
    /// How many events are produced a second; the scenario has a number of its own.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) per_second: Option<u32>,
    /// For how many seconds events are produced; the scenario has a number of its own.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) seconds: Option<u32>,
    /// How long the transaction is held, or the endpoint is down.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) minutes: u32,
    /// Claims also with 10,000,000: takes long, and 40 GB of disk with bodies of 1,500 bytes.
    #[arg(long)]
    pub(crate) huge: bool,
    /// The size of each body, in bytes.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(150..=65_536))]
    pub(crate) payload_bytes: u32,
    /// Give up on a run after so many seconds.
    #[arg(long, default_value_t = 120)]
    pub(crate) at_most_s: u64,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// 100,000 deliveries wait, on 1,000 lanes to 10 endpoints: how many a second, from the worker's start
    Drain,
    /// 30,000 wait, and each receiver takes 50 ms
    Slow,
    /// 10,000 lanes of one delivery each
    Many,
    /// 20,000 wait on a single lane: surehook beside a bare loop that sends one after the other
    One,
    /// 200 events a second, each in a transaction of its own: how long each takes from commit to arrival
    Steady,
    /// The processor time of a worker that has nothing to do
    Idle,
    /// As steady, to two endpoints, one of which begins to hang: what becomes of the other's latency
    NeighbourHangs,
    /// The same, with one that answers 500
    NeighbourFails,
    /// Of two nodes at work one is killed with 256 requests under way: how soon the other has sent what it held
    Takeover,
    /// 300 events a second while somebody holds a REPEATABLE READ transaction open (see --minutes)
    Held,
    /// An endpoint is down (see --minutes) while 20,000 deliveries to it wait, then it comes back
    Outage,
    /// 1,000,000 deliveries wait: what the worker's process holds in memory
    Memory,
    /// Time and pages of a claim with 1,000 and 100,000 waiting, and behind 100,000 published (--huge: 10,000,000)
    Claims,
}

impl Options {
    /// Who runs, in this order.
    pub(crate) fn contenders(&self) -> Vec<String> {
        if self.only.is_empty() && self.scenario == Scenario::One {
            vec!["surehook".into(), "bare".into()]
        } else if self.only.is_empty() {
            contender::ALL.iter().filter(|entry| entry.by_default).map(|entry| entry.name.into()).collect()
        } else {
            self.only.clone()
        }
    }
}

fn known(name: &str) -> Result<String, String> {
    if contender::ALL.iter().any(|entry| entry.name == name) {
        Ok(name.into())
    } else {
        let names: Vec<_> = contender::ALL.iter().map(|entry| entry.name).collect();
        Err(format!("this build has {}", names.join(", ")))
    }
}

fn contenders() -> String {
    let mut text = String::from("Contenders:\n");
    for entry in contender::ALL {
        let rarely = if entry.by_default { "" } else { " (only when named)" };
        text.push_str(&format!("  {:<15} {}{rarely}\n", entry.name, entry.about));
    }
    text
}
