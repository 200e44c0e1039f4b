//! Two endpoints, of which one begins to hang or to fail: what the other one notices of it.

use std::time::Duration;

use anyhow::Result;

use super::produced::{self, Latencies};
use super::{Bench, Outcome};
use crate::cli::{Options, Scenario};
use crate::clock::now_ns;
use crate::contender::Command;
use crate::load::Load;
use crate::report::{Metric, less, told};
use crate::sink::Mode;

pub(crate) const METRICS: &[Metric] = &[
    told("undisturbed_p50_ms"),
    told("undisturbed_p99_ms"),
    less("healthy_p50_ms"),
    less("healthy_p99_ms"),
    less("healthy_p99_by_undisturbed"),
    told("healthy_missing"),
    told("in_flight_at_the_other_max"),
    less("sessions"),
    less("transaction_longest_ms"),
];

/// How long a receiver may take here. The one that hangs costs each attempt so much.
const TIMEOUT_MS: u64 = 2_000;

/// Sessions, plans and connections are made in the first second, which does not count.
const WARM_UP_S: u32 = 1;

/// The endpoint that begins to hang or to fail; the other is 0. Lanes with odd numbers are its.
const TROUBLED: u16 = 1;

/// How long the last ones are waited for.
const TAIL: Duration = Duration::from_secs(10);

pub(crate) async fn run(bench: &mut Bench, options: &Options, name: &str) -> Result<Outcome> {
    let database = bench.prepared(name).await?;
    bench.server.rest(&database).await?;
    let outcome = measure(bench, options, name, &database).await;
    bench.sink.mode_of_all(Mode::Fast).await?;
    bench.server.remove(&database).await?;
    outcome
}

async fn measure(bench: &mut Bench, options: &Options, name: &str, database: &str) -> Result<Outcome> {
    let per_second = options.per_second.unwrap_or(200);
    let seconds = options.seconds.unwrap_or(20);
    let lanes = options.lanes.map_or(200, |lanes| lanes.next_multiple_of(2));
    let undisturbed = Load::new(per_second * (WARM_UP_S + seconds), lanes, 2, options.payload_bytes);
    let disturbed = Load { first_id: undisturbed.deliveries, deliveries: per_second * seconds, ..undisturbed };
    let mode = if options.scenario == Scenario::NeighbourFails { Mode::Fail } else { Mode::Hang };
    let healthy = |id: u32| undisturbed.of_id(id).endpoint != TROUBLED;

    bench.sink.mode_of_all(Mode::Fast).await?;
    bench.sink.reset().await?;
    let mut worker = bench.contender(name, database, TIMEOUT_MS)?;
    worker.tell(&Command::Start).await?;
    let commits = produced::produce(&mut worker, undisturbed, per_second).await?;
    bench.sink.wait(undisturbed.deliveries, TAIL).await?;
    let summary = produced::summary(bench).await?;
    let warm = |id: u32| id >= per_second * WARM_UP_S;
    let mut before = Latencies::of(&commits, &summary, now_ns(), |id| healthy(id) && warm(id));

    let watch = bench.server.watch(database).await;
    bench.sink.mode(TROUBLED, mode).await?;
    bench.sink.reset().await?;
    let commits = produced::produce(&mut worker, disturbed, per_second).await?;
    bench.sink.wait(disturbed.deliveries / 2, TAIL).await?;
    let sessions = watch.seen().await?;
    let stats = bench.sink.ask(&crate::sink::Command::Stats).await?;
    let summary = produced::summary(bench).await?;
    let mut beside = Latencies::of(&commits, &summary, now_ns(), healthy);
    worker.kill().await?;

    let mut outcome = Outcome::default();
    let figures = &mut outcome.figures;
    figures.insert("undisturbed_p50_ms", before.percentile(0.5));
    figures.insert("undisturbed_p99_ms", before.percentile(0.99));
    figures.insert("healthy_p50_ms", beside.percentile(0.5));
    figures.insert("healthy_p99_ms", beside.percentile(0.99));
    figures.insert("healthy_p99_by_undisturbed", beside.percentile(0.99) / before.percentile(0.99));
    figures.insert("healthy_missing", beside.missing as f64);
    figures.insert("in_flight_at_the_other_max", stats.in_flight_max[usize::from(TROUBLED)].into());
    figures.insert("sessions", sessions.most as f64);
    figures.insert("transaction_longest_ms", sessions.transaction_longest.as_secs_f64() * 1e3);
    Ok(outcome)
}
