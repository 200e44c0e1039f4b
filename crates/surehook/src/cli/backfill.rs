//! `surehook endpoint backfill`: an endpoint is told of what happened before it was there, by a job.

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use surehook_outbox::Database;
use surehook_outbox::endpoint::{Endpoint, EndpointState};
use surehook_outbox::store::jobs::{Backfill, BackfillCount, BackfillError, Job, count_backfill, create_backfill};
use surehook_outbox::store::operate::database_time;

use super::job::{detached_words, ended_early, follow};
use super::output::{Out, count, table, trimmed, when};
use super::replay::RATE;
use super::values::{Since, parse_since};
use super::{CliError, endpoint};

/// Options of `endpoint backfill`.
#[derive(Debug, Args)]
pub struct BackfillArgs {
    /// Its name or id
    name: String,
    /// Events from then on: how long ago (7d), or a time like 2026-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Since,
    /// Only count what it would be told of
    #[arg(long)]
    dry_run: bool,
    /// At most so many a second
    #[arg(long, value_name = "N", default_value_t = RATE, value_parser = clap::value_parser!(i32).range(1..=100_000))]
    rate: i32,
    /// Do not wait for the end: the running workers do it
    #[arg(long, conflicts_with = "dry_run")]
    detach: bool,
}

pub(super) async fn run(database: &Database, args: BackfillArgs, out: Out) -> Result<(), CliError> {
    let endpoint = endpoint::find(database, &args.name).await?;
    let since = resolve(args.since, database).await?;
    if args.dry_run {
        return dry_run(database, &endpoint, since, out).await;
    }
    let job = create_backfill(database, endpoint.endpoint_id, &Backfill { since, rate: args.rate }).await?;
    if args.detach {
        let words = detached_words(database, &job).await?;
        return out.one(&job, || words);
    }
    let job = follow(database, &job, out).await?;
    ended(&job, &endpoint, out)
}

/// What `endpoint add --backfill` asks for.
pub(super) async fn wanted(database: &Database, since: Since) -> Result<Backfill, CliError> {
    Ok(Backfill { since: resolve(since, database).await?, rate: RATE })
}

async fn resolve(since: Since, database: &Database) -> Result<Timestamp, CliError> {
    // Longer ago than times can say: since ever.
    Ok(Since::resolve(Some(since), database).await?.unwrap_or(Timestamp::UNIX_EPOCH))
}

fn ended(job: &Job, endpoint: &Endpoint, out: Out) -> Result<(), CliError> {
    if let Some(error) = ended_early(job) {
        return Err(error);
    }
    out.one(job, || {
        let name = &endpoint.name;
        let mut text = format!(
            "{} for {name}, in the order of the events.",
            count(job.items_done, "delivery was enqueued", "deliveries were enqueued")
        );
        if endpoint.state == EndpointState::Paused {
            text.push_str(&format!("\nThe endpoint is paused: let them go out with: surehook endpoint resume {name}"));
        }
        text
    })
}

async fn dry_run(database: &Database, endpoint: &Endpoint, since: Timestamp, out: Out) -> Result<(), CliError> {
    #[derive(Serialize)]
    struct Counted {
        dry_run: bool,
        since: Timestamp,
        items: i64,
        late: i64,
        counts: Vec<BackfillCount>,
    }
    let counts = count_backfill(database, endpoint.endpoint_id, since).await?;
    let now = database_time(database).await?;
    let counted = Counted {
        dry_run: true,
        since,
        items: counts.iter().map(|count| count.items).sum(),
        late: counts.iter().map(|count| count.late).sum(),
        counts,
    };
    out.one(&counted, || {
        let name = &endpoint.name;
        if counted.items == 0 {
            return format!("There is nothing since then that {name} was not told of.");
        }
        let mut table = table(&["EVENT TYPE", "DELIVERIES", "REPOSITORIES", "FROM"]);
        for count in &counted.counts {
            table.add_row([
                count.event_type.clone(),
                count.items.to_string(),
                count.aggregates.to_string(),
                when(count.oldest_at, now),
            ]);
        }
        let mut text = format!(
            "{}\n\n{name} would be told by {}. Nothing was changed.",
            trimmed(&table),
            count(counted.items, "delivery", "deliveries")
        );
        if counted.late > 0 {
            text.push_str(&format!(
                "\n{} after something newer of the same repository that it was told of before.",
                count(counted.late, "of them would come", "of them would come")
            ));
        }
        text
    })
}

impl From<BackfillError> for CliError {
    fn from(error: BackfillError) -> Self {
        let problem = format!("Nothing is back-filled: {error}.");
        match error {
            BackfillError::Database(error) => error.into(),
            BackfillError::Endpoint(error) => error.into(),
            BackfillError::EndpointRemoved { .. } => {
                Self::new(problem, "Add it again, with: surehook endpoint add NAME … --backfill TIME")
            }
            BackfillError::InFuture { .. } => Self::new(problem, "Say how long ago, for example --since 7d."),
            BackfillError::Removed { oldest } => {
                Self::new(problem, format!("Begin there: --since {oldest}. Retention decides how long events stay."))
            }
            BackfillError::Running(job_id) => Self::new(
                problem,
                format!("Watch it with: surehook job show {job_id}, or end it with: surehook job cancel {job_id}"),
            ),
        }
    }
}
