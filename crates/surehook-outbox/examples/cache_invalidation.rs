//! A service that keeps prices in memory, and forgets one when the event that tells of its change arrives: in its own process,
//! with no HTTP in between, and with the order, retries and dead letters of every delivery.
//!
//! `cargo run --example cache_invalidation -- DATABASE_URL`, with a database that was just created.
#![expect(clippy::disallowed_methods, reason = "an example has no store module of its own")]

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use surehook_outbox::endpoint::{EndpointChange, Scope};
use surehook_outbox::store::endpoints;
use surehook_outbox::store::migrate::{OUTBOX, migrate};
use surehook_outbox::store::upkeep;
use surehook_outbox::subscriber::Told;
use surehook_outbox::{Database, NewEvent, Session, Subscribers, Wake, Worker, WorkerSettings, enqueue};

/// Prices that were looked up once.
#[derive(Clone, Default)]
struct Cache(Arc<Mutex<HashMap<String, i64>>>);

impl Cache {
    async fn price(&self, session: &Session, article: &str) -> Result<i64, Box<dyn Error>> {
        if let Some(euros) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(article) {
            return Ok(*euros);
        }
        let euros = session.query_one("SELECT euros FROM prices WHERE article = $1", &[&article]).await?.get(0);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(article.to_owned(), euros);
        Ok(euros)
    }

    fn forget(&self, article: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(article);
    }
}

/// The price and the event that tells of it commit together.
async fn set_price(session: &mut Session, article: &str, euros: i64) -> Result<(), Box<dyn Error>> {
    let transaction = session.transaction().await?;
    let sql = "INSERT INTO prices VALUES ($1, $2) ON CONFLICT (article) DO UPDATE SET euros = excluded.euros";
    transaction.execute(sql, &[&article, &euros]).await?;
    let event = NewEvent { event_type: "PriceChanged", aggregate_id: article, payload: b"{}", ..NewEvent::default() };
    enqueue(&transaction, &event).await?;
    Ok(transaction.commit().await?)
}

/// The whole program; returns what a customer saw.
pub(crate) async fn run(database_url: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let database = Database::connect(database_url, "prices", 4)?;
    migrate(&database, "outbox", OUTBOX).await?;
    let mut session = database.session().await?;
    session
        .batch_execute("CREATE TABLE IF NOT EXISTS prices (article text PRIMARY KEY, euros bigint NOT NULL)")
        .await?;

    // Each process with a cache of its own takes a name of its own: an event goes once to each name.
    endpoints::subscribe(&database, "price-cache", Scope::All, EndpointChange::default()).await?;
    let cache = Cache::default();
    let forgetting = cache.clone();
    let subscribers = Subscribers::default().with("price-cache", move |told: Told| {
        let cache = forgetting.clone();
        async move {
            cache.forget(&told.aggregate_id);
            Ok(())
        }
    });
    let wake = Wake::default();
    let worker =
        Worker::start(database.clone(), WorkerSettings { subscribers, ..WorkerSettings::default() }, wake.clone());

    let mut seen = Vec::new();
    for euros in [20, 25] {
        set_price(&mut session, "tea", euros).await?;
        wake.wake();
        while upkeep::gauges(&session).await?.pending > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        seen.push(format!("{} euros", cache.price(&session, "tea").await?));
    }
    worker.stop().await;
    drop(session);
    database.close().await;
    println!("a customer saw {}", seen.join(", then "));
    Ok(seen)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let database_url = std::env::args().nth(1).ok_or("usage: cache_invalidation DATABASE_URL")?;
    run(&database_url).await?;
    Ok(())
}
