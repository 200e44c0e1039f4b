//! `surehook receive`: the options of the receiver, and what it has built.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use secrecy::ExposeSecret;
use serde::Serialize;
use surehook_outbox::Database;
use surehook_outbox::store::operate::database_time;
use surehook_webhook::secret::Secret;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::connect::{connect_with, data_dir, with_receive_database};
use super::failure::chain;
use super::output::{Out, cell, span_words, table, when};
use super::services::{Signals, start_logs};
use super::values::{SecretArgs, parse_duration_ms};
use super::{CliError, Globals};
use crate::config::file::DatabaseConfig;
use crate::embedded::Role;
use crate::receive::runner::RunnerCommand;
use crate::receive::{BODY_BYTES_MAX, LOG_BYTES_MAX, Receiver, ReceiverSettings};
use crate::store::inbox::{self, Build};

/// Sessions of a receiver with PostgreSQL at most.
const SESSIONS_MAX: usize = 8;

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
    match args.command {
        None => receive(globals, args).await,
        Some(ReceiveCommand::List { limit }) => {
            with_receive_database(&globals, async |database| list(database, limit, out).await).await?;
            Ok(ExitCode::SUCCESS)
        }
        Some(ReceiveCommand::Log { build_id }) => {
            with_receive_database(&globals, async |database| log(database, build_id, out).await).await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Runs the receiver until a signal; builds that run go on without it.
async fn receive(globals: Globals, args: ReceiveArgs) -> Result<ExitCode, CliError> {
    start_logs(&globals)?;
    let secret = args.secret.read()?.ok_or_else(|| {
        CliError::new(
            "The receiver needs the secret of its endpoint.",
            "Give it with --secret-file FILE or SUREHOOK_SECRET.",
        )
    })?;
    let secret = Secret::parse(secret.expose_secret()).map_err(|error| {
        CliError::new(format!("The secret cannot be used: {error}."), "Use the one that the endpoint was added with.")
    })?;
    let Some(exec) = args.exec else {
        return Err(CliError::new("Nothing to run was named.", "Name it with --exec 'COMMAND'."));
    };
    let mut signals = Signals::listen()?;
    let listener = TcpListener::bind(args.listen).await.map_err(|error| {
        CliError::new(
            format!("Cannot listen on {}: {error}.", args.listen),
            "Choose another address with --listen; port 0 takes a free one.",
        )
    })?;
    let sessions = DatabaseConfig { sessions_max: SESSIONS_MAX, ..DatabaseConfig::default() };
    let connected = connect_with(&globals, Role::Receive, &sessions).await?;
    let settings = ReceiverSettings {
        listener,
        database: connected.database.clone(),
        data_dir: data_dir(&globals),
        secrets: secret.into(),
        exec,
        jobs: args.jobs.into(),
        accept_untimed: args.accept_untimed,
        body_bytes_max: BODY_BYTES_MAX,
        timeout: args.timeout.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        log_bytes_max: LOG_BYTES_MAX,
        runner: RunnerCommand::current_exe().map_err(|error| {
            CliError::new(format!("This program's own file cannot be found: {error}."), "Start it by its full path.")
        })?,
    };
    let shutdown = CancellationToken::new();
    let receiver = match Receiver::start(settings, shutdown.clone()).await {
        Ok(receiver) => receiver,
        Err(error) => {
            connected.close().await;
            return Err(CliError::new(
                format!("{}.", chain(&error)),
                "Choose another data directory with --data, or correct that and try again.",
            ));
        }
    };
    println!("surehook receives on http://{}", receiver.address());
    signals.next().await;
    tracing::info!("stopping: answering what is in flight; builds that run go on");
    shutdown.cancel();
    let ended = tokio::select! {
        ended = receiver.join() => ended,
        () = signals.next() => Ok(()),
    };
    connected.close().await;
    ended.map_err(|error| {
        CliError::new(format!("{}.", chain(&error)), "Start it again: nothing is lost. Please report this.")
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn list(database: &Database, limit: i64, out: Out) -> Result<(), CliError> {
    let builds = inbox::list(database, limit).await?;
    let now = database_time(database).await?;
    out.list(&builds, "Nothing was built yet.", || {
        let mut table =
            table(&["BUILD", "STATE", "EXIT", "REPOSITORY", "REF", "COMMIT", "RECEIVED", "TOOK", "ATTEMPT"]);
        for build in &builds {
            let took = build.duration_ms.map_or("-".into(), |ms| match ms {
                0..1_000 => format!("{ms} ms"),
                _ => span_words(ms.unsigned_abs() / 1_000),
            });
            table.add_row([
                build.build_id.to_string(),
                build.state.clone(),
                exit_words(build),
                cell(build.repository.as_deref().unwrap_or("-"), 40),
                cell(&build.ref_name, 40),
                cell(build.commit.as_deref().unwrap_or("-"), 12),
                when(build.received_at, now),
                took,
                build.attempt.to_string(),
            ]);
        }
        table
    })
}

fn exit_words(build: &Build) -> String {
    match (build.exit_code, build.exit_signal) {
        _ if build.timed_out => "too long".into(),
        (Some(code), _) => code.to_string(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "-".into(),
    }
}

#[derive(Serialize)]
struct Logged {
    #[serde(flatten)]
    build: Build,
    /// The end of the log.
    log_text: String,
}

async fn log(database: &Database, build_id: i64, out: Out) -> Result<(), CliError> {
    let Some(build) = inbox::find(database, build_id).await? else {
        return Err(CliError::new(format!("There is no build {build_id}."), "List them with: surehook receive list"));
    };
    let Some(path) = build.log.clone() else {
        return Err(CliError::new(format!("Build {build_id} has not begun."), "Look again in a moment."));
    };
    let unreadable = |error: std::io::Error| {
        CliError::new(
            format!("The log of build {build_id}, {}, cannot be read: {error}.", path.display()),
            "It lies on the machine of the receiver, readable for the account that runs it.",
        )
    };
    let mut file = File::open(&path).map_err(unreadable)?;
    if !out.is_json() {
        return out.copy(&mut file).map_err(unreadable);
    }
    let length = file.metadata().map_err(unreadable)?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(JSON_LOG_BYTES_MAX))).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(JSON_LOG_BYTES_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
    let logged = Logged { build, log_text: String::from_utf8_lossy(&bytes).into_owned() };
    out.one(&logged, String::new)
}

/// A log may have a gigabyte; in JSON it is cut to its last MiB.
const JSON_LOG_BYTES_MAX: u64 = 1 << 20;
