//! What a worker costs that has nothing to do.

use std::time::Duration;

use anyhow::Result;

use super::{Bench, Outcome, TIMEOUT_MS};
use crate::cli::Options;
use crate::contender::Command;
use crate::cpu;
use crate::report::{Metric, less, told};

pub(crate) const METRICS: &[Metric] = &[
    less("worker_cpu_percent_of_a_core"),
    told("postgresql_cpu_percent_of_a_core"),
    told("sessions"),
    told("resident_mib"),
];

/// What is done once at the start does not count.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

pub(crate) async fn run(bench: &mut Bench, options: &Options, name: &str) -> Result<Outcome> {
    let database = bench.prepared(name).await?;
    bench.server.rest(&database).await?;
    let mut worker = bench.contender(name, &database, TIMEOUT_MS)?;
    worker.tell(&Command::Start).await?;
    tokio::time::sleep(SETTLED_AFTER).await;
    // Nobody looks at the sessions meanwhile: that would be work for the server.
    let before = [cpu::of(worker.id()), cpu::of_family(bench.server.id())];
    let time = Duration::from_secs(options.seconds.unwrap_or(30).into());
    tokio::time::sleep(time).await;
    let after = [cpu::of(worker.id()), cpu::of_family(bench.server.id())];
    let sessions = bench.server.watch(&database).await.seen().await?;
    let mut outcome = Outcome::default();
    for (metric, (before, after)) in METRICS.iter().zip(before.into_iter().zip(after)) {
        let share = after.saturating_sub(before).as_secs_f64() / time.as_secs_f64();
        outcome.figures.insert(metric.name, share * 100.0);
    }
    outcome.figures.insert("sessions", sessions.most as f64);
    outcome.figures.insert("resident_mib", cpu::resident_bytes(worker.id()) as f64 / f64::from(1 << 20));
    worker.kill().await?;
    bench.server.remove(&database).await?;
    Ok(outcome)
}
