//! The long-running commands: their options, and the one place where each is handed to the part that runs it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{CliError, Globals};

/// Options of `serve`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    surehook serve                                         on 127.0.0.1:8080, with a PostgreSQL of its own\n  \
    surehook serve --listen 0.0.0.0:8080 --data /srv/surehook\n  \
    surehook serve --database-url postgres://surehook@db/surehook\n\n\
    Serves /NAME.git (Git over HTTP), /healthz, /readyz, /metrics, /api/v1 and the dashboard at /. A first SIGTERM or\n\
    Ctrl-C finishes what is under way; a second one ends it at once.")]
pub struct ServeArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Settings beyond those that have an option
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Options of `worker`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    surehook worker --database-url postgres://surehook@db/surehook\n  \
    SUREHOOK_DATABASE_URL=… surehook worker --listen 127.0.0.1:9090     with /healthz and /metrics\n\n\
    Any number of workers share the work without talking to each other.")]
pub struct WorkerArgs {
    /// Serve /healthz, /readyz and /metrics there
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Settings beyond those that have an option
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Options of `demo`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    surehook demo                 pushes once, then keeps serving so that you can push yourself\n  \
    surehook demo --once          ends after the build; exit code 0 only if it really ran")]
pub struct DemoArgs {
    /// End after the build
    #[arg(long)]
    pub once: bool,
}

pub(super) async fn serve(globals: Globals, args: ServeArgs) -> Result<ExitCode, CliError> {
    let _ = (globals, args);
    Err(not_wired("serve"))
}

pub(super) async fn worker(globals: Globals, args: WorkerArgs) -> Result<ExitCode, CliError> {
    if globals.database_url.is_none() {
        return Err(CliError::new(
            "A worker needs the database that it shares with others.",
            "Name it with --database-url or SUREHOOK_DATABASE_URL.",
        ));
    }
    let _ = args;
    Err(not_wired("worker"))
}

pub(super) async fn demo(globals: Globals, args: DemoArgs) -> Result<ExitCode, CliError> {
    let _ = (globals, args);
    Err(not_wired("demo"))
}

/// The one answer of the long-running commands until they are joined with what runs them.
pub(super) fn not_wired(command: &str) -> CliError {
    CliError::new(format!("`surehook {command}` is not part of this build."), "Use a build that has it.")
}
