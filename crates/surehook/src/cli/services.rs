//! The long-running commands: their options, and the one place where each is handed to the part that runs it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::connect::{connect_with, data_dir};
use super::failure::chain;
use super::{CliError, Connected, Globals, LogFormat};
use crate::config::file::{self, Config};
use crate::embedded::Role;
use crate::serve::{ServeError, ServeSettings, Server, WatchdogSettings};
use crate::telemetry::logs::{self, Style};

/// Options of `serve`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    surehook serve                                         on 127.0.0.1:8080, with a PostgreSQL of its own\n  \
    surehook serve --listen 0.0.0.0:8080 --data /srv/surehook\n  \
    surehook serve --database-url postgres://surehook@db/surehook\n\n\
    Serves /NAME.git (Git over HTTP), /healthz, /readyz and /metrics. SUREHOOK_LOG says how much is logged. A first SIGTERM or\n\
    Ctrl-C finishes what is under way; a second one ends it at once.")]
pub struct ServeArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Remove what was delivered longer ago than this; what is not delivered, or dead, stays [default: 30]
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u16).range(1..))]
    pub retention_days: Option<u16>,
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
    /// Remove what was delivered longer ago than this; what is not delivered, or dead, stays [default: 30]
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u16).range(1..))]
    pub retention_days: Option<u16>,
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
    start_logs(&globals)?;
    let config = settings(args.config.as_deref(), args.retention_days)?;
    let signals = Signals::listen()?;
    let connected = connect_with(&globals, Role::Surehook, &config.database).await?;
    let watchdog = match watchdog(&connected, &config) {
        Ok(watchdog) => watchdog,
        Err(error) => {
            connected.close().await;
            return Err(error);
        }
    };
    let (database, data) = (connected.database.clone(), data_dir(&globals));
    let settings = ServeSettings { listen: args.listen, database, data, watchdog, config };
    let server = match Server::start(settings).await {
        Ok(server) => server,
        Err(error) => {
            connected.close().await;
            return Err(error.into());
        }
    };
    println!("surehook serves on http://{}", server.address);
    Ok(until_stopped(server, connected, signals).await)
}

pub(super) async fn worker(globals: Globals, args: WorkerArgs) -> Result<ExitCode, CliError> {
    if globals.database_url.is_none() {
        return Err(CliError::new(
            "A worker needs the database that it shares with others.",
            "Name it with --database-url or SUREHOOK_DATABASE_URL.",
        ));
    }
    start_logs(&globals)?;
    let config = settings(args.config.as_deref(), args.retention_days)?;
    let signals = Signals::listen()?;
    let connected = connect_with(&globals, Role::Surehook, &config.database).await?;
    let watchdog = match watchdog(&connected, &config) {
        Ok(watchdog) => watchdog,
        Err(error) => {
            connected.close().await;
            return Err(error);
        }
    };
    let server = match Server::start_worker(args.listen, connected.database.clone(), config, watchdog).await {
        Ok(server) => server,
        Err(error) => {
            connected.close().await;
            return Err(error.into());
        }
    };
    match args.listen {
        Some(_) => println!("surehook delivers; /healthz and /metrics on http://{}", server.address),
        None => println!("surehook delivers"),
    }
    Ok(until_stopped(server, connected, signals).await)
}

pub(super) async fn demo(globals: Globals, args: DemoArgs) -> Result<ExitCode, CliError> {
    start_logs_quietly(&globals)?;
    let signals = Signals::listen()?;
    super::demo::run(&globals, args.once, signals).await
}

/// What the watchdog needs, if the settings want one.
fn watchdog(connected: &Connected, config: &Config) -> Result<Option<WatchdogSettings>, CliError> {
    let wrong = |message: String| CliError::new(format!("{message}."), "See [watchdog] in docs/operating.md.");
    let Some(to) = config.watchdog.direct().map_err(wrong)? else { return Ok(None) };
    Ok(Some(WatchdogSettings { to, database: connected.another(1)? }))
}

/// Serves until a first signal asks for a soft stop; a second one ends it at once.
async fn until_stopped(mut server: Server, connected: Connected, mut signals: Signals) -> ExitCode {
    signals.next().await;
    tracing::info!("stopping: finishing what is under way; a second signal ends it at once");
    let soft = tokio::select! {
        () = server.stop() => true,
        () = signals.next() => false,
    };
    if !soft {
        tracing::warn!("stopping at once");
        server.stop_now().await;
    }
    connected.close().await;
    tracing::info!("stopped");
    ExitCode::SUCCESS
}

/// SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    /// From now on these signals end nothing by themselves.
    pub(super) fn listen() -> Result<Self, CliError> {
        use tokio::signal::unix::{SignalKind, signal};
        let failed = |error: std::io::Error| {
            CliError::new(format!("Signals cannot be listened for: {error}."), "Please report this.")
        };
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
        })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Starts logging as the options say.
pub(super) fn start_logs(globals: &Globals) -> Result<(), CliError> {
    start_logs_with(globals, crate::config::log_filter())
}

/// Only what somebody must act on, unless `SUREHOOK_LOG` asks for more.
fn start_logs_quietly(globals: &Globals) -> Result<(), CliError> {
    start_logs_with(globals, Some(crate::config::log_filter().unwrap_or_else(|| "error".into())))
}

fn start_logs_with(globals: &Globals, filter: Option<String>) -> Result<(), CliError> {
    let style = match globals.log {
        LogFormat::Text => Style::Text,
        LogFormat::Json => Style::Json,
    };
    logs::start(style, filter.as_deref()).map_err(|error| {
        CliError::new(format!("SUREHOOK_LOG cannot be read: {error}."), "For example: SUREHOOK_LOG=surehook=debug,info")
    })
}

/// The file, and the options that stand above it.
fn settings(path: Option<&Path>, retention_days: Option<u16>) -> Result<Config, CliError> {
    let mut config = read_config(path)?;
    if let Some(days) = retention_days {
        config.retention.published_days = days;
    }
    Ok(config)
}

fn read_config(path: Option<&Path>) -> Result<Config, CliError> {
    file::read(path).map_err(|error| {
        CliError::new(format!("{error}."), "The settings and their defaults stand in docs/operating.md.")
    })
}

impl From<ServeError> for CliError {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Database(error) => error.into(),
            ServeError::Storage(error) => error.into(),
            ServeError::Listen { .. } => Self::new(
                format!("{error}."),
                "Is another server there? Choose another address with --listen; port 0 takes a free one.",
            ),
            ServeError::Git(_) => {
                Self::new(format!("{}.", chain(&error)), "Install git (Debian, Ubuntu: apt-get install git).")
            }
            ServeError::Watchdog(_) => Self::new(format!("{error}."), "Can this account start another thread?"),
            ServeError::Metrics(_) => Self::new(format!("{}.", chain(&error)), "Please report this."),
        }
    }
}
