//! Back-fills: counted, made, and begun anew. What a step does: `backfill_step`.

use jiff::Timestamp;
use uuid::Uuid;

use super::{COLUMNS, Job, from_row, hold, untold};
use crate::endpoint::{Endpoint, EndpointState};
use crate::store::endpoints::{self, EndpointError, NewEndpoint};
use crate::store::{Database, DatabaseError, Sql, Transaction};

/// What an endpoint is to be told of, and how quickly.
#[derive(Clone, Copy, Debug)]
pub struct Backfill {
    /// Events from then on.
    pub since: Timestamp,
    /// At most so many a second; 1 to 100,000.
    pub rate: i32,
}

/// Why nothing is back-filled. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum BackfillError {
    /// The endpoint cannot be found, or added.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The endpoint was removed: it is told of nothing any more.
    #[error("the endpoint {name} was removed")]
    EndpointRemoved {
        /// Its name.
        name: String,
    },
    /// It begins in the future.
    #[error("{since} is in the future")]
    InFuture {
        /// What was asked for.
        since: Timestamp,
    },
    /// Events from then on are not all there any more.
    #[error("events from before {oldest} were removed, so they cannot be told")]
    Removed {
        /// Every event from then on is there.
        oldest: Timestamp,
    },
    /// Another one of the same endpoint is running.
    #[error("the endpoint is being back-filled already, by the job {0}")]
    Running(Uuid),
    /// The database refused or was away.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl From<tokio_postgres::Error> for BackfillError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

/// What a back-fill would enqueue, of one event type.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct BackfillCount {
    /// The type.
    pub event_type: String,
    /// Deliveries.
    pub items: i64,
    /// Of how many aggregates.
    pub aggregates: i64,
    /// How many of them are older than something that their lane was told of, or waits to be: they come after it.
    pub late: i64,
    /// When the first of these events happened.
    pub oldest_at: Timestamp,
}

/// The newest event of a lane that its endpoint has a delivery of tells which ones come late.
const COUNT: &str = concat!(
    "WITH ",
    untold::missing!(),
    ", newest AS MATERIALIZED (
        SELECT k.ordering_key,
               (SELECT max(d.event_created_at) FROM outbox_lanes AS l JOIN outbox_deliveries AS d ON d.lane_id = l.lane_id
                 WHERE l.endpoint_id = $1::uuid AND l.ordering_key = k.ordering_key) AS told_at
          FROM (SELECT DISTINCT ordering_key FROM missing) AS k
    )
    SELECT m.event_type, count(*) AS items, count(DISTINCT m.aggregate_id) AS aggregates,
           count(*) FILTER (WHERE m.created_at < n.told_at) AS late, min(m.created_at) AS oldest_at
      FROM missing AS m LEFT JOIN newest AS n ON n.ordering_key = m.ordering_key
     GROUP BY m.event_type ORDER BY m.event_type"
);

/// Counts what a back-fill would enqueue at this moment. A read of all events since then: may be repeated.
pub async fn count_backfill(
    database: &Database,
    endpoint_id: Uuid,
    since: Timestamp,
) -> Result<Vec<BackfillCount>, BackfillError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let endpoint = alive(&transaction, endpoint_id).await?;
    refuse_since(&transaction, since).await?;
    let rows =
        transaction.query(COUNT, &[&endpoint.endpoint_id, &endpoint.format, &since, &endpoint.aggregate_id]).await?;
    rows.iter()
        .map(|row| {
            Ok(BackfillCount {
                event_type: row.try_get("event_type")?,
                items: row.try_get("items")?,
                aggregates: row.try_get("aggregates")?,
                late: row.try_get("late")?,
                oldest_at: row.try_get("oldest_at")?,
            })
        })
        .collect()
}

/// Makes a job that tells an endpoint of the events since then that go to it and that it was not told of; whoever works on jobs
/// begins it. Ok: committed. Err: no job was made, or, where the answer was lost, it was.
///
/// Of each lane they come in the order of the events, after what the lane has already, and before what happens from now on.
pub async fn create_backfill(database: &Database, endpoint_id: Uuid, wanted: &Backfill) -> Result<Job, BackfillError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let endpoint = alive(&transaction, endpoint_id).await?;
    let job = create_in(&transaction, &endpoint, wanted).await?;
    transaction.commit().await?;
    Ok(job)
}

/// Adds an endpoint and makes a back-fill of it in one transaction: no event after `since` is left out, and in each lane the
/// older ones come first. Ok: committed. Err: nothing was stored, or, where the answer was lost, both were.
pub async fn add_with_backfill(
    database: &Database,
    new: NewEndpoint,
    wanted: &Backfill,
) -> Result<(Endpoint, Job), BackfillError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let endpoint = endpoints::add_in(&transaction, new).await?;
    let job = create_in(&transaction, &endpoint, wanted).await?;
    transaction.commit().await?;
    Ok((endpoint, job))
}

async fn alive(client: &impl Sql, endpoint_id: Uuid) -> Result<Endpoint, BackfillError> {
    let endpoint = endpoints::find_in(client, &endpoint_id.to_string(), false).await?;
    match endpoint.state {
        EndpointState::Removed => Err(BackfillError::EndpointRemoved { name: endpoint.name }),
        EndpointState::Active | EndpointState::Paused => Ok(endpoint),
    }
}

async fn create_in(
    transaction: &Transaction<'_>,
    endpoint: &Endpoint,
    wanted: &Backfill,
) -> Result<Job, BackfillError> {
    refuse_since(transaction, wanted.since).await?;
    // Read before anything is locked, since it may take long.
    let of = hold::Of::endpoint(endpoint);
    let missing = hold::missing(transaction, &of, wanted.since, None).await?;
    may_run(transaction, endpoint.endpoint_id, wanted.since).await?;
    let sql = format!(
        "INSERT INTO outbox_jobs AS j (kind, endpoint_id, since, until, rate, items_total)
         VALUES ('backfill', $1, $2, clock_timestamp(), $3, $4) RETURNING {COLUMNS}"
    );
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
        [&endpoint.endpoint_id, &wanted.since, &wanted.rate, &missing.items];
    let job = from_row(&transaction.query_one(&sql, &values).await?)?;
    hold::hold(transaction, endpoint.endpoint_id, &missing.keys).await?;
    Ok(job)
}

/// Lets a back-fill that had ended begin anew, if it may; the caller says that it runs. What it has enqueued is passed over.
pub(super) async fn begin_anew(transaction: &Transaction<'_>, job: &Job) -> Result<(), BackfillError> {
    let (Some(endpoint_id), Some(since)) = (job.endpoint_id, job.since) else { return Ok(()) };
    let endpoint = alive(transaction, endpoint_id).await?;
    let missing = hold::missing(transaction, &hold::Of::endpoint(&endpoint), since, job.until).await?;
    may_run(transaction, endpoint_id, since).await?;
    let sql = "UPDATE outbox_jobs SET after_lane_id = NULL, after_event_at = NULL, settled = false, items_total = items_done + $2
                WHERE job_id = $1";
    transaction.execute(sql, &[&job.job_id, &missing.items]).await?;
    hold::hold(transaction, endpoint_id, &missing.keys).await?;
    Ok(())
}

/// Whether all events are there and no other back-fill of the endpoint runs; both stay so until the transaction ends, because
/// retention has the same lock when it decides that a week leaves, and asks there for jobs that need it.
async fn may_run(transaction: &Transaction<'_>, endpoint_id: Uuid, since: Timestamp) -> Result<(), BackfillError> {
    transaction.execute("SELECT FROM outbox_retention FOR UPDATE", &[]).await?;
    refuse_since(transaction, since).await?;
    let running = "SELECT job_id FROM outbox_jobs WHERE kind = 'backfill' AND state = 'running' AND endpoint_id = $1";
    match transaction.query_opt(running, &[&endpoint_id]).await? {
        Some(row) => Err(BackfillError::Running(row.try_get(0)?)),
        None => Ok(()),
    }
}

/// The weeks that are there without a gap up to now. The oldest counts only if any was ever removed: else it is younger than
/// the schema. A week of which any table is leaving is not whole.
const OLDEST: &str = "
    WITH whole AS (
        SELECT p.starts_at, p.ends_at FROM outbox_partitions AS p
         WHERE p.parent = 'outbox_events' AND NOT p.detach_pending
           AND NOT EXISTS (SELECT FROM outbox_partition_notes AS n WHERE n.leaving_since IS NOT NULL AND n.ends_at = p.ends_at)
    ), begins AS (
        SELECT max(w.starts_at) AS oldest FROM whole AS w
         WHERE w.starts_at <= now() AND NOT EXISTS (SELECT FROM whole AS before WHERE before.ends_at = w.starts_at)
    )
    SELECT clock_timestamp() < $1 AS in_future,
           CASE WHEN oldest > $1 AND oldest > (SELECT min(applied_at) FROM surehook_migrations) THEN oldest END AS oldest
      FROM begins";

async fn refuse_since(client: &impl Sql, since: Timestamp) -> Result<(), BackfillError> {
    let row = client.query_one(OLDEST, &[&since]).await?;
    match row.try_get("oldest")? {
        _ if row.try_get("in_future")? => Err(BackfillError::InFuture { since }),
        Some(oldest) => Err(BackfillError::Removed { oldest }),
        None => Ok(()),
    }
}
