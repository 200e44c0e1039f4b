//! One step of whichever job is due.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::{COLUMNS, Job, JobKind, JobState, backfill_step, from_row, replay_step};
use crate::crash::point;
use crate::jobs::pace;
use crate::store::operate::SubjectOf;
use crate::store::{Database, DatabaseError, Transaction};

/// What [`step`] did.
#[derive(Clone, Debug)]
pub enum Stepped {
    /// Nothing was due, or others are at it.
    Nothing {
        /// When the next running job is due, if there is one.
        due_in: Option<Duration>,
    },
    /// A step of this job.
    Did {
        /// The job.
        job_id: Uuid,
        /// What it does.
        kind: JobKind,
        /// Items that were enqueued, newer ones that had waited for the job among them: workers have something to do.
        done: i64,
        /// Items that were passed over.
        skipped: i64,
        /// There was nothing left: the job has ended.
        ended: bool,
    },
    /// A step of this job failed and was rolled back; it is tried again later, unless that was too often.
    Failed {
        /// The job.
        job_id: Uuid,
        /// Why.
        error: String,
        /// It will not be tried again by itself.
        given_up: bool,
    },
}

/// What a step has come to.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) done: i64,
    /// Enqueued beyond the rate, and no item of the job.
    pub(super) taken_up: i64,
    pub(super) skipped: BTreeMap<&'static str, i64>,
    /// There is nothing left to do, or it cannot go on.
    pub(super) ends: Option<JobState>,
    /// There was nothing to do yet: how long to wait before the next step.
    pub(super) wait: Option<Duration>,
}

/// The same step fails so often before its job is given up; the waits between add up to about eight minutes.
const FAILURES_MAX: i32 = 9;

/// The job that is due longest, locked. Whoever comes meanwhile passes it over.
const CHOOSE: &str =
    "WHERE j.state = 'running' AND j.next_at <= statement_timestamp() AND ($1::uuid IS NULL OR j.job_id = $1)
     ORDER BY j.next_at LIMIT 1 FOR UPDATE OF j SKIP LOCKED";

/// Does one step of the job that is due longest, or of the one named. Ok: committed, or nothing was done. Err: the database
/// failed before a job was chosen, or its answer to the commit was lost: then the step was done as a whole or not at all.
/// May be repeated, also from several processes at once.
pub async fn step(
    database: &Database,
    only: Option<Uuid>,
    subject_of: SubjectOf,
    worked_by: &str,
) -> Result<Stepped, DatabaseError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let sql = format!("SELECT {COLUMNS}, clock_timestamp() AS now FROM outbox_jobs AS j {CHOOSE}");
    let Some(row) = transaction.query_opt(&sql, &[&only]).await? else {
        let due = transaction
            .query_one(
                "SELECT (extract(epoch FROM min(next_at) - clock_timestamp()) * 1000)::bigint
                   FROM outbox_jobs WHERE state = 'running' AND ($1::uuid IS NULL OR job_id = $1)",
                &[&only],
            )
            .await?;
        let due_ms: Option<i64> = due.try_get(0)?;
        return Ok(Stepped::Nothing {
            due_in: due_ms.map(|due_ms| Duration::from_millis(u64::try_from(due_ms).unwrap_or(0))),
        });
    };
    let (job, now): (Job, Timestamp) = (from_row(&row)?, row.try_get("now")?);
    match work(&transaction, &job, now, subject_of, worked_by).await {
        Ok(progress) => {
            transaction.commit().await?;
            let done = progress.done + progress.taken_up;
            if job.kind == JobKind::Replay && done > 0 {
                point("replay.committed");
            }
            Ok(Stepped::Did {
                job_id: job.job_id,
                kind: job.kind,
                done,
                skipped: progress.skipped.values().sum(),
                ended: progress.ends.is_some(),
            })
        }
        Err(error) => {
            transaction.rollback().await?;
            let error = crate::deliver::chain(&error);
            let given_up = note_failure(database, job.job_id, &error).await?;
            Ok(Stepped::Failed { job_id: job.job_id, error, given_up })
        }
    }
}

async fn work(
    transaction: &Transaction<'_>,
    job: &Job,
    now: Timestamp,
    subject_of: SubjectOf,
    worked_by: &str,
) -> Result<Progress, DatabaseError> {
    let progress = match job.kind {
        JobKind::Replay => replay_step::work(transaction, job, subject_of).await?,
        JobKind::Backfill => backfill_step::work(transaction, job).await?,
    };
    let mut skipped = job.skipped.clone();
    for (reason, items) in &progress.skipped {
        *skipped.entry((*reason).to_owned()).or_default() += items;
    }
    let skipped = serde_json::to_string(&skipped)
        .unwrap_or_else(|error| unreachable!("a map of text to numbers is always JSON: {error}"));
    let next_at = match progress.wait {
        None => pace::next(job.next_at, now, progress.done, job.rate),
        Some(wait) => now + wait,
    };
    transaction
        .execute(
            "UPDATE outbox_jobs
                SET items_done = items_done + $2, skipped = $3::text::jsonb, next_at = $4, failures = 0, last_error = NULL, worked_by = $5,
                    state = coalesce($6, state), ended_at = CASE WHEN $6 IS NOT NULL THEN clock_timestamp() END,
                    updated_at = clock_timestamp()
              WHERE job_id = $1",
            &[&job.job_id, &progress.done, &skipped, &next_at, &worked_by, &progress.ends.map(JobState::as_str)],
        )
        .await?;
    Ok(progress)
}

/// Notes why a step failed, and when it is tried again: after 1, 2, 4, … seconds. Returns whether the job was given up.
async fn note_failure(database: &Database, job_id: Uuid, error: &str) -> Result<bool, DatabaseError> {
    let row = database
        .session()
        .await?
        .query_opt(
            "UPDATE outbox_jobs
                SET failures = failures + 1, last_error = $2, updated_at = clock_timestamp(),
                    next_at = clock_timestamp() + 2 ^ failures * interval '1 second',
                    state = CASE WHEN failures + 1 >= $3 THEN 'failed' ELSE state END,
                    ended_at = CASE WHEN failures + 1 >= $3 THEN clock_timestamp() END
              WHERE job_id = $1 AND state = 'running' RETURNING state = 'failed'",
            &[&job_id, &error, &FAILURES_MAX],
        )
        .await?;
    row.map_or(Ok(false), |row| Ok(row.try_get(0)?))
}
