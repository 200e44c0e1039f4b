//! `surehook event`: what happened. And the filters by repository, aggregate and commit that other nouns share.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;
use surehook_outbox::Database;
use surehook_outbox::store::operate::{Event, EventFilter, SCANNED_MAX, database_time, list_events, show_event};
use uuid::Uuid;

use super::connect::with_database;
use super::endpoint::unknown_repository;
use super::output::{Out, cell, properties, table, when};
use super::values::{Since, parse_id, parse_since};
use super::{CliError, Globals};
use crate::store::lookup;

/// Events.
#[derive(Debug, Subcommand)]
pub enum EventCommand {
    /// List events, the newest first
    #[command(after_help = "Examples:\n  \
        surehook event list --repo team/app\n  \
        surehook event list --since 2h --json\n  \
        surehook event list --commit 3f2a91c")]
    List {
        /// Whose.
        #[command(flatten)]
        of: OfArgs,
        /// Only pushes that name this commit, or the beginning of its id
        #[arg(long, value_name = "SHA", value_parser = parse_commit)]
        commit: Option<String>,
        /// Only since then: how long ago (2h, 3d), or a time
        #[arg(long, value_name = "TIME", value_parser = parse_since)]
        since: Option<Since>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
        limit: i64,
    },
    /// Show an event with its payload
    #[command(after_help = "Example:\n  surehook event show 0d9bd7e6-2a53-4a4c-9d5e-6f0f9a3b8c11 --json")]
    Show {
        /// The event's id
        #[arg(value_name = "ID", value_parser = parse_id)]
        event_id: Uuid,
    },
}

/// Whose events.
#[derive(Clone, Debug, Default, Args)]
pub struct OfArgs {
    /// Only of this repository
    #[arg(long, value_name = "REPO")]
    repo: Option<String>,
    /// Only of this aggregate (for a repository: its id)
    #[arg(long, value_name = "ID", conflicts_with = "repo")]
    aggregate: Option<String>,
}

impl OfArgs {
    /// The aggregate that is meant. A repository that was deleted is still found by its name.
    pub(super) async fn aggregate_id(&self, database: &Database) -> Result<Option<String>, CliError> {
        let Some(repo) = &self.repo else { return Ok(self.aggregate.clone()) };
        let name = repo.strip_suffix(".git").unwrap_or(repo);
        match lookup::repository_id(database, name).await? {
            Some(id) => Ok(Some(id.to_string())),
            None => Err(unknown_repository(database, name).await?),
        }
    }
}

/// The id of a commit, or its beginning.
pub(super) fn parse_commit(text: &str) -> Result<String, String> {
    let good = (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    good.then(|| text.to_ascii_lowercase()).ok_or_else(|| "a commit is named by at least 7 hexadecimal digits".into())
}

/// The events that name a commit: as what the ref points to, as its head commit, or among those pushed. They are looked
/// for in the newest [`SCANNED_MAX`] events that fit the filter.
pub(super) async fn events_of_commit(
    database: &Database,
    mut filter: EventFilter,
    commit: &str,
) -> Result<Vec<Event>, CliError> {
    filter.payload_contains = Some(commit.as_bytes().to_vec());
    let mut named = Vec::new();
    for event in list_events(database, &filter).await? {
        if let Some((_, payload)) = show_event(database, event.event_id).await?
            && names_commit(&payload, commit)
        {
            named.push(event);
        }
    }
    Ok(named)
}

/// What is said when no event names the commit.
pub(super) fn no_commit(commit: &str) -> String {
    format!("None of the newest {SCANNED_MAX} events that were looked at names the commit {commit}.")
}

fn names_commit(payload: &[u8], commit: &str) -> bool {
    let Ok(payload) = serde_json::from_slice::<Value>(payload) else { return false };
    let begins = |value: &Value| value.as_str().is_some_and(|id| id.starts_with(commit));
    begins(&payload["after"])
        || begins(&payload["head_commit"]["id"])
        || payload["commits"].as_array().is_some_and(|commits| commits.iter().any(|one| begins(&one["id"])))
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    event: Event,
    payload: Value,
}

pub(super) async fn run(globals: &Globals, command: EventCommand, out: Out) -> Result<ExitCode, CliError> {
    with_database(globals, async |database| match command {
        EventCommand::List { of, commit, since, limit } => {
            let filter = EventFilter {
                aggregate_id: of.aggregate_id(database).await?,
                since: Since::resolve(since, database).await?,
                limit,
                ..EventFilter::default()
            };
            let (events, nothing) = match &commit {
                Some(commit) => (events_of_commit(database, filter, commit).await?, no_commit(commit)),
                None => (list_events(database, &filter).await?, "There are no events.".into()),
            };
            let now = database_time(database).await?;
            out.list(&events, &nothing, || {
                let mut table = table(&["EVENT", "TYPE", "OF", "CREATED", "BYTES", "DELIVERIES"]);
                for event in &events {
                    table.add_row([
                        event.event_id.to_string(),
                        cell(&event.event_type, 30),
                        cell(&event.aggregate_name, 40),
                        when(event.created_at, now),
                        event.payload_bytes.to_string(),
                        event.deliveries.to_string(),
                    ]);
                }
                table
            })
        }
        EventCommand::Show { event_id } => {
            let Some((event, payload)) = show_event(database, event_id).await? else {
                return Err(CliError::new(
                    format!("There is no event {event_id}."),
                    "It may be older than the retention time. List events with: surehook event list",
                ));
            };
            let now = database_time(database).await?;
            let shown = Shown { event, payload: payload_value(&payload) };
            out.one(&shown, || {
                let event = &shown.event;
                let rows = [
                    ("event", event.event_id.to_string()),
                    ("type", event.event_type.clone()),
                    ("of", format!("{} ({})", cell(&event.aggregate_name, 200), cell(&event.aggregate_id, 200))),
                    ("created", when(event.created_at, now)),
                    ("deliveries", event.deliveries.to_string()),
                ];
                format!("{}\n\n{}", properties(&rows), pretty(&shown.payload))
            })
        }
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

/// A payload as JSON; bytes that are none become a text in base64.
pub(super) fn payload_value(payload: &[u8]) -> Value {
    use base64::Engine;
    serde_json::from_slice(payload)
        .unwrap_or_else(|_| Value::String(base64::engine::general_purpose::STANDARD.encode(payload)))
}

/// JSON for people. Its strings are escaped, so nothing in them reaches the terminal.
pub(super) fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_found_by_its_role_and_not_by_chance() {
        let payload = br#"{"before":"aaaaaaa1","after":"bbbbbbb2","head_commit":{"id":"ccccccc3"},
            "commits":[{"id":"ddddddd4","message":"fixes eeeeeee5"}]}"#;
        for (commit, named) in
            [("bbbbbbb", true), ("ccccccc3", true), ("ddddddd4", true), ("aaaaaaa1", false), ("eeeeeee5", false)]
        {
            assert_eq!(names_commit(payload, commit), named, "{commit}");
        }
        assert!(!names_commit(b"\xff", "bbbbbbb"));
        assert!(parse_commit("bbb").is_err() && parse_commit("zzzzzzzz").is_err());
    }
}
