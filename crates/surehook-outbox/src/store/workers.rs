//! The workers' heartbeats, and what is taken from one that is dead.

use uuid::Uuid;

use super::{Database, DatabaseError, Session, column};

/// Another worker's counter, as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The worker.
    pub worker_id: Uuid,
    /// Its counter.
    pub count: i64,
}

/// Moves this worker's counter, making its row at the first time, and returns it. A counter that did not grow says that this
/// worker was declared dead meanwhile. `stalled` names a loop of it that stands still.
pub async fn beat(session: &Session, worker: Uuid, node: &str, stalled: Option<&str>) -> Result<i64, DatabaseError> {
    let row = session
        .query_one(
            "INSERT INTO outbox_workers (worker_id, node, heartbeat, stalled) VALUES ($1, $2, 1, $3)
             ON CONFLICT (worker_id) DO UPDATE SET heartbeat = outbox_workers.heartbeat + 1, heartbeat_at = now(), stalled = excluded.stalled
             RETURNING heartbeat",
            &[&worker, &node, &stalled],
        )
        .await?;
    Ok(row.get(0))
}

/// The counters of all other workers.
pub async fn others(session: &Session, worker: Uuid) -> Result<Vec<Heartbeat>, DatabaseError> {
    let rows =
        session.query("SELECT worker_id, heartbeat FROM outbox_workers WHERE worker_id <> $1", &[&worker]).await?;
    Ok(rows.iter().map(|row| Heartbeat { worker_id: row.get(0), count: row.get(1) }).collect())
}

/// Declares a worker dead, if its counter still stands where it was seen: its lanes are due at once, still bearing its
/// name, so that their next claim counts a crash. Returns how many lanes that were; None if the counter had moved.
///
/// A lane that another has locked at this moment is passed over. Then the row stays, with its counter at 0, and whoever
/// finds it standing again frees the rest.
pub async fn declare_dead(session: &mut Session, dead: Heartbeat) -> Result<Option<u64>, DatabaseError> {
    let transaction = session.transaction().await?;
    let found = transaction
        .execute(
            "UPDATE outbox_workers SET heartbeat = 0 WHERE worker_id = $1 AND heartbeat = $2",
            &[&dead.worker_id, &dead.count],
        )
        .await?;
    if found == 0 {
        return Ok(None);
    }
    // Noted, so that a person learns of it although the row goes.
    transaction
        .execute(
            "INSERT INTO outbox_workers_lost (worker_id, node, heartbeat_at)
             SELECT worker_id, node, heartbeat_at FROM outbox_workers WHERE worker_id = $1
             ON CONFLICT (worker_id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at, lost_at = excluded.lost_at",
            &[&dead.worker_id],
        )
        .await?;
    let freed = transaction
        .execute(
            "UPDATE outbox_lanes SET ready_at = clock_timestamp(), leased_until = clock_timestamp()
              WHERE lane_id = ANY (ARRAY(SELECT lane_id FROM outbox_lanes
                                          WHERE ready_at IS NOT NULL AND owner = $1 AND leased_until > clock_timestamp()
                                          ORDER BY lane_id FOR UPDATE SKIP LOCKED))",
            &[&dead.worker_id],
        )
        .await?;
    transaction
        .execute(
            "DELETE FROM outbox_workers WHERE worker_id = $1
                AND NOT EXISTS (SELECT FROM outbox_lanes WHERE ready_at IS NOT NULL AND owner = $1 AND leased_until > clock_timestamp())",
            &[&dead.worker_id],
        )
        .await?;
    transaction.commit().await?;
    Ok(Some(freed))
}

/// Frees the lanes of a worker that is known to do nothing any more, as [`declare_dead`] does, and takes its row away: they are
/// due at once, still bearing its name, so that their next claim counts a crash. Returns how many. Err: may be repeated.
///
/// A lane that another has locked at this moment is free when its lease ends.
pub async fn free(session: &mut Session, worker: Uuid) -> Result<u64, DatabaseError> {
    let transaction = session.transaction().await?;
    let freed = transaction
        .execute(
            "UPDATE outbox_lanes SET ready_at = clock_timestamp(), leased_until = clock_timestamp()
              WHERE lane_id = ANY (ARRAY(SELECT lane_id FROM outbox_lanes
                                          WHERE ready_at IS NOT NULL AND owner = $1 AND leased_until > clock_timestamp()
                                          ORDER BY lane_id FOR UPDATE SKIP LOCKED))",
            &[&worker],
        )
        .await?;
    transaction.execute("DELETE FROM outbox_workers WHERE worker_id = $1", &[&worker]).await?;
    transaction.commit().await?;
    Ok(freed)
}

/// Gives back what is this worker's by name but not among `held` (lane and epoch): lanes of a claim whose answer was lost.
/// Nothing is charged, because nothing was sent. Returns how many. Err: may be repeated.
pub async fn give_back_unknown(session: &Session, worker: Uuid, held: &[(i64, i64)]) -> Result<u64, DatabaseError> {
    let lanes = column(held, |(lane_id, _)| *lane_id);
    let epochs = column(held, |(_, epoch)| *epoch);
    session
        .execute(
            "UPDATE outbox_lanes SET ready_at = clock_timestamp(), leased_until = NULL, owner = NULL, epoch = epoch + 1
              WHERE lane_id = ANY (ARRAY(SELECT l.lane_id FROM outbox_lanes AS l
                                          WHERE l.ready_at IS NOT NULL AND l.owner = $1
                                            AND NOT EXISTS (SELECT FROM unnest($2::bigint[], $3::bigint[]) AS h (lane_id, epoch)
                                                             WHERE h.lane_id = l.lane_id AND h.epoch = l.epoch)
                                          ORDER BY l.lane_id FOR UPDATE SKIP LOCKED))",
            &[&worker, &lanes, &epochs],
        )
        .await
}

/// How many workers moved their heartbeat within the last 10 s. A read: may be repeated.
pub async fn count_alive(database: &Database) -> Result<i64, DatabaseError> {
    let sql = "SELECT count(*) FROM outbox_workers WHERE heartbeat_at > now() - interval '10 seconds'";
    Ok(database.session().await?.query_one(sql, &[]).await?.get(0))
}

/// Takes this worker's row away at the end of a clean stop, when it holds no lane any more.
pub async fn leave(session: &Session, worker: Uuid) -> Result<(), DatabaseError> {
    session.execute("DELETE FROM outbox_windows WHERE worker_id = $1", &[&worker]).await?;
    session.execute("DELETE FROM outbox_workers WHERE worker_id = $1", &[&worker]).await?;
    Ok(())
}
