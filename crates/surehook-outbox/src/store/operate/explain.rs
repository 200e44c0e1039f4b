//! Where a delivery is and what it waits for, as facts; the words for a person are made where they are printed.

use jiff::Timestamp;
use uuid::Uuid;

use super::deliveries::{Attempt, Delivery, attempts, show_delivery};
use crate::endpoint::EndpointState;
use crate::store::{Database, DatabaseError};

/// What the lane of a delivery is doing.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "lane", rename_all = "snake_case")]
pub enum LaneStanding {
    /// It has no work.
    Idle,
    /// A worker holds it.
    Leased {
        /// That worker.
        owner: Uuid,
        /// Where it runs, if it is still known.
        node: Option<String>,
        /// Until then, unless it is done earlier.
        until: Timestamp,
    },
    /// The worker that held it has not given it back in time; the next claim takes it over.
    LeaseExpired {
        /// That worker.
        owner: Uuid,
        /// Since then.
        since: Timestamp,
    },
    /// Any worker may take it now.
    Due {
        /// Since then.
        since: Timestamp,
    },
    /// The next attempt at its head waits for its time.
    BackingOff {
        /// That time.
        until: Timestamp,
    },
    /// It stopped at a dead head and waits for an operator.
    Blocked,
}

/// Everything that says why a delivery is where it is.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Explanation {
    /// The delivery.
    pub delivery: Delivery,
    /// Whether its endpoint is active, paused or removed.
    pub endpoint_state: EndpointState,
    /// Why it is paused.
    pub endpoint_state_reason: Option<String>,
    /// What its lane is doing.
    #[serde(flatten)]
    pub lane: LaneStanding,
    /// How many deliveries of its lane go out before it.
    pub ahead: i64,
    /// The delivery at the head of its lane, if that is another one.
    pub head_delivery_id: Option<Uuid>,
    /// Requests made so far for the head.
    pub head_attempts: i32,
    /// Answers that refused the head, and how many end it.
    pub head_strikes: i32,
    /// The limit of those.
    pub max_attempts: i32,
    /// What last went wrong with the head.
    pub head_last_error: Option<String>,
    /// The attempts at this delivery, oldest first.
    pub attempts: Vec<Attempt>,
    /// When all of this was so, by the database's clock.
    pub as_of: Timestamp,
}

/// Explains a delivery; None: there is none of this id (any more). A read: may be repeated.
pub async fn explain(database: &Database, delivery_id: Uuid) -> Result<Option<Explanation>, DatabaseError> {
    let Some(delivery) = show_delivery(database, delivery_id).await? else {
        return Ok(None);
    };
    let attempts = attempts(database, delivery_id).await?;
    let session = database.session().await?;
    let row = session
        .query_one(
            "SELECT ep.state, ep.state_reason, ep.max_attempts, l.owner, l.leased_until, w.node, l.attempts, l.strikes, l.last_error,
                    l.ready_at IS NULL AS idle, coalesce(l.ready_at = 'infinity', false) AS blocked,
                    nullif(l.ready_at, 'infinity') AS ready_at, greatest($2 - l.done_seq - 1, 0) AS ahead,
                    (SELECT d.delivery_id FROM outbox_deliveries AS d
                      WHERE d.lane_id = l.lane_id AND d.seq = l.done_seq + 1 LIMIT 1) AS head_delivery_id,
                    clock_timestamp() AS as_of
               FROM outbox_lanes AS l JOIN endpoints AS ep ON ep.endpoint_id = l.endpoint_id
               LEFT JOIN outbox_workers AS w ON w.worker_id = l.owner
              WHERE l.lane_id = $1",
            &[&delivery.lane_id, &delivery.seq],
        )
        .await?;
    let as_of: Timestamp = row.try_get("as_of")?;
    let leased: Option<(Uuid, Timestamp)> = row.try_get::<_, Option<Uuid>>("owner")?.zip(row.try_get("leased_until")?);
    let ready_at: Option<Timestamp> = row.try_get("ready_at")?;
    let lane = match (leased, ready_at) {
        _ if row.try_get("idle")? => LaneStanding::Idle,
        (Some((owner, until)), _) if until > as_of => LaneStanding::Leased { owner, node: row.try_get("node")?, until },
        (Some((owner, since)), _) => LaneStanding::LeaseExpired { owner, since },
        (None, Some(until)) if until > as_of => LaneStanding::BackingOff { until },
        (None, Some(since)) => LaneStanding::Due { since },
        (None, None) => LaneStanding::Blocked,
    };
    let head: Option<Uuid> = row.try_get("head_delivery_id")?;
    Ok(Some(Explanation {
        endpoint_state: row.try_get("state")?,
        endpoint_state_reason: row.try_get("state_reason")?,
        lane,
        ahead: row.try_get("ahead")?,
        head_delivery_id: head.filter(|head| *head != delivery.delivery_id),
        head_attempts: row.try_get("attempts")?,
        head_strikes: row.try_get("strikes")?,
        max_attempts: row.try_get("max_attempts")?,
        head_last_error: row.try_get("last_error")?,
        attempts,
        as_of,
        delivery,
    }))
}
