//! Reads the view `outbox_status` and the attempts behind it.

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{LIMIT_MAX, WINDOWS_S};
use crate::store::{Database, DatabaseError};
use crate::text_enum::text_enum;

text_enum! {
    /// How a delivery stands, as the view has it.
    DeliveryStatus {
        /// Not ended: waiting, being sent, or backing off.
        Pending = "pending",
        /// It reached the endpoint.
        Published = "published",
        /// It used up its attempts; a dead letter.
        Failed = "failed",
        /// An operator let it go.
        Skipped = "skipped",
        /// Its endpoint was removed.
        Cancelled = "cancelled",
    }
}

/// One delivery at its newest place. The names of the fields are those of the view.
#[derive(Clone, Debug, serde::Serialize)]
#[expect(missing_docs, reason = "each field is the column of the same name, which the view comments")]
pub struct Delivery {
    pub delivery_id: Uuid,
    pub event_id: Uuid,
    pub aggregate_id: String,
    pub aggregate_name: Option<String>,
    pub event_type: Option<String>,
    pub webhook_name: String,
    pub endpoint_id: Uuid,
    pub endpoint_name: String,
    pub webhook_url: String,
    pub status: DeliveryStatus,
    pub attempts: i32,
    pub last_error: Option<String>,
    pub created_at: Timestamp,
    pub published_at: Option<Timestamp>,
    /// When its next attempt is due, if it is the head of its lane, nobody is sending it, and it is not blocked.
    pub next_attempt_at: Option<Timestamp>,
    pub is_head: bool,
    pub replay: bool,
    pub lane_id: i64,
    pub seq: i64,
}

/// One attempt. The names of the fields are those of the columns.
#[derive(Clone, Debug, serde::Serialize)]
#[expect(missing_docs, reason = "each field is the column of the same name, which the schema comments")]
pub struct Attempt {
    pub attempt: i32,
    pub outcome: String,
    pub ends: Option<String>,
    pub status_code: Option<i32>,
    pub error: Option<String>,
    /// The first bytes of the answer, as text.
    pub response_body: Option<String>,
    pub started_at: Timestamp,
    pub duration_ms: i32,
    pub worker: Option<Uuid>,
    pub lane_id: i64,
    pub seq: i64,
}

/// Which deliveries to list. Everything that is set must hold.
#[derive(Clone, Debug, Default)]
pub struct DeliveryFilter {
    /// In this state.
    pub status: Option<DeliveryStatus>,
    /// To this endpoint.
    pub endpoint_id: Option<Uuid>,
    /// Of this aggregate.
    pub aggregate_id: Option<String>,
    /// Of one of these events.
    pub event_ids: Option<Vec<Uuid>>,
    /// Enqueued then or later.
    pub since: Option<Timestamp>,
    /// At most so many, at most [`LIMIT_MAX`].
    pub limit: i64,
}

const COLUMNS: &str = "s.delivery_id, s.event_id, s.aggregate_id, s.aggregate_name, s.event_type, s.webhook_name, s.endpoint_id, \
    s.endpoint_name, s.webhook_url, s.status, s.attempts, s.last_error, s.created_at, s.published_at, \
    nullif(s.next_attempt_at, 'infinity') AS next_attempt_at, s.is_head, s.replay, s.lane_id, s.seq";

/// Lists deliveries, newest first. A read: may be repeated.
///
/// The state of a delivery is computed from its lane and its attempts, so it cannot be looked up by an index. Where the
/// wanted ones are few among many, they are found from the rows that tell of them.
pub async fn list_deliveries(database: &Database, filter: &DeliveryFilter) -> Result<Vec<Delivery>, DatabaseError> {
    let session = database.session().await?;
    let limit = filter.limit.clamp(0, LIMIT_MAX);
    let status = filter.status.map(DeliveryStatus::as_str);
    let (source, narrows) = source_of(filter.status);
    let windows =
        if narrows || filter.event_ids.is_some() { &WINDOWS_S[WINDOWS_S.len() - 1..] } else { &WINDOWS_S[..] };
    // Each filter that is not set is left out of the text, so that the planner sees only what is asked.
    let mut wanted = vec![
        "($1::float8 IS NULL OR s.created_at >= now() - make_interval(secs => $1))",
        "($2::timestamptz IS NULL OR s.created_at >= $2)",
        "($3::text IS NULL OR s.status = $3)",
        "($4::uuid IS NULL OR s.endpoint_id = $4)",
        "($5::text IS NULL OR s.aggregate_id = $5)",
    ];
    wanted.push(if filter.event_ids.is_some() { "s.event_id = ANY ($6::uuid[])" } else { "$6::uuid[] IS NULL" });
    let sql = format!(
        "SELECT {COLUMNS} FROM {source} WHERE {} ORDER BY s.created_at DESC, s.lane_id, s.seq DESC LIMIT $7",
        wanted.join(" AND ")
    );
    let mut deliveries = Vec::new();
    for window_s in windows {
        let rows = session
            .query(
                &sql,
                &[
                    window_s,
                    &filter.since,
                    &status,
                    &filter.endpoint_id,
                    &filter.aggregate_id,
                    &filter.event_ids,
                    &limit,
                ],
            )
            .await?;
        deliveries = rows.iter().map(from_row).collect::<Result<_, _>>()?;
        if i64::try_from(deliveries.len()).is_ok_and(|found| found >= limit) {
            break;
        }
    }
    Ok(deliveries)
}

/// Where deliveries in a state are looked for, and whether that leaves few of them.
fn source_of(status: Option<DeliveryStatus>) -> (&'static str, bool) {
    match status {
        None | Some(DeliveryStatus::Published) => ("outbox_status AS s", false),
        Some(DeliveryStatus::Pending) => (
            "outbox_lanes AS work JOIN outbox_status AS s
               ON work.ready_at IS NOT NULL AND s.lane_id = work.lane_id AND s.seq > work.done_seq",
            true,
        ),
        Some(DeliveryStatus::Failed) => (
            "outbox_dlq AS letter JOIN outbox_status AS s ON letter.state = 'dead' AND s.delivery_id = letter.delivery_id",
            true,
        ),
        Some(DeliveryStatus::Skipped) => (
            "(SELECT DISTINCT delivery_id FROM outbox_attempts WHERE ends = 'skipped') AS skipped
               JOIN outbox_status AS s ON s.delivery_id = skipped.delivery_id",
            true,
        ),
        Some(DeliveryStatus::Cancelled) => (
            "endpoints AS removed JOIN outbox_status AS s ON removed.state = 'removed' AND s.endpoint_id = removed.endpoint_id",
            true,
        ),
    }
}

/// One delivery at its newest place; None: there is none of this id (any more). A read: may be repeated.
pub async fn show_delivery(database: &Database, delivery_id: Uuid) -> Result<Option<Delivery>, DatabaseError> {
    let session = database.session().await?;
    let sql = format!(
        "SELECT {COLUMNS} FROM outbox_status AS s WHERE s.delivery_id = $1 ORDER BY s.created_at DESC, s.seq DESC LIMIT 1"
    );
    session.query_opt(&sql, &[&delivery_id]).await?.as_ref().map(from_row).transpose()
}

/// The attempts at a delivery, replays included, oldest first; the newest 1,000. A read: may be repeated.
pub async fn attempts(database: &Database, delivery_id: Uuid) -> Result<Vec<Attempt>, DatabaseError> {
    let session = database.session().await?;
    let rows = session
        .query(
            "SELECT * FROM (
                 SELECT a.attempt, a.outcome, a.ends, a.status_code, a.error, a.response_body, a.started_at, a.duration_ms,
                        a.worker, a.lane_id, a.seq, a.created_at
                   FROM outbox_attempts AS a WHERE a.delivery_id = $1
                  ORDER BY a.created_at DESC, a.seq DESC, a.attempt DESC LIMIT 1000) AS newest
              ORDER BY created_at, seq, attempt",
            &[&delivery_id],
        )
        .await?;
    rows.iter().map(attempt_from_row).collect()
}

fn attempt_from_row(row: &Row) -> Result<Attempt, DatabaseError> {
    let body: Option<Vec<u8>> = row.try_get("response_body")?;
    Ok(Attempt {
        attempt: row.try_get("attempt")?,
        outcome: row.try_get("outcome")?,
        ends: row.try_get("ends")?,
        status_code: row.try_get("status_code")?,
        error: row.try_get("error")?,
        response_body: body.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        started_at: row.try_get("started_at")?,
        duration_ms: row.try_get("duration_ms")?,
        worker: row.try_get("worker")?,
        lane_id: row.try_get("lane_id")?,
        seq: row.try_get("seq")?,
    })
}

fn from_row(row: &Row) -> Result<Delivery, DatabaseError> {
    Ok(Delivery {
        delivery_id: row.try_get("delivery_id")?,
        event_id: row.try_get("event_id")?,
        aggregate_id: row.try_get("aggregate_id")?,
        aggregate_name: row.try_get("aggregate_name")?,
        event_type: row.try_get("event_type")?,
        webhook_name: row.try_get("webhook_name")?,
        endpoint_id: row.try_get("endpoint_id")?,
        endpoint_name: row.try_get("endpoint_name")?,
        webhook_url: row.try_get("webhook_url")?,
        status: row.try_get("status")?,
        attempts: row.try_get("attempts")?,
        last_error: row.try_get("last_error")?,
        created_at: row.try_get("created_at")?,
        published_at: row.try_get("published_at")?,
        next_attempt_at: row.try_get("next_attempt_at")?,
        is_head: row.try_get("is_head")?,
        replay: row.try_get("replay")?,
        lane_id: row.try_get("lane_id")?,
        seq: row.try_get("seq")?,
    })
}
