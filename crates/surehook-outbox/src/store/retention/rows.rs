//! What goes row by row, in pages that hold no lock for long: answers of receivers, used keys, settled dead letters, idle
//! lanes, workers that are long gone.

use jiff::Timestamp;

use crate::store::{DatabaseError, Session};

/// Rows of one statement.
const PAGE: i64 = 2_000;
/// Dead letters of one statement: each has a body.
const LETTERS_PAGE: i64 = 200;
/// Blocks of a table that one statement reads to remove answers: at most a few thousand rows.
const BLOCKS: i64 = 128;

/// Whether there may be more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// As many as fit in a page; say it again.
    Full(u64),
    /// The last ones.
    Last(u64),
}

impl Page {
    fn of(removed: u64, page: i64) -> Self {
        if i64::try_from(removed).is_ok_and(|removed| removed < page) {
            Self::Last(removed)
        } else {
            Self::Full(removed)
        }
    }

    /// How many were removed.
    pub fn removed(self) -> u64 {
        match self {
            Self::Full(removed) | Self::Last(removed) => removed,
        }
    }
}

/// Removes idempotency keys that were first used before then.
pub async fn remove_keys(session: &Session, before: Timestamp) -> Result<Page, DatabaseError> {
    let removed = session
        .execute(
            "DELETE FROM outbox_idempotency_keys WHERE idempotency_key = ANY (ARRAY(
                 SELECT idempotency_key FROM outbox_idempotency_keys WHERE created_at < $1 ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
            &[&before, &PAGE],
        )
        .await?;
    Ok(Page::of(removed, PAGE))
}

/// Removes dead letters whose replay got through before then. Those that nobody settled stay for ever.
pub async fn remove_settled_letters(session: &Session, before: Timestamp) -> Result<Page, DatabaseError> {
    let removed = session
        .execute(
            "DELETE FROM outbox_dlq WHERE state = 'delivered' AND updated_at < $1 AND delivery_id = ANY (ARRAY(
                 SELECT delivery_id FROM outbox_dlq WHERE state = 'delivered' AND updated_at < $1 ORDER BY updated_at LIMIT $2
                    FOR UPDATE SKIP LOCKED))",
            &[&before, &LETTERS_PAGE],
        )
        .await?;
    Ok(Page::of(removed, LETTERS_PAGE))
}

/// Removes workers whose heartbeat has not moved for a day and that hold no lane. While another runs, it does so within seconds.
pub async fn remove_workers(session: &Session) -> Result<u64, DatabaseError> {
    session
        .execute(
            "DELETE FROM outbox_workers AS w WHERE w.heartbeat_at < now() - interval '1 day'
                AND NOT EXISTS (SELECT FROM outbox_lanes AS l WHERE l.ready_at IS NOT NULL AND l.owner = w.worker_id)",
            &[],
        )
        .await
}

/// Notes that idle lanes may have become empty: a week of deliveries was dropped.
pub async fn lanes_are_due(session: &Session) -> Result<(), DatabaseError> {
    session.execute("UPDATE outbox_retention SET lanes_after = 0", &[]).await?;
    Ok(())
}

/// Where the walk over idle lanes goes on; None: none is due.
pub async fn lanes_after(session: &Session) -> Result<Option<i64>, DatabaseError> {
    Ok(session.query_one("SELECT lanes_after FROM outbox_retention", &[]).await?.try_get(0)?)
}

/// Removes the idle lanes of a page that nothing happened in since then and of whose deliveries none is left. One that is used
/// at this moment is passed over: it is locked, or has changed when its lock is had.
pub async fn remove_empty_lanes(
    session: &Session,
    (after, until): (i64, i64),
    before: Timestamp,
) -> Result<u64, DatabaseError> {
    session
        .execute(
            "DELETE FROM outbox_lanes WHERE lane_id = ANY (ARRAY(
                 SELECT l.lane_id FROM outbox_lanes AS l
                  WHERE l.lane_id > $1 AND l.lane_id <= $2 AND l.ready_at IS NULL AND l.held_since IS NULL AND l.updated_at < $3
                    AND (SELECT true FROM outbox_deliveries AS d WHERE d.lane_id = l.lane_id LIMIT 1) IS NULL
                  ORDER BY l.lane_id FOR UPDATE SKIP LOCKED))",
            &[&after, &until, &before],
        )
        .await
}

/// Notes how far the walk over idle lanes has come; None: it is at its end.
pub async fn lanes_walked(session: &Session, until: Option<i64>) -> Result<(), DatabaseError> {
    session.execute("UPDATE outbox_retention SET lanes_after = $1", &[&until]).await?;
    Ok(())
}

/// Partitions of attempts that end by then and still have their answers, oldest first, and their size in blocks.
pub async fn with_answers(session: &Session, until: Timestamp) -> Result<Vec<(String, Timestamp, i64)>, DatabaseError> {
    let rows = session
        .query(
            "SELECT p.partition, p.ends_at, pg_relation_size(p.partition::regclass) / current_setting('block_size')::bigint AS blocks
               FROM outbox_partitions AS p LEFT JOIN outbox_partition_notes AS n ON n.partition = p.partition
              WHERE p.parent = 'outbox_attempts' AND NOT p.detach_pending AND p.ends_at <= $1
                AND n.answers_removed_at IS NULL AND n.leaving_since IS NULL
              ORDER BY p.ends_at",
            &[&until],
        )
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))).collect()
}

/// Removes the answers in the next blocks of a partition, but for those of what has not ended and of dead letters that nobody
/// settled. Returns where the next page begins. The rows that this writes anew come to lie behind, in blocks that are read
/// again in vain: an answer that is gone is not removed twice.
pub async fn remove_answers(session: &Session, partition: &str, from_block: i64) -> Result<i64, DatabaseError> {
    let to_block = from_block.saturating_add(BLOCKS);
    let statement = format!(
        "UPDATE {partition} AS a SET response_body = NULL
          WHERE a.ctid >= ($1::text)::tid AND a.ctid < ($2::text)::tid AND a.response_body IS NOT NULL
            AND NOT EXISTS (SELECT FROM outbox_lanes AS l WHERE l.lane_id = a.lane_id AND l.done_seq < a.seq)
            AND NOT EXISTS (SELECT FROM outbox_dlq AS q WHERE q.delivery_id = a.delivery_id AND q.state <> 'delivered')"
    );
    session.execute(&statement, &[&format!("({from_block},0)"), &format!("({to_block},0)")]).await?;
    Ok(to_block)
}

/// Notes that a partition has no answers any more.
pub async fn answers_removed(session: &Session, partition: &str, ends_at: Timestamp) -> Result<(), DatabaseError> {
    session
        .execute(
            "INSERT INTO outbox_partition_notes (partition, ends_at, answers_removed_at) VALUES ($1, $2, now())
             ON CONFLICT (partition) DO UPDATE SET answers_removed_at = excluded.answers_removed_at",
            &[&partition, &ends_at],
        )
        .await?;
    Ok(())
}
