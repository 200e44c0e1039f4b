//! Those who are measured. Each runs as a process of its own (this program again, or River's), which is told what to do by
//! lines on its input and answers each with one on its output; it ends with its input.

mod bare;
#[cfg(feature = "graphile")]
mod graphile;
#[cfg(feature = "outbox-core")]
mod outbox_core;
mod plain;
mod surehook;

use std::fs::File;
use std::future::Future;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::clock::now_ns;
use crate::load::{Item, Load};

/// One of them, as the command line and the tables call it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// False: only when it is named.
    pub(crate) by_default: bool,
}

const fn entry(name: &'static str, about: &'static str) -> Entry {
    Entry { name, about, by_default: true }
}

/// All that this build has, in the order of the tables.
pub(crate) const ALL: &[Entry] = &[
    entry("surehook", "surehook-outbox's Worker: order, attempt rows, both signatures, finished rows kept"),
    entry("plain", "a tick each second, ten rows, POSTed one after the other inside the claiming transaction"),
    entry("river", "River (Go), 1,000 workers, completed rows kept; no order. Needs go"),
    #[cfg(feature = "outbox-core")]
    entry(
        "outbox-core",
        "outbox-core and outbox-postgres, batches of 1,000, one manager, which sends one at a time; rows kept",
    ),
    #[cfg(feature = "outbox-core")]
    Entry { name: "outbox-core-16", about: "the same with 16 managers; no order", by_default: false },
    #[cfg(feature = "graphile")]
    entry(
        "graphile-256",
        "graphile_worker, 256 at once, local queue of 100, completions grouped for 5 ms; rows deleted, no order",
    ),
    #[cfg(feature = "graphile")]
    entry("graphile-64", "the same with 64 at once"),
    Entry {
        name: "bare",
        about: "no worker at all: a loop that signs and sends one after the other, for the scenario `one`",
        by_default: false,
    },
];

/// What a contender's process is started with.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Setup {
    /// The folder of PostgreSQL's socket.
    #[arg(long)]
    pub(crate) socket: PathBuf,
    /// The database.
    #[arg(long)]
    pub(crate) database: String,
    /// The receiver's port.
    #[arg(long)]
    pub(crate) port: u16,
    /// How many endpoints there are.
    #[arg(long)]
    pub(crate) endpoints: u16,
    /// How long a receiver may take.
    #[arg(long)]
    pub(crate) timeout_ms: u64,
}

impl Setup {
    /// As tokio-postgres reads it.
    pub(crate) fn database_url(&self) -> String {
        format!("host={} user=postgres dbname={}", self.socket.display(), self.database)
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

/// One line of a contender's input.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Command {
    /// Makes the schema and the endpoints.
    Prepare,
    /// Enqueues in bulk, however that is quickest.
    Fill { load: Load },
    /// Starts the worker.
    Start,
    /// Enqueues at a steady rate, each in a transaction of its own, and writes `id commit_ns` of each to a file.
    Produce { load: Load, per_second: u32, log: String },
    /// Waits until everything that was delivered is also recorded as delivered.
    Settle,
    /// Stops the worker softly.
    Stop,
}

/// One line of a contender's output.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// When the command was taken up and when it was done.
    pub(crate) begun_ns: u64,
    pub(crate) done_ns: u64,
    /// What went wrong, if anything did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// How often a contender looks whether everything is recorded.
const SETTLE_LOOK: Duration = Duration::from_millis(5);

/// Sessions of a contender that produces, besides those of its worker; they are called so.
pub(crate) const PRODUCER: &str = "producer";
pub(crate) const PRODUCER_SESSIONS: u32 = 8;

/// What a contender can do.
pub(crate) trait Contender: Sized + Send + Sync + 'static {
    /// Connects; may start nothing.
    fn open(setup: Setup, variant: usize) -> impl Future<Output = Result<Self>> + Send;
    fn prepare(&self) -> impl Future<Output = Result<()>> + Send;
    fn fill(&self, load: Load) -> impl Future<Output = Result<()>> + Send;
    fn start(&mut self) -> impl Future<Output = Result<()>> + Send;
    /// Enqueues one in a transaction of its own and commits it.
    fn enqueue(&self, item: Item, payload: String) -> impl Future<Output = Result<()>> + Send;
    /// Whether anything is enqueued and not recorded as delivered.
    fn pending(&self) -> impl Future<Output = Result<bool>> + Send;
    fn stop(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// Runs a contender's process.
pub(crate) fn main(name: &str, setup: Setup) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match name {
            "surehook" => run::<surehook::Surehook>(setup, 0).await,
            "bare" => run::<bare::Bare>(setup, 0).await,
            "plain" => run::<plain::Plain>(setup, 0).await,
            #[cfg(feature = "graphile")]
            "graphile-256" => run::<graphile::Graphile>(setup, 256).await,
            #[cfg(feature = "graphile")]
            "graphile-64" => run::<graphile::Graphile>(setup, 64).await,
            #[cfg(feature = "outbox-core")]
            "outbox-core" => run::<outbox_core::OutboxCore>(setup, 1).await,
            #[cfg(feature = "outbox-core")]
            "outbox-core-16" => run::<outbox_core::OutboxCore>(setup, 16).await,
            _ => anyhow::bail!("there is no contender {name} in this build"),
        }
    })
}

async fn run<C: Contender>(setup: Setup, variant: usize) -> Result<()> {
    let mut contender = Arc::new(C::open(setup, variant).await?);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let command = serde_json::from_str(&line).with_context(|| format!("a command of a contender: {line}"))?;
        let begun_ns = now_ns();
        let result = obey(&mut contender, command).await;
        let error = result.err().map(|error| format!("{error:#}"));
        println!("{}", serde_json::to_string(&Answer { begun_ns, done_ns: now_ns(), error })?);
    }
    Ok(())
}

async fn obey<C: Contender>(contender: &mut Arc<C>, command: Command) -> Result<()> {
    match command {
        Command::Prepare => contender.prepare().await,
        Command::Fill { load } => contender.fill(load).await,
        Command::Start => Arc::get_mut(contender).context("still in use")?.start().await,
        Command::Produce { load, per_second, log } => produce(contender, load, per_second, log.into()).await,
        Command::Settle => {
            while contender.pending().await? {
                tokio::time::sleep(SETTLE_LOOK).await;
            }
            Ok(())
        }
        Command::Stop => Arc::get_mut(contender).context("still in use")?.stop().await,
    }
}

/// An open loop: what is slow does not hold up what comes after it.
async fn produce<C: Contender>(contender: &Arc<C>, load: Load, per_second: u32, log: PathBuf) -> Result<()> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / per_second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut commits = JoinSet::new();
    for item in load.items() {
        ticks.tick().await;
        let contender = Arc::clone(contender);
        commits.spawn(async move {
            contender.enqueue(item, item.payload(now_ns(), load.payload_bytes)).await?;
            anyhow::Ok((item.id, now_ns()))
        });
    }
    let mut file = BufWriter::new(File::create(log)?);
    while let Some(commit) = commits.join_next().await {
        let (id, commit_ns) = commit??;
        writeln!(file, "{id} {commit_ns}")?;
    }
    Ok(file.flush()?)
}
