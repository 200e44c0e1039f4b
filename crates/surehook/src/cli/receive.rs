//! `surehook receive`: the options of the receiver, and what it has built.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::output::Out;
use super::services::not_wired;
use super::values::{SecretArgs, parse_duration_ms};
use super::{CliError, Globals};

/// Options of `receive`.
#[derive(Clone, Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  \
        SUREHOOK_SECRET=… surehook receive --listen 127.0.0.1:9000 --exec ./build.sh\n  \
        surehook receive --secret-file secret.txt --exec 'make -C \"$HOME/ci\" ref=\"$SUREHOOK_REF\"'\n  \
        surehook receive list\n  \
        surehook receive log 17\n\n\
        Answers 202 to a new webhook, 409 to one that it has seen, 401 to a wrong signature. The push stands in the\n\
        environment of the command and as JSON on its standard input."
)]
pub struct ReceiveArgs {
    /// What it has built.
    #[command(subcommand)]
    pub command: Option<ReceiveCommand>,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    pub listen: SocketAddr,
    /// The shared secret.
    #[command(flatten)]
    pub secret: SecretArgs,
    /// What `sh -c` runs for each push
    #[arg(long, value_name = "COMMAND", required = true)]
    pub exec: Option<OsString>,
    /// Builds at once; those of one repository run one after another
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: u16,
    /// End a build that runs longer
    #[arg(long, value_name = "TIME", value_parser = parse_duration_ms)]
    pub timeout: Option<i64>,
    /// Believe X-Signature alone, which has no time and does not cover the id
    #[arg(long)]
    pub accept_untimed: bool,
}

/// What a receiver has built.
#[derive(Clone, Debug, Subcommand)]
pub enum ReceiveCommand {
    /// List builds, the newest first
    #[command(after_help = "Example:\n  surehook receive list --limit 5 --json")]
    List {
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
        limit: i64,
    },
    /// Print the log of a build
    #[command(after_help = "Example:\n  surehook receive log 17")]
    Log {
        /// The number of the build
        #[arg(value_name = "BUILD")]
        build_id: i64,
    },
}

pub(super) async fn run(globals: Globals, args: ReceiveArgs, out: Out) -> Result<ExitCode, CliError> {
    let _ = (globals, args, out);
    Err(not_wired("receive"))
}
