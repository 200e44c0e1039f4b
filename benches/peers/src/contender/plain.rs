//! The plainest worker: each second it claims ten rows, POSTs them one after the other inside the claiming transaction, and
//! commits. It is given the kinder of the usual choices: one that failed waits longer each time and goes behind the others.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use surehook_testkit::postgres;
use tokio::task::JoinHandle;

use super::{Contender, PRODUCER, PRODUCER_SESSIONS, Setup};
use crate::clock::now_ns;
use crate::load::{Item, Load};
use crate::pool::Pool;
use crate::post::Poster;

const TICK: Duration = Duration::from_secs(1);

pub(crate) struct Plain {
    setup: Setup,
    sessions: Pool,
    worker: Option<JoinHandle<()>>,
}

impl Contender for Plain {
    async fn open(setup: Setup, _variant: usize) -> Result<Self> {
        let url = format!("{} application_name={PRODUCER}", setup.database_url());
        Ok(Self { sessions: Pool::new(url, PRODUCER_SESSIONS), setup, worker: None })
    }

    async fn prepare(&self) -> Result<()> {
        let sql = "CREATE TABLE queue (
                       id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, endpoint integer NOT NULL, body text NOT NULL,
                       status text NOT NULL DEFAULT 'pending', attempts integer NOT NULL DEFAULT 0,
                       due_at timestamptz NOT NULL DEFAULT clock_timestamp());
                   CREATE INDEX ON queue (due_at) WHERE status = 'pending'";
        Ok(self.sessions.take().await?.batch_execute(sql).await?)
    }

    async fn fill(&self, load: Load) -> Result<()> {
        let session = self.sessions.take().await?;
        let items: Vec<Item> = load.items().collect();
        for batch in items.chunks(1000) {
            let endpoints: Vec<i32> = batch.iter().map(|item| item.endpoint.into()).collect();
            let bodies: Vec<String> = batch.iter().map(|item| item.payload(now_ns(), load.payload_bytes)).collect();
            let sql = "INSERT INTO queue (endpoint, body) SELECT * FROM unnest($1::integer[], $2::text[])";
            session.execute(sql, &[&endpoints, &bodies]).await?;
        }
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        let (url, poster) = (self.setup.database_url(), Poster::new(self.setup.port, self.setup.deadline()));
        self.worker = Some(tokio::spawn(async move {
            if let Err(error) = work(&url, &poster).await {
                eprintln!("the plain worker ends: {error:#}");
            }
        }));
        Ok(())
    }

    async fn enqueue(&self, item: Item, payload: String) -> Result<()> {
        let session = self.sessions.take().await?;
        let sql = "INSERT INTO queue (endpoint, body) VALUES ($1, $2)";
        session.execute(sql, &[&i32::from(item.endpoint), &payload]).await?;
        Ok(())
    }

    async fn pending(&self) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT FROM queue WHERE status = 'pending')";
        Ok(self.sessions.take().await?.query_one(sql, &[]).await?.get(0))
    }

    async fn stop(&mut self) -> Result<()> {
        if let Some(worker) = self.worker.take() {
            worker.abort();
        }
        Ok(())
    }
}

async fn work(url: &str, poster: &Poster) -> Result<()> {
    let mut client = postgres::connect(&format!("{url} application_name=worker")).await;
    let claim = client
        .prepare(
            "SELECT id, endpoint, body FROM queue WHERE status = 'pending' AND due_at <= now()
              ORDER BY due_at LIMIT 10 FOR UPDATE SKIP LOCKED",
        )
        .await?;
    loop {
        let transaction = client.transaction().await?;
        for row in transaction.query(&claim, &[]).await? {
            let endpoint = u16::try_from(row.get::<_, i32>("endpoint"))?;
            let sent = poster.send(endpoint, Bytes::from(row.get::<_, String>("body"))).await;
            let record = if sent.is_ok() {
                "UPDATE queue SET status = 'published', attempts = attempts + 1 WHERE id = $1"
            } else {
                "UPDATE queue SET attempts = attempts + 1, status = CASE WHEN attempts < 4 THEN 'pending' ELSE 'failed' END,
                        due_at = clock_timestamp() + 2 ^ attempts * interval '1 second' WHERE id = $1"
            };
            transaction.execute(record, &[&row.get::<_, i64>("id")]).await?;
        }
        transaction.commit().await?;
        tokio::time::sleep(TICK).await;
    }
}
