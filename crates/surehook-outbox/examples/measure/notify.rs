//! What NOTIFY in the producer's transaction costs: PostgreSQL takes one lock for all of them, from before the commit record
//! is written until it is on disk, so such commits go one by one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use surehook_outbox::Database;
use surehook_outbox::store::migrate::{OUTBOX, migrate};
use surehook_testkit::postgres;

use super::Result;

const SESSIONS: usize = 4;
const ROUNDS: usize = 5;
const FOR: Duration = Duration::from_secs(2);

pub(crate) async fn measure(url: &str) -> Result<()> {
    migrate(&Database::connect(url, "migration", 1)?, "outbox", OUTBOX).await?;
    let client = postgres::connect(url).await;
    let setup = "INSERT INTO endpoints (name, url, secret) VALUES ('x', 'http://127.0.0.1:9/', 's');
                 CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text)";
    client.batch_execute(setup).await?;
    let url: Arc<str> = url.into();
    println!("\nTransactions per second, {SESSIONS} sessions, {ROUNDS} rounds in turn:\n");
    println!("| each transaction | synchronous_commit | without NOTIFY | with NOTIFY | median ratio |");
    println!("|---|---|---|---|---|");
    for work in [Work::Enqueue, Work::Insert] {
        for commit in ["on", "off"] {
            compare(&url, work, commit).await?;
        }
    }
    Ok(())
}

/// What a transaction does besides the NOTIFY.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// One event for one endpoint.
    Enqueue,
    /// One row and nothing else: as many commits as the machine can do.
    Insert,
}

async fn compare(url: &Arc<str>, work: Work, commit: &'static str) -> Result<()> {
    // Everything that is touched for the first time is touched before it counts.
    rate(url, work, commit, "").await?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // In turn, and each of them first every other time: tables grow, and the machine has other things to do.
        if round % 2 == 0 {
            without.push(rate(url, work, commit, "").await?);
            with.push(rate(url, work, commit, "; NOTIFY outbox").await?);
        } else {
            with.push(rate(url, work, commit, "; NOTIFY outbox").await?);
            without.push(rate(url, work, commit, "").await?);
        }
    }
    let mut ratios: Vec<f64> = without.iter().zip(&with).map(|(without, with)| with / without).collect();
    ratios.sort_by(f64::total_cmp);
    let (ratio, without, with) = (ratios[ROUNDS / 2], span(without), span(with));
    println!("| {work:?} | {commit} | {without} | {with} | {ratio:.2} |");
    Ok(())
}

/// The median and the range.
fn span(mut rates: Vec<f64>) -> String {
    rates.sort_by(f64::total_cmp);
    format!("{:.0} ({:.0} to {:.0})", rates[ROUNDS / 2], rates[0], rates[ROUNDS - 1])
}

async fn rate(url: &Arc<str>, work: Work, commit: &'static str, more: &'static str) -> Result<f64> {
    let sessions: Vec<_> = (0..SESSIONS)
        .map(|session| {
            let url = Arc::clone(url);
            tokio::spawn(async move {
                let client = postgres::connect(&url).await;
                client.batch_execute(&format!("SET synchronous_commit = {commit}")).await?;
                let (begun, mut count) = (Instant::now(), 0u32);
                while begun.elapsed() < FOR {
                    // Keys of its own: what is compared is the commit, not the wait for each other's lanes.
                    let key = format!("key-{session}-{}", count % 100);
                    let statement = match work {
                        Work::Enqueue => format!("SELECT outbox_enqueue('T', '{key}', '{{}}')"),
                        Work::Insert => format!("INSERT INTO plain (payload) VALUES ('{key}')"),
                    };
                    client.batch_execute(&format!("BEGIN; {statement}{more}; COMMIT")).await?;
                    count += 1;
                }
                Result::Ok(count)
            })
        })
        .collect();
    let mut total = 0;
    for session in sessions {
        total += session.await??;
    }
    Ok(f64::from(total) / FOR.as_secs_f64())
}
