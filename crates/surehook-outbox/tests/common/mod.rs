//! What the outbox's tests share: a database with the schema, endpoints, a worker.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::time::Duration;

use surehook_outbox::store::migrate::{OUTBOX, migrate};
use surehook_outbox::{Database, NewEvent, Pooler, Wake, Worker, WorkerSettings, enqueue};
use surehook_testkit::postgres::{self, Client, Pgbouncer, TestDatabase};
use uuid::Uuid;

/// No test waits longer than this for anything.
pub const SOON: Duration = Duration::from_secs(30);
/// The secret of every endpoint here.
pub const SECRET: &str = "s3cret";

pub struct Outbox {
    pub database: Database,
    pub sql: Client,
    pub wake: Wake,
    pub test_database: TestDatabase,
    pub pooler: Option<Pgbouncer>,
}

/// Whether these tests are run as part of `pooled.rs`: then everything that is tested goes through a pooler.
pub fn is_pooled() -> bool {
    module_path!().starts_with("pooled::")
}

/// Sessions that the pooler has for all that the tests do at once.
const SERVER_SESSIONS: u32 = 4;

impl Outbox {
    pub async fn new() -> Self {
        // What the worker logs is shown with a test that fails.
        let _ = tracing_subscriber::fmt().with_test_writer().with_max_level(tracing::Level::WARN).try_init();
        let test_database = postgres::database("outbox", async |url| {
            let database = Database::connect(url, "template", 1).unwrap();
            migrate(&database, "outbox", OUTBOX).await.unwrap();
            database.close().await;
        })
        .await;
        let pooler = pooler().await;
        let database = connect(&test_database, pooler.as_ref(), 8);
        let sql = test_database.client().await;
        Self { database, sql, wake: Wake::default(), test_database, pooler }
    }

    /// An endpoint that may be private and retries quickly; `settings` is the rest of an UPDATE's SET list, or empty.
    pub async fn endpoint(&self, name: &str, url: &str, settings: &str) -> Uuid {
        let row = self
            .sql
            .query_one(
                "INSERT INTO endpoints (name, url, secret, allow_private, timeout_ms, retry_max_delay_ms)
                 VALUES ($1, $2, $3, true, 2000, 20) RETURNING endpoint_id",
                &[&name, &url, &SECRET],
            )
            .await
            .unwrap();
        let id: Uuid = row.get(0);
        if !settings.is_empty() {
            self.sql.execute(&format!("UPDATE endpoints SET {settings} WHERE endpoint_id = $1"), &[&id]).await.unwrap();
        }
        id
    }

    /// Records one event in a transaction of its own and wakes the worker.
    pub async fn tell(&self, aggregate_id: &str, payload: &str) -> Uuid {
        let id = self.tell_quietly(aggregate_id, payload.as_bytes()).await;
        self.wake.wake();
        id
    }

    /// The same, without waking anybody.
    pub async fn tell_quietly(&self, aggregate_id: &str, payload: &[u8]) -> Uuid {
        let mut session = self.database.session().await.unwrap();
        let transaction = session.transaction().await.unwrap();
        let event = NewEvent { event_type: "Happened", aggregate_id, payload, ..NewEvent::default() };
        let enqueued = enqueue(&transaction, &event).await.unwrap();
        transaction.commit().await.unwrap();
        enqueued.event_id()
    }

    pub fn worker(&self) -> Worker {
        self.worker_with(settings())
    }

    pub fn worker_with(&self, settings: WorkerSettings) -> Worker {
        Worker::start(self.database.clone(), settings, self.wake.clone())
    }

    pub async fn count(&self, sql: &str) -> i64 {
        self.sql.query_one(sql, &[]).await.unwrap().get(0)
    }

    pub async fn pending(&self) -> i64 {
        self.count("SELECT coalesce(sum(last_seq - done_seq), 0)::bigint FROM outbox_lanes").await
    }

    /// Waits until nothing is pending.
    pub async fn drained(&self) {
        self.until("SELECT count(*) = 0 FROM outbox_lanes WHERE ready_at IS NOT NULL").await;
    }

    /// Waits until a query of one boolean says true.
    pub async fn until(&self, sql: &str) {
        surehook_testkit::eventually(SOON, async || {
            self.sql.query_one(sql, &[]).await.unwrap().get::<_, bool>(0).then_some(())
        })
        .await;
    }

    /// The states of all deliveries with their numbers.
    pub async fn states(&self) -> Vec<(String, i64)> {
        let rows = self
            .sql
            .query("SELECT status, count(*) FROM outbox_status GROUP BY status ORDER BY status", &[])
            .await
            .unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }
}

/// The pooler that the tests of `pooled.rs` go through, if there is one.
pub async fn pooler() -> Option<Pgbouncer> {
    if is_pooled() { Pgbouncer::start(postgres::shared().await, SERVER_SESSIONS).await } else { None }
}

/// A pool of sessions with the database; in `pooled.rs` through the pooler, and where there is none said as if there were.
pub fn connect(test_database: &TestDatabase, pooler: Option<&Pgbouncer>, sessions_max: usize) -> Database {
    let kind = if is_pooled() { Pooler::Transaction } else { Pooler::None };
    let url = pooler.map_or_else(|| test_database.url().to_owned(), |pooler| pooler.url(test_database.name()));
    Database::connect_through(kind, &url, "outbox-test", sessions_max).unwrap()
}

/// Settings for tests: looks often, so that nothing takes longer than it must.
pub fn settings() -> WorkerSettings {
    WorkerSettings {
        poll: Duration::from_millis(50),
        grace: Duration::from_secs(5),
        node: "test".into(),
        ..WorkerSettings::default()
    }
}
