//! What an operator does to the head of a lane: try it now, or let it go.

use jiff::Timestamp;
use uuid::Uuid;

use super::deliveries::DeliveryStatus;
use crate::store::{Database, DatabaseError, Transaction};

/// What [`retry_now`] or [`skip`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnHead {
    /// What was asked for.
    Done,
    /// Nothing was changed: another delivery of its lane goes first.
    Behind {
        /// The one at the head.
        head: Option<Uuid>,
        /// How many go first, the head included.
        ahead: i64,
    },
    /// Nothing was changed: a worker is just sending it.
    Leased {
        /// Until then, unless it is done earlier.
        until: Timestamp,
    },
    /// Nothing was changed: it has ended.
    Ended(DeliveryStatus),
    /// There is no such delivery.
    Unknown,
}

/// Makes the head of a lane due at once, instead of at the time that its back-off chose. Its counts stay, except where the
/// lane had stopped at it (`on_dead = block`): then it gets as many attempts as a new one. Ok(Done): the next claim takes it. Err:
/// nothing was changed. May be repeated.
pub async fn retry_now(database: &Database, delivery_id: Uuid) -> Result<OnHead, DatabaseError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let lane = match lock(&transaction, delivery_id, false).await? {
        Ok(lane) => lane,
        Err(refused) => return Ok(refused),
    };
    if lane.blocked {
        transaction
            .execute(
                "UPDATE outbox_dlq SET state = 'replaying', replays = replays + 1, updated_at = clock_timestamp()
                  WHERE delivery_id = $1 AND state = 'dead'",
                &[&delivery_id],
            )
            .await?;
        revive_head(&transaction, lane.lane_id).await?;
    } else {
        transaction
            .execute(
                "UPDATE outbox_lanes SET ready_at = least(ready_at, clock_timestamp()), updated_at = clock_timestamp() WHERE lane_id = $1",
                &[&lane.lane_id],
            )
            .await?;
    }
    transaction.commit().await?;
    Ok(OnHead::Done)
}

/// Lets the head of a lane go: it ends as `skipped`, which is told by an attempt row of its own, and the lane moves on.
/// A delivery that a worker is just sending is left alone unless `force`: then whatever its receiver answers is discarded.
/// Ok: what was done, committed. Err: nothing was changed.
pub async fn skip(database: &Database, delivery_id: Uuid, force: bool) -> Result<OnHead, DatabaseError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let lane = match lock(&transaction, delivery_id, force).await? {
        Ok(lane) => lane,
        Err(refused) => return Ok(refused),
    };
    // The head of a blocked lane has ended already, as failed: that stays its end.
    if !lane.head_ended {
        transaction
            .execute(
                "INSERT INTO outbox_attempts (lane_id, seq, attempt, delivery_id, outcome, ends, error, started_at, duration_ms, created_at)
                 SELECT l.lane_id, l.done_seq + 1, l.attempts, $2, 'not_sent', 'skipped', 'skipped by an operator', t, 0, t
                   FROM outbox_lanes AS l, clock_timestamp() AS t WHERE l.lane_id = $1",
                &[&lane.lane_id, &delivery_id],
            )
            .await?;
    }
    transaction
        .execute(
            "UPDATE outbox_lanes
                SET done_seq = done_seq + 1, ready_at = CASE WHEN done_seq + 1 < last_seq THEN clock_timestamp() END,
                    leased_until = NULL, owner = NULL, epoch = epoch + 1, attempts = 0, strikes = 0, unanswered = 0, crashes = 0,
                    may_have_arrived = false, first_tried_at = NULL, last_error = NULL, updated_at = clock_timestamp()
              WHERE lane_id = $1",
            &[&lane.lane_id],
        )
        .await?;
    // A replay that is let go leaves its dead letter as it was before.
    transaction
        .execute(
            "UPDATE outbox_dlq SET state = 'dead', updated_at = clock_timestamp() WHERE delivery_id = $1 AND state = 'replaying'",
            &[&delivery_id],
        )
        .await?;
    transaction.commit().await?;
    Ok(OnHead::Done)
}

/// Starts the head of a stopped lane afresh, in its place, so that order is kept. If it is a dead letter it becomes a
/// replay, so that its end is noted there. The lane must be locked by the caller.
pub(super) async fn revive_head(transaction: &Transaction<'_>, lane_id: i64) -> Result<(), DatabaseError> {
    transaction
        .execute(
            "UPDATE outbox_deliveries AS d SET replay = true
               FROM outbox_lanes AS l, outbox_dlq AS q
              WHERE l.lane_id = $1 AND d.lane_id = l.lane_id AND d.seq = l.done_seq + 1
                AND q.delivery_id = d.delivery_id AND q.state = 'replaying'",
            &[&lane_id],
        )
        .await?;
    transaction
        .execute(
            "UPDATE outbox_lanes
                SET ready_at = clock_timestamp(), leased_until = NULL, owner = NULL, epoch = epoch + 1, attempts = 0, strikes = 0,
                    unanswered = 0, crashes = 0, first_tried_at = NULL, updated_at = clock_timestamp()
              WHERE lane_id = $1",
            &[&lane_id],
        )
        .await?;
    Ok(())
}

/// A locked lane whose head the delivery is.
struct Lane {
    lane_id: i64,
    blocked: bool,
    head_ended: bool,
}

/// Finds the newest place of a delivery and locks its lane; all that is returned was read under the lock. Err within Ok: why
/// it must be left alone. `leased_too`: not because a worker is just sending it.
async fn lock(
    transaction: &Transaction<'_>,
    delivery_id: Uuid,
    leased_too: bool,
) -> Result<Result<Lane, OnHead>, DatabaseError> {
    let place = transaction
        .query_opt(
            "SELECT d.lane_id, d.seq FROM outbox_deliveries AS d WHERE d.delivery_id = $1
              ORDER BY d.created_at DESC, d.seq DESC LIMIT 1",
            &[&delivery_id],
        )
        .await?;
    let Some(place) = place else { return Ok(Err(OnHead::Unknown)) };
    let (lane_id, seq): (i64, i64) = (place.try_get(0)?, place.try_get(1)?);
    let lane = transaction
        .query_opt(
            "SELECT done_seq, CASE WHEN leased_until > clock_timestamp() THEN leased_until END AS leased_until,
                    coalesce(ready_at = 'infinity', false) AS blocked
               FROM outbox_lanes WHERE lane_id = $1 FOR UPDATE",
            &[&lane_id],
        )
        .await?;
    let Some(lane) = lane else { return Ok(Err(OnHead::Unknown)) };
    let done_seq: i64 = lane.try_get("done_seq")?;
    // Statements of their own: they see what was committed before the lock was had.
    if seq <= done_seq {
        let row = transaction
            .query_one(
                "SELECT coalesce((SELECT a.ends FROM outbox_attempts AS a
                                   WHERE a.lane_id = $1 AND a.seq = $2 AND a.ends IS NOT NULL ORDER BY a.created_at DESC LIMIT 1), 'cancelled')",
                &[&lane_id, &seq],
            )
            .await?;
        return Ok(Err(OnHead::Ended(row.try_get(0)?)));
    }
    if seq > done_seq + 1 {
        let head = transaction
            .query_opt(
                "SELECT delivery_id FROM outbox_deliveries WHERE lane_id = $1 AND seq = $2",
                &[&lane_id, &(done_seq + 1)],
            )
            .await?;
        let head = head.map(|row| row.try_get(0)).transpose()?;
        return Ok(Err(OnHead::Behind { head, ahead: seq - done_seq - 1 }));
    }
    if let (Some(until), false) = (lane.try_get("leased_until")?, leased_too) {
        return Ok(Err(OnHead::Leased { until }));
    }
    let head_ended = transaction
        .query_one(
            "SELECT EXISTS (SELECT 1 FROM outbox_attempts WHERE lane_id = $1 AND seq = $2 AND ends IS NOT NULL)",
            &[&lane_id, &seq],
        )
        .await?
        .try_get(0)?;
    Ok(Ok(Lane { lane_id, blocked: lane.try_get("blocked")?, head_ended }))
}
