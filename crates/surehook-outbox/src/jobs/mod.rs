//! The service that works on jobs: does whatever step is due, one after another, and waits where none is. Any number of
//! processes run it side by side; they share the jobs by the locks of their rows (`store::jobs`).

pub mod pace;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::deliver::chain;
use crate::store::Database;
use crate::store::jobs::{JobKind, Stepped, release_lane, step};
use crate::store::operate::SubjectOf;
use crate::wake::Wake;

/// How long to wait at most before looking for work again: another process may have made a job.
const POLL: Duration = Duration::from_secs(1);

/// Told of every item that was enqueued or passed over: what the job does, how many were enqueued, how many passed over.
pub type JobObserver = Arc<dyn Fn(JobKind, i64, i64) + Send + Sync>;

/// Settings of the service.
#[derive(Clone)]
pub struct JobSettings {
    /// What a message is about, so that an older one is not sent after a newer one.
    pub subject_of: SubjectOf,
    /// How this process is called in lists.
    pub node: String,
    /// Told of every step, for metrics.
    pub observer: Option<JobObserver>,
}

impl std::fmt::Debug for JobSettings {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("JobSettings").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Works on jobs until stopped; a step under way is finished first. Failures are logged and tried again.
pub async fn run(database: Database, wake: Wake, settings: JobSettings, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let wait = match step(&database, None, settings.subject_of, &settings.node).await {
            Ok(stepped) => note(&stepped, &database, &wake, &settings).await,
            Err(error) => {
                tracing::debug!(error = %chain(&error), "jobs cannot be worked on for the moment");
                POLL
            }
        };
        if !wait.is_zero() {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => {}
            }
        }
    }
}

/// No step is due: lets go of a lane that no job holds any more, if there is one. Returns how long to wait for the next look.
async fn rest(database: &Database, wake: &Wake, due_in: Option<Duration>) -> Duration {
    match release_lane(database).await {
        Ok(Some(deliveries)) => {
            if deliveries > 0 {
                wake.wake();
            }
            Duration::ZERO
        }
        // A job that others are at is due too: they go on with it, so there is no hurry.
        Ok(None) => due_in.map_or(POLL, |due_in| due_in.clamp(Duration::from_millis(10), POLL)),
        Err(error) => {
            tracing::debug!(error = %chain(&error), "lanes cannot be let go for the moment");
            POLL
        }
    }
}

/// Says what has happened to whoever wants to know; returns how long to wait for the next look.
async fn note(stepped: &Stepped, database: &Database, wake: &Wake, settings: &JobSettings) -> Duration {
    match stepped {
        Stepped::Nothing { due_in } => rest(database, wake, *due_in).await,
        Stepped::Did { job_id, kind, done, skipped, ended } => {
            if *done > 0 {
                wake.wake();
            }
            if *ended {
                tracing::info!(job_id = %job_id, "a job is done");
            }
            if let Some(observer) = &settings.observer {
                observer(*kind, *done, *skipped);
            }
            Duration::ZERO
        }
        Stepped::Failed { job_id, error, given_up: true } => {
            tracing::error!(job_id = %job_id, error, "a job is given up: the same step failed again and again");
            Duration::ZERO
        }
        Stepped::Failed { job_id, error, given_up: false } => {
            tracing::warn!(job_id = %job_id, error, "a step of a job failed; it is tried again");
            Duration::ZERO
        }
    }
}
