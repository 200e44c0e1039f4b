//! An endpoint is away for minutes while very much waits for it, then it is back: what it gets, and what others notice.

use std::time::Duration;

use anyhow::Result;

use super::arrivals::Summary;
use super::produced::{self, Latencies};
use super::{Bench, Outcome, TIMEOUT_MS};
use crate::cli::Options;
use crate::clock::now_ns;
use crate::contender::Command;
use crate::load::Load;
use crate::report::{Metric, less, told};
use crate::sink::{self, Mode};

pub(crate) const METRICS: &[Metric] = &[
    less("first_after_s"),
    less("drained_after_s"),
    told("never_arrived"),
    told("accepted_twice"),
    told("out_of_order"),
    told("in_flight_max"),
    told("others_p99_before_ms"),
    less("others_p99_while_down_ms"),
    less("others_p99_while_draining_ms"),
];

/// Who is away, and who is there all the time.
const AWAY: u16 = 0;
const THERE: u16 = 1;

/// How long the others are watched before the outage, and from its end on.
const AROUND_S: u32 = 30;

pub(crate) async fn run(bench: &mut Bench, options: &Options, name: &str) -> Result<Outcome> {
    let database = bench.prepared(name).await?;
    bench.server.rest(&database).await?;
    bench.sink.mode_of_all(Mode::Fast).await?;
    bench.sink.reset().await?;
    let outcome = measure(bench, options, name, &database).await;
    bench.sink.mode_of_all(Mode::Fast).await?;
    bench.server.remove(&database).await?;
    outcome
}

async fn measure(bench: &mut Bench, options: &Options, name: &str, database: &str) -> Result<Outcome> {
    let lanes = options.lanes.unwrap_or(200);
    let waiting = Load::new(options.deliveries.unwrap_or(20_000), lanes, 1, options.payload_bytes);
    let per_second = options.per_second.unwrap_or(100);
    let others = Load { first_lane: lanes, first_endpoint: THERE, ..waiting };
    let part = |first_id, seconds| Load { first_id, deliveries: per_second * seconds, ..others };
    let before = part(waiting.deliveries, AROUND_S);
    let down = part(before.first_id + before.deliveries, options.minutes * 60);
    let back = part(down.first_id + down.deliveries, AROUND_S);

    let mut worker = bench.contender(name, database, TIMEOUT_MS)?;
    worker.tell(&Command::Start).await?;
    let mut commits = produced::produce(&mut worker, before, per_second).await?;
    bench.sink.mode(AWAY, Mode::Down).await?;
    let mut filler = bench.contender(name, database, TIMEOUT_MS)?;
    filler.tell(&Command::Fill { load: waiting }).await?;
    filler.kill().await?;
    commits.extend(produced::produce(&mut worker, down, per_second).await?);
    bench.sink.mode(AWAY, Mode::Fast).await?;
    let back_ns = now_ns();
    commits.extend(produced::produce(&mut worker, back, per_second).await?);
    let all = back.first_id + back.deliveries;
    bench.sink.wait(all, Duration::from_secs(options.at_most_s)).await?;
    let end_ns = now_ns();
    let stats = bench.sink.ask(&sink::Command::Stats).await?;
    worker.kill().await?;

    let arrivals = bench.sink.arrivals().await?;
    let summary = Summary::of(&arrivals);
    let late: Vec<u64> = (0..waiting.deliveries).filter_map(|id| summary.first_ns.get(&id).copied()).collect();
    let never = waiting.deliveries as usize - late.len();
    let mut outcome = Outcome::default();
    let figures = &mut outcome.figures;
    let after_s = |at_ns: Option<&u64>| at_ns.map(|at_ns| at_ns.saturating_sub(back_ns) as f64 / 1e9);
    figures.extend(after_s(late.iter().min()).map(|after_s| ("first_after_s", after_s)));
    if never == 0 {
        figures.extend(after_s(late.iter().max()).map(|after_s| ("drained_after_s", after_s)));
    } else {
        outcome.trouble = Some(format!("{never} had not arrived {} s after the endpoint was back", options.at_most_s));
    }
    figures.insert("never_arrived", never as f64);
    figures.insert("accepted_twice", summary.duplicates as f64);
    figures.insert("out_of_order", summary.out_of_order as f64);
    figures.insert("in_flight_max", stats.in_flight_max[usize::from(AWAY)].into());
    let p99 = |part: Load, skip: u32| {
        let ids = part.first_id + skip..part.first_id + part.deliveries;
        Latencies::of(&commits, &summary, end_ns, |id| ids.contains(&id)).percentile(0.99)
    };
    // The first second is that of sessions, plans and connections.
    figures.insert("others_p99_before_ms", p99(before, per_second));
    figures.insert("others_p99_while_down_ms", p99(down, 0));
    figures.insert("others_p99_while_draining_ms", p99(back, 0));
    Ok(outcome)
}
