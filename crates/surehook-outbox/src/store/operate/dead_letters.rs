//! Reads `outbox_dlq`.

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::LIMIT_MAX;
use crate::store::{Database, DatabaseError, Sql};
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
        /// It was sent again under a new id.
        Replaced = "replaced",
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
    pub replaced_by: Option<Uuid>,
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
    /// Died before then.
    pub until: Option<Timestamp>,
    /// At most so many, at most [`LIMIT_MAX`].
    pub limit: i64,
}

const COLUMNS: &str = "delivery_id, endpoint_id, endpoint_name, url, ordering_key, event_id, event_type, aggregate_id, aggregate_name, \
    webhook_name, format, reason, attempts, last_status_code, last_error, lane_id, seq, event_created_at, failed_at, state, \
    replays, replaced_by, updated_at, octet_length(body) AS body_bytes";

const WANTED: &str = "($1::text IS NULL OR state = $1) AND ($2::uuid IS NULL OR endpoint_id = $2) AND ($3::text IS NULL OR aggregate_id = $3) \
    AND ($4::text IS NULL OR reason = $4) AND ($5::timestamptz IS NULL OR failed_at >= $5) \
    AND ($6::timestamptz IS NULL OR failed_at < $6)";

/// Lists dead letters, the newest death first. A read: may be repeated.
pub async fn list_dead_letters(
    database: &Database,
    filter: &DeadLetterFilter,
) -> Result<Vec<DeadLetter>, DatabaseError> {
    let session = database.session().await?;
    let sql = format!("SELECT {COLUMNS} FROM outbox_dlq WHERE {WANTED} ORDER BY failed_at DESC, delivery_id LIMIT $7");
    let rows = session
        .query(
            &sql,
            &[
                &filter.state.map(DeadLetterState::as_str),
                &filter.endpoint_id,
                &filter.aggregate_id,
                &filter.reason.map(DeadLetterReason::as_str),
                &filter.since,
                &filter.until,
                &filter.limit.clamp(0, LIMIT_MAX),
            ],
        )
        .await?;
    rows.iter().map(from_row).collect()
}

/// How many dead letters wait for an operator, by endpoint and reason.
#[derive(Clone, Debug, serde::Serialize)]
#[expect(missing_docs, reason = "each field is the column of the same name, which the schema comments")]
pub struct DeadLetterCount {
    pub endpoint_id: Uuid,
    pub endpoint_name: String,
    pub reason: DeadLetterReason,
    pub letters: i64,
}

/// Counts the dead letters that fit the filter and that nobody has replayed: what a replay of many would look at. Its
/// `state` and `limit` say nothing here. A read: may be repeated.
pub async fn count_dead_letters(
    client: &impl Sql,
    filter: &DeadLetterFilter,
) -> Result<Vec<DeadLetterCount>, DatabaseError> {
    let sql = format!(
        "SELECT endpoint_id, max(endpoint_name) AS endpoint_name, reason, count(*) AS letters FROM outbox_dlq WHERE {WANTED}
          GROUP BY endpoint_id, reason ORDER BY endpoint_name, endpoint_id, reason"
    );
    let rows = client
        .query(
            &sql,
            &[
                &DeadLetterState::Dead.as_str(),
                &filter.endpoint_id,
                &filter.aggregate_id,
                &filter.reason.map(DeadLetterReason::as_str),
                &filter.since,
                &filter.until,
            ],
        )
        .await?;
    let counted = |row: &Row| {
        Ok(DeadLetterCount {
            endpoint_id: row.try_get("endpoint_id")?,
            endpoint_name: row.try_get("endpoint_name")?,
            reason: row.try_get("reason")?,
            letters: row.try_get("letters")?,
        })
    };
    rows.iter().map(counted).collect()
}

/// One dead letter and the exact bytes that were sent (None where they were lost); None: there is none of this id. A read:
/// may be repeated.
pub async fn show_dead_letter(
    database: &Database,
    delivery_id: Uuid,
) -> Result<Option<(DeadLetter, Option<Vec<u8>>)>, DatabaseError> {
    find_letter(&database.session().await?, delivery_id).await
}

/// The same within a session or transaction.
pub(in crate::store) async fn find_letter(
    client: &impl Sql,
    delivery_id: Uuid,
) -> Result<Option<(DeadLetter, Option<Vec<u8>>)>, DatabaseError> {
    let sql = format!("SELECT {COLUMNS}, body FROM outbox_dlq WHERE delivery_id = $1");
    let row = client.query_opt(&sql, &[&delivery_id]).await?;
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
        replaced_by: row.try_get("replaced_by")?,
        updated_at: row.try_get("updated_at")?,
        body_bytes: row.try_get("body_bytes")?,
    })
}
