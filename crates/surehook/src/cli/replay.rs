//! `surehook dlq replay`: one dead letter at once, many by a job.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use surehook_outbox::Database;
use surehook_outbox::store::jobs::{Job, NewReplay, create_replay};
use surehook_outbox::store::operate::{
    DeadLetterCount, DeadLetterFilter, HowToReplay, Replayed, count_dead_letters, replay,
};
use uuid::Uuid;

use super::CliError;
use super::dlq::{WhichArgs, unknown};
use super::job::{detached_words, ended_early, follow, skipped_words};
use super::output::{Out, cell, count, table, trimmed};
use super::values::parse_id;
use crate::payload::subject::subject_of;

/// Options of `dlq replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The delivery's id (X-Webhook-Id)
    #[arg(value_name = "ID", value_parser = parse_id,
        required_unless_present_any = ["all", "endpoint", "repo", "aggregate", "reason", "since", "until"])]
    delivery_id: Option<Uuid>,
    /// Every dead letter (that fits the other options)
    #[arg(long, conflicts_with = "delivery_id")]
    all: bool,
    /// Which.
    #[command(flatten)]
    which: WhichArgs,
    /// Also where a newer push of the same ref was delivered, and where a replay got through before
    #[arg(long)]
    anyway: bool,
    /// Under a new delivery id, so that a receiver that knows the old one builds once more
    #[arg(long)]
    new_id: bool,
    /// Only count what would be replayed
    #[arg(long, conflicts_with = "delivery_id")]
    dry_run: bool,
    /// At most so many a second
    #[arg(long, value_name = "N", default_value_t = RATE, value_parser = clap::value_parser!(i32).range(1..=100_000), conflicts_with = "delivery_id")]
    rate: i32,
    /// Do not wait for the end: the running workers do it
    #[arg(long, conflicts_with_all = ["delivery_id", "dry_run"])]
    detach: bool,
}

/// Items a second of a job, unless it is told otherwise: ten thousand in less than two minutes, and live events beside them.
pub(super) const RATE: i32 = 100;

pub(super) async fn run(database: &Database, args: ReplayArgs, out: Out) -> Result<ExitCode, CliError> {
    if let Some(delivery_id) = args.delivery_id {
        let how = HowToReplay { subject_of: (!args.anyway).then_some(subject_of), new_id: args.new_id };
        replay_one(database, delivery_id, &how, out).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let filter = args.which.filter(database).await?;
    if args.dry_run {
        dry_run(database, &filter, out).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let new = NewReplay { filter, anyway: args.anyway, new_ids: args.new_id, rate: args.rate };
    let job = create_replay(database, &new).await?;
    if args.detach {
        let words = detached_words(database, &job).await?;
        out.one(&job, || words)?;
        return Ok(ExitCode::SUCCESS);
    }
    let job = follow(database, &job, out).await?;
    ended(&job, out)
}

/// What has come of it. The exit code is 0 only if every letter was replayed.
fn ended(job: &Job, out: Out) -> Result<ExitCode, CliError> {
    #[derive(Serialize)]
    struct Ended<'a> {
        #[serde(flatten)]
        job: &'a Job,
        replayed: i64,
    }
    if let Some(error) = ended_early(job) {
        return Err(error);
    }
    out.one(&Ended { job, replayed: job.items_done }, || {
        let mut text = format!("{} replayed.", count(job.items_done, "dead letter is", "dead letters are"));
        if job.items_skipped() > 0 {
            text.push_str(&format!(
                "\nPassed over: {}. They are dead as before: surehook dlq list --state dead",
                skipped_words(job)
            ));
        }
        text
    })?;
    Ok(if job.items_skipped() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn dry_run(database: &Database, filter: &DeadLetterFilter, out: Out) -> Result<(), CliError> {
    #[derive(Serialize)]
    struct Counted {
        dry_run: bool,
        letters: i64,
        counts: Vec<DeadLetterCount>,
    }
    let counts = count_dead_letters(&database.session().await?, filter).await?;
    let counted = Counted { dry_run: true, letters: counts.iter().map(|count| count.letters).sum(), counts };
    out.one(&counted, || {
        if counted.letters == 0 {
            return "There are no such dead letters.".into();
        }
        let mut table = table(&["ENDPOINT", "REASON", "DEAD LETTERS"]);
        for count in &counted.counts {
            table.add_row([count.endpoint_name.clone(), count.reason.to_string(), count.letters.to_string()]);
        }
        format!(
            "{}\n\n{} would be looked at; those that a newer push has outdated would be passed over. Nothing was changed.",
            trimmed(&table),
            count(counted.letters, "dead letter", "dead letters")
        )
    })
}

async fn replay_one(database: &Database, dead: Uuid, how: &HowToReplay, out: Out) -> Result<(), CliError> {
    let replayed = replay(database, dead, how).await?;
    let (delivery_id, ahead) = match replayed {
        Replayed::Appended { delivery_id, ahead } => (delivery_id, ahead),
        Replayed::Revived { delivery_id } => (delivery_id, 0),
        refused => return Err(refusal(dead, &refused)),
    };
    let result = serde_json::json!({ "delivery_id": delivery_id, "replaces": (delivery_id != dead).then_some(dead), "result": "replaying", "ahead": ahead });
    out.one(&result, || {
        let turn = match ahead {
            0 => "It goes out now".to_owned(),
            ahead => format!("It goes out after {} of its lane", count(ahead, "other", "others")),
        };
        let id = if delivery_id == dead {
            format!(
                "Delivery {delivery_id} is replayed under the same id. {turn}.\nA receiver that knows the id answers 409 and \
                 does nothing; that counts as delivered."
            )
        } else {
            format!("Delivery {dead} is replayed under a new id, {delivery_id}. {turn}.\nA receiver takes it for a new one.")
        };
        format!("{id}\nWatch it with: surehook delivery show {delivery_id}")
    })
}

/// Why nothing was replayed.
fn refusal(delivery_id: Uuid, replayed: &Replayed) -> CliError {
    let (problem, advice) = match replayed {
        Replayed::AlreadyReplaying => (
            format!("A replay of {delivery_id} is on its way already."),
            format!("Watch it with: surehook delivery show {delivery_id}"),
        ),
        Replayed::AlreadyDelivered => (
            format!("A replay of {delivery_id} got through before."),
            format!("Send it again nevertheless with: surehook dlq replay {delivery_id} --anyway"),
        ),
        Replayed::AlreadyReplaced { by } => (
            format!("{delivery_id} was sent again under a new id."),
            by.map_or_else(String::new, |by| format!("Look at that one: surehook dlq show {by}")),
        ),
        Replayed::Outdated { by, published, subject } => {
            let newer = if *published { "was delivered" } else { "waits to be delivered before it" };
            (
                format!(
                    "A newer push of {} {newer} ({by}): the receiver would see the older one last.",
                    cell(subject, 200)
                ),
                format!("Send it nevertheless with: surehook dlq replay {delivery_id} --anyway"),
            )
        }
        Replayed::EndpointRemoved => (
            format!("The endpoint of {delivery_id} was removed."),
            "Add it again: it will be told of further pushes, under new ids.".into(),
        ),
        Replayed::BodyMissing => (
            format!("The bytes of {delivery_id} were lost, so it cannot be sent again."),
            format!("What is known of it: surehook dlq show {delivery_id}"),
        ),
        Replayed::Unknown | Replayed::Appended { .. } | Replayed::Revived { .. } => return unknown(delivery_id),
    };
    CliError::new(problem, advice)
}
