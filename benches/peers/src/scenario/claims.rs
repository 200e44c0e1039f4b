//! What a claim costs PostgreSQL, in time and in pages looked at, as the backlog and the history grow.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Bench, ENDPOINTS, Outcome, TIMEOUT_MS};
use crate::cli::Options;
use crate::contender::Command;
use crate::load::Load;
use crate::report::{Figures, Metric, less, told};
use crate::sink::Mode;

pub(crate) const METRICS: &[Metric] = &[
    less("claim_at_1e3_ms"),
    less("claim_at_1e5_ms"),
    less("claim_behind_1e5_ms"),
    less("claim_at_1e7_ms"),
    less("claim_behind_1e7_ms"),
    told("buffers_at_1e3"),
    told("buffers_at_1e5"),
    told("buffers_behind_1e5"),
    told("buffers_at_1e7"),
    told("buffers_behind_1e7"),
];

/// The setting that the server needs for it.
pub(crate) const PRELOAD: &str = "shared_preload_libraries=pg_stat_statements";

/// So many wait in the smallest case and behind the history.
const FEW: u32 = 1_000;
const MANY: u32 = 100_000;
const HUGE: u32 = 10_000_000;

/// Claims come one after the other at a pace that leaves most of the backlog where it is.
const SLOW_MS: u64 = 20;
const WATCHED: Duration = Duration::from_secs(3);

/// In the plain worker, and in all peers, it is the claim that skips what is locked and takes a limited number.
const STATEMENTS: &str = "
    SELECT coalesce(sum(calls), 0)::float8,
           coalesce(sum(total_exec_time), 0)::float8,
           coalesce(sum(shared_blks_hit + shared_blks_read + local_blks_hit + local_blks_read), 0)::float8
      FROM pg_stat_statements
     WHERE dbid = (SELECT oid FROM pg_database WHERE datname = $1)
       AND query ILIKE '%SKIP LOCKED%' AND query ILIKE '%LIMIT%'";

pub(crate) async fn run(bench: &mut Bench, options: &Options, name: &str) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let figures = &mut outcome.figures;
    one(bench, options, name, 0, FEW, figures, ["claim_at_1e3_ms", "buffers_at_1e3"]).await?;
    one(bench, options, name, 0, MANY, figures, ["claim_at_1e5_ms", "buffers_at_1e5"]).await?;
    one(bench, options, name, MANY, FEW, figures, ["claim_behind_1e5_ms", "buffers_behind_1e5"]).await?;
    if options.huge {
        one(bench, options, name, 0, HUGE, figures, ["claim_at_1e7_ms", "buffers_at_1e7"]).await?;
        one(bench, options, name, HUGE, FEW, figures, ["claim_behind_1e7_ms", "buffers_behind_1e7"]).await?;
    }
    Ok(outcome)
}

/// One case: so many were published before, so many wait, ten on each lane.
async fn one(
    bench: &mut Bench,
    options: &Options,
    name: &str,
    published: u32,
    pending: u32,
    figures: &mut Figures,
    [time, buffers]: [&'static str; 2],
) -> Result<()> {
    let load = |first_id: u32, deliveries: u32| Load {
        first_id,
        ..Load::new(deliveries, options.lanes.unwrap_or(deliveries / 10), ENDPOINTS, options.payload_bytes)
    };
    let database = bench.prepared(name).await?;
    bench.sink.mode_of_all(Mode::Fast).await?;
    bench.sink.reset().await?;
    if published > 0 {
        fill(bench, name, &database, load(0, published)).await?;
        let mut worker = bench.contender(name, &database, TIMEOUT_MS)?;
        worker.tell(&Command::Start).await?;
        let at_most = Duration::from_secs(options.at_most_s);
        let accepted = bench.sink.wait(published, at_most).await?;
        ensure!(accepted == published, "{accepted} of {published} were published within {at_most:?}; see --at-most-s");
        worker.tell(&Command::Settle).await?;
        worker.tell(&Command::Stop).await?;
        worker.kill().await?;
    }
    fill(bench, name, &database, load(published, pending)).await?;
    bench.server.rest(&database).await?;
    bench.sink.mode_of_all(Mode::Slow(SLOW_MS)).await?;
    let admin = bench.server.connect("postgres").await;
    admin.batch_execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await?;
    let mut worker = bench.contender(name, &database, TIMEOUT_MS)?;
    admin.execute("SELECT pg_stat_statements_reset()", &[]).await?;
    worker.tell(&Command::Start).await?;
    bench.sink.wait(published + pending * 8 / 10, WATCHED).await?;
    let row = admin.query_one(STATEMENTS, &[&database]).await?;
    worker.kill().await?;
    bench.sink.mode_of_all(Mode::Fast).await?;
    bench.server.remove(&database).await?;
    let (calls, total_ms, pages): (f64, f64, f64) = (row.get(0), row.get(1), row.get(2));
    ensure!(calls > 0.0, "PostgreSQL saw no claim");
    figures.insert(time, total_ms / calls);
    figures.insert(buffers, pages / calls);
    Ok(())
}

async fn fill(bench: &Bench, name: &str, database: &str, load: Load) -> Result<()> {
    let mut filler = bench.contender(name, database, TIMEOUT_MS)?;
    filler.tell(&Command::Fill { load }).await?;
    filler.kill().await
}
