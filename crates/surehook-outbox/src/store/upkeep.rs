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
    let cancelled: i64 = row.get(0);
    if cancelled > 0 {
        // Replays among them leave their dead letters as they were before.
        session
            .execute(
                "UPDATE outbox_dlq AS q SET state = 'dead', updated_at = now() FROM endpoints AS e
                  WHERE e.endpoint_id = q.endpoint_id AND e.state = 'removed' AND q.state = 'replaying'",
                &[],
            )
            .await?;
    }
    Ok(cancelled)
}

/// Forgets the workers that were lost more than a day ago.
pub async fn forget_lost_workers(session: &Session) -> Result<u64, DatabaseError> {
    session.execute("DELETE FROM outbox_workers_lost WHERE lost_at < now() - interval '1 day'", &[]).await
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
    /// Lanes of active endpoints that are due and not in hand.
    pub lanes_due: i64,
    /// How long the longest-due of them has been due, in seconds; 0 if there is none.
    pub oldest_due_age_s: f64,
    /// Lanes that stopped at a dead head.
    pub lanes_blocked: i64,
    /// Workers that hang: a loop of them stands still, or they were lost within the last day and nothing came in their place.
    pub workers_stuck: i64,
    /// Jobs that are running.
    pub jobs_running: i64,
}

/// Reads the gauges; its cost grows with the lanes that have work, not with backlog or history.
pub async fn gauges(session: &Session) -> Result<Gauges, DatabaseError> {
    let row = session
        .query_one(
            "SELECT coalesce(sum(l.last_seq - l.done_seq), 0)::bigint AS pending, count(*) AS lanes,
                    coalesce(extract(epoch FROM clock_timestamp() - min(h.created_at)), 0)::float8 AS oldest,
                    count(*) FILTER (WHERE l.ready_at <= clock_timestamp() AND e.state = 'active') AS due,
                    coalesce(extract(epoch FROM clock_timestamp() - min(l.ready_at) FILTER (WHERE e.state = 'active' AND l.ready_at <= clock_timestamp())), 0)::float8 AS oldest_due,
                    count(*) FILTER (WHERE l.ready_at = 'infinity') AS blocked,
                    (SELECT count(*) FROM outbox_dlq WHERE state = 'dead') AS dead,
                    (SELECT count(*) FROM endpoints WHERE state = 'paused') AS paused,
                    (SELECT count(*) FROM outbox_workers WHERE heartbeat_at > now() - interval '10 seconds') AS workers,
                    (SELECT count(*) FROM outbox_workers WHERE stalled IS NOT NULL)
                      + (SELECT count(*) FROM outbox_workers_lost AS l
                          WHERE NOT EXISTS (SELECT FROM outbox_workers AS w
                                             WHERE w.worker_id = l.worker_id
                                                OR (split_part(w.node, ' (process ', 1) = split_part(l.node, ' (process ', 1) AND w.started_at >= l.heartbeat_at))) AS stuck,
                    (SELECT count(*) FROM outbox_jobs WHERE state = 'running') AS jobs
               FROM outbox_lanes AS l
               LEFT JOIN endpoints AS e ON e.endpoint_id = l.endpoint_id
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
        workers_stuck: row.get("stuck"),
        lanes_due: row.get("due"),
        oldest_due_age_s: row.get::<_, f64>("oldest_due").max(0.0),
        lanes_blocked: row.get("blocked"),
        jobs_running: row.get("jobs"),
    })
}

/// What shows whether PostgreSQL keeps up with cleaning.
#[derive(Clone, Debug, PartialEq)]
pub struct Bloat {
    /// Age of the oldest transaction of anybody in this database, in seconds; 0 if there is none.
    pub oldest_transaction_s: f64,
    /// Per table the rows that are superseded and not cleaned up yet.
    pub dead_rows: Vec<(String, i64)>,
}

/// Reads it; `tables` are those of the present schema that are looked at.
pub async fn bloat(session: &Session, tables: &[&str]) -> Result<Bloat, DatabaseError> {
    let rows = session
        .query(
            "SELECT t.name, coalesce(s.n_dead_tup, 0)::bigint AS dead,
                    (SELECT coalesce(extract(epoch FROM max(clock_timestamp() - xact_start)), 0)::float8 FROM pg_stat_activity
                      WHERE datname = current_database() AND pid <> pg_backend_pid()) AS oldest
               FROM unnest($1::text[]) AS t (name) LEFT JOIN pg_stat_user_tables AS s ON s.relid = to_regclass(t.name)
              ORDER BY t.name",
            &[&tables],
        )
        .await?;
    let oldest_transaction_s = rows.first().map_or(0.0, |row| row.get::<_, f64>("oldest").max(0.0));
    Ok(Bloat { oldest_transaction_s, dead_rows: rows.iter().map(|row| (row.get("name"), row.get("dead"))).collect() })
}
