//! `surehook delivery`: where each delivery is, why, and what to do about it.

use std::process::ExitCode;

use clap::Subcommand;
use jiff::Timestamp;
use serde::Serialize;
use surehook_outbox::Database;
use surehook_outbox::store::operate::{
    Attempt, Delivery, DeliveryFilter, DeliveryStatus, EventFilter, OnHead, attempts, database_time, explain,
    list_deliveries, retry_now, show_delivery, skip,
};
use uuid::Uuid;

use super::connect::{tell_workers, with_database};
use super::endpoint::find;
use super::event::{OfArgs, events_of_commit, no_commit, parse_commit};
use super::explain::{Explained, attempts_table};
use super::output::{Out, cell, properties, table, trimmed, when, when_or};
use super::values::{Since, parse_id, parse_since};
use super::{CliError, Globals};

/// Deliveries.
#[derive(Debug, Subcommand)]
pub enum DeliveryCommand {
    /// List deliveries, the newest first
    #[command(after_help = "Examples:\n  \
        surehook delivery list --state pending\n  \
        surehook delivery list --repo team/app --endpoint ci --since 1d\n  \
        surehook delivery list --commit 3f2a91c        where is the build of my push?\n  \
        surehook delivery list --state failed --json")]
    List {
        /// Only in this state
        #[arg(long, value_name = "STATE", value_parser = DeliveryStatus::WORDS.to_vec())]
        state: Option<String>,
        /// Only to this endpoint
        #[arg(long, value_name = "NAME")]
        endpoint: Option<String>,
        /// Whose.
        #[command(flatten)]
        of: OfArgs,
        /// Only of this event
        #[arg(long, value_name = "ID", value_parser = parse_id, conflicts_with = "commit")]
        event: Option<Uuid>,
        /// Only of pushes that name this commit, or the beginning of its id; looked for in the newest events that fit
        /// --repo and --since
        #[arg(long, value_name = "SHA", value_parser = parse_commit)]
        commit: Option<String>,
        /// Only since then: how long ago (2h, 3d), or a time
        #[arg(long, value_name = "TIME", value_parser = parse_since)]
        since: Option<Since>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
        limit: i64,
    },
    /// Show a delivery and its attempts
    #[command(after_help = "Example:\n  surehook delivery show 0d9bd7e6-2a53-4a4c-9d5e-6f0f9a3b8c11")]
    Show {
        /// The delivery's id (X-Webhook-Id)
        #[arg(value_name = "ID", value_parser = parse_id)]
        delivery_id: Uuid,
    },
    /// Say in words where a delivery is, what it waits for, and what to type next
    #[command(after_help = "Example:\n  surehook delivery explain 0d9bd7e6-2a53-4a4c-9d5e-6f0f9a3b8c11")]
    Explain {
        /// The delivery's id (X-Webhook-Id)
        #[arg(value_name = "ID", value_parser = parse_id)]
        delivery_id: Uuid,
    },
    /// Try a delivery now instead of when its time comes; it must be the first of its lane
    #[command(after_help = "Example:\n  surehook delivery retry 0d9bd7e6-2a53-4a4c-9d5e-6f0f9a3b8c11")]
    Retry {
        /// The delivery's id (X-Webhook-Id)
        #[arg(value_name = "ID", value_parser = parse_id)]
        delivery_id: Uuid,
    },
    /// Let a delivery go and go on with the next one of its lane; it must be the first
    #[command(after_help = "Example:\n  surehook delivery skip 0d9bd7e6-2a53-4a4c-9d5e-6f0f9a3b8c11\n\n\
        With --force also while a worker is just sending it: it may arrive nevertheless.")]
    Skip {
        /// The delivery's id (X-Webhook-Id)
        #[arg(value_name = "ID", value_parser = parse_id)]
        delivery_id: Uuid,
        /// Also while a worker is just sending it
        #[arg(long)]
        force: bool,
    },
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    delivery: Delivery,
    /// `attempts` is their number, as in the view; here they are themselves.
    attempt_list: Vec<Attempt>,
}

pub(super) async fn run(globals: &Globals, command: DeliveryCommand, out: Out) -> Result<ExitCode, CliError> {
    with_database(globals, async |database| match command {
        DeliveryCommand::List { state, endpoint, of, event, commit, since, limit } => {
            let mut filter = DeliveryFilter {
                status: state.as_deref().and_then(DeliveryStatus::from_word),
                aggregate_id: of.aggregate_id(database).await?,
                since: Since::resolve(since, database).await?,
                event_ids: event.map(|id| vec![id]),
                limit,
                ..DeliveryFilter::default()
            };
            if let Some(name) = endpoint {
                filter.endpoint_id = Some(find(database, &name).await?.endpoint_id);
            }
            list(database, filter, commit, out).await
        }
        DeliveryCommand::Show { delivery_id } => {
            let delivery = show_delivery(database, delivery_id).await?.ok_or_else(|| unknown(delivery_id))?;
            let attempt_list = attempts(database, delivery_id).await?;
            let now = database_time(database).await?;
            let shown = Shown { delivery, attempt_list };
            out.one(&shown, || words(&shown, now))
        }
        DeliveryCommand::Explain { delivery_id } => {
            let explanation = explain(database, delivery_id).await?.ok_or_else(|| unknown(delivery_id))?;
            let explained = Explained::new(explanation);
            out.one(&explained, || explained.text())
        }
        DeliveryCommand::Retry { delivery_id } => retry(database, delivery_id, out).await,
        DeliveryCommand::Skip { delivery_id, force } => skip_head(database, delivery_id, force, out).await,
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

async fn list(
    database: &Database,
    mut filter: DeliveryFilter,
    commit: Option<String>,
    out: Out,
) -> Result<(), CliError> {
    let mut nothing = "There are no such deliveries.".to_owned();
    if let Some(commit) = &commit {
        let events = EventFilter {
            aggregate_id: filter.aggregate_id.clone(),
            since: filter.since,
            limit: 1_000,
            ..EventFilter::default()
        };
        let events = events_of_commit(database, events, commit).await?;
        if events.is_empty() {
            nothing = no_commit(commit);
        }
        filter.event_ids = Some(events.iter().map(|event| event.event_id).collect());
    }
    let deliveries = list_deliveries(database, &filter).await?;
    let now = database_time(database).await?;
    out.list(&deliveries, &nothing, || {
        let mut table =
            table(&["DELIVERY", "STATE", "OF", "ENDPOINT", "ATTEMPTS", "CREATED", "NEXT ATTEMPT", "LAST ERROR"]);
        for delivery in &deliveries {
            table.add_row([
                delivery.delivery_id.to_string(),
                delivery.status.to_string(),
                cell(delivery.aggregate_name.as_deref().unwrap_or(&delivery.aggregate_id), 40),
                delivery.endpoint_name.clone(),
                delivery.attempts.to_string(),
                when(delivery.created_at, now),
                next_words(delivery, now),
                cell(delivery.last_error.as_deref().unwrap_or("-"), 60),
            ]);
        }
        table
    })
}

fn next_words(delivery: &Delivery, now: Timestamp) -> String {
    match (delivery.status, delivery.next_attempt_at) {
        (DeliveryStatus::Pending, Some(at)) if at <= now => "due".into(),
        (DeliveryStatus::Pending, Some(at)) => when(at, now),
        (DeliveryStatus::Pending, None) if !delivery.is_head => "after earlier ones".into(),
        (DeliveryStatus::Pending, None) => "being sent, or held".into(),
        _ => "-".into(),
    }
}

fn words(shown: &Shown, now: Timestamp) -> String {
    let delivery = &shown.delivery;
    let mut text = properties(&[
        ("delivery", delivery.delivery_id.to_string()),
        ("state", delivery.status.to_string()),
        ("event", format!("{} ({})", delivery.event_id, delivery.event_type.as_deref().unwrap_or("its row is gone"))),
        ("webhook", delivery.webhook_name.clone()),
        ("of", cell(delivery.aggregate_name.as_deref().unwrap_or(&delivery.aggregate_id), 200)),
        ("endpoint", format!("{} ({})", delivery.endpoint_name, delivery.webhook_url)),
        ("attempts", delivery.attempts.to_string()),
        ("next attempt", next_words(delivery, now)),
        ("created", when(delivery.created_at, now)),
        ("published", when_or(delivery.published_at, now, "-")),
        ("last error", cell(delivery.last_error.as_deref().unwrap_or("-"), 300)),
        ("replay", if delivery.replay { "yes" } else { "no" }.into()),
    ]);
    if !shown.attempt_list.is_empty() {
        text.push_str("\n\n");
        text.push_str(&trimmed(&attempts_table(&shown.attempt_list, now)));
    }
    text
}

async fn retry(database: &Database, delivery_id: Uuid, out: Out) -> Result<(), CliError> {
    match retry_now(database, delivery_id).await? {
        OnHead::Done => {
            tell_workers(database).await;
            let result = serde_json::json!({ "delivery_id": delivery_id, "result": "due" });
            out.one(&result, || {
                format!("Delivery {delivery_id} is due now.\nWatch it with: surehook delivery show {delivery_id}")
            })
        }
        OnHead::Behind { head, ahead } => Err(behind(delivery_id, head, ahead)),
        OnHead::Leased { until } => {
            Err(leased(database, delivery_id, until, "It is tried already; look again in a moment.").await?)
        }
        OnHead::Ended(status) => Err(ended(delivery_id, status)),
        OnHead::Unknown => Err(unknown(delivery_id)),
    }
}

async fn skip_head(database: &Database, delivery_id: Uuid, force: bool, out: Out) -> Result<(), CliError> {
    match skip(database, delivery_id, force).await? {
        OnHead::Done => {
            tell_workers(database).await;
            let result = serde_json::json!({ "delivery_id": delivery_id, "result": "skipped" });
            out.one(&result, || format!("Delivery {delivery_id} is skipped; its lane goes on with the next one."))
        }
        OnHead::Behind { head, ahead } => Err(behind(delivery_id, head, ahead)),
        OnHead::Leased { until } => {
            let advice = "Wait for its end, or skip it nevertheless with --force: it may arrive all the same.";
            Err(leased(database, delivery_id, until, advice).await?)
        }
        OnHead::Ended(status) => Err(ended(delivery_id, status)),
        OnHead::Unknown => Err(unknown(delivery_id)),
    }
}

fn unknown(delivery_id: Uuid) -> CliError {
    CliError::new(
        format!("There is no delivery {delivery_id}."),
        "It may be older than the retention time. List deliveries with: surehook delivery list",
    )
}

fn behind(delivery_id: Uuid, head: Option<Uuid>, ahead: i64) -> CliError {
    let head = head.map_or("?".into(), |head| head.to_string());
    CliError::new(
        format!(
            "Delivery {delivery_id} is not the first of its lane: {ahead} go before it, the first of them is {head}."
        ),
        format!("Look at that one: surehook delivery explain {head}"),
    )
}

async fn leased(database: &Database, delivery_id: Uuid, until: Timestamp, advice: &str) -> Result<CliError, CliError> {
    let now = database_time(database).await?;
    let problem =
        format!("A worker is just sending delivery {delivery_id}; it holds it until {} at most.", when(until, now));
    Ok(CliError::new(problem, advice))
}

fn ended(delivery_id: Uuid, status: DeliveryStatus) -> CliError {
    let advice = match status {
        DeliveryStatus::Failed => format!("It is a dead letter. Send it again with: surehook dlq replay {delivery_id}"),
        DeliveryStatus::Cancelled => "Its endpoint was removed; nothing more is sent there.".into(),
        _ => format!("See how it went: surehook delivery show {delivery_id}"),
    };
    CliError::new(format!("Delivery {delivery_id} has ended: it is {status}."), advice)
}
