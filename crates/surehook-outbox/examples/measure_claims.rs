//! Measures what a POST inside the claiming transaction costs, against surehook's worker, in one run on one PostgreSQL; how
//! soon another worker takes over; and what NOTIFY in the producer's transaction costs. Figures: docs/measurements.md.
//!
//! `cargo run -p surehook-outbox --example measure_claims` takes about six minutes. It starts its own PostgreSQL, with
//! fsync on and its files on a disk, and ends everything that it started.
#![expect(clippy::disallowed_methods, reason = "a measurement speaks SQL, starts tasks and a worker process to kill")]

#[path = "measure/notify.rs"]
mod notify;
#[path = "measure/plain.rs"]
mod plain;
#[path = "measure/takeover.rs"]
mod takeover;

use std::error::Error;
use std::time::{Duration, Instant};

use surehook_outbox::store::migrate::{OUTBOX, migrate};
use surehook_outbox::{Database, Wake, Worker, WorkerSettings};
use surehook_testkit::postgres::{self, Client, Cluster, Settings};
use surehook_testkit::receiver::{Answer, Receiver};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Events for each of the two endpoints, spread over [`KEYS`] ordering keys.
const EVENTS: usize = 60;
const KEYS: usize = 20;
/// Each worker is watched for this long, or until the healthy endpoint has everything, whichever is later.
const WATCH_AT_LEAST: Duration = Duration::from_secs(30);
const WATCH_AT_MOST: Duration = Duration::from_secs(300);
const DEADLINE: Duration = Duration::from_secs(2);
/// How the sessions of the worker under test are called.
pub(crate) const WORKER: &str = "worker";

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => measure().await,
        // The process that is to be killed: this program once more.
        ["plain-worker", url] => plain::work(url, takeover::DEADLINE).await,
        ["surehook-worker", url] => {
            let _worker = start(&Database::connect(url, WORKER, 8)?, Wake::default());
            std::future::pending().await
        }
        _ => Err("this program takes no arguments".into()),
    }
}

async fn measure() -> Result<()> {
    let cluster = Cluster::start(Settings { durable: true, ..Settings::default() }).await;
    let admin = postgres::connect(&cluster.url("postgres")).await;
    for name in ["plain", "surehook", "takeover_plain", "takeover_surehook", "notify"] {
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await?;
    }
    println!("{EVENTS} events for an endpoint that hangs (deadline {DEADLINE:?}), {EVENTS} for a healthy one.\n");
    println!("| worker | time with a transaction open | longest open, s | healthy: p50, s | p99, s | arrived |");
    println!("|---|---|---|---|---|---|");
    tell("POST inside the claiming transaction", beside_a_hanging_one_plain(&cluster.url("plain")).await?);
    tell("surehook", beside_a_hanging_one_surehook(&cluster.url("surehook")).await?);
    takeover::measure(&cluster.url("takeover_plain"), &cluster.url("takeover_surehook")).await?;
    notify::measure(&cluster.url("notify")).await
}

/// What one worker did.
struct Outcome {
    latencies: Vec<Duration>,
    open_share: f64,
    open_longest: Duration,
}

fn tell(name: &str, mut outcome: Outcome) {
    outcome.latencies.sort_unstable();
    let at = |share: f64| -> String {
        // What never arrived counts as the longest of all.
        let place = (share * (EVENTS - 1) as f64).round() as usize;
        outcome.latencies.get(place).map_or("never".into(), |latency| format!("{:.3}", latency.as_secs_f64()))
    };
    let (share, longest) = (outcome.open_share * 100.0, outcome.open_longest.as_secs_f64());
    let arrived = outcome.latencies.len();
    println!("| {name} | {share:.1} % | {longest:.3} | {} | {} | {arrived} of {EVENTS} |", at(0.5), at(0.99));
}

/// Enqueues pairs of events, one for each endpoint, every 50 ms, while the worker runs and is watched.
async fn run(
    url: &str,
    healthy: &Receiver,
    enqueue: impl AsyncFn(&Client, usize, bool) -> Result<()>,
) -> Result<Outcome> {
    let producer = postgres::connect(url).await;
    let watch = watch(postgres::connect(url).await, || healthy.requests().len() >= EVENTS);
    let produce = async {
        let mut enqueued = Vec::new();
        for n in 0..EVENTS {
            enqueue(&producer, n, true).await?;
            enqueue(&producer, n, false).await?;
            enqueued.push(Instant::now());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(enqueued)
    };
    let ((open_share, open_longest), enqueued) = futures_util::future::join(watch, produce).await;
    let enqueued = enqueued?;
    let mut latencies = Vec::new();
    for request in healthy.requests() {
        let since = enqueued.get(request.text().parse::<usize>()?).ok_or("an event that nobody enqueued")?;
        latencies.push(request.arrived.saturating_duration_since(*since));
    }
    Ok(Outcome { latencies, open_share, open_longest })
}

/// Looks about 50 times a second whether the worker has a transaction open, and since when. A session that runs a single
/// statement is in a transaction too: that is counted like any other.
async fn watch(client: Client, done: impl Fn() -> bool) -> (f64, Duration) {
    let sql = "SELECT max(extract(epoch FROM clock_timestamp() - xact_start))::float8 FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = $1 AND xact_start IS NOT NULL";
    let (mut looks, mut open, mut longest) = (0u32, 0u32, 0f64);
    let begun = Instant::now();
    while begun.elapsed() < WATCH_AT_LEAST || (!done() && begun.elapsed() < WATCH_AT_MOST) {
        if let Ok(row) = client.query_one(sql, &[&WORKER]).await {
            let age: Option<f64> = row.get(0);
            looks += 1;
            open += u32::from(age.is_some());
            longest = longest.max(age.unwrap_or(0.0));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (f64::from(open) / f64::from(looks.max(1)), Duration::from_secs_f64(longest))
}

async fn beside_a_hanging_one_plain(url: &str) -> Result<Outcome> {
    let (hanging, healthy) = (Receiver::start(|_| Answer::Hang).await, Receiver::accepting().await);
    plain::create(&postgres::connect(url).await).await?;
    let worker = {
        let url = url.to_owned();
        tokio::spawn(async move { plain::work(&url, DEADLINE).await })
    };
    let urls = [healthy.url("/"), hanging.url("/")];
    let enqueue = async |client: &Client, n: usize, hangs: bool| {
        plain::enqueue(client, &urls[usize::from(hangs)], &n.to_string()).await
    };
    let outcome = run(url, &healthy, enqueue).await;
    worker.abort();
    outcome
}

async fn beside_a_hanging_one_surehook(url: &str) -> Result<Outcome> {
    let (hanging, healthy) = (Receiver::start(|_| Answer::Hang).await, Receiver::accepting().await);
    let database = Database::connect(url, WORKER, 8)?;
    migrate(&database, "outbox", OUTBOX).await?;
    let client = postgres::connect(url).await;
    add_endpoint(&client, "healthy", &healthy, DEADLINE).await?;
    add_endpoint(&client, "hanging", &hanging, DEADLINE).await?;
    let wake = Wake::default();
    let worker = start(&database, wake.clone());
    let enqueue = async |client: &Client, n: usize, hangs: bool| {
        let kind = if hangs { "hanging" } else { "healthy" };
        enqueue(client, kind, &format!("key-{}", n % KEYS), &n.to_string()).await?;
        wake.wake();
        Ok(())
    };
    let outcome = run(url, &healthy, enqueue).await;
    worker.stop().await;
    outcome
}

/// This crate's worker with its defaults, but that requests under way are abandoned at its stop.
pub(crate) fn start(database: &Database, wake: Wake) -> Worker {
    let settings = WorkerSettings { grace: Duration::ZERO, ..WorkerSettings::default() };
    Worker::start(database.clone(), settings, wake)
}

/// An endpoint that gets the events whose type is its name.
pub(crate) async fn add_endpoint(client: &Client, name: &str, receiver: &Receiver, deadline: Duration) -> Result<()> {
    let sql = "INSERT INTO endpoints (name, url, secret, allow_private, timeout_ms, event_types)
               VALUES ($1, $2, 'secret', true, $3, ARRAY[$1])";
    client.execute(sql, &[&name, &receiver.url("/"), &i32::try_from(deadline.as_millis())?]).await?;
    Ok(())
}

pub(crate) async fn enqueue(client: &Client, event_type: &str, aggregate_id: &str, payload: &str) -> Result<()> {
    let sql = "SELECT outbox_enqueue($1, $2, $3)";
    client.execute(sql, &[&event_type, &aggregate_id, &payload.as_bytes()]).await?;
    Ok(())
}
