//! The command line: what a person types, one file per noun. Parses, runs, prints, and gives the exit code: 0 done,
//! 1 failed, 2 wrong usage. The names are a contract; add to them, do not rename them.

pub mod alert;
pub mod backfill;
mod backup;
mod connect;
pub mod delivery;
mod demo;
pub mod dlq;
mod doctor;
mod drill;
pub mod endpoint;
pub mod endpoint_add;
pub mod event;
mod explain;
mod failure;
pub mod import;
mod imported;
pub mod job;
mod locks;
mod output;
mod receive;
pub mod replay;
pub mod repo;
mod services;
mod standing;
pub mod token;
mod values;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use connect::{Connected, connect, connect_receive};
pub use failure::CliError;
pub use receive::{ReceiveArgs, ReceiveCommand};

pub use services::{DemoArgs, ServeArgs, WorkerArgs};
pub use values::{SecretArgs, Since, parse_duration_ms};

use output::Out;

use crate::config::file::PoolerKind;
use crate::receive::runner::{self, RunnerArgs};

/// git push, and the webhook arrives.
#[derive(Debug, Parser)]
#[command(
    name = "surehook",
    version,
    about = "git push, and the webhook arrives.",
    long_about = "surehook hosts Git repositories and tells other systems of every push: once a push is accepted, its webhook \
                  reaches every subscribed endpoint, whatever fails in between. It needs PostgreSQL and git, and nothing else.",
    after_help = "Examples:\n  \
                  surehook demo                                          see it work\n  \
                  surehook serve                                         host repositories and deliver webhooks\n  \
                  surehook repo create team/app                          make a repository\n  \
                  surehook endpoint add ci --repo team/app --url URL     tell a CI of its pushes\n  \
                  surehook delivery list --state pending                 what has not arrived yet\n  \
                  surehook doctor                                        what is wrong, and what to do\n\n\
                  Exit codes: 0 done, 1 failed, 2 wrong usage.",
    propagate_version = true,
    max_term_width = 110
)]
pub struct Cli {
    /// What every command understands.
    #[command(flatten)]
    pub globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What every command understands, before or after its name.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// The data directory: repositories, builds, and surehook's own PostgreSQL. Default: /var/lib/surehook for root, else
    /// $XDG_DATA_HOME/surehook or ~/.local/share/surehook
    #[arg(long, global = true, value_name = "DIR", env = "SUREHOOK_DATA")]
    pub data: Option<PathBuf>,
    /// Use this PostgreSQL (postgres://user:password@host/name, or host=/socket/folder user=… dbname=…) instead of an own
    /// one in the data directory; wins over --data where both say where the database is
    #[arg(long, global = true, value_name = "URL", env = "SUREHOOK_DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<String>,
    /// What stands between this program and the PostgreSQL of --database-url: nothing that it must know of, or a pooler that
    /// gives each transaction to another session (pgbouncer in transaction mode, pgcat, Supavisor)
    #[arg(long, global = true, value_enum, value_name = "KIND", env = "SUREHOOK_POOLER")]
    pub pooler: Option<PoolerKind>,
    /// Print JSON: a list as one array, anything else as one object; field names are those of the database
    #[arg(long, global = true)]
    pub json: bool,
    /// How log lines on standard error look
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    pub log: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Host repositories over HTTP and deliver their webhooks
    Serve(ServeArgs),
    /// Deliver webhooks only, on any machine that reaches the database
    Worker(WorkerArgs),
    /// Receive webhooks and start one build for each: the idempotent receiver
    Receive(Box<ReceiveArgs>),
    /// Show a push on its way to a finished build, on a fresh repository
    Demo(DemoArgs),
    /// Look for what is wrong, and say what to do
    #[command(
        after_help = "Examples:\n  surehook doctor\n  surehook doctor --json --database-url postgres://surehook@db/surehook\n\n\
        Exit code 1 if something fails; warnings alone leave it at 0."
    )]
    Doctor,
    /// Push while everything fails, and compare the books: starts the program surehook-drill
    Drill(drill::DrillArgs),
    /// Copy the database and the repositories to a new folder, while everything goes on
    #[command(after_help = "Example:\n  surehook backup /srv/backups/monday\n\n\
        The database is dumped first: what is pushed meanwhile is told again after a restore, under the same ids.\n\
        Needs pg_dump, which comes with PostgreSQL. Imported repositories and the receiver's builds are not in it.")]
    Backup(backup::BackupArgs),
    /// Fill an empty data directory and an empty database from a backup
    #[command(after_help = "Example:\n  surehook restore /srv/backups/monday --data /var/lib/surehook\n\n\
        `surehook serve` must not run there yet.")]
    Restore(backup::BackupArgs),
    /// Repositories: create, import, detach, list, show, confirm, delete
    #[command(subcommand)]
    Repo(repo::RepoCommand),
    /// Access tokens: create, list, revoke
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Endpoints that are told: add, list, show, set, pause, resume, remove
    #[command(subcommand)]
    Endpoint(Box<endpoint::EndpointCommand>),
    /// Events that happened: list, show
    #[command(subcommand)]
    Event(event::EventCommand),
    /// Alerts: list
    #[command(subcommand)]
    Alert(alert::AlertCommand),
    /// Deliveries of events to endpoints: list, show, explain, retry, skip
    #[command(subcommand)]
    Delivery(delivery::DeliveryCommand),
    /// Dead letters: list, show, replay
    #[command(subcommand)]
    Dlq(dlq::DlqCommand),
    /// Jobs over many rows, replays of dead letters: list, show, cancel, resume
    #[command(subcommand)]
    Job(job::JobCommand),
    /// Runs one build of the receiver; started by it.
    #[command(hide = true)]
    ReceiveRunner(RunnerArgs),
    /// Tells the server that refs of an imported repository have moved; run by its hook.
    #[command(hide = true)]
    Ring(import::RingArgs),
}

/// Runs a parsed command line: prints the result to standard output and errors to standard error.
pub fn run(cli: Cli) -> ExitCode {
    #[cfg(feature = "crash-points")]
    if let Some(folder) = crate::config::crash_points() {
        surehook_outbox::crash::watch(folder);
    }
    // The runner of a build and the ring of a hook are small processes without threads of their own.
    let cli = match cli.command {
        Command::ReceiveRunner(args) => return runner::main(args),
        Command::Ring(args) => return import::ring(&args),
        command => Cli { command, ..cli },
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let failure = CliError::new(
                format!("no threads could be started: {error}"),
                "Look at the limits of this account (ulimit -u).",
            );
            return failure.report();
        }
    };
    match runtime.block_on(dispatch(cli)) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

async fn dispatch(cli: Cli) -> Result<ExitCode, CliError> {
    let Cli { globals, command } = cli;
    let out = Out::new(globals.json);
    match command {
        Command::Serve(args) => services::serve(globals, args).await,
        Command::Worker(args) => services::worker(globals, args).await,
        Command::Receive(args) => receive::run(globals, *args, out).await,
        Command::Demo(args) => services::demo(globals, args).await,
        Command::Doctor => doctor::run(&globals, out).await,
        Command::Drill(args) => drill::run(&globals, &args),
        Command::Backup(args) => backup::backup(&globals, args, out).await,
        Command::Restore(args) => backup::restore(&globals, args, out).await,
        Command::Repo(command) => repo::run(&globals, command, out).await,
        Command::Token(command) => token::run(&globals, command, out).await,
        Command::Endpoint(command) => endpoint::run(&globals, *command, out).await,
        Command::Event(command) => event::run(&globals, command, out).await,
        Command::Alert(command) => alert::run(&globals, command, out).await,
        Command::Delivery(command) => delivery::run(&globals, command, out).await,
        Command::Dlq(command) => dlq::run(&globals, command, out).await,
        Command::Job(command) => job::run(&globals, command, out).await,
        Command::ReceiveRunner(args) => Ok(runner::main(args)),
        Command::Ring(args) => Ok(import::ring(&args)),
    }
}
