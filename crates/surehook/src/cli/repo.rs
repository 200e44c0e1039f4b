//! `surehook repo`: repositories.

use std::process::ExitCode;

use clap::Subcommand;

use super::output::Out;
use super::services::not_wired;
use super::{CliError, Globals};

/// Repositories.
#[derive(Debug, Subcommand)]
pub enum RepoCommand {
    /// List repositories, by name
    #[command(after_help = "Example:\n  surehook repo list --json")]
    List,
}

pub(super) async fn run(globals: &Globals, command: RepoCommand, out: Out) -> Result<ExitCode, CliError> {
    let _ = (globals, command, out);
    Err(not_wired("repo"))
}
