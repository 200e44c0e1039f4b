//! Lanes that are held, so that live events in them wait for older ones: which ones must be, and the locks that it takes.

use jiff::Timestamp;
use uuid::Uuid;

use super::untold;
use crate::endpoint::Endpoint;
use crate::store::{DatabaseError, Transaction};

/// What of an endpoint decides which events go to it, as parameters.
pub(super) struct Of<'a> {
    pub(super) endpoint_id: Uuid,
    pub(super) format: &'a str,
    pub(super) aggregate_id: Option<&'a str>,
}

impl<'a> Of<'a> {
    pub(super) fn endpoint(endpoint: &'a Endpoint) -> Self {
        Self {
            endpoint_id: endpoint.endpoint_id,
            format: &endpoint.format,
            aggregate_id: endpoint.aggregate_id.as_deref(),
        }
    }
}

/// What an endpoint was not told of.
pub(super) struct Missing {
    /// Deliveries.
    pub(super) items: i64,
    /// The lanes that they belong to.
    pub(super) keys: Vec<String>,
}

/// What was not told since then; counted is only what happened before `until`. It reads all events since then.
pub(super) async fn missing(
    transaction: &Transaction<'_>,
    of: &Of<'_>,
    since: Timestamp,
    until: Option<Timestamp>,
) -> Result<Missing, DatabaseError> {
    const MISSING: &str = concat!(
        "WITH ",
        untold::missing!(),
        " SELECT ordering_key, count(*) FILTER (WHERE created_at < coalesce($5::timestamptz, 'infinity')) AS items
            FROM missing GROUP BY ordering_key"
    );
    let rows = transaction.query(MISSING, &[&of.endpoint_id, &of.format, &since, &of.aggregate_id, &until]).await?;
    let mut missing = Missing { items: 0, keys: Vec::with_capacity(rows.len()) };
    for row in &rows {
        missing.items += row.try_get::<_, i64>("items")?;
        missing.keys.push(row.try_get("ordering_key")?);
    }
    Ok(missing)
}

/// Holds the lanes of these keys, and makes those that are missing. The locks are taken in the order in which enqueuing takes
/// them: missing lanes by key, then all of them by number.
pub(super) async fn hold(
    transaction: &Transaction<'_>,
    endpoint_id: Uuid,
    keys: &[String],
) -> Result<(), DatabaseError> {
    let mut lanes = Vec::new();
    // Fewer than wanted: an idle lane was swept away in between.
    while lanes.len() < keys.len() {
        transaction
            .execute(
                "INSERT INTO outbox_lanes (endpoint_id, ordering_key, held_since)
                 SELECT $1, k, clock_timestamp() FROM unnest($2::text[]) AS u (k)
                  WHERE NOT EXISTS (SELECT 1 FROM outbox_lanes AS l WHERE l.endpoint_id = $1 AND l.ordering_key = k)
                  ORDER BY k
                 ON CONFLICT ON CONSTRAINT outbox_lanes_key DO NOTHING",
                &[&endpoint_id, &keys],
            )
            .await?;
        lanes = transaction
            .query(
                "SELECT lane_id FROM outbox_lanes WHERE endpoint_id = $1 AND ordering_key = ANY ($2) ORDER BY lane_id FOR UPDATE",
                &[&endpoint_id, &keys],
            )
            .await?;
    }
    transaction
        .execute(
            "UPDATE outbox_lanes SET held_since = clock_timestamp()
              WHERE endpoint_id = $1 AND ordering_key = ANY ($2) AND held_since IS NULL",
            &[&endpoint_id, &keys],
        )
        .await?;
    Ok(())
}
