//! Somebody holds a REPEATABLE READ transaction open for minutes, as a backup does, so that no dead row can be removed.

use std::time::Duration;

use anyhow::Result;

use super::produced::{self, Latencies};
use super::{Bench, ENDPOINTS, Outcome, TIMEOUT_MS};
use crate::cli::Options;
use crate::clock::now_ns;
use crate::contender::Command;
use crate::load::Load;
use crate::report::{Metric, less, told};
use crate::sink::Mode;

pub(crate) const METRICS: &[Metric] = &[
    told("p99_before_ms"),
    less("p99_while_held_ms"),
    less("held_by_before"),
    less("p99_of_the_last_minute_ms"),
    told("last_half_by_first_half"),
    told("p99_after_ms"),
    told("missing"),
    told("out_of_order"),
];

/// Before the transaction and after it.
const AROUND_S: u32 = 30;

/// How long it may take to recover before that is measured.
const RECOVERY: Duration = Duration::from_secs(10);

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
    let per_second = options.per_second.unwrap_or(300);
    let held_s = options.minutes * 60;
    let all = Load::new(0, options.lanes.unwrap_or(1000), ENDPOINTS, options.payload_bytes);
    let part = |first_id, seconds| Load { first_id, deliveries: per_second * seconds, ..all };
    let before = part(0, AROUND_S);
    let during = part(before.deliveries, held_s);
    let after = part(during.first_id + during.deliveries, AROUND_S);

    let mut worker = bench.contender(name, database, TIMEOUT_MS)?;
    worker.tell(&Command::Start).await?;
    let mut commits = produced::produce(&mut worker, before, per_second).await?;
    let holder = bench.server.connect(database).await;
    holder.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class").await?;
    commits.extend(produced::produce(&mut worker, during, per_second).await?);
    holder.batch_execute("COMMIT").await?;
    tokio::time::sleep(RECOVERY).await;
    commits.extend(produced::produce(&mut worker, after, per_second).await?);
    bench.sink.wait(after.first_id + after.deliveries, TAIL).await?;
    let end_ns = now_ns();
    worker.kill().await?;

    let summary = produced::summary(bench).await?;
    let p99 =
        |from: u32, to: u32| Latencies::of(&commits, &summary, end_ns, |id| (from..to).contains(&id)).percentile(0.99);
    let (begin, end) = (during.first_id, after.first_id);
    let middle = u32::midpoint(begin, end);
    let mut outcome = Outcome::default();
    let figures = &mut outcome.figures;
    // The first second is that of sessions, plans and connections.
    figures.insert("p99_before_ms", p99(per_second, begin));
    figures.insert("p99_while_held_ms", p99(begin, end));
    figures.insert("held_by_before", p99(begin, end) / p99(per_second, begin));
    figures.insert("p99_of_the_last_minute_ms", p99(end - 60 * per_second, end));
    figures.insert("last_half_by_first_half", p99(middle, end) / p99(begin, middle));
    figures.insert("p99_after_ms", p99(end, end + after.deliveries));
    figures.insert("missing", (commits.len() - summary.accepted.min(commits.len())) as f64);
    figures.insert("out_of_order", summary.out_of_order as f64);
    Ok(outcome)
}
