//! `surehook dlq`: dead letters, looked at and sent again.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::Value;
use surehook_outbox::Database;
use surehook_outbox::store::operate::{
    Attempt, DeadLetter, DeadLetterFilter, DeadLetterReason, DeadLetterState, Replayed, attempts, database_time,
    list_dead_letters, next_dead_letters, replay, show_dead_letter,
};
use uuid::Uuid;

use super::connect::with_database;
use super::endpoint::find;
use super::event::{OfArgs, payload_value, pretty};
use super::explain::attempts_table;
use super::output::{Out, cell, count, properties, table, trimmed, when};
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
        surehook dlq replay --endpoint ci --since 1d\n  \
        surehook dlq replay --all\n\n\
        A receiver that knows the id already answers 409 and does nothing; that counts as delivered. A dead letter is\n\
        passed over if a newer push of the same ref was delivered, or waits to be: the receiver would see the older one\n\
        last. --anyway sends it nevertheless.")]
    Replay {
        /// The delivery's id (X-Webhook-Id)
        #[arg(value_name = "ID", value_parser = parse_id, required_unless_present_any = ["all", "endpoint", "repo", "aggregate", "reason", "since"])]
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
    },
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
}

impl WhichArgs {
    async fn filter(self, database: &Database) -> Result<DeadLetterFilter, CliError> {
        let endpoint_id = match &self.endpoint {
            Some(name) => Some(find(database, name).await?.endpoint_id),
            None => None,
        };
        Ok(DeadLetterFilter {
            endpoint_id,
            aggregate_id: self.of.aggregate_id(database).await?,
            reason: self.reason.as_deref().and_then(DeadLetterReason::from_word),
            since: Since::resolve(self.since, database).await?,
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
        DlqCommand::Replay { delivery_id: Some(delivery_id), anyway, .. } => {
            replay_one(database, delivery_id, anyway, out).await?;
            Ok(ExitCode::SUCCESS)
        }
        DlqCommand::Replay { delivery_id: None, which, anyway, .. } => {
            let filter = which.filter(database).await?;
            replay_many(database, filter, anyway, out).await
        }
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
    text.push_str("\n\nSend it again with: surehook dlq replay ");
    text.push_str(&letter.delivery_id.to_string());
    text
}

/// What a push is about, so that an older one is not delivered after a newer one: its ref. Where its name is not UTF-8,
/// two names may look alike; then the exact one stands beside it.
fn ref_of(payload: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Push {
        r#ref: Option<String>,
        ref_base64: Option<String>,
    }
    let push: Push = serde_json::from_slice(payload).ok()?;
    push.ref_base64.map(|exact| format!("base64:{exact}")).or(push.r#ref)
}

async fn replay_one(database: &Database, delivery_id: Uuid, anyway: bool, out: Out) -> Result<(), CliError> {
    let subject_of = if anyway { None } else { Some(ref_of as fn(&[u8]) -> Option<String>) };
    let replayed = replay(database, delivery_id, subject_of).await?;
    if let Some(refused) = refusal(delivery_id, &replayed) {
        return Err(refused);
    }
    let ahead = match replayed {
        Replayed::Appended { ahead } => ahead,
        _ => 0,
    };
    let result = serde_json::json!({ "delivery_id": delivery_id, "result": "replaying", "ahead": ahead });
    out.one(&result, || {
        let turn = match ahead {
            0 => "It goes out now".to_owned(),
            ahead => format!("It goes out after {} of its lane", count(ahead, "other", "others")),
        };
        format!(
            "Delivery {delivery_id} is replayed under the same id. {turn}.\nA receiver that knows the id answers 409 and \
             does nothing; that counts as delivered.\nWatch it with: surehook delivery show {delivery_id}"
        )
    })
}

/// Why nothing was replayed; None if it was.
fn refusal(delivery_id: Uuid, replayed: &Replayed) -> Option<CliError> {
    let (problem, advice) = match replayed {
        Replayed::Appended { .. } | Replayed::Revived => return None,
        Replayed::AlreadyReplaying => (
            format!("A replay of {delivery_id} is on its way already."),
            format!("Watch it with: surehook delivery show {delivery_id}"),
        ),
        Replayed::AlreadyDelivered => (
            format!("A replay of {delivery_id} got through before."),
            format!("Send it again nevertheless with: surehook dlq replay {delivery_id} --anyway"),
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
        Replayed::Unknown => return Some(unknown(delivery_id)),
    };
    Some(CliError::new(problem, advice))
}

fn unknown(delivery_id: Uuid) -> CliError {
    CliError::new(format!("There is no dead letter {delivery_id}."), "List them with: surehook dlq list")
}

#[derive(Default, Serialize)]
struct Summary {
    replayed: i64,
    refused: Vec<Refused>,
}

#[derive(Serialize)]
struct Refused {
    delivery_id: Uuid,
    why: String,
}

/// Dead letters are walked in the order of their events, page by page; each is replayed in a transaction of its own, so a
/// walk that ends early has done what it has done, and may be begun again.
async fn replay_many(
    database: &Database,
    mut filter: DeadLetterFilter,
    anyway: bool,
    out: Out,
) -> Result<ExitCode, CliError> {
    filter.state = Some(DeadLetterState::Dead);
    filter.limit = 500;
    let subject_of = if anyway { None } else { Some(ref_of as fn(&[u8]) -> Option<String>) };
    let progress = progress(out);
    let mut summary = Summary::default();
    let mut last: Option<DeadLetter> = None;
    loop {
        let page = next_dead_letters(database, &filter, last.as_ref()).await?;
        for letter in &page {
            let replayed = replay(database, letter.delivery_id, subject_of).await?;
            match refusal(letter.delivery_id, &replayed) {
                None => summary.replayed += 1,
                Some(refused) => {
                    summary.refused.push(Refused { delivery_id: letter.delivery_id, why: refused.problem });
                }
            }
            progress.inc(1);
        }
        match page.into_iter().next_back() {
            Some(letter) => last = Some(letter),
            None => break,
        }
    }
    progress.finish_and_clear();
    out.one(&summary, || {
        let replayed = count(summary.replayed, "dead letter is", "dead letters are");
        let mut text = format!("{replayed} replayed.");
        for refused in &summary.refused {
            text.push_str(&format!("\nnot replayed: {}", refused.why));
        }
        text
    })?;
    Ok(if summary.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A count that moves, for a person who waits; nothing where nobody looks.
fn progress(out: Out) -> ProgressBar {
    if out.is_json() || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {pos} dead letters looked at, {per_sec}");
    ProgressBar::no_length().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_is_about_its_ref() {
        assert_eq!(ref_of(br#"{"ref":"refs/heads/main","after":"1"}"#).as_deref(), Some("refs/heads/main"));
        assert_eq!(ref_of(br#"{"ref":"caf\ufffd","ref_base64":"Y2Fm6Q=="}"#).as_deref(), Some("base64:Y2Fm6Q=="));
        assert_eq!(ref_of(br#"{"answer":42}"#), None);
        assert_eq!(ref_of(b"\xff\xfe"), None);
    }
}
