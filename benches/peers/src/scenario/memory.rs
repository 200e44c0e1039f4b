//! What a worker's process holds in memory while very many deliveries wait.

use std::time::Duration;

use anyhow::Result;

use super::{Bench, ENDPOINTS, Outcome, TIMEOUT_MS};
use crate::cli::Options;
use crate::contender::Command;
use crate::cpu;
use crate::load::Load;
use crate::report::{Metric, less, told};
use crate::sink::Mode;

pub(crate) const METRICS: &[Metric] = &[
    less("resident_max_mib"),
    told("resident_after_a_quarter_mib"),
    told("resident_at_the_end_mib"),
    told("delivered"),
];

const LOOK: Duration = Duration::from_millis(100);

pub(crate) async fn run(bench: &mut Bench, options: &Options, name: &str) -> Result<Outcome> {
    let (deliveries, lanes) = (options.deliveries.unwrap_or(1_000_000), options.lanes.unwrap_or(10_000));
    let load = Load::new(deliveries, lanes, ENDPOINTS, options.payload_bytes);
    let database = bench.filled(name, load).await?;
    // At work all the time, and far from through at the end.
    bench.sink.mode_of_all(Mode::Slow(50)).await?;
    bench.sink.reset().await?;
    let mut worker = bench.contender(name, &database, TIMEOUT_MS)?;
    worker.tell(&Command::Start).await?;
    let time = Duration::from_secs(options.seconds.unwrap_or(60).into());
    let looks = time.as_millis() / LOOK.as_millis();
    let mut seen = Vec::new();
    for _ in 0..looks {
        tokio::time::sleep(LOOK).await;
        seen.push(cpu::resident_bytes(worker.id()));
    }
    let delivered = bench.sink.wait(0, Duration::ZERO).await?;
    worker.kill().await?;
    bench.sink.mode_of_all(Mode::Fast).await?;
    bench.server.remove(&database).await?;
    let mib = |bytes: Option<&u64>| *bytes.unwrap_or(&0) as f64 / f64::from(1 << 20);
    let mut outcome = Outcome::default();
    outcome.figures.insert("resident_max_mib", mib(seen.iter().max()));
    outcome.figures.insert("resident_after_a_quarter_mib", mib(seen.get(seen.len() / 4)));
    outcome.figures.insert("resident_at_the_end_mib", mib(seen.last()));
    outcome.figures.insert("delivered", delivered.into());
    Ok(outcome)
}
