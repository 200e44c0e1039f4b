//! Reads `outbox_events`.

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{LIMIT_MAX, WINDOWS_S};
use crate::store::{Database, DatabaseError};

/// An event with what became of it. The names of the fields are those of the columns.
#[derive(Clone, Debug, serde::Serialize)]
#[expect(missing_docs, reason = "each field is the column of the same name, which the schema comments")]
pub struct Event {
    pub event_id: Uuid,
    pub event_type: String,
    pub aggregate_id: String,
    pub aggregate_name: String,
    pub ordering_key: String,
    pub created_at: Timestamp,
    /// Size of the payload.
    pub payload_bytes: i32,
    /// How many deliveries it has.
    pub deliveries: i64,
}

/// Which events to list. Everything that is set must hold.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Of this aggregate.
    pub aggregate_id: Option<String>,
    /// Of this type.
    pub event_type: Option<String>,
    /// Created then or later.
    pub since: Option<Timestamp>,
    /// Whose payload contains these bytes. Looked for in the newest [`SCANNED_MAX`] events that fit the other filters.
    pub payload_contains: Option<Vec<u8>>,
    /// At most so many, at most [`LIMIT_MAX`].
    pub limit: i64,
}

/// How many payloads a search reads at most.
pub const SCANNED_MAX: i64 = 20_000;

/// Lists events, newest first. A read: may be repeated.
pub async fn list_events(database: &Database, filter: &EventFilter) -> Result<Vec<Event>, DatabaseError> {
    let session = database.session().await?;
    let limit = filter.limit.clamp(0, LIMIT_MAX);
    // A search stops at its limit of payloads, not at the first window that gives a page.
    let windows = if filter.payload_contains.is_some() { &WINDOWS_S[WINDOWS_S.len() - 1..] } else { &WINDOWS_S[..] };
    let mut events = Vec::new();
    for window_s in windows {
        let rows = session
            .query(
                "WITH fitting AS MATERIALIZED (
                     SELECT e.* FROM outbox_events AS e
                      WHERE ($1::text IS NULL OR e.aggregate_id = $1) AND ($2::text IS NULL OR e.event_type = $2)
                        AND ($3::timestamptz IS NULL OR e.created_at >= $3)
                        AND ($4::float8 IS NULL OR e.created_at >= now() - make_interval(secs => $4))
                      ORDER BY e.created_at DESC, e.event_id LIMIT CASE WHEN $5::bytea IS NULL THEN $6::bigint ELSE $7::bigint END
                 )
                 SELECT f.event_id, f.event_type, f.aggregate_id, f.aggregate_name, f.ordering_key, f.created_at,
                        octet_length(f.payload) AS payload_bytes,
                        (SELECT count(*) FROM outbox_deliveries AS d WHERE d.event_id = f.event_id AND NOT d.replay) AS deliveries
                   FROM fitting AS f WHERE $5::bytea IS NULL OR position($5 IN f.payload) > 0
                  ORDER BY f.created_at DESC, f.event_id LIMIT $6",
                &[
                    &filter.aggregate_id,
                    &filter.event_type,
                    &filter.since,
                    window_s,
                    &filter.payload_contains,
                    &limit,
                    &SCANNED_MAX,
                ],
            )
            .await?;
        events = rows.iter().map(from_row).collect::<Result<_, _>>()?;
        if i64::try_from(events.len()).is_ok_and(|found| found >= limit) {
            break;
        }
    }
    Ok(events)
}

/// One event and the exact bytes of its payload; None: there is none of this id (any more). A read: may be repeated.
pub async fn show_event(database: &Database, event_id: Uuid) -> Result<Option<(Event, Vec<u8>)>, DatabaseError> {
    let session = database.session().await?;
    let row = session
        .query_opt(
            "SELECT e.event_id, e.event_type, e.aggregate_id, e.aggregate_name, e.ordering_key, e.created_at,
                    octet_length(e.payload) AS payload_bytes, e.payload,
                    (SELECT count(*) FROM outbox_deliveries AS d WHERE d.event_id = e.event_id AND NOT d.replay) AS deliveries
               FROM outbox_events AS e WHERE e.event_id = $1 ORDER BY e.created_at DESC LIMIT 1",
            &[&event_id],
        )
        .await?;
    row.map(|row| Ok((from_row(&row)?, row.try_get("payload")?))).transpose()
}

fn from_row(row: &Row) -> Result<Event, DatabaseError> {
    Ok(Event {
        event_id: row.try_get("event_id")?,
        event_type: row.try_get("event_type")?,
        aggregate_id: row.try_get("aggregate_id")?,
        aggregate_name: row.try_get("aggregate_name")?,
        ordering_key: row.try_get("ordering_key")?,
        created_at: row.try_get("created_at")?,
        payload_bytes: row.try_get("payload_bytes")?,
        deliveries: row.try_get("deliveries")?,
    })
}
