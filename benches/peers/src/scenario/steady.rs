//! How long an event takes from its commit to the receiver, at a rate that is no strain, and what each costs.

use std::time::Duration;

use anyhow::Result;

use super::produced::{self, Latencies};
use super::{Bench, ENDPOINTS, Outcome, TIMEOUT_MS};
use crate::cli::Options;
use crate::clock::now_ns;
use crate::contender::Command;
use crate::cpu;
use crate::load::Load;
use crate::report::{Metric, less, told};
use crate::sink::Mode;

pub(crate) const METRICS: &[Metric] = &[
    less("p50_ms"),
    less("p99_ms"),
    told("most_ms"),
    told("worker_and_producer_cpu_us"),
    told("postgresql_cpu_us"),
    told("sessions"),
    told("duplicates"),
    told("out_of_order"),
    told("missing"),
];

/// Sessions, plans and connections are made in the first second, which does not count.
const WARM_UP_S: u32 = 1;

/// How long the last ones are waited for.
const TAIL: Duration = Duration::from_secs(10);

pub(crate) async fn run(bench: &mut Bench, options: &Options, name: &str) -> Result<Outcome> {
    let database = bench.prepared(name).await?;
    bench.server.rest(&database).await?;
    bench.sink.mode_of_all(Mode::Fast).await?;
    bench.sink.reset().await?;
    let outcome = measure(bench, options, name, &database).await;
    bench.server.remove(&database).await?;
    outcome
}

async fn measure(bench: &mut Bench, options: &Options, name: &str, database: &str) -> Result<Outcome> {
    let per_second = options.per_second.unwrap_or(200);
    let deliveries = per_second * (WARM_UP_S + options.seconds.unwrap_or(20));
    let load = Load::new(deliveries, options.lanes.unwrap_or(1000), ENDPOINTS, options.payload_bytes);
    let watch = bench.server.watch(database).await;
    let mut worker = bench.contender(name, database, TIMEOUT_MS)?;
    worker.tell(&Command::Start).await?;
    let used = |worker: u32, bench: &Bench| [cpu::of(worker), cpu::of_family(bench.server.id())];
    let before = used(worker.id(), bench);
    let commits = produced::produce(&mut worker, load, per_second).await?;
    bench.sink.wait(load.deliveries, TAIL).await?;
    let after = used(worker.id(), bench);
    let sessions = watch.seen().await?;
    worker.kill().await?;
    let summary = produced::summary(bench).await?;
    let mut latencies = Latencies::of(&commits, &summary, now_ns(), |id| id >= per_second * WARM_UP_S);
    let mut outcome = Outcome::default();
    let figures = &mut outcome.figures;
    for (name, share) in [("p50_ms", 0.5), ("p99_ms", 0.99), ("most_ms", 1.0)] {
        figures.insert(name, latencies.percentile(share));
    }
    let names = ["worker_and_producer_cpu_us", "postgresql_cpu_us"];
    for (name, (before, after)) in names.into_iter().zip(before.into_iter().zip(after)) {
        figures.insert(name, after.saturating_sub(before).as_secs_f64() * 1e6 / f64::from(load.deliveries));
    }
    figures.insert("sessions", sessions.most as f64);
    figures.insert("duplicates", summary.duplicates as f64);
    figures.insert("out_of_order", summary.out_of_order as f64);
    figures.insert("missing", latencies.missing as f64);
    if latencies.missing > 0 && name != "plain" {
        outcome.trouble = Some(format!("{} had not arrived {TAIL:?} after the last commit", latencies.missing));
    }
    Ok(outcome)
}
