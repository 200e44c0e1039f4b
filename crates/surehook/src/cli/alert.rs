//! `surehook alert`: what is wrong, or was, and what to do about it.

use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use surehook_outbox::store::operate::database_time;
use uuid::Uuid;

use super::connect::with_database;
use super::output::{Out, cell, properties, table, when, when_or};
use super::{CliError, Globals};
use crate::alerting::runbook;
use crate::store::alerts::{self, Alert, AlertKind};

/// Alerts.
#[derive(Debug, Subcommand)]
pub enum AlertCommand {
    /// List what is wrong now, the oldest first
    #[command(after_help = "Examples:\n  surehook alert list\n  surehook alert list --all --json\n\n\
        Who is told of them: surehook endpoint add NAME --alerts …")]
    List {
        /// Also what is over, the newest first
        #[arg(long)]
        all: bool,
    },
    /// Show an alert, and what to do about it
    #[command(
        after_help = "Examples:\n  surehook alert show 5b3a1f6e-…      the id stands in the page and in `alert list --json`\n  \
        surehook alert show dead_letters     the oldest open one of this kind"
    )]
    Show {
        /// Its id, or a kind
        #[arg(value_name = "ID|KIND")]
        alert: String,
    },
}

/// An alert with what to do about it.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    alert: Alert,
    severity: Option<&'static str>,
    what_to_do: Vec<String>,
    runbook: Option<String>,
}

impl From<Alert> for Shown {
    fn from(alert: Alert) -> Self {
        let kind = AlertKind::parse(&alert.kind);
        Self {
            severity: kind.map(|kind| runbook::severity(kind).as_str()),
            what_to_do: kind.map(|kind| runbook::advice(kind, &alert.name)).unwrap_or_default(),
            runbook: kind.map(|kind| runbook::link("", kind)),
            alert,
        }
    }
}

pub(super) async fn run(globals: &Globals, command: AlertCommand, out: Out) -> Result<ExitCode, CliError> {
    with_database(globals, async |database| {
        let now = database_time(database).await?;
        match command {
            AlertCommand::List { all } => {
                let found = if all { alerts::list_all(database).await? } else { alerts::list_open(database).await? };
                let found: Vec<Shown> = found.into_iter().map(Shown::from).collect();
                let nothing = if all { "There was never an alert." } else { "Nothing is wrong." };
                out.list(&found, nothing, || {
                    let mut table = table(&["KIND", "OPENED", "RESOLVED", "DETAILS"]);
                    for Shown { alert, .. } in &found {
                        table.add_row([
                            alert.kind.clone(),
                            when(alert.opened_at, now),
                            when_or(alert.resolved_at, now, "-"),
                            cell(&alert.details, 120),
                        ]);
                    }
                    table
                })
            }
            AlertCommand::Show { alert } => {
                let wanted: Option<Uuid> = alert.parse().ok();
                let found = match wanted {
                    Some(id) => alerts::list_all(database).await?.into_iter().find(|found| found.alert_id == id),
                    None => alerts::list_open(database).await?.into_iter().find(|found| found.kind == alert),
                };
                let Some(found) = found.map(Shown::from) else { return Err(nothing_found(&alert, wanted)) };
                out.one(&found, || {
                    let Shown { alert, severity, what_to_do, runbook } = &found;
                    let mut rows = vec![
                        ("kind", alert.kind.clone()),
                        ("severity", severity.unwrap_or("unknown").to_owned()),
                        ("what", alert.details.clone()),
                        ("opened", when(alert.opened_at, now)),
                        ("resolved", when_or(alert.resolved_at, now, "no")),
                        ("id", alert.alert_id.to_string()),
                    ];
                    rows.extend(what_to_do.iter().map(|line| ("to do", line.clone())));
                    rows.extend(runbook.iter().map(|link| ("more", link.clone())));
                    properties(&rows)
                })
            }
        }
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

fn nothing_found(asked: &str, id: Option<Uuid>) -> CliError {
    if id.is_some() || AlertKind::parse(asked).is_some() {
        let what = if id.is_some() { "alert with the id" } else { "open alert of the kind" };
        return CliError::new(format!("There is no {what} {asked}."), "See them all: surehook alert list --all");
    }
    let kinds: Vec<String> = alerts::KINDS.iter().map(|(_, name)| (*name).to_owned()).collect();
    CliError::unknown_name("kind of alert", asked, &kinds, "surehook alert list")
}
