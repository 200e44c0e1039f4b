//! A shop that has nothing to do with Git: an order and the event that tells of it commit together, or not at all.
//!
//! `cargo run --example order_service -- DATABASE_URL WEBHOOK_URL`, for instance with a database that was just created
//! and any HTTP server. It takes two orders, one of which fails, and delivers what was committed.
#![expect(clippy::disallowed_methods, reason = "an example has no store module of its own")]

use std::error::Error;
use std::time::Duration;

use surehook_outbox::endpoint::{EndpointChange, Scope};
use surehook_outbox::store::endpoints::{self, NewEndpoint};
use surehook_outbox::store::migrate::{OUTBOX, migrate};
use surehook_outbox::store::upkeep;
use surehook_outbox::{Database, NewEvent, Session, Wake, Worker, WorkerSettings, enqueue};

/// An order that costs nothing is refused, after its event was recorded: the event must go with it.
async fn take_order(session: &mut Session, number: i64, euros: i64) -> Result<(), Box<dyn Error>> {
    let transaction = session.transaction().await?;
    let order = format!("order-{number}");
    let payload = format!(r#"{{"order":{number},"euros":{euros}}}"#);
    let event = NewEvent {
        event_type: "OrderPlaced",
        aggregate_id: &order,
        payload: payload.as_bytes(),
        // Taking the same order twice tells of it once.
        idempotency_key: Some(&order),
        ..NewEvent::default()
    };
    enqueue(&transaction, &event).await?;
    transaction.execute("INSERT INTO orders (number, euros) VALUES ($1, $2)", &[&number, &euros]).await?;
    transaction.commit().await?;
    Ok(())
}

/// The whole program; returns how many orders were taken.
pub(crate) async fn run(database_url: &str, webhook_url: &str) -> Result<usize, Box<dyn Error>> {
    let database = Database::connect(database_url, "order-service", 4)?;
    migrate(&database, "outbox", OUTBOX).await?;
    let mut session = database.session().await?;
    session
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS orders (number bigint PRIMARY KEY, euros bigint NOT NULL CHECK (euros > 0))",
        )
        .await?;
    let mut endpoint = NewEndpoint::new("accounting", webhook_url, Scope::All);
    endpoint.settings = EndpointChange { allow_private: Some(true), ..EndpointChange::default() };
    let endpoint = endpoints::add(&database, endpoint).await?;

    let wake = Wake::default();
    let worker = Worker::start(database.clone(), WorkerSettings::default(), wake.clone());
    let mut taken = 0;
    for (number, euros) in [(1, 20), (2, 0), (3, 30)] {
        match take_order(&mut session, number, euros).await {
            Ok(()) => taken += 1,
            Err(error) => println!("order {number} is refused, and nobody is told of it: {error}"),
        }
        // After the commit: before it there is nothing to see.
        wake.wake();
    }
    while upkeep::gauges(&session).await?.pending > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    worker.stop().await;
    println!("{taken} orders taken and told to {}", endpoint.url);
    drop(session);
    database.close().await;
    Ok(taken)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(database_url), Some(webhook_url)) = (arguments.next(), arguments.next()) else {
        return Err("usage: order_service DATABASE_URL WEBHOOK_URL".into());
    };
    run(&database_url, &webhook_url).await?;
    Ok(())
}
