//! Measures what the news for other processes costs those who enqueue: how long 200 transactions that are under way at once take to
//! commit, without news, with news after the commit ([`surehook_outbox::news`]), and with NOTIFY in each transaction; and how
//! soon another process hears. Figures: docs/measurements.md.
//!
//! `cargo run --release -p surehook-outbox --example measure_news` takes about two minutes. It starts its own PostgreSQL, with
//! fsync on and its files on a disk, and ends it.
#![expect(clippy::disallowed_methods, reason = "a measurement starts tasks and speaks SQL")]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use surehook_outbox::store::migrate::{OUTBOX, migrate};
use surehook_outbox::{Database, NewEvent, Wake, enqueue, news};
use surehook_testkit::postgres::{self, Cluster, Settings};
use tokio::sync::Barrier;
use tokio_util::sync::CancellationToken;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const AT_ONCE: usize = 200;
/// Transactions of each, one after the other.
const EACH: usize = 10;
const ROUNDS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    None,
    AfterCommit,
    InTransaction,
}

const WAYS: [News; 3] = [News::None, News::AfterCommit, News::InTransaction];

#[tokio::main]
async fn main() -> Result<()> {
    let cluster = Cluster::start(Settings { durable: true, ..Settings::default() }).await;
    let admin = postgres::connect(&cluster.url("postgres")).await;
    admin.batch_execute("CREATE DATABASE news").await?;
    let url = cluster.url("news");
    let producer = Database::connect(&url, "producer", AT_ONCE)?;
    migrate(&producer, "outbox", OUTBOX).await?;
    let sql = postgres::connect(&url).await;
    sql.batch_execute("INSERT INTO endpoints (name, url, secret) VALUES ('x', 'http://127.0.0.1:9/', 's')").await?;

    let stop = CancellationToken::new();
    let other = Database::connect(&url, "other", 2)?;
    let (told, heard) = (Wake::default(), Wake::default());
    tokio::spawn(news::run(producer.clone(), told.clone(), None, stop.clone()));
    tokio::spawn(news::run(other, heard.clone(), None, stop.clone()));

    // Everything that is touched for the first time is touched before it counts.
    round(&producer, News::None, &told).await?;
    let mut latencies = [Vec::new(), Vec::new(), Vec::new()];
    let mut rates = [Vec::new(), Vec::new(), Vec::new()];
    for turn in 0..ROUNDS {
        for place in 0..WAYS.len() {
            // In turn, and each of them first now and then: tables grow, and the machine has other things to do.
            let way = (place + turn) % WAYS.len();
            let begun = Instant::now();
            latencies[way].extend(round(&producer, WAYS[way], &told).await?);
            rates[way].push((AT_ONCE * EACH) as f64 / begun.elapsed().as_secs_f64());
        }
    }
    println!("{AT_ONCE} transactions at once, each one enqueue; {ROUNDS} rounds of {EACH} for each, in turn\n");
    println!("| news | p50, ms | p99, ms | transactions/s, median |");
    println!("|---|---|---|---|");
    for (way, (latencies, rates)) in WAYS.iter().zip(latencies.iter_mut().zip(&mut rates)) {
        latencies.sort_unstable();
        rates.sort_by(f64::total_cmp);
        let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
        println!("| {way:?} | {:.1} | {:.1} | {:.0} |", at(0.5), at(0.99), rates[ROUNDS / 2]);
    }
    println!("\nHeard by another process after (median, p99 of 200, ms): {}", until_heard(&told, &heard).await);
    stop.cancel();
    Ok(())
}

/// How long each transaction took, from its first statement to its commit.
async fn round(database: &Database, news: News, wake: &Wake) -> Result<Vec<Duration>> {
    let together = Arc::new(Barrier::new(AT_ONCE));
    let producers: Vec<_> = (0..AT_ONCE)
        .map(|number| {
            let (database, wake, together) = (database.clone(), wake.clone(), Arc::clone(&together));
            tokio::spawn(async move {
                let mut session = database.session().await?;
                together.wait().await;
                let mut latencies = Vec::with_capacity(EACH);
                // A key of its own: what is compared is the commit, not the wait for each other's lanes.
                let key = format!("key-{number}");
                for _ in 0..EACH {
                    let begun = Instant::now();
                    let transaction = session.transaction().await?;
                    let event = NewEvent { event_type: "T", aggregate_id: &key, payload: b"{}", ..NewEvent::default() };
                    enqueue(&transaction, &event).await?;
                    if news == News::InTransaction {
                        transaction.batch_execute("NOTIFY surehook_work").await?;
                    }
                    transaction.commit().await?;
                    latencies.push(begun.elapsed());
                    if news == News::AfterCommit {
                        wake.wake();
                    }
                }
                Result::Ok(latencies)
            })
        })
        .collect();
    let mut all = Vec::new();
    for producer in producers {
        all.extend(producer.await??);
    }
    Ok(all)
}

/// From the wake-up here to the one there, one at a time.
async fn until_heard(told: &Wake, heard: &Wake) -> String {
    let mut latencies = Vec::new();
    for _ in 0..200 {
        // What was told before has been heard; and the next is told no sooner than this.
        while tokio::time::timeout(Duration::from_millis(50), heard.notified()).await.is_ok() {}
        let notified = heard.notified();
        let begun = Instant::now();
        told.wake();
        if tokio::time::timeout(Duration::from_secs(5), notified).await.is_ok() {
            latencies.push(begun.elapsed());
        }
    }
    latencies.sort_unstable();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
    format!("{:.2}, {:.2}", at(0.5), at(0.99))
}
