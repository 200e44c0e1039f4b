//! surehook-outbox as a service would embed it: its Worker with its defaults, woken in the process after each commit.

use anyhow::{Context as _, Result};
use secrecy::SecretString;
use surehook_outbox::endpoint::{EndpointChange, Scope};
use surehook_outbox::store::endpoints::{self, NewEndpoint};
use surehook_outbox::store::migrate::{OUTBOX, migrate};
use surehook_outbox::store::upkeep;
use surehook_outbox::{Database, NewEvent, Wake, Worker, WorkerSettings, enqueue, enqueue_many};

use super::{Contender, PRODUCER, PRODUCER_SESSIONS, Setup};
use crate::clock::now_ns;
use crate::load::{Item, Load};
use crate::post;

/// Sessions of the worker.
const SESSIONS: usize = 8;

/// Events enqueued in one call.
const BATCH: usize = 1000;

pub(crate) struct Surehook {
    setup: Setup,
    database: Database,
    producer: Database,
    wake: Wake,
    worker: Option<Worker>,
}

impl Contender for Surehook {
    async fn open(setup: Setup, _variant: usize) -> Result<Self> {
        let database = Database::connect(&setup.database_url(), "worker", SESSIONS)?;
        let producer = Database::connect(&setup.database_url(), PRODUCER, PRODUCER_SESSIONS as usize)?;
        Ok(Self { setup, database, producer, wake: Wake::default(), worker: None })
    }

    /// One endpoint per receiver, each with an event type of its own.
    async fn prepare(&self) -> Result<()> {
        migrate(&self.database, "outbox", OUTBOX).await?;
        for endpoint in 0..self.setup.endpoints {
            let mut new = NewEndpoint::new(name(endpoint), post::url(endpoint, self.setup.port), Scope::All);
            new.secret = Some(SecretString::from(post::SECRET));
            new.settings = EndpointChange {
                allow_private: Some(true),
                event_types: Some(Some(vec![name(endpoint)])),
                timeout_ms: Some(i32::try_from(self.setup.timeout_ms)?),
                ..EndpointChange::default()
            };
            endpoints::add(&self.database, new).await?;
        }
        Ok(())
    }

    async fn fill(&self, load: Load) -> Result<()> {
        let items: Vec<Item> = load.items().collect();
        let mut session = self.producer.session().await?;
        for batch in items.chunks(BATCH) {
            let texts: Vec<_> = batch.iter().map(|item| Texts::new(*item, load.payload_bytes)).collect();
            let events: Vec<NewEvent<'_>> = texts.iter().map(Texts::event).collect();
            let transaction = session.transaction().await?;
            enqueue_many(&transaction, &events, &[], &[]).await?;
            transaction.commit().await?;
        }
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        self.worker = Some(Worker::start(self.database.clone(), WorkerSettings::default(), self.wake.clone()));
        Ok(())
    }

    async fn enqueue(&self, item: Item, payload: String) -> Result<()> {
        let texts = Texts { payload, ..Texts::new(item, 0) };
        let mut session = self.producer.session().await?;
        let transaction = session.transaction().await?;
        enqueue(&transaction, &texts.event()).await?;
        transaction.commit().await?;
        self.wake.wake();
        Ok(())
    }

    async fn pending(&self) -> Result<bool> {
        Ok(upkeep::gauges(&self.producer.session().await?).await?.pending > 0)
    }

    async fn stop(&mut self) -> Result<()> {
        self.worker.take().context("it was not started")?.stop().await;
        self.database.close().await;
        self.producer.close().await;
        Ok(())
    }
}

/// What an event borrows.
struct Texts {
    event_type: String,
    aggregate_id: String,
    payload: String,
}

impl Texts {
    fn new(item: Item, payload_bytes: usize) -> Self {
        Self {
            event_type: name(item.endpoint),
            aggregate_id: format!("lane-{}", item.lane),
            payload: item.payload(now_ns(), payload_bytes),
        }
    }

    fn event(&self) -> NewEvent<'_> {
        NewEvent {
            event_type: &self.event_type,
            aggregate_id: &self.aggregate_id,
            payload: self.payload.as_bytes(),
            ..NewEvent::default()
        }
    }
}

fn name(endpoint: u16) -> String {
    format!("endpoint-{endpoint}")
}
