//! The table `outbox_jobs`: made, read, cancelled, resumed, and worked on step by step.
//!
//! A step is one transaction: it locks the job's row, does one thing, moves the cursor over it. See `migrations/*_jobs.sql`.

mod backfill;
mod backfill_step;
mod hold;
mod record;
mod replay_step;
mod step;
mod untold;

use std::collections::BTreeMap;

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

pub use backfill::{Backfill, BackfillCount, BackfillError, add_with_backfill, count_backfill, create_backfill};
pub use backfill_step::release_lane;
pub use record::{NewReplay, cancel, create_replay, find, list, resume};
pub use step::{Stepped, step};

use super::operate::DeadLetterReason;
use super::{Database, DatabaseError};
use crate::text_enum::text_enum;

text_enum! {
    /// What a job does.
    JobKind {
        /// Sends dead letters again.
        Replay = "replay",
        /// Tells an endpoint of events that it was not told of.
        Backfill = "backfill",
    }
}

text_enum! {
    /// How a job stands.
    JobState {
        /// It is worked on, or waits for its turn.
        Running = "running",
        /// Every item was looked at.
        Done = "done",
        /// A person ended it.
        Cancelled = "cancelled",
        /// The same step failed again and again.
        Failed = "failed",
    }
}

/// A job. The names of the fields are those of the columns.
#[derive(Clone, Debug, serde::Serialize)]
#[expect(missing_docs, reason = "each field is the column of the same name, which the schema comments")]
pub struct Job {
    pub job_id: Uuid,
    pub kind: JobKind,
    pub state: JobState,
    pub endpoint_id: Option<Uuid>,
    /// The name of that endpoint.
    pub endpoint_name: Option<String>,
    pub aggregate_id: Option<String>,
    pub reason: Option<DeadLetterReason>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub anyway: bool,
    pub new_ids: bool,
    pub rate: i32,
    pub items_total: i64,
    pub items_done: i64,
    pub items_taken_up: i64,
    pub skipped: BTreeMap<String, i64>,
    pub next_at: Timestamp,
    pub failures: i32,
    pub last_error: Option<String>,
    pub worked_by: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

impl Job {
    /// How many items were passed over.
    pub fn items_skipped(&self) -> i64 {
        self.skipped.values().sum()
    }

    /// How many items were looked at.
    pub fn items_seen(&self) -> i64 {
        self.items_done + self.items_skipped()
    }
}

/// What [`cancel`] or [`resume`] did.
#[derive(Clone, Debug)]
pub enum OnJob {
    /// What was asked for; how the job stands now.
    Done(Box<Job>),
    /// Nothing: it stands so that there was nothing to do.
    AlreadySo(Box<Job>),
    /// Nothing: it cannot go on.
    Refused {
        /// Why.
        why: String,
    },
    /// There is no such job.
    Unknown,
}

const COLUMNS: &str = "j.job_id, j.kind, j.state, j.endpoint_id, (SELECT p.name FROM endpoints AS p WHERE p.endpoint_id = j.endpoint_id) AS endpoint_name, \
    j.aggregate_id, j.reason, j.since, j.until, j.anyway, j.new_ids, j.rate, j.items_total, j.items_done, j.items_taken_up, j.skipped::text AS skipped, \
    j.next_at, j.failures, j.last_error, j.worked_by, j.created_at, j.updated_at, j.ended_at";

fn from_row(row: &Row) -> Result<Job, DatabaseError> {
    Ok(Job {
        job_id: row.try_get("job_id")?,
        kind: row.try_get("kind")?,
        state: row.try_get("state")?,
        endpoint_id: row.try_get("endpoint_id")?,
        endpoint_name: row.try_get("endpoint_name")?,
        aggregate_id: row.try_get("aggregate_id")?,
        reason: row.try_get("reason")?,
        since: row.try_get("since")?,
        until: row.try_get("until")?,
        anyway: row.try_get("anyway")?,
        new_ids: row.try_get("new_ids")?,
        rate: row.try_get("rate")?,
        items_total: row.try_get("items_total")?,
        items_done: row.try_get("items_done")?,
        items_taken_up: row.try_get("items_taken_up")?,
        skipped: serde_json::from_str(row.try_get("skipped")?).map_err(|error| {
            DatabaseError::Unsuitable(format!("what a job has passed over cannot be read: {error}"))
        })?,
        next_at: row.try_get("next_at")?,
        failures: row.try_get("failures")?,
        last_error: row.try_get("last_error")?,
        worked_by: row.try_get("worked_by")?,
        created_at: row.try_get("created_at")?,
        updated_at: row.try_get("updated_at")?,
        ended_at: row.try_get("ended_at")?,
    })
}

/// How many jobs are running. A read: may be repeated.
pub async fn count_running(database: &Database) -> Result<i64, DatabaseError> {
    let session = database.session().await?;
    Ok(session.query_one("SELECT count(*) FROM outbox_jobs WHERE state = 'running'", &[]).await?.get(0))
}
