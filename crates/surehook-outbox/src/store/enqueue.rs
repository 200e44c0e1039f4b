//! Recording events in the caller's transaction: the Rust side of `outbox_enqueue_many`.

use uuid::Uuid;

use super::{DatabaseError, Sql, column};

/// An event to record. What is None takes its default.
#[derive(Clone, Debug, Default)]
pub struct NewEvent<'a> {
    /// What kind of thing happened.
    pub event_type: &'a str,
    /// To which aggregate; order is kept within it.
    pub aggregate_id: &'a str,
    /// The exact bytes of the native body: JSON.
    pub payload: &'a [u8],
    /// Default: random.
    pub event_id: Option<Uuid>,
    /// The aggregate's name, which endpoints of a group match; default: the aggregate id.
    pub aggregate_name: Option<&'a str>,
    /// Default: the aggregate id.
    pub ordering_key: Option<&'a str>,
    /// A second event with this key is not recorded; default: none.
    pub idempotency_key: Option<&'a str>,
}

/// An event's body in a further format.
#[derive(Clone, Debug)]
pub struct Rendering<'a> {
    /// To which of the events it belongs, counted from 0.
    pub event: usize,
    /// The format.
    pub format: &'a str,
    /// Which webhook of the event this is.
    pub webhook_name: &'a str,
    /// Headers of the format: a JSON object of names and values.
    pub headers: &'a str,
    /// The exact bytes.
    pub body: &'a [u8],
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// Recorded; it takes effect when the transaction commits.
    New(Uuid),
    /// The idempotency key was used before: this is the event it stands for, and nothing was recorded.
    Already(Uuid),
}

impl Enqueued {
    /// The event's id.
    pub fn event_id(self) -> Uuid {
        match self {
            Self::New(id) | Self::Already(id) => id,
        }
    }
}

/// SQLSTATE of "an endpoint wants a format that was not rendered".
pub const FORMAT_NOT_RENDERED: &str = "SH001";

/// Records one event in the caller's transaction. Ok: it is delivered if and only if the transaction commits. Err: the
/// transaction is aborted by PostgreSQL. Endpoints of formats other than native are passed over.
pub async fn enqueue(transaction: &impl Sql, event: &NewEvent<'_>) -> Result<Enqueued, DatabaseError> {
    let mut enqueued = call(transaction, std::slice::from_ref(event), None, &[]).await?;
    enqueued.pop().ok_or_else(|| DatabaseError::Unsuitable("outbox_enqueue_many returned no row".into()))
}

/// Records several events in one call, in order, with their renderings. `rendered_formats` names the formats that were
/// rendered; Err with SQLSTATE [`FORMAT_NOT_RENDERED`] if an endpoint wants another one.
pub async fn enqueue_many(
    transaction: &impl Sql,
    events: &[NewEvent<'_>],
    rendered_formats: &[&str],
    renderings: &[Rendering<'_>],
) -> Result<Vec<Enqueued>, DatabaseError> {
    call(transaction, events, Some(rendered_formats), renderings).await
}

async fn call(
    transaction: &impl Sql,
    events: &[NewEvent<'_>],
    rendered_formats: Option<&[&str]>,
    renderings: &[Rendering<'_>],
) -> Result<Vec<Enqueued>, DatabaseError> {
    let rows = transaction
        .query(
            "SELECT event_id, already FROM outbox_enqueue_many($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) ORDER BY event_position",
            &[
                &column(events, |e| e.event_type),
                &column(events, |e| e.aggregate_id),
                &column(events, |e| e.payload),
                &column(events, |e| e.event_id),
                &column(events, |e| e.aggregate_name),
                &column(events, |e| e.ordering_key),
                &column(events, |e| e.idempotency_key),
                &rendered_formats,
                &column(renderings, |r| i32::try_from(r.event + 1).unwrap_or(i32::MAX)),
                &column(renderings, |r| r.format),
                &column(renderings, |r| r.webhook_name),
                &column(renderings, |r| r.headers),
                &column(renderings, |r| r.body),
            ],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| if row.get(1) { Enqueued::Already(row.get(0)) } else { Enqueued::New(row.get(0)) })
        .collect())
}

/// Recording an event in a transaction of sqlx.
#[cfg(feature = "sqlx")]
pub mod sqlx_adapter {
    use super::{Enqueued, NewEvent};

    /// As [`super::enqueue`], in a transaction of sqlx (`&mut *transaction`). Err: the transaction is aborted by PostgreSQL.
    pub async fn enqueue(connection: &mut sqlx::PgConnection, event: &NewEvent<'_>) -> Result<Enqueued, sqlx::Error> {
        let (event_id, already): (uuid::Uuid, bool) = sqlx::query_as(
            "SELECT event_id, already FROM outbox_enqueue_many(ARRAY[$1], ARRAY[$2], ARRAY[$3], ARRAY[$4], ARRAY[$5], ARRAY[$6], ARRAY[$7])",
        )
        .bind(event.event_type)
        .bind(event.aggregate_id)
        .bind(event.payload)
        .bind(event.event_id)
        .bind(event.aggregate_name)
        .bind(event.ordering_key)
        .bind(event.idempotency_key)
        .fetch_one(connection)
        .await?;
        Ok(if already { Enqueued::Already(event_id) } else { Enqueued::New(event_id) })
    }
}
