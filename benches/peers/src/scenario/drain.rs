//! How quickly a backlog is delivered, and what each delivery costs the processors.

use std::time::Duration;

use anyhow::Result;

use super::arrivals::Summary;
use super::{Bench, ENDPOINTS, Outcome, TIMEOUT_MS};
use crate::cli::{Options, Scenario};
use crate::contender::Command;
use crate::cpu;
use crate::load::Load;
use crate::report::{Metric, less, more, told};
use crate::sink::Mode;

pub(crate) const METRICS: &[Metric] = &[
    more("deliveries_per_s"),
    told("worker_cpu_us"),
    told("postgresql_cpu_us"),
    told("receiver_cpu_us"),
    less("recorded_after_ms"),
    told("sessions"),
    told("duplicates"),
    told("out_of_order"),
];

/// The plain worker is not waited for to the end: its rate is the same from the first second on.
const PLAIN_FOR: Duration = Duration::from_secs(15);

pub(crate) async fn run(bench: &mut Bench, options: &Options, name: &str) -> Result<Outcome> {
    let (deliveries, lanes, endpoints, mode) = match options.scenario {
        Scenario::Slow => (30_000, 1000, ENDPOINTS, Mode::Slow(50)),
        Scenario::Many => (10_000, 10_000, ENDPOINTS, Mode::Fast),
        Scenario::One => (20_000, 1, 1, Mode::Fast),
        _ => (100_000, 1000, ENDPOINTS, Mode::Fast),
    };
    let (deliveries, lanes) = (options.deliveries.unwrap_or(deliveries), options.lanes.unwrap_or(lanes));
    let load = Load::new(deliveries, lanes, endpoints, options.payload_bytes);
    let database = bench.filled(name, load).await?;
    bench.sink.mode_of_all(mode).await?;
    bench.sink.reset().await?;
    let outcome = drain(bench, options, name, &database, load).await;
    bench.server.remove(&database).await?;
    outcome
}

async fn drain(bench: &mut Bench, options: &Options, name: &str, database: &str, load: Load) -> Result<Outcome> {
    let watch = bench.server.watch(database).await;
    let mut worker = bench.contender(name, database, TIMEOUT_MS)?;
    let used =
        |worker: u32, bench: &Bench| [cpu::of(worker), cpu::of_family(bench.server.id()), cpu::of(bench.sink.id())];
    let before = used(worker.id(), bench);
    let begun_ns = worker.tell(&Command::Start).await?.begun_ns;
    let at_most = if name == "plain" { PLAIN_FOR } else { Duration::from_secs(options.at_most_s) };
    let accepted = bench.sink.wait(load.deliveries, at_most).await?;
    let complete = accepted >= load.deliveries;
    let mut outcome = Outcome::default();
    let settled_ns = if complete { Some(worker.tell(&Command::Settle).await?.done_ns) } else { None };
    let after = used(worker.id(), bench);
    let sessions = watch.seen().await?;
    if complete {
        worker.tell(&Command::Stop).await?;
    }
    worker.kill().await?;
    let summary = Summary::of(&bench.sink.arrivals().await?);
    if !complete && name != "plain" {
        let text = format!("{} of {} arrived within {at_most:?}", summary.accepted, load.deliveries);
        outcome.trouble = Some(text);
    }
    if summary.accepted == 0 {
        return Ok(outcome);
    }
    let count = summary.accepted as f64;
    let took_s = summary.last_ns.saturating_sub(begun_ns) as f64 / 1e9;
    outcome.figures.insert("deliveries_per_s", count / took_s);
    let names = ["worker_cpu_us", "postgresql_cpu_us", "receiver_cpu_us"];
    for (name, (before, after)) in names.into_iter().zip(before.into_iter().zip(after)) {
        outcome.figures.insert(name, after.saturating_sub(before).as_secs_f64() * 1e6 / count);
    }
    if let Some(settled_ns) = settled_ns {
        outcome.figures.insert("recorded_after_ms", settled_ns.saturating_sub(summary.last_ns) as f64 / 1e6);
    }
    outcome.figures.insert("sessions", sessions.most as f64);
    outcome.figures.insert("duplicates", summary.duplicates as f64);
    outcome.figures.insert("out_of_order", summary.out_of_order as f64);
    Ok(outcome)
}
