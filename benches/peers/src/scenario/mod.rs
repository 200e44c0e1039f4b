//! What is measured: one module per kind. Here: what they share, and the rounds that take turns.

mod arrivals;
mod claims;
mod drain;
mod held;
mod idle;
mod memory;
mod neighbour;
mod outage;
mod produced;
mod steady;
mod takeover;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;

use crate::child::{self, Contender, Sink};
use crate::cli::{Options, Scenario};
use crate::contender::{Command, Setup};
use crate::load::Load;
use crate::report::{Figures, Metric, Report, Row};
use crate::server::Server;

/// Endpoints that the receiver has.
const ENDPOINTS: u16 = 10;

/// What a receiver may take, unless a scenario says otherwise.
const TIMEOUT_MS: u64 = 10_000;

/// All that a run needs.
pub(crate) struct Bench {
    pub(crate) server: Server,
    pub(crate) sink: Sink,
    river: Option<PathBuf>,
}

/// What one run gave.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) figures: Figures,
    /// What did not go as it should, in words.
    pub(crate) trouble: Option<String>,
}

impl Bench {
    /// A contender's process for a database.
    pub(crate) fn contender(&self, name: &str, database: &str, timeout_ms: u64) -> Result<Contender> {
        let setup = Setup {
            socket: self.server.socket()?,
            database: database.into(),
            port: self.sink.port,
            endpoints: ENDPOINTS,
            timeout_ms,
        };
        Contender::start(name, &setup, self.river.as_deref())
    }

    /// A fresh database with a contender's schema and endpoints.
    pub(crate) async fn prepared(&mut self, name: &str) -> Result<String> {
        let database = self.server.create().await?;
        let mut contender = self.contender(name, &database, TIMEOUT_MS)?;
        contender.tell(&Command::Prepare).await?;
        contender.kill().await?;
        Ok(database)
    }

    /// The same with a load that waits to be delivered.
    pub(crate) async fn filled(&mut self, name: &str, load: Load) -> Result<String> {
        let database = self.prepared(name).await?;
        let mut filler = self.contender(name, &database, TIMEOUT_MS)?;
        filler.tell(&Command::Fill { load }).await?;
        filler.kill().await?;
        self.server.rest(&database).await?;
        Ok(database)
    }
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let mut names = options.contenders();
    let river = if names.iter().any(|name| name == "river") { child::build_river().await? } else { None };
    if river.is_none() && names.iter().any(|name| name == "river") {
        eprintln!("go is not there, so River is left out");
        names.retain(|name| name != "river");
    }
    let mut bench =
        Bench { server: Server::start(preload(options.scenario)).await?, sink: Sink::start(ENDPOINTS).await?, river };
    let mut report =
        Report::new(&title(options.scenario), metrics(options.scenario), conditions(&bench, options).await?);
    report.contenders = names
        .iter()
        .map(|name| Row { contender: name.clone(), medians: Figures::new(), rounds: Vec::new(), troubles: Vec::new() })
        .collect();
    for round in 0..options.rounds {
        // Each goes first once in a while: tables, files and the machine are not the same later in a round.
        for place in 0..names.len() {
            let row = &mut report.contenders[(place + round as usize) % names.len()];
            eprintln!("round {} of {}: {}", round + 1, options.rounds, row.contender);
            match once(&mut bench, options, &row.contender).await {
                Ok(outcome) => {
                    row.rounds.push(outcome.figures);
                    row.troubles.extend(outcome.trouble.map(|trouble| format!("round {}: {trouble}", round + 1)));
                }
                Err(error) => row.troubles.push(format!("round {}: {error:#}", round + 1)),
            }
        }
    }
    report.finish();
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.table());
    }
    Ok(())
}

async fn once(bench: &mut Bench, options: &Options, name: &str) -> Result<Outcome> {
    match options.scenario {
        Scenario::Drain | Scenario::Slow | Scenario::Many | Scenario::One => drain::run(bench, options, name).await,
        Scenario::Steady => steady::run(bench, options, name).await,
        Scenario::Idle => idle::run(bench, options, name).await,
        Scenario::Claims => claims::run(bench, options, name).await,
        Scenario::Memory => memory::run(bench, options, name).await,
        Scenario::Outage => outage::run(bench, options, name).await,
        Scenario::Held => held::run(bench, options, name).await,
        Scenario::Takeover => takeover::run(bench, options, name).await,
        Scenario::NeighbourHangs | Scenario::NeighbourFails => neighbour::run(bench, options, name).await,
    }
}

/// What the server needs besides its defaults.
fn preload(scenario: Scenario) -> Option<&'static str> {
    (scenario == Scenario::Claims).then_some(claims::PRELOAD)
}

/// As the command line calls it.
fn title(scenario: Scenario) -> String {
    scenario.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn metrics(scenario: Scenario) -> &'static [Metric] {
    match scenario {
        Scenario::Drain | Scenario::Slow | Scenario::Many | Scenario::One => drain::METRICS,
        Scenario::Steady => steady::METRICS,
        Scenario::Idle => idle::METRICS,
        Scenario::Claims => claims::METRICS,
        Scenario::Memory => memory::METRICS,
        Scenario::Outage => outage::METRICS,
        Scenario::Held => held::METRICS,
        Scenario::Takeover => takeover::METRICS,
        Scenario::NeighbourHangs | Scenario::NeighbourFails => neighbour::METRICS,
    }
}

async fn conditions(bench: &Bench, options: &Options) -> Result<BTreeMap<&'static str, String>> {
    let load = std::fs::read_to_string("/proc/loadavg").context("/proc/loadavg")?;
    let load = load.split_whitespace().next().unwrap_or_default();
    Ok(BTreeMap::from([
        ("processors", std::thread::available_parallelism()?.to_string()),
        ("processes that wanted to run before the start, mean of a minute", load.into()),
        ("PostgreSQL", bench.server.version().await?),
        ("rounds", options.rounds.to_string()),
        ("payload, bytes", options.payload_bytes.to_string()),
    ]))
}
