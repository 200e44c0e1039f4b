//! Measures what a POST inside the claiming transaction costs, against surehook's worker, in one run on one PostgreSQL; and
//! what NOTIFY inside the producer's transaction costs. The figures stand in docs/measurements.md.
//!
//! `cargo run --release --package surehook-outbox --example measure_claims` (about a minute and a half; needs PostgreSQL's
//! server programs, which it starts by itself with fsync on).
#![expect(clippy::disallowed_methods, reason = "a measurement speaks SQL and starts its own tasks")]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use surehook_outbox::retry::{Answer as Came, Conflict, Policy};
use surehook_outbox::send::Sender;
use surehook_outbox::store::claim::Delivery;
use surehook_outbox::store::migrate::{OUTBOX, migrate};
use surehook_outbox::target::Target;
use surehook_outbox::{Database, Wake, Worker, WorkerSettings};
use surehook_testkit::postgres::{self, Client, Cluster, Settings};
use surehook_testkit::receiver::{Answer, Receiver};
use surehook_webhook::secret::Secret;
use uuid::Uuid;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Events for each of the two endpoints.
const EVENTS: usize = 60;
/// How long each worker may work.
const WORK_FOR: Duration = Duration::from_secs(30);
const DEADLINE: Duration = Duration::from_secs(2);

/// What one worker did.
struct Outcome {
    latencies: Vec<Duration>,
    open_share: f64,
    open_longest: Duration,
}

#[tokio::main]
async fn main() -> Result<()> {
    let cluster = Cluster::start(Settings { durable: true, ..Settings::default() }).await;
    let admin = postgres::connect(&cluster.url("postgres")).await;
    for name in ["plain", "surehook", "notify"] {
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await?;
    }
    println!(
        "{EVENTS} events each for an endpoint that hangs (deadline {DEADLINE:?}) and a healthy one, {WORK_FOR:?}:\n"
    );
    println!("| worker | healthy: arrived | p50 ms | p99 ms | time with a transaction open | longest open ms |");
    println!("|---|---|---|---|---|---|");
    tell("POST inside the claiming transaction", plain(&cluster.url("plain")).await?);
    tell("surehook", surehook(&cluster.url("surehook")).await?);
    notify(&cluster.url("notify")).await
}

fn tell(name: &str, mut outcome: Outcome) {
    outcome.latencies.sort_unstable();
    let arrived = outcome.latencies.len();
    let at = |share: f64| -> String {
        // What never arrived counts as the longest of all.
        let place = (share * (EVENTS - 1) as f64).round() as usize;
        outcome.latencies.get(place).map_or("never".into(), |latency| format!("{:.1}", latency.as_secs_f64() * 1000.0))
    };
    let (share, longest) = (outcome.open_share * 100.0, outcome.open_longest.as_millis());
    println!("| {name} | {arrived} of {EVENTS} | {} | {} | {share:.0} % | {longest} |", at(0.5), at(0.99));
}

/// The receivers, and the events enqueued one pair each 50 ms while the worker runs.
async fn run(
    url: &str,
    enqueue: impl AsyncFn(&Client, usize, bool) -> Result<()>,
    healthy: &Receiver,
) -> Result<Outcome> {
    let watcher = tokio::spawn(watch(postgres::connect(url).await));
    let producer = postgres::connect(url).await;
    let begun = Instant::now();
    let mut enqueued = Vec::new();
    for n in 0..EVENTS {
        enqueue(&producer, n, true).await?;
        enqueue(&producer, n, false).await?;
        enqueued.push(Instant::now());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(WORK_FOR.saturating_sub(begun.elapsed())).await;
    let latencies = healthy
        .requests()
        .iter()
        .filter_map(|request| {
            Some(request.arrived.saturating_duration_since(*enqueued.get(request.text().parse::<usize>().ok()?)?))
        })
        .collect();
    let (open_share, open_longest) = watcher.await?;
    Ok(Outcome { latencies, open_share, open_longest })
}

/// Looks 50 times a second for transactions of the worker that are open and idle: those that wait for a stranger.
async fn watch(client: Client) -> (f64, Duration) {
    let sql = "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = 'worker' AND state LIKE 'idle in transaction%'";
    let (mut looks, mut open, mut longest) = (0u32, 0u32, 0f64);
    let begun = Instant::now();
    while begun.elapsed() < WORK_FOR {
        if let Ok(row) = client.query_one(sql, &[]).await {
            let age: f64 = row.get(0);
            looks += 1;
            open += u32::from(age > 0.005);
            longest = longest.max(age);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (f64::from(open) / f64::from(looks.max(1)), Duration::from_secs_f64(longest))
}

async fn receivers() -> (Receiver, Receiver) {
    (Receiver::start(|_| Answer::Hang).await, Receiver::accepting().await)
}

/// One tick a second, ten rows, each POSTed inside the transaction that claimed it.
async fn plain(url: &str) -> Result<Outcome> {
    let (hanging, healthy) = receivers().await;
    let client = postgres::connect(url).await;
    client
        .batch_execute("CREATE TABLE queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, url text, body text, done boolean DEFAULT false)")
        .await?;
    let urls = [healthy.url("/"), hanging.url("/")];
    let stop = tokio_util::sync::CancellationToken::new();
    let worker =
        tokio::spawn(plain_worker(postgres::connect(&format!("{url} application_name=worker")).await, stop.clone()));
    let enqueue = async |client: &Client, n: usize, hangs: bool| -> Result<()> {
        client
            .execute("INSERT INTO queue (url, body) VALUES ($1, $2)", &[&urls[usize::from(hangs)], &n.to_string()])
            .await?;
        Ok(())
    };
    let outcome = run(url, enqueue, &healthy).await?;
    stop.cancel();
    worker.await??;
    Ok(outcome)
}

async fn plain_worker(mut client: Client, stop: tokio_util::sync::CancellationToken) -> Result<()> {
    let sender = Sender::new();
    while !stop.is_cancelled() {
        let transaction = client.transaction().await?;
        let sql = "SELECT id, url, body FROM queue WHERE NOT done ORDER BY id LIMIT 10 FOR UPDATE SKIP LOCKED";
        for row in transaction.query(sql, &[]).await? {
            let sent = sender.send(&target(row.get(1))?, &delivery(), row.get::<_, String>(2).into(), 0).await;
            if matches!(sent.answer, Came::Status(200..=299, _)) {
                transaction.execute("UPDATE queue SET done = true WHERE id = $1", &[&row.get::<_, i64>(0)]).await?;
            }
        }
        transaction.commit().await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

fn target(url: String) -> Result<Target> {
    Ok(Target {
        endpoint_id: Uuid::nil(),
        name: "plain".into(),
        url,
        secrets: Ok(vec![Secret::parse("secret")?]),
        headers: Vec::new(),
        format: "native".into(),
        allow_private: true,
        timeout: DEADLINE,
        in_flight_max: 1,
        block_on_dead: false,
        policy: Policy {
            max_attempts: 5,
            max_unanswered: 5,
            count_every_silence: true,
            max_age: Duration::from_secs(3600),
            retry_max_delay: Duration::from_secs(1),
            conflict: Conflict::Success,
        },
    })
}

fn delivery() -> Delivery {
    Delivery {
        seq: 1,
        delivery_id: Uuid::nil(),
        event_id: Uuid::nil(),
        event_type: String::new(),
        aggregate_id: String::new(),
        aggregate_name: String::new(),
        webhook_name: String::new(),
        replay: false,
        event_created_at: jiff::Timestamp::UNIX_EPOCH,
        headers: "{}".into(),
        body: None,
    }
}

/// The worker of this crate, with its defaults.
async fn surehook(url: &str) -> Result<Outcome> {
    let (hanging, healthy) = receivers().await;
    let database = Database::connect(url, "worker", 8)?;
    migrate(&database, "outbox", OUTBOX).await?;
    let client = postgres::connect(url).await;
    for (name, receiver) in [("healthy", &healthy), ("hanging", &hanging)] {
        client
            .execute(
                "INSERT INTO endpoints (name, url, secret, allow_private, timeout_ms, event_types) VALUES ($1, $2, 'secret', true, 2000, ARRAY[$1])",
                &[&name, &receiver.url("/")],
            )
            .await?;
    }
    let wake = Wake::default();
    let worker = Worker::start(
        database.clone(),
        WorkerSettings { grace: Duration::ZERO, ..WorkerSettings::default() },
        wake.clone(),
    );
    let enqueue = async |client: &Client, n: usize, hangs: bool| -> Result<()> {
        let kind = if hangs { "hanging" } else { "healthy" };
        client.execute("SELECT outbox_enqueue($1, 'key', $2)", &[&kind, &n.to_string().into_bytes()]).await?;
        wake.wake();
        Ok(())
    };
    let outcome = run(url, enqueue, &healthy).await?;
    worker.stop().await;
    Ok(outcome)
}

/// Enqueues per second from four sessions, without and with NOTIFY in the transaction, in turn.
async fn notify(url: &str) -> Result<()> {
    let database = Database::connect(url, "producer", 2)?;
    migrate(&database, "outbox", OUTBOX).await?;
    let url = Arc::new(url.to_owned());
    postgres::connect(&url)
        .await
        .batch_execute("INSERT INTO endpoints (name, url, secret) VALUES ('x', 'http://127.0.0.1:9/', 's'); ALTER DATABASE notify SET synchronous_commit = off")
        .await?;
    let mut ratios = Vec::new();
    for _ in 0..3 {
        let without = rate(&url, "").await?;
        let with = rate(&url, "; NOTIFY outbox").await?;
        ratios.push(with / without);
        println!("\nenqueues per second: {without:.0} without NOTIFY, {with:.0} with NOTIFY in the transaction");
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio: {:.2}", ratios[1]);
    Ok(())
}

async fn rate(url: &Arc<String>, more: &'static str) -> Result<f64> {
    const FOR: Duration = Duration::from_secs(3);
    let sessions = (0..4).map(|session| {
        let url = Arc::clone(url);
        tokio::spawn(async move {
            let client = postgres::connect(&url).await;
            let (begun, mut count) = (Instant::now(), 0u32);
            while begun.elapsed() < FOR {
                let sql =
                    format!("BEGIN; SELECT outbox_enqueue('T', 'key-{session}-{}', '{{}}'){more}; COMMIT", count % 100);
                client.batch_execute(&sql).await?;
                count += 1;
            }
            Ok::<u32, Box<dyn Error + Send + Sync>>(count)
        })
    });
    let mut total = 0;
    for counted in futures_util::future::join_all(sessions).await {
        total += counted??;
    }
    Ok(f64::from(total) / FOR.as_secs_f64())
}
