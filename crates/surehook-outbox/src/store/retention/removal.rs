//! How a week goes: noted, detached, dropped. Each step looks where the partition stands, so whoever comes after a crash, or
//! after a lock that was not to be had, goes on from there.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tokio_postgres::error::SqlState;

use super::pins::{self, Pins};
use super::{Partition, Week};
use crate::store::{DatabaseError, Session, column};

/// Where a partition stands that is leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Attached,
    /// A `DETACH … CONCURRENTLY` was cut off in its middle: nobody sees it any more, but it is still listed.
    DetachPending,
    Detached,
    Gone,
}

/// What a step brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// One step nearer; there are more.
    On,
    /// It is gone, and so is the note of it.
    Gone,
    /// Somebody holds a lock; nothing was changed. Try again later.
    Busy,
}

/// How long a statement waits for a lock that keeps nobody from working.
const PATIENT: &str = "SET lock_timeout = '2s'";
const PATIENT_HERE: &str = "SET LOCAL lock_timeout = '2s'";
/// How long one waits for a lock behind which all inserts wait too.
const HASTY_HERE: &str = "SET LOCAL lock_timeout = '100ms'";

/// Notes that these partitions leave, but for those of weeks that a back-fill has come to need meanwhile: who makes one has the
/// same lock, and passes over weeks that leave. Returns what was noted; from then on it is finished by whoever comes.
pub async fn decide<'a>(
    session: &mut Session,
    partitions: &[&'a Partition],
) -> Result<Vec<&'a Partition>, DatabaseError> {
    let transaction = session.transaction().await?;
    transaction.execute("SELECT FROM outbox_retention FOR UPDATE", &[]).await?;
    let weeks: Vec<Week> =
        partitions.iter().map(|partition| partition.week).collect::<BTreeSet<_>>().into_iter().collect();
    let mut held = Pins::default();
    held.add(pins::by_backfills(&transaction, &weeks).await?);
    // A job that was made and done since these were looked for has left deliveries.
    held.add(pins::by_older_events(&transaction, &weeks).await?);
    let partitions: Vec<&Partition> = partitions.iter().copied().filter(|p| !held.hold(p.week)).collect();
    transaction
        .execute(
            "INSERT INTO outbox_partition_notes (partition, ends_at, leaving_since)
             SELECT partition, ends_at, now() FROM unnest($1::text[], $2::timestamptz[]) AS u (partition, ends_at)
             ON CONFLICT (partition) DO UPDATE SET leaving_since = coalesce(outbox_partition_notes.leaving_since, excluded.leaving_since)",
            &[&column(&partitions, |p| p.name.as_str()), &column(&partitions, |p| p.week.ends_at)],
        )
        .await?;
    transaction.commit().await?;
    Ok(partitions)
}

/// Takes back what was noted of partitions that are attached: something has come to hold them since.
pub async fn take_back(session: &Session, partitions: &[&Partition]) -> Result<(), DatabaseError> {
    session
        .execute(
            "UPDATE outbox_partition_notes SET leaving_since = NULL WHERE partition = ANY ($1) AND leaving_since IS NOT NULL
                AND EXISTS (SELECT FROM outbox_partitions AS p WHERE p.partition = outbox_partition_notes.partition AND NOT p.detach_pending)",
            &[&column(partitions, |p| p.name.as_str())],
        )
        .await?;
    Ok(())
}

/// Partitions that are leaving and attached no more, or half: their removal was cut off. With the parent of those that are half
/// attached: nothing else can be detached from it until then.
pub async fn half_gone(session: &Session) -> Result<Vec<(String, Option<String>)>, DatabaseError> {
    let rows = session
        .query(
            "SELECT n.partition, p.parent FROM outbox_partition_notes AS n LEFT JOIN outbox_partitions AS p ON p.partition = n.partition
              WHERE n.leaving_since IS NOT NULL AND coalesce(p.detach_pending, true) ORDER BY n.ends_at, n.partition",
            &[],
        )
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// The next step towards the end of a partition that [`decide`] noted. Err: nothing was changed, or the step was done and the
/// answer lost. May be repeated.
pub async fn step(session: &mut Session, partition: &str) -> Result<Stepped, DatabaseError> {
    let (standing, parent) = standing(session, partition).await?;
    let stepped = match standing {
        Standing::Attached => detach(session, &parent, partition).await,
        Standing::DetachPending => {
            said(session, PATIENT_HERE, &format!("ALTER TABLE {parent} DETACH PARTITION {partition} FINALIZE")).await
        }
        // Not found any more through its parent, so that nobody but who knows its name can be in the way.
        Standing::Detached => said(session, PATIENT_HERE, &format!("DROP TABLE {partition}")).await,
        Standing::Gone => {
            session.execute("DELETE FROM outbox_partition_notes WHERE partition = $1", &[&partition]).await?;
            return Ok(Stepped::Gone);
        }
    };
    match stepped {
        Ok(()) => Ok(Stepped::On),
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(Stepped::Busy),
        Err(error) => Err(error),
    }
}

async fn standing(session: &Session, partition: &str) -> Result<(Standing, String), DatabaseError> {
    let row = session
        .query_one(
            "SELECT to_regclass($1) IS NOT NULL AS is_there, p.detach_pending, p.parent
               FROM (VALUES (1)) AS one LEFT JOIN outbox_partitions AS p ON p.partition = $1",
            &[&partition],
        )
        .await?;
    let parent: Option<String> = row.try_get("parent")?;
    let standing = match row.try_get::<_, Option<bool>>("detach_pending")? {
        Some(true) => Standing::DetachPending,
        Some(false) => Standing::Attached,
        None if row.try_get("is_there")? => Standing::Detached,
        None => Standing::Gone,
    };
    Ok((standing, parent.unwrap_or_default()))
}

/// Over a session of our own `CONCURRENTLY`, which waits for whoever reads the table and lets everybody work meanwhile; the limit
/// keeps the wait from lasting. A pooler may give each statement to another server process, where the limit would be lost or
/// left behind: there it is one short transaction, which gives up before those who wait behind it notice.
async fn detach(session: &mut Session, parent: &str, partition: &str) -> Result<(), DatabaseError> {
    let statement = format!("ALTER TABLE {parent} DETACH PARTITION {partition}");
    if session.is_pooled() {
        return said(session, HASTY_HERE, &statement).await;
    }
    session.batch_execute(PATIENT).await?;
    let detached = session.batch_execute(&format!("{statement} CONCURRENTLY")).await;
    session.batch_execute("RESET lock_timeout").await?;
    detached
}

async fn said(session: &mut Session, limit: &str, statement: &str) -> Result<(), DatabaseError> {
    let transaction = session.transaction().await?;
    transaction.batch_execute(limit).await?;
    transaction.batch_execute(statement).await?;
    transaction.commit().await
}

/// Forgets what was noted of partitions that an operator has dropped.
pub async fn forget_gone(session: &Session, until: Timestamp) -> Result<u64, DatabaseError> {
    session
        .execute(
            "DELETE FROM outbox_partition_notes WHERE leaving_since IS NULL AND ends_at <= $1 AND to_regclass(partition) IS NULL",
            &[&until],
        )
        .await
}
