//! The outbox in its plainest form: a table, a tick of a second, ten rows at a time, a POST for each inside the transaction that
//! holds them, five attempts.
#![expect(clippy::disallowed_methods, reason = "its SQL stands here, beside what it is compared for")]

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use surehook_testkit::postgres::{Client, try_connect};
use uuid::Uuid;

use super::hook::send;
use super::payload;
use crate::records::{Delivery, Status, Told};
use crate::store::{Attempts, Standing};

const TICK: Duration = Duration::from_secs(1);
const DEADLINE: Duration = Duration::from_secs(2);
const TABLE: &str = "CREATE TABLE IF NOT EXISTS outbox (
    id bigserial PRIMARY KEY, event_id uuid NOT NULL, webhook_id uuid NOT NULL DEFAULT gen_random_uuid(),
    repository text NOT NULL, payload bytea NOT NULL, status text NOT NULL DEFAULT 'pending',
    attempts integer NOT NULL DEFAULT 0, failed integer NOT NULL DEFAULT 0, known integer NOT NULL DEFAULT 0,
    last_error text, created_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz)";

/// Options of the hidden command `textbook-worker`.
#[derive(Clone, Debug, Args)]
pub struct WorkerArgs {
    #[arg(long)]
    url: String,
    #[arg(long)]
    secret: String,
    #[arg(long)]
    database: String,
}

/// Delivers until it is killed.
pub async fn work(args: WorkerArgs) -> anyhow::Result<()> {
    try_connect(&args.database).await?.batch_execute(TABLE).await.context("its table cannot be made")?;
    println!("the textbook delivers");
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if let Err(error) = batch(&args).await {
            eprintln!("{error:#}");
        }
    }
}

async fn batch(args: &WorkerArgs) -> anyhow::Result<()> {
    let mut client = try_connect(&args.database).await?;
    let work = client.transaction().await?;
    let take = "SELECT id, webhook_id, payload, attempts FROM outbox WHERE status = 'pending'
                 ORDER BY id LIMIT 10 FOR UPDATE SKIP LOCKED";
    for row in work.query(take, &[]).await? {
        let (id, webhook_id, payload, attempts): (i64, Uuid, Vec<u8>, i32) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let answer = send(&args.url, &args.secret, webhook_id, &payload, DEADLINE).await;
        let (status, known) = match answer {
            Ok(200..300) => ("published", 0),
            Ok(409) => ("published", 1),
            _ if attempts + 1 >= 5 => ("failed", 0),
            _ => ("pending", 0),
        };
        let error = match answer {
            Ok(status) => format!("HTTP {status}"),
            Err(error) => format!("{error:#}"),
        };
        let failed = i32::from(status != "published");
        let record = "UPDATE outbox SET status = $2, attempts = attempts + 1, failed = failed + $3, known = known + $4,
                             last_error = $5, published_at = CASE WHEN $2 = 'published' THEN now() END WHERE id = $1";
        work.execute(record, &[&id, &status, &failed, &known, &error]).await?;
    }
    work.commit().await?;
    Ok(())
}

/// A row for a ref that moved.
pub(super) async fn write(
    client: &Client,
    repository: &str,
    before: &str,
    after: &str,
    name: &str,
) -> anyhow::Result<()> {
    client.batch_execute(TABLE).await?;
    let number: i64 = client.query_one("SELECT nextval('outbox_id_seq')", &[]).await?.get(0);
    let (event_id, body) = payload(repository, before, after, name, Some(number));
    let insert = "INSERT INTO outbox (id, event_id, repository, payload) VALUES ($1, $2, $3, $4)";
    client.execute(insert, &[&number, &event_id, &repository, &body]).await?;
    Ok(())
}

/// How far it is.
pub async fn standing(client: &Client) -> Result<Standing, tokio_postgres::Error> {
    let sql = "SELECT count(*), count(*) FILTER (WHERE status = 'pending') FROM outbox";
    let row = client.query_one(sql, &[]).await?;
    Ok(Standing { events: row.get(0), pending: row.get(1) })
}

/// Its events, its deliveries and its requests.
pub async fn books(client: &Client) -> anyhow::Result<(Vec<Told>, Vec<Delivery>, Attempts)> {
    let sql =
        "SELECT payload, repository, encode(sha256(payload), 'hex'), id, webhook_id::text, event_id::text, status,
                      attempts, failed, known FROM outbox ORDER BY id";
    let (mut told, mut deliveries, mut attempts) = (Vec::new(), Vec::new(), Attempts::default());
    for row in client.query(sql, &[]).await? {
        told.push(crate::store::from_payload(row.get(0), row.get(1), row.get(2), row.get(3)));
        let status = match row.get::<_, &str>(6) {
            "published" => Status::Published,
            "pending" => Status::Pending,
            _ => Status::Dead,
        };
        deliveries.push(Delivery { delivery_id: row.get(4), event_id: row.get(5), status });
        attempts.requests += i64::from(row.get::<_, i32>(7));
        attempts.failed += i64::from(row.get::<_, i32>(8));
        attempts.known += i64::from(row.get::<_, i32>(9));
    }
    Ok((told, deliveries, attempts))
}
