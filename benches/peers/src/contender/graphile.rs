//! graphile_worker with a local queue and grouped completions. It deletes what is done, and keeps no order.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, Worker, WorkerContext, WorkerOptions,
    WorkerUtils,
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::task::JoinHandle;

use super::{Contender, PRODUCER, PRODUCER_SESSIONS, Setup};
use crate::clock::now_ns;
use crate::load::{Item, Load};
use crate::post::Poster;

const SCHEMA: &str = "graphile_worker";

pub(crate) struct Graphile {
    setup: Setup,
    concurrency: usize,
    producer: PgPool,
    utils: WorkerUtils,
    worker: Option<(Arc<Worker>, JoinHandle<()>)>,
}

/// The body is the job's payload; its keys are those of [`Item::payload`].
#[derive(Debug, Serialize, Deserialize)]
struct Deliver {
    at: u64,
    ep: u16,
    id: u32,
    ln: u32,
    sq: u32,
    text: String,
}

impl TaskHandler for Deliver {
    const IDENTIFIER: &'static str = "deliver";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        let poster = context.get_ext::<Poster>().context("the worker was given no way to send")?;
        let body = serde_json::to_vec(&self)?;
        poster.send(self.ep, Bytes::from(body)).await
    }
}

impl Contender for Graphile {
    async fn open(setup: Setup, variant: usize) -> Result<Self> {
        let options = options(&setup).application_name(PRODUCER);
        let producer = PgPoolOptions::new().max_connections(PRODUCER_SESSIONS).connect_lazy_with(options);
        let utils = WorkerUtils::new(producer.clone(), SCHEMA);
        Ok(Self { setup, concurrency: variant, producer, utils, worker: None })
    }

    async fn prepare(&self) -> Result<()> {
        Ok(self.utils.migrate().await?)
    }

    async fn fill(&self, load: Load) -> Result<()> {
        let items: Vec<Item> = load.items().collect();
        for batch in items.chunks(1000) {
            let jobs: Result<Vec<_>> =
                batch.iter().map(|item| job(&item.payload(now_ns(), load.payload_bytes))).collect();
            self.utils.add_raw_jobs(&jobs?).await?;
        }
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        let options = options(&self.setup).application_name("worker");
        let pool = PgPoolOptions::new().max_connections(20).connect_with(options).await?;
        let worker = WorkerOptions::default()
            .pg_pool(pool)
            .schema(SCHEMA)
            .concurrency(self.concurrency)
            .poll_interval(Duration::from_millis(500))
            .local_queue(LocalQueueConfig::default().with_size(100))
            .complete_job_batch_delay(Duration::from_millis(5))
            .fail_job_batch_delay(Duration::from_millis(5))
            // Without these nobody ever takes over.
            .heartbeat_interval(Duration::from_secs(1))
            .sweep_interval(Duration::from_secs(1))
            .sweep_threshold(Duration::from_secs(3))
            .recovery_delay(Duration::ZERO)
            .add_extension(Poster::new(self.setup.port, self.setup.deadline()))
            .define_job::<Deliver>()
            .init()
            .await?;
        let worker = Arc::new(worker);
        let task = tokio::spawn({
            let worker = Arc::clone(&worker);
            async move {
                if let Err(error) = worker.run().await {
                    eprintln!("graphile_worker ends: {error}");
                }
            }
        });
        self.worker = Some((worker, task));
        Ok(())
    }

    async fn enqueue(&self, _item: Item, payload: String) -> Result<()> {
        let job = job(&payload)?;
        self.utils.add_raw_job(&job.identifier, job.payload, job.spec).await?;
        Ok(())
    }

    async fn pending(&self) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT FROM graphile_worker._private_jobs)";
        Ok(sqlx::query_scalar(sql).fetch_one(&self.producer).await?)
    }

    async fn stop(&mut self) -> Result<()> {
        let (worker, task) = self.worker.take().context("it was not started")?;
        worker.request_shutdown();
        Ok(task.await?)
    }
}

fn options(setup: &Setup) -> PgConnectOptions {
    PgConnectOptions::new().socket(&setup.socket).username("postgres").database(&setup.database)
}

fn job(payload: &str) -> Result<RawJobSpec> {
    let payload = serde_json::from_str(payload)?;
    Ok(RawJobSpec { identifier: Deliver::IDENTIFIER.into(), payload, spec: JobSpec::default() })
}
