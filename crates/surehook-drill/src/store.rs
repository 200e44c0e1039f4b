//! The drill's SQL: it reads what sender and receiver have written, and keeps the outbox of the textbook.
#![expect(clippy::disallowed_methods, reason = "here SQL stands")]

use std::collections::HashSet;

use anyhow::Context as _;
use surehook_testkit::ledger;
use surehook_testkit::postgres::Client;

use crate::records::{Arrival, Delivery, Status, Told};

/// Requests as the sender has recorded them.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Attempts {
    /// All of them.
    pub requests: i64,
    /// Those that did not deliver.
    pub failed: i64,
    /// Those that were answered with 409: the receiver knew them.
    pub known: i64,
}

impl Attempts {
    /// How many of a hundred failed.
    pub fn failed_percent(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "there are not that many")]
        if self.requests == 0 { 0.0 } else { 100.0 * self.failed as f64 / self.requests as f64 }
    }
}

/// How far everybody is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Events.
    pub events: i64,
    /// Deliveries that have not ended.
    pub pending: i64,
}

/// Makes an empty database.
pub async fn create_database(admin: &Client, name: &str) -> anyhow::Result<()> {
    let create = format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'");
    admin.batch_execute(&create).await.context("a database cannot be made")
}

/// The events, by repository and number.
pub async fn told(sender: &Client) -> anyhow::Result<Vec<Told>> {
    let sql = "SELECT payload, aggregate_name, encode(sha256(payload), 'hex') FROM outbox_events
                WHERE event_type NOT LIKE 'surehook.%'";
    let rows = sender.query(sql, &[]).await.context("the events cannot be read")?;
    let mut told: Vec<Told> = rows.iter().map(|row| from_payload(row.get(0), row.get(1), row.get(2), 0)).collect();
    told.sort_by(|a, b| (&a.repository, a.sequence).cmp(&(&b.repository, b.sequence)));
    Ok(told)
}

/// An event by its payload; `sequence` counts where the payload has no number.
pub fn from_payload(payload: &[u8], repository: String, body_hash: String, sequence: i64) -> Told {
    let ledger::Told { event_id, name, before, after, sequence: own, epoch } = ledger::Told::parse(payload);
    let sequence = if sequence == 0 { own } else { sequence };
    Told { event_id, repository, name, before, after, sequence, epoch, body_hash }
}

/// The deliveries.
pub async fn deliveries(sender: &Client) -> anyhow::Result<Vec<Delivery>> {
    let sql = "SELECT delivery_id::text, event_id::text, status FROM outbox_status
                WHERE event_type NOT LIKE 'surehook.%'";
    let rows = sender.query(sql, &[]).await.context("the deliveries cannot be read")?;
    let delivery = |row: &tokio_postgres::Row| {
        let status = match row.get::<_, &str>(2) {
            "published" => Status::Published,
            "pending" => Status::Pending,
            _ => Status::Dead,
        };
        Delivery { delivery_id: row.get(0), event_id: row.get(1), status }
    };
    Ok(rows.iter().map(delivery).collect())
}

/// The requests.
pub async fn attempts(sender: &Client) -> anyhow::Result<Attempts> {
    let sql = "SELECT count(*), count(*) FILTER (WHERE outcome NOT IN ('success', 'conflict')),
                      count(*) FILTER (WHERE status_code = 409) FROM outbox_attempts WHERE outcome <> 'not_sent'";
    let row = sender.query_one(sql, &[]).await.context("the attempts cannot be read")?;
    Ok(Attempts { requests: row.get(0), failed: row.get(1), known: row.get(2) })
}

/// Events whose deliveries are dead because workers crashed over them, and those that are dead for another reason.
pub async fn dead(sender: &Client) -> anyhow::Result<(HashSet<String>, usize)> {
    let sql = "SELECT event_id::text, reason = 'crashed_worker' FROM outbox_dlq WHERE state = 'dead'";
    let rows = sender.query(sql, &[]).await.context("the dead letters cannot be read")?;
    let crashed: HashSet<String> = rows.iter().filter(|row| row.get(1)).map(|row| row.get(0)).collect();
    let others = rows.len() - crashed.len();
    Ok((crashed, others))
}

/// How far surehook is.
pub async fn standing(sender: &Client) -> Result<Standing, tokio_postgres::Error> {
    let sql = "SELECT (SELECT count(*) FROM outbox_events WHERE event_type NOT LIKE 'surehook.%'),
                      (SELECT coalesce(sum(last_seq - done_seq), 0)::bigint FROM outbox_lanes WHERE ready_at IS NOT NULL)";
    let row = sender.query_one(sql, &[]).await?;
    Ok(Standing { events: row.get(0), pending: row.get(1) })
}

/// Whether all lines of a ref's log were told, up to this value.
pub async fn is_told(sender: &Client, name: &str, value: &str, log_bytes: i64) -> bool {
    let sql = "SELECT FROM repository_refs WHERE ref = $1 AND value = decode($2, 'hex') AND log_offset = $3";
    let rows = sender.query(sql, &[&name.as_bytes(), &value, &log_bytes]).await;
    rows.is_ok_and(|rows| !rows.is_empty())
}

/// What the receiver believed.
pub async fn arrivals(receiver: &Client) -> anyhow::Result<Vec<(Arrival, Told)>> {
    let sql = "SELECT webhook_id, coalesce(event_id, ''), coalesce(repository, ''), encode(body_hash, 'hex'),
                      state = 'finished', payload, build_id FROM inbox_builds ORDER BY build_id";
    let rows = receiver.query(sql, &[]).await.context("the receiver's table cannot be read")?;
    let arrival = |row: &tokio_postgres::Row| {
        let (repository, body_hash): (String, String) = (row.get(2), row.get(3));
        let told = from_payload(row.get(5), repository.clone(), body_hash.clone(), row.get(6));
        let (webhook_id, event_id) = (row.get(0), row.get(1));
        (Arrival { webhook_id, event_id, repository, body_hash, is_finished: row.get(4) }, told)
    };
    Ok(rows.iter().map(arrival).collect())
}

/// Builds that have ended, and those that have not.
pub async fn builds(receiver: &Client) -> Result<(i64, i64), tokio_postgres::Error> {
    let sql =
        "SELECT count(*) FILTER (WHERE state = 'finished'), count(*) FILTER (WHERE state IN ('queued', 'running'))
                 FROM inbox_builds";
    let row = receiver.query_one(sql, &[]).await?;
    Ok((row.get(0), row.get(1)))
}
