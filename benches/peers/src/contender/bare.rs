//! No worker: what the same HTTP client does when all that it has to do is to send one body after the other. It takes the
//! database only to be told how many.

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use surehook_testkit::postgres;
use tokio::task::JoinHandle;

use super::{Contender, Setup};
use crate::clock::now_ns;
use crate::load::{Item, Load};
use crate::post::Poster;

pub(crate) struct Bare {
    setup: Setup,
    /// Made before the clock runs.
    bodies: Vec<(u16, Bytes)>,
    loop_: Option<JoinHandle<()>>,
}

impl Contender for Bare {
    async fn open(setup: Setup, _variant: usize) -> Result<Self> {
        let client = postgres::connect(&setup.database_url()).await;
        let bodies = match client.query_opt("SELECT load FROM loads", &[]).await {
            Ok(Some(row)) => {
                let load: Load = serde_json::from_str(row.get(0))?;
                let body = |item: Item| (item.endpoint, Bytes::from(item.payload(now_ns(), load.payload_bytes)));
                load.items().map(body).collect()
            }
            // Nothing was filled yet.
            Ok(None) | Err(_) => Vec::new(),
        };
        Ok(Self { setup, bodies, loop_: None })
    }

    async fn prepare(&self) -> Result<()> {
        let client = postgres::connect(&self.setup.database_url()).await;
        Ok(client.batch_execute("CREATE TABLE loads (load text)").await?)
    }

    async fn fill(&self, load: Load) -> Result<()> {
        let client = postgres::connect(&self.setup.database_url()).await;
        client.execute("INSERT INTO loads (load) VALUES ($1)", &[&serde_json::to_string(&load)?]).await?;
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        let poster = Poster::new(self.setup.port, self.setup.deadline());
        let bodies = std::mem::take(&mut self.bodies);
        self.loop_ = Some(tokio::spawn(async move {
            for (endpoint, body) in bodies {
                if let Err(error) = poster.send(endpoint, body).await {
                    eprintln!("the bare loop ends: {error:#}");
                    return;
                }
            }
        }));
        Ok(())
    }

    async fn enqueue(&self, _item: Item, _payload: String) -> Result<()> {
        bail!("the bare loop has nothing to enqueue into");
    }

    async fn pending(&self) -> Result<bool> {
        Ok(self.loop_.as_ref().is_some_and(|task| !task.is_finished()))
    }

    async fn stop(&mut self) -> Result<()> {
        self.loop_.take().context("it was not started")?.abort();
        Ok(())
    }
}
