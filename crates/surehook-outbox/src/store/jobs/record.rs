//! Jobs as rows: made, found, listed, cancelled, resumed.

use uuid::Uuid;

use super::{BackfillError, COLUMNS, Job, JobKind, JobState, OnJob, backfill, from_row};
use crate::store::operate::{DeadLetterFilter, DeadLetterReason, count_dead_letters};
use crate::store::{Database, DatabaseError, Sql};

/// A replay of many dead letters.
#[derive(Clone, Debug)]
pub struct NewReplay {
    /// Which. Its `state` and `limit` say nothing here: dead letters that wait for an operator, all of them.
    pub filter: DeadLetterFilter,
    /// Also where the receiver was told something newer about the same thing.
    pub anyway: bool,
    /// Under a new delivery id each.
    pub new_ids: bool,
    /// At most so many a second; 1 to 100,000.
    pub rate: i32,
}

/// Makes a job that replays dead letters; whoever works on jobs begins it. Letters that die after this moment are not its
/// items. Ok: committed. Err: no job was made, or, where the answer was lost, it was.
pub async fn create_replay(database: &Database, new: &NewReplay) -> Result<Job, DatabaseError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let filter = &new.filter;
    let total: i64 = count_dead_letters(&transaction, filter).await?.iter().map(|count| count.letters).sum();
    let sql = format!(
        "INSERT INTO outbox_jobs AS j (kind, endpoint_id, aggregate_id, reason, since, until, anyway, new_ids, rate, items_total)
         VALUES ('replay', $1, $2, $3, $4, least($5, clock_timestamp()), $6, $7, $8, $9) RETURNING {COLUMNS}"
    );
    let row = transaction
        .query_one(
            &sql,
            &[
                &filter.endpoint_id,
                &filter.aggregate_id,
                &filter.reason.map(DeadLetterReason::as_str),
                &filter.since,
                &filter.until,
                &new.anyway,
                &new.new_ids,
                &new.rate,
                &total,
            ],
        )
        .await?;
    let job = from_row(&row)?;
    transaction.commit().await?;
    Ok(job)
}

/// One job; None: there is none of this id. A read: may be repeated.
pub async fn find(database: &Database, job_id: Uuid) -> Result<Option<Job>, DatabaseError> {
    find_in(&database.session().await?, job_id).await
}

async fn find_in(client: &impl Sql, job_id: Uuid) -> Result<Option<Job>, DatabaseError> {
    let sql = format!("SELECT {COLUMNS} FROM outbox_jobs AS j WHERE j.job_id = $1");
    let row = client.query_opt(&sql, &[&job_id]).await?;
    row.as_ref().map(from_row).transpose()
}

/// Jobs, the newest first; only those in this state, if one is named. A read: may be repeated.
pub async fn list(database: &Database, state: Option<JobState>, limit: i64) -> Result<Vec<Job>, DatabaseError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM outbox_jobs AS j WHERE $1::text IS NULL OR j.state = $1 ORDER BY j.created_at DESC, j.job_id LIMIT $2"
    );
    let rows = database.session().await?.query(&sql, &[&state.map(JobState::as_str), &limit]).await?;
    rows.iter().map(from_row).collect()
}

/// Ends a running job after the step that it is at; what it has done stays done. What a back-fill has kept back in lanes that it
/// held goes out when whoever works on jobs has let them go. Ok: committed. May be repeated.
pub async fn cancel(database: &Database, job_id: Uuid) -> Result<OnJob, DatabaseError> {
    change(
        &database.session().await?,
        job_id,
        "state = 'cancelled', ended_at = clock_timestamp(), updated_at = clock_timestamp()",
        "j.state = 'running'",
    )
    .await
}

/// Lets a job that was cancelled or has failed go on where it stands. A back-fill walks once more over what it has done, since
/// the lanes that it held were let go. Ok: committed. May be repeated.
pub async fn resume(database: &Database, job_id: Uuid) -> Result<OnJob, DatabaseError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    if let Some(job) = find_in(&transaction, job_id).await?
        && job.kind == JobKind::Backfill
        && matches!(job.state, JobState::Cancelled | JobState::Failed)
    {
        match backfill::begin_anew(&transaction, &job).await {
            Ok(()) => {}
            Err(BackfillError::Database(error)) => return Err(error),
            Err(refused) => return Ok(OnJob::Refused { why: refused.to_string() }),
        }
    }
    let on = change(
        &transaction,
        job_id,
        "state = 'running', ended_at = NULL, failures = 0, next_at = clock_timestamp(), updated_at = clock_timestamp()",
        "j.state IN ('cancelled', 'failed')",
    )
    .await?;
    transaction.commit().await?;
    Ok(on)
}

async fn change(client: &impl Sql, job_id: Uuid, set: &str, only_if: &str) -> Result<OnJob, DatabaseError> {
    let sql = format!("UPDATE outbox_jobs AS j SET {set} WHERE j.job_id = $1 AND {only_if} RETURNING {COLUMNS}");
    let row = client.query_opt(&sql, &[&job_id]).await?;
    if let Some(row) = row {
        return Ok(OnJob::Done(Box::new(from_row(&row)?)));
    }
    Ok(find_in(client, job_id).await?.map_or(OnJob::Unknown, |job| OnJob::AlreadySo(Box::new(job))))
}
