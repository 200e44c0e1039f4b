//! outbox-core with outbox-postgres. A manager takes a batch and sends it one after the other; rows are kept.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use outbox_core::prelude::{Event, OutboxConfig, OutboxError, OutboxManagerBuilder, OutboxService, Transport};
use outbox_postgres::{PostgresOutbox, PostgresWriter};
use serde::{Deserialize, Serialize};
use sqlx08::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx08::{Executor as _, PgPool};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Contender, PRODUCER, PRODUCER_SESSIONS, Setup};
use crate::clock::now_ns;
use crate::load::{Item, Load};
use crate::post::Poster;

const BATCH: u32 = 1000;

pub(crate) struct OutboxCore {
    setup: Setup,
    managers: usize,
    config: Arc<OutboxConfig<Deliver>>,
    producer: PgPool,
    worker: Option<(watch::Sender<bool>, JoinSet<()>)>,
}

/// The body is the event's payload; its keys are those of [`Item::payload`].
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Deliver {
    at: u64,
    ep: u16,
    id: u32,
    ln: u32,
    sq: u32,
    text: String,
}

struct Publisher(Poster);

#[async_trait::async_trait]
impl Transport<Deliver> for Publisher {
    async fn publish(&self, event: Event<Deliver>) -> Result<(), OutboxError> {
        let failed = |error: anyhow::Error| OutboxError::BrokerError(format!("{error:#}"));
        let deliver = event.payload.as_value();
        let body = serde_json::to_vec(deliver).map_err(|error| failed(error.into()))?;
        self.0.send(deliver.ep, Bytes::from(body)).await.map_err(failed)
    }
}

impl Contender for OutboxCore {
    async fn open(setup: Setup, variant: usize) -> Result<Self> {
        let mut config = OutboxConfig::default();
        config.batch_size = BATCH;
        config.poll_interval_secs = 1;
        // The least that it takes, and how long the rows of one who died stay locked.
        config.lock_timeout_mins = 1;
        let options = options(&setup).application_name(PRODUCER);
        let producer = PgPoolOptions::new().max_connections(PRODUCER_SESSIONS).connect_lazy_with(options);
        Ok(Self { setup, managers: variant, config: Arc::new(config), producer, worker: None })
    }

    /// The schema is in the crate's package, for its users to take.
    async fn prepare(&self) -> Result<()> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(package("outbox-postgres")?.join("migrations"))? {
            files.push(entry?.path());
        }
        files.sort();
        for file in files {
            self.producer.execute(std::fs::read_to_string(file)?.as_str()).await?;
        }
        Ok(())
    }

    async fn fill(&self, load: Load) -> Result<()> {
        let items: Vec<Item> = load.items().collect();
        let service = OutboxService::new(Arc::new(PostgresWriter), Arc::clone(&self.config));
        for batch in items.chunks(1000) {
            let mut transaction = self.producer.begin().await?;
            for item in batch {
                let deliver = serde_json::from_str(&item.payload(now_ns(), load.payload_bytes))?;
                service.add_event("deliver", deliver, None, &mut *transaction).await?;
            }
            transaction.commit().await?;
        }
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        let options = options(&self.setup).application_name("worker");
        let sessions = u32::try_from(2 * self.managers + 2)?;
        let pool = PgPoolOptions::new().max_connections(sessions).connect_with(options).await?;
        let poster = Poster::new(self.setup.port, self.setup.deadline());
        let (stop, stopped) = watch::channel(false);
        let mut managers = JoinSet::new();
        for _ in 0..self.managers {
            // Each listens for itself.
            let storage = PostgresOutbox::new(pool.clone(), Arc::clone(&self.config));
            let manager = OutboxManagerBuilder::new()
                .storage(Arc::new(storage))
                .publisher(Arc::new(Publisher(poster.clone())))
                .config(Arc::clone(&self.config))
                .shutdown_rx(stopped.clone())
                .build()?;
            managers.spawn(async move {
                if let Err(error) = manager.run().await {
                    eprintln!("outbox-core ends: {error}");
                }
            });
        }
        self.worker = Some((stop, managers));
        Ok(())
    }

    async fn enqueue(&self, _item: Item, payload: String) -> Result<()> {
        let service = OutboxService::new(Arc::new(PostgresWriter), Arc::clone(&self.config));
        let mut transaction = self.producer.begin().await?;
        service.add_event("deliver", serde_json::from_str(&payload)?, None, &mut *transaction).await?;
        Ok(transaction.commit().await?)
    }

    async fn pending(&self) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT FROM outbox_events WHERE status <> 'Sent')";
        Ok(sqlx08::query_scalar(sql).fetch_one(&self.producer).await?)
    }

    async fn stop(&mut self) -> Result<()> {
        let (stop, mut managers) = self.worker.take().context("it was not started")?;
        stop.send_replace(true);
        while managers.join_next().await.is_some() {}
        Ok(())
    }
}

fn options(setup: &Setup) -> PgConnectOptions {
    PgConnectOptions::new().socket(&setup.socket).username("postgres").database(&setup.database)
}

/// The folder of a package that this program was built with.
fn package(name: &str) -> Result<PathBuf> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--offline", "--manifest-path", manifest]);
    // Packages for other systems were never downloaded.
    let output = cargo.args(["--filter-platform", "host-tuple"]).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let package =
        packages.iter().find(|package| package["name"] == name).with_context(|| format!("no package {name}"))?;
    let manifest = package["manifest_path"].as_str().context("a package without a folder")?;
    Ok(PathBuf::from(manifest).with_file_name(""))
}
