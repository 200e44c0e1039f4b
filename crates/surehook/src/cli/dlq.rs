//! `surehook dlq`: dead letters, looked at and sent again.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;
use surehook_outbox::Database;
use surehook_outbox::store::operate::{
    Attempt, DeadLetter, DeadLetterFilter, DeadLetterReason, DeadLetterState, attempts, database_time,
    list_dead_letters, show_dead_letter,
};
use uuid::Uuid;

use super::connect::with_database;
use super::endpoint::find;
use super::event::{OfArgs, payload_value, pretty};
use super::explain::attempts_table;
use super::output::{Out, cell, properties, table, trimmed, when};
use super::replay::{self, ReplayArgs};
use super::values::{Since, parse_id, parse_since};
use super::{CliError, Globals};

/// Dead letters.
#[derive(Debug, Subcommand)]
pub enum DlqCommand {
    /// List dead letters, the newest first
    #[command(after_help = "Examples:\n  \
        surehook dlq list\n  \
        surehook dlq list --endpoint ci --reason max_attempts --since 1d --json")]
    List {
        /// Which.
        #[command(flatten)]
        which: WhichArgs,
        /// Only in this state
        #[arg(long, value_name = "STATE", value_parser = DeadLetterState::WORDS.to_vec())]
        state: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
        limit: i64,
    },
    /// Show a dead letter: its attempts, and the bytes that were sent
    #[command(after_help = "Example:\n  surehook dlq show 0d9bd7e6-2a53-4a4c-9d5e-6f0f9a3b8c11")]
    Show {
        /// The delivery's id (X-Webhook-Id)
        #[arg(value_name = "ID", value_parser = parse_id)]
        delivery_id: Uuid,
    },
    /// Send dead letters again, with the same id and bytes
    #[command(after_help = "Examples:\n  \
        surehook dlq replay 0d9bd7e6-2a53-4a4c-9d5e-6f0f9a3b8c11\n  \
        surehook dlq replay --endpoint ci --since 1d --dry-run\n  \
        surehook dlq replay --endpoint ci --since 1d\n  \
        surehook dlq replay --all --rate 20 --detach\n\n\
        A receiver that knows the id already answers 409 and does nothing; that counts as delivered. --new-id makes a new\n\
        one, so that it builds once more. A dead letter is passed over if a newer push of the same ref was delivered, or\n\
        waits to be: the receiver would see the older one last. --anyway sends it nevertheless.\n\
        Many are replayed by a job, oldest event first, which goes on when this command ends: surehook job list.\n\
        Exit code 1 if any was passed over.")]
    Replay(Box<ReplayArgs>),
}

/// Which dead letters.
#[derive(Clone, Debug, Args)]
pub struct WhichArgs {
    /// Only to this endpoint
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    #[command(flatten)]
    of: OfArgs,
    /// Only those that this limit ended
    #[arg(long, value_name = "REASON", value_parser = DeadLetterReason::WORDS.to_vec())]
    reason: Option<String>,
    /// Only those that died since then: how long ago (2h, 3d), or a time
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<Since>,
    /// Only those that died before then
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    until: Option<Since>,
}

impl WhichArgs {
    pub(super) async fn filter(self, database: &Database) -> Result<DeadLetterFilter, CliError> {
        let endpoint_id = match &self.endpoint {
            Some(name) => Some(find(database, name).await?.endpoint_id),
            None => None,
        };
        Ok(DeadLetterFilter {
            endpoint_id,
            aggregate_id: self.of.aggregate_id(database).await?,
            reason: self.reason.as_deref().and_then(DeadLetterReason::from_word),
            since: Since::resolve(self.since, database).await?,
            until: Since::resolve(self.until, database).await?,
            ..DeadLetterFilter::default()
        })
    }
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    letter: DeadLetter,
    body: Option<Value>,
    attempt_list: Vec<Attempt>,
}

pub(super) async fn run(globals: &Globals, command: DlqCommand, out: Out) -> Result<ExitCode, CliError> {
    with_database(globals, async |database| match command {
        DlqCommand::List { which, state, limit } => {
            let filter = DeadLetterFilter {
                state: state.as_deref().and_then(DeadLetterState::from_word),
                limit,
                ..which.filter(database).await?
            };
            list(database, &filter, out).await?;
            Ok(ExitCode::SUCCESS)
        }
        DlqCommand::Show { delivery_id } => {
            let (letter, body) = show_dead_letter(database, delivery_id).await?.ok_or_else(|| unknown(delivery_id))?;
            let attempt_list = attempts(database, delivery_id).await?;
            let now = database_time(database).await?;
            let shown = Shown { letter, body: body.as_deref().map(payload_value), attempt_list };
            out.one(&shown, || words(&shown, now))?;
            Ok(ExitCode::SUCCESS)
        }
        DlqCommand::Replay(args) => replay::run(database, *args, out).await,
    })
    .await
}

async fn list(database: &Database, filter: &DeadLetterFilter, out: Out) -> Result<(), CliError> {
    let letters = list_dead_letters(database, filter).await?;
    let now = database_time(database).await?;
    out.list(&letters, "There are no such dead letters.", || {
        let mut table =
            table(&["DELIVERY", "STATE", "OF", "ENDPOINT", "REASON", "ATTEMPTS", "DIED", "REPLAYS", "LAST ERROR"]);
        for letter in &letters {
            table.add_row([
                letter.delivery_id.to_string(),
                letter.state.to_string(),
                cell(&letter.aggregate_name, 40),
                letter.endpoint_name.clone(),
                letter.reason.to_string(),
                letter.attempts.to_string(),
                when(letter.failed_at, now),
                letter.replays.to_string(),
                cell(letter.last_error.as_deref().unwrap_or("-"), 60),
            ]);
        }
        table
    })
}

fn words(shown: &Shown, now: jiff::Timestamp) -> String {
    let letter = &shown.letter;
    let mut text = properties(&[
        ("delivery", letter.delivery_id.to_string()),
        ("state", letter.state.to_string()),
        ("reason", letter.reason.to_string()),
        ("event", format!("{} ({})", letter.event_id, cell(&letter.event_type, 60))),
        ("of", cell(&letter.aggregate_name, 200)),
        ("endpoint", format!("{} ({})", letter.endpoint_name, letter.url)),
        ("attempts", letter.attempts.to_string()),
        ("last status", letter.last_status_code.map_or("-".into(), |code| code.to_string())),
        ("last error", cell(letter.last_error.as_deref().unwrap_or("-"), 300)),
        ("died", when(letter.failed_at, now)),
        ("replays", letter.replays.to_string()),
    ]);
    if !shown.attempt_list.is_empty() {
        text.push_str("\n\n");
        text.push_str(&trimmed(&attempts_table(&shown.attempt_list, now)));
    }
    if let Some(body) = &shown.body {
        text.push_str("\n\n");
        text.push_str(&pretty(body));
    }
    match letter.replaced_by {
        Some(by) => text.push_str(&format!("\n\nIt was sent again under a new id: surehook delivery show {by}")),
        None => text.push_str(&format!("\n\nSend it again with: surehook dlq replay {}", letter.delivery_id)),
    }
    text
}

pub(super) fn unknown(delivery_id: Uuid) -> CliError {
    CliError::new(format!("There is no dead letter {delivery_id}."), "List them with: surehook dlq list")
}
