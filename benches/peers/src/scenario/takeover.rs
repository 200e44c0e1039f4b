//! Two nodes at work; the one that began is killed with its hands full. How soon the other one has sent what it held.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, bail};

use super::arrivals::Summary;
use super::{Bench, ENDPOINTS, Outcome, TIMEOUT_MS};
use crate::cli::Options;
use crate::clock::now_ns;
use crate::contender::Command;
use crate::load::Load;
use crate::report::{Metric, less, told};
use crate::sink::{self, Arrival, Mode};

pub(crate) const METRICS: &[Metric] = &[
    told("held_at_the_kill"),
    less("first_of_them_after_s"),
    less("last_of_them_after_s"),
    told("never_sent"),
    told("accepted_twice"),
    told("out_of_order"),
];

/// What the first one is to hold when it is killed.
const HELD: u32 = 256;

/// What each receiver takes: long enough that hundreds are under way.
const SLOW_MS: u64 = 1_000;

/// How long the first one may take until it holds so many, and how long it and the second one know each other then.
const FILLED_WITHIN: Duration = Duration::from_secs(60);
const TOGETHER: Duration = Duration::from_secs(5);

pub(crate) async fn run(bench: &mut Bench, options: &Options, name: &str) -> Result<Outcome> {
    // Each on a lane of its own, so that it is the workers that say how many are under way.
    let deliveries = options.deliveries.unwrap_or(20_000);
    let load = Load::new(deliveries, options.lanes.unwrap_or(deliveries), ENDPOINTS, options.payload_bytes);
    let database = bench.filled(name, load).await?;
    bench.sink.mode_of_all(Mode::Slow(SLOW_MS)).await?;
    bench.sink.reset().await?;
    let outcome = measure(bench, options, name, &database).await;
    bench.sink.mode_of_all(Mode::Fast).await?;
    bench.server.remove(&database).await?;
    outcome
}

async fn measure(bench: &mut Bench, options: &Options, name: &str, database: &str) -> Result<Outcome> {
    let mut first = bench.contender(name, database, TIMEOUT_MS)?;
    first.tell(&Command::Start).await?;
    let end_ns = now_ns() + u64::try_from(FILLED_WITHIN.as_nanos())?;
    let mut most = 0;
    while most < HELD {
        let stats = bench.sink.ask(&sink::Command::Stats).await?;
        most = most.max(stats.in_flight.iter().sum());
        if now_ns() > end_ns {
            bail!("it never had {HELD} under way, {most} at most");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut second = bench.contender(name, database, TIMEOUT_MS)?;
    second.tell(&Command::Start).await?;
    tokio::time::sleep(TOGETHER).await;
    first.kill().await?;
    let killed_ns = now_ns();
    // From here on receivers are quick: what is waited for is the other node.
    bench.sink.mode_of_all(Mode::Fast).await?;
    let end_ns = killed_ns + u64::try_from(Duration::from_secs(options.at_most_s).as_nanos())?;
    let held = loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let arrivals = bench.sink.arrivals().await?;
        let held = Held::of(&arrivals, killed_ns);
        // The receivers have taken all that the second one had under way at the kill.
        let settled = now_ns() > killed_ns + 2 * SLOW_MS * 1_000_000;
        if (settled && held.never == 0) || now_ns() > end_ns {
            break (held, Summary::of(&arrivals));
        }
    };
    second.kill().await?;
    let (held, summary) = held;
    let mut outcome = Outcome::default();
    let figures = &mut outcome.figures;
    figures.insert("held_at_the_kill", (held.again_ns.len() + held.never) as f64);
    let after_s = |at_ns: Option<&u64>| at_ns.map(|at_ns| at_ns.saturating_sub(killed_ns) as f64 / 1e9);
    figures.extend(after_s(held.again_ns.iter().min()).map(|after_s| ("first_of_them_after_s", after_s)));
    if held.never == 0 {
        figures.extend(after_s(held.again_ns.iter().max()).map(|after_s| ("last_of_them_after_s", after_s)));
    } else {
        outcome.trouble = Some(format!("{} were not sent again within {} s", held.never, options.at_most_s));
    }
    figures.insert("never_sent", held.never as f64);
    figures.insert("accepted_twice", summary.duplicates as f64);
    figures.insert("out_of_order", summary.out_of_order as f64);
    Ok(outcome)
}

/// What the killed one had under way: its requests were never answered, because nobody was there any more.
struct Held {
    /// When each was accepted after all.
    again_ns: Vec<u64>,
    never: usize,
}

impl Held {
    fn of(arrivals: &[Arrival], killed_ns: u64) -> Self {
        let mut ends: HashMap<u32, Option<u64>> = HashMap::new();
        for arrival in arrivals.iter().filter(|arrival| !arrival.accepted && arrival.at_ns <= killed_ns) {
            ends.insert(arrival.id, None);
        }
        for arrival in arrivals.iter().filter(|arrival| arrival.accepted) {
            if let Some(end) = ends.get_mut(&arrival.id) {
                end.get_or_insert(arrival.at_ns);
            }
        }
        let never = ends.values().filter(|end| end.is_none()).count();
        Self { again_ns: ends.into_values().flatten().collect(), never }
    }
}
