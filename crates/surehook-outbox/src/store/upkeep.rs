//! What the sweep does to the tables: partitions ahead, work of removed endpoints cancelled. And the gauges.

use super::{DatabaseError, Session};

/// Makes the missing week partitions; returns how many.
pub async fn ensure_partitions(session: &Session) -> Result<i32, DatabaseError> {
    Ok(session.query_one("SELECT outbox_ensure_partitions()", &[]).await?.get(0))
}

/// Ends the work of removed endpoints that an enqueue slipped in while the removal was under way; returns how many
/// deliveries that were.
pub async fn cancel_removed(session: &Session) -> Result<i64, DatabaseError> {
    let row = session
        .query_one(
            "WITH chosen AS (
                 SELECT l.lane_id, l.last_seq - l.done_seq AS pending FROM endpoints AS e JOIN outbox_lanes AS l ON l.endpoint_id = e.endpoint_id
                  WHERE e.state = 'removed' AND l.ready_at IS NOT NULL ORDER BY l.lane_id FOR UPDATE OF l SKIP LOCKED
             ), cancelled AS (
                 UPDATE outbox_lanes AS l
                    SET done_seq = l.last_seq, ready_at = NULL, leased_until = NULL, owner = NULL, epoch = l.epoch + 1, attempts = 0, strikes = 0,
                        unanswered = 0, crashes = 0, may_have_arrived = false, first_tried_at = NULL, last_error = NULL, updated_at = now()
                   FROM chosen WHERE l.lane_id = chosen.lane_id
             )
             SELECT coalesce(sum(pending), 0)::bigint FROM chosen",
            &[],
        )
        .await?;
    Ok(row.get(0))
}

/// Ok: the database answers.
pub async fn ping(session: &Session) -> Result<(), DatabaseError> {
    session.query_one("SELECT 1", &[]).await?;
    Ok(())
}

/// The state of the outbox in numbers, read at the moment of asking.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gauges {
    /// Deliveries that have not ended.
    pub pending: i64,
    /// Lanes that have work.
    pub lanes_with_work: i64,
    /// Age of the oldest pending delivery, in seconds; 0 if there is none.
    pub oldest_pending_age_s: f64,
    /// Dead letters that nobody has replayed.
    pub dead_letters: i64,
    /// Endpoints that are paused.
    pub endpoints_paused: i64,
    /// Workers that moved their heartbeat within the last 10 s.
    pub workers_alive: i64,
}

/// Reads the gauges; its cost grows with the lanes that have work, not with backlog or history.
pub async fn gauges(session: &Session) -> Result<Gauges, DatabaseError> {
    let row = session
        .query_one(
            "SELECT coalesce(sum(l.last_seq - l.done_seq), 0)::bigint AS pending, count(*) AS lanes,
                    coalesce(extract(epoch FROM clock_timestamp() - min(h.created_at)), 0)::float8 AS oldest,
                    (SELECT count(*) FROM outbox_dlq WHERE state = 'dead') AS dead,
                    (SELECT count(*) FROM endpoints WHERE state = 'paused') AS paused,
                    (SELECT count(*) FROM outbox_workers WHERE heartbeat_at > now() - interval '10 seconds') AS workers
               FROM outbox_lanes AS l
               LEFT JOIN LATERAL (SELECT d.created_at FROM outbox_deliveries AS d WHERE d.lane_id = l.lane_id AND d.seq = l.done_seq + 1 LIMIT 1) AS h ON true
              WHERE l.ready_at IS NOT NULL",
            &[],
        )
        .await?;
    Ok(Gauges {
        pending: row.get("pending"),
        lanes_with_work: row.get("lanes"),
        oldest_pending_age_s: row.get::<_, f64>("oldest").max(0.0),
        dead_letters: row.get("dead"),
        endpoints_paused: row.get("paused"),
        workers_alive: row.get("workers"),
    })
}
