//! The workers' heartbeats, and what is taken from one that is dead.

use uuid::Uuid;

use super::{DatabaseError, Session};

/// Another worker's counter, as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The worker.
    pub worker_id: Uuid,
    /// Its counter.
    pub count: i64,
}

/// Moves this worker's counter, making its row at the first time.
pub async fn beat(session: &Session, worker: Uuid, node: &str) -> Result<(), DatabaseError> {
    let statement = session
        .prepare_cached(
            "INSERT INTO outbox_workers (worker_id, node, heartbeat) VALUES ($1, $2, 1)
             ON CONFLICT (worker_id) DO UPDATE SET heartbeat = outbox_workers.heartbeat + 1, heartbeat_at = now()",
        )
        .await?;
    session.execute(&statement, &[&worker, &node]).await?;
    Ok(())
}

/// The counters of all other workers.
pub async fn others(session: &Session, worker: Uuid) -> Result<Vec<Heartbeat>, DatabaseError> {
    let statement =
        session.prepare_cached("SELECT worker_id, heartbeat FROM outbox_workers WHERE worker_id <> $1").await?;
    let rows = session.query(&statement, &[&worker]).await?;
    Ok(rows.iter().map(|row| Heartbeat { worker_id: row.get(0), count: row.get(1) }).collect())
}

/// Declares a worker dead, if its counter still stands where it was seen: its lanes are due at once, still bearing its
/// name, so that their next claim counts a crash. Returns how many lanes that were; None if the counter had moved.
pub async fn declare_dead(session: &mut Session, dead: Heartbeat) -> Result<Option<u64>, DatabaseError> {
    let transaction = session.transaction().await?;
    let gone = transaction
        .execute("DELETE FROM outbox_workers WHERE worker_id = $1 AND heartbeat = $2", &[&dead.worker_id, &dead.count])
        .await?;
    if gone == 0 {
        return Ok(None);
    }
    let freed = free_lanes(&transaction, dead.worker_id).await?;
    transaction.commit().await?;
    Ok(Some(freed))
}

async fn free_lanes(transaction: &deadpool_postgres::Transaction<'_>, worker: Uuid) -> Result<u64, DatabaseError> {
    // A lane that another has locked is being recorded or enqueued to; its lease runs out by itself.
    Ok(transaction
        .execute(
            "UPDATE outbox_lanes SET ready_at = clock_timestamp(), leased_until = clock_timestamp()
              WHERE lane_id = ANY (ARRAY(SELECT lane_id FROM outbox_lanes WHERE ready_at IS NOT NULL AND owner = $1
                                          ORDER BY lane_id FOR UPDATE SKIP LOCKED))",
            &[&worker],
        )
        .await?)
}

/// Takes this worker's row away at the end of a clean stop, when it holds no lane any more.
pub async fn leave(session: &Session, worker: Uuid) -> Result<(), DatabaseError> {
    session.execute("DELETE FROM outbox_workers WHERE worker_id = $1", &[&worker]).await?;
    Ok(())
}
