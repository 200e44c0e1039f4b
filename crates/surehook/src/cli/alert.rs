//! `surehook alert`: what is wrong, or was.

use std::process::ExitCode;

use clap::Subcommand;
use surehook_outbox::store::operate::database_time;

use super::connect::with_database;
use super::output::{Out, cell, table, when, when_or};
use super::{CliError, Globals};
use crate::store::alerts;

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
}

pub(super) async fn run(globals: &Globals, command: AlertCommand, out: Out) -> Result<ExitCode, CliError> {
    let AlertCommand::List { all } = command;
    with_database(globals, async |database| {
        let found = if all { alerts::list_all(database).await? } else { alerts::list_open(database).await? };
        let now = database_time(database).await?;
        let nothing = if all { "There was never an alert." } else { "Nothing is wrong." };
        out.list(&found, nothing, || {
            let mut table = table(&["KIND", "OPENED", "RESOLVED", "DETAILS"]);
            for alert in &found {
                table.add_row([
                    alert.kind.clone(),
                    when(alert.opened_at, now),
                    when_or(alert.resolved_at, now, "-"),
                    cell(&alert.details, 120),
                ]);
            }
            table
        })
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}
