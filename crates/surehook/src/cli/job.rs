//! `surehook job`: work over many rows that goes on by itself. And how a command waits for the job that it has made.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use surehook_outbox::Database;
use surehook_outbox::store::jobs::{self, Job, JobKind, JobState, OnJob, Stepped};
use surehook_outbox::store::operate::database_time;
use uuid::Uuid;

use super::connect::with_database;
use super::output::{Out, cell, count, properties, table, when, when_or};
use super::values::parse_id;
use super::{CliError, Globals};
use crate::payload::subject::subject_of;

/// Jobs.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// List jobs, the newest first
    #[command(after_help = "Example:\n  surehook job list --state running")]
    List {
        /// Only in this state
        #[arg(long, value_name = "STATE", value_parser = JobState::WORDS.to_vec())]
        state: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
        limit: i64,
    },
    /// Show a job: how far it is, what it has passed over and why
    #[command(after_help = "Example:\n  surehook job show 0d9bd7e6-2a53-4a4c-9d5e-6f0f9a3b8c11")]
    Show {
        /// The job's id
        #[arg(value_name = "ID", value_parser = parse_id)]
        job_id: Uuid,
    },
    /// End a running job; what it has enqueued goes out all the same
    #[command(after_help = "Example:\n  surehook job cancel 0d9bd7e6-2a53-4a4c-9d5e-6f0f9a3b8c11")]
    Cancel {
        /// The job's id
        #[arg(value_name = "ID", value_parser = parse_id)]
        job_id: Uuid,
    },
    /// Let a job go on that was cancelled or has failed
    #[command(after_help = "Example:\n  surehook job resume 0d9bd7e6-2a53-4a4c-9d5e-6f0f9a3b8c11")]
    Resume {
        /// The job's id
        #[arg(value_name = "ID", value_parser = parse_id)]
        job_id: Uuid,
    },
}

pub(super) async fn run(globals: &Globals, command: JobCommand, out: Out) -> Result<ExitCode, CliError> {
    with_database(globals, async |database| match command {
        JobCommand::List { state, limit } => {
            list(database, state.as_deref().and_then(JobState::from_word), limit, out).await
        }
        JobCommand::Show { job_id } => {
            let job = jobs::find(database, job_id).await?.ok_or_else(|| unknown(job_id))?;
            show(database, &job, out).await
        }
        JobCommand::Cancel { job_id } => match jobs::cancel(database, job_id).await? {
            OnJob::Done(job) => show(database, &job, out).await,
            OnJob::AlreadySo(job) => Err(CliError::new(
                format!("The job {job_id} is not running: it is {}.", job.state),
                format!("Look at it with: surehook job show {job_id}"),
            )),
            OnJob::Refused { why } => Err(refused(&why)),
            OnJob::Unknown => Err(unknown(job_id)),
        },
        JobCommand::Resume { job_id } => match jobs::resume(database, job_id).await? {
            OnJob::Done(job) => show(database, &job, out).await,
            OnJob::AlreadySo(job) => Err(CliError::new(
                format!("The job {job_id} is {}.", job.state),
                "Only what was cancelled or has failed can be resumed.",
            )),
            OnJob::Refused { why } => Err(refused(&why)),
            OnJob::Unknown => Err(unknown(job_id)),
        },
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

fn unknown(job_id: Uuid) -> CliError {
    CliError::new(format!("There is no job {job_id}."), "List them with: surehook job list")
}

fn refused(why: &str) -> CliError {
    CliError::new(format!("The job cannot go on: {why}."), "Make another one: surehook endpoint backfill --help")
}

async fn list(database: &Database, state: Option<JobState>, limit: i64, out: Out) -> Result<(), CliError> {
    let found = jobs::list(database, state, limit).await?;
    let now = database_time(database).await?;
    out.list(&found, "There are no such jobs.", || {
        let mut table = table(&["JOB", "KIND", "STATE", "ENDPOINT", "ITEMS", "DONE", "SKIPPED", "MADE", "LAST ERROR"]);
        for job in &found {
            table.add_row([
                job.job_id.to_string(),
                job.kind.to_string(),
                job.state.to_string(),
                job.endpoint_name.clone().unwrap_or_else(|| "-".into()),
                job.items_total.to_string(),
                job.items_done.to_string(),
                job.items_skipped().to_string(),
                when(job.created_at, now),
                cell(job.last_error.as_deref().unwrap_or("-"), 60),
            ]);
        }
        table
    })
}

async fn show(database: &Database, job: &Job, out: Out) -> Result<(), CliError> {
    let now = database_time(database).await?;
    out.one(job, || {
        let mut rows = vec![
            ("job", job.job_id.to_string()),
            ("kind", job.kind.to_string()),
            ("state", job.state.to_string()),
            ("endpoint", job.endpoint_name.clone().unwrap_or_else(|| "any".into())),
            ("of", job.aggregate_id.as_deref().map_or("any".into(), |id| cell(id, 200))),
        ];
        rows.extend(job.reason.map(|reason| ("reason", reason.to_string())));
        rows.extend(job.since.map(|since| ("since", since.to_string())));
        rows.extend(job.until.map(|until| ("until", until.to_string())));
        rows.extend([
            ("items", job.items_total.to_string()),
            ("enqueued", job.items_done.to_string()),
            ("passed over", skipped_words(job)),
        ]);
        if job.kind == JobKind::Backfill {
            rows.push(("newer ones", format!("{}, which waited for those before them", job.items_taken_up)));
        }
        rows.extend([
            ("at most", format!("{} a second", job.rate)),
            ("made", when(job.created_at, now)),
            ("last step", when(job.updated_at, now)),
            ("by", job.worked_by.clone().unwrap_or_else(|| "nobody yet".into())),
            ("ended", when_or(job.ended_at, now, "not yet")),
        ]);
        if let Some(error) = &job.last_error {
            rows.push(("last error", format!("{} ({} in a row)", cell(error, 300), job.failures)));
        }
        properties(&rows)
    })
}

/// "3: 2 outdated, 1 body_missing".
pub(super) fn skipped_words(job: &Job) -> String {
    let reasons: Vec<String> = job.skipped.iter().map(|(reason, items)| format!("{items} {reason}")).collect();
    if reasons.is_empty() { "0".into() } else { format!("{}: {}", job.items_skipped(), reasons.join(", ")) }
}

/// What is said about a job that goes on without the command that made it.
pub(super) async fn detached_words(database: &Database, job: &Job) -> Result<String, CliError> {
    let workers = surehook_outbox::store::workers::count_alive(database).await?;
    let by_whom = if workers > 0 {
        "The running workers do it."
    } else {
        "No worker is running: it begins when `surehook serve` or `surehook worker` does."
    };
    let id = job.job_id;
    Ok(format!(
        "Job {id} was made, with {}. {by_whom}\nWatch it with: surehook job show {id}\nEnd it with: surehook job cancel {id}",
        count(job.items_total, "item", "items")
    ))
}

/// Waits until a job has ended and shows how far it is. This process does steps too, so that a job also goes on where no
/// worker runs; whoever ends it leaves the rest to the workers.
pub(super) async fn follow(database: &Database, job: &Job, out: Out) -> Result<Job, CliError> {
    let bar = progress(job, out);
    let node = format!("{} (process {})", crate::config::node_name(), std::process::id());
    loop {
        let wait = match jobs::step(database, Some(job.job_id), subject_of, &node).await? {
            Stepped::Did { done, skipped, ended: false, .. } if done + skipped > 0 => Duration::ZERO,
            Stepped::Did { .. } => Duration::ZERO,
            // Others may be at it: a look now and then is enough.
            Stepped::Nothing { due_in } => due_in.unwrap_or_default().clamp(LOOK_EVERY, Duration::from_secs(1)),
            Stepped::Failed { error, .. } => {
                bar.println(format!("A step failed, and is tried again: {error}"));
                LOOK_EVERY
            }
        };
        let Some(now) = jobs::find(database, job.job_id).await? else { return Err(unknown(job.job_id)) };
        bar.set_position(u64::try_from(now.items_seen()).unwrap_or(0));
        if now.state != JobState::Running {
            bar.finish_and_clear();
            return Ok(now);
        }
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}

/// How often a command looks how far a job of others is.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A bar that moves, for a person who waits; nothing where nobody looks.
fn progress(job: &Job, out: Out) -> ProgressBar {
    if out.is_json() || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let what = match job.kind {
        JobKind::Replay => "dead letters",
        JobKind::Backfill => "deliveries",
    };
    let id = job.job_id;
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {per_sec}, {eta} to go");
    let bar = ProgressBar::new(u64::try_from(job.items_total).unwrap_or(0))
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(what);
    bar.println(format!("Job {id}: Ctrl-C leaves it to the workers; surehook job cancel {id} ends it."));
    bar
}

/// How a job that did not come to its end is told.
pub(super) fn ended_early(job: &Job) -> Option<CliError> {
    let id = job.job_id;
    match job.state {
        JobState::Cancelled => Some(CliError::new(
            format!("The job was cancelled after {}.", count(job.items_done, "item", "items")),
            format!("Let it go on with: surehook job resume {id}"),
        )),
        JobState::Failed => Some(CliError::new(
            format!("The job was given up: {}.", cell(job.last_error.as_deref().unwrap_or_default(), 300)),
            format!("When that is mended, let it go on with: surehook job resume {id}"),
        )),
        JobState::Running | JobState::Done => None,
    }
}
