//! The same promise for a service that uses sqlx: the order and its event are one transaction of sqlx. The delivery is
//! left to a `surehook worker`, or to any other process that starts a `Worker`.
//!
//! `cargo run --features sqlx --example order_service_sqlx -- DATABASE_URL`, on a database with the outbox's schema.

use std::error::Error;

use sqlx::postgres::PgPoolOptions;
use surehook_outbox::store::enqueue::sqlx_adapter::enqueue;
use surehook_outbox::{Enqueued, NewEvent};

async fn take_order(pool: &sqlx::PgPool, number: i64, euros: i64) -> Result<Enqueued, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    let order = format!("order-{number}");
    let payload = format!(r#"{{"order":{number},"euros":{euros}}}"#);
    let event = NewEvent {
        event_type: "OrderPlaced",
        aggregate_id: &order,
        payload: payload.as_bytes(),
        idempotency_key: Some(&order),
        ..NewEvent::default()
    };
    let enqueued = enqueue(&mut transaction, &event).await?;
    sqlx::query("INSERT INTO orders (number, euros) VALUES ($1, $2) ON CONFLICT DO NOTHING")
        .bind(number)
        .bind(euros)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(enqueued)
}

/// The whole program; returns what became of each order's event.
pub(crate) async fn run(database_url: &str) -> Result<Vec<Enqueued>, Box<dyn Error>> {
    let pool = PgPoolOptions::new().max_connections(2).connect(database_url).await?;
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS orders (number bigint PRIMARY KEY, euros bigint NOT NULL CHECK (euros > 0))",
    )
    .execute(&pool)
    .await?;
    let mut outcomes = Vec::new();
    // The second number comes twice: it is one order, and one event.
    for (number, euros) in [(1, 20), (2, 30), (2, 30)] {
        outcomes.push(take_order(&pool, number, euros).await?);
    }
    if let Err(error) = take_order(&pool, 3, 0).await {
        println!("order 3 is refused, and nobody is told of it: {error}");
    }
    pool.close().await;
    Ok(outcomes)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let database_url = std::env::args().nth(1).ok_or("usage: order_service_sqlx DATABASE_URL")?;
    for outcome in run(&database_url).await? {
        println!("{outcome:?}");
    }
    Ok(())
}
