//! Reads `outbox_dlq`.

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::LIMIT_MAX;
use crate::store::{Database, DatabaseError};
use crate::text_enum::text_enum;

text_enum! {
    /// Which limit ended a delivery.
    DeadLetterReason {
        /// Too many answers that refused it.
        MaxAttempts = "max_attempts",
        /// Too many attempts without an answer.
        MaxUnanswered = "max_unanswered",
        /// It was tried for too long.
        MaxAge = "max_age",
        /// Its row was lost.
        RowMissing = "row_missing",
        /// Workers vanished over it.
        CrashedWorker = "crashed_worker",
    }
}

text_enum! {
    /// How a dead letter stands.
    DeadLetterState {
        /// It waits for an operator.
        Dead = "dead",
        /// It was replayed and is on its way.
        Replaying = "replaying",
        /// A replay got through.
        Delivered = "delivered",
    }
}

/// A dead letter without its bytes. The names of the fields are those of the columns.
#[derive(Clone, Debug, serde::Serialize)]
#[expect(missing_docs, reason = "each field is the column of the same name, which the schema comments")]
pub struct DeadLetter {
    pub delivery_id: Uuid,
    pub endpoint_id: Uuid,
    pub endpoint_name: String,
    pub url: String,
    pub ordering_key: String,
    pub event_id: Uuid,
    pub event_type: String,
    pub aggregate_id: String,
    pub aggregate_name: String,
    pub webhook_name: String,
    pub format: String,
    pub reason: DeadLetterReason,
    pub attempts: i32,
    pub last_status_code: Option<i32>,
    pub last_error: Option<String>,
    pub lane_id: i64,
    pub seq: i64,
    pub event_created_at: Timestamp,
    pub failed_at: Timestamp,
    pub state: DeadLetterState,
    pub replays: i32,
    pub updated_at: Timestamp,
    /// Size of the kept body; NULL where it was lost.
    pub body_bytes: Option<i32>,
}

/// Which dead letters. Everything that is set must hold.
#[derive(Clone, Debug, Default)]
pub struct DeadLetterFilter {
    /// In this state.
    pub state: Option<DeadLetterState>,
    /// To this endpoint.
    pub endpoint_id: Option<Uuid>,
    /// Of this aggregate.
    pub aggregate_id: Option<String>,
    /// Ended by this limit.
    pub reason: Option<DeadLetterReason>,
    /// Died then or later.
    pub since: Option<Timestamp>,
    /// At most so many, at most [`LIMIT_MAX`].
    pub limit: i64,
}

const COLUMNS: &str = "delivery_id, endpoint_id, endpoint_name, url, ordering_key, event_id, event_type, aggregate_id, aggregate_name, \
    webhook_name, format, reason, attempts, last_status_code, last_error, lane_id, seq, event_created_at, failed_at, state, \
    replays, updated_at, octet_length(body) AS body_bytes";

const WANTED: &str = "($1::text IS NULL OR state = $1) AND ($2::uuid IS NULL OR endpoint_id = $2) AND ($3::text IS NULL OR aggregate_id = $3) \
    AND ($4::text IS NULL OR reason = $4) AND ($5::timestamptz IS NULL OR failed_at >= $5)";

/// Lists dead letters, the newest death first. A read: may be repeated.
pub async fn list_dead_letters(
    database: &Database,
    filter: &DeadLetterFilter,
) -> Result<Vec<DeadLetter>, DatabaseError> {
    let session = database.session().await?;
    let sql = format!("SELECT {COLUMNS} FROM outbox_dlq WHERE {WANTED} ORDER BY failed_at DESC, delivery_id LIMIT $6");
    let rows = session
        .query(
            &sql,
            &[
                &filter.state.map(DeadLetterState::as_str),
                &filter.endpoint_id,
                &filter.aggregate_id,
                &filter.reason.map(DeadLetterReason::as_str),
                &filter.since,
                &filter.limit.clamp(0, LIMIT_MAX),
            ],
        )
        .await?;
    rows.iter().map(from_row).collect()
}

/// The dead letters that fit the filter in the order in which they were to be delivered, from after `after` on: a page of
/// the walk that a replay of many makes. Their order is that of the events, so a replay repeats it. A read: may be repeated.
pub async fn next_dead_letters(
    database: &Database,
    filter: &DeadLetterFilter,
    after: Option<&DeadLetter>,
) -> Result<Vec<DeadLetter>, DatabaseError> {
    let session = database.session().await?;
    let sql = format!(
        "SELECT {COLUMNS} FROM outbox_dlq WHERE {WANTED}
            AND ($6::timestamptz IS NULL OR (event_created_at, lane_id, seq, delivery_id) > ($6, $7::bigint, $8::bigint, $9::uuid))
          ORDER BY event_created_at, lane_id, seq, delivery_id LIMIT $10"
    );
    let rows = session
        .query(
            &sql,
            &[
                &filter.state.map(DeadLetterState::as_str),
                &filter.endpoint_id,
                &filter.aggregate_id,
                &filter.reason.map(DeadLetterReason::as_str),
                &filter.since,
                &after.map(|letter| letter.event_created_at),
                &after.map(|letter| letter.lane_id),
                &after.map(|letter| letter.seq),
                &after.map(|letter| letter.delivery_id),
                &filter.limit.clamp(0, LIMIT_MAX),
            ],
        )
        .await?;
    rows.iter().map(from_row).collect()
}

/// One dead letter and the exact bytes that were sent (None where they were lost); None: there is none of this id. A read:
/// may be repeated.
pub async fn show_dead_letter(
    database: &Database,
    delivery_id: Uuid,
) -> Result<Option<(DeadLetter, Option<Vec<u8>>)>, DatabaseError> {
    let session = database.session().await?;
    let sql = format!("SELECT {COLUMNS}, body FROM outbox_dlq WHERE delivery_id = $1");
    let row = session.query_opt(&sql, &[&delivery_id]).await?;
    row.map(|row| Ok((from_row(&row)?, row.try_get("body")?))).transpose()
}

fn from_row(row: &Row) -> Result<DeadLetter, DatabaseError> {
    Ok(DeadLetter {
        delivery_id: row.try_get("delivery_id")?,
        endpoint_id: row.try_get("endpoint_id")?,
        endpoint_name: row.try_get("endpoint_name")?,
        url: row.try_get("url")?,
        ordering_key: row.try_get("ordering_key")?,
        event_id: row.try_get("event_id")?,
        event_type: row.try_get("event_type")?,
        aggregate_id: row.try_get("aggregate_id")?,
        aggregate_name: row.try_get("aggregate_name")?,
        webhook_name: row.try_get("webhook_name")?,
        format: row.try_get("format")?,
        reason: row.try_get("reason")?,
        attempts: row.try_get("attempts")?,
        last_status_code: row.try_get("last_status_code")?,
        last_error: row.try_get("last_error")?,
        lane_id: row.try_get("lane_id")?,
        seq: row.try_get("seq")?,
        event_created_at: row.try_get("event_created_at")?,
        failed_at: row.try_get("failed_at")?,
        state: row.try_get("state")?,
        replays: row.try_get("replays")?,
        updated_at: row.try_get("updated_at")?,
        body_bytes: row.try_get("body_bytes")?,
    })
}
