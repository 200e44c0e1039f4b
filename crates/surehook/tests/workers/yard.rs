//! What the tests of this folder share: a database with an endpoint and a backlog, `surehook worker` processes on it, and a
//! book in which the database notes every crash that is charged.

use std::collections::HashMap;
use std::time::Duration;

use surehook_testkit::eventually;
use surehook_testkit::postgres::{self, Client, Cluster, Settings};
use surehook_testkit::receiver::Request;

use super::world::{Running, SECRET, SOON, World};

pub(crate) struct Yard {
    pub(crate) world: World,
    pub(crate) url: String,
    pub(crate) sql: Client,
}

const CHARGES: &str = "
    CREATE TABLE charges (lane_id bigint, crashes integer);
    CREATE FUNCTION charge() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO charges VALUES (NEW.lane_id, NEW.crashes); RETURN NEW; END $$;
    CREATE TRIGGER charge AFTER UPDATE ON outbox_lanes FOR EACH ROW WHEN (NEW.crashes > OLD.crashes) EXECUTE FUNCTION charge()";

impl Yard {
    /// On the cluster that the tests of this process share.
    pub(crate) async fn new() -> Self {
        let world = World::new().await;
        let (url, sql) = (world.database_url.clone(), world.database.client().await);
        sql.batch_execute(CHARGES).await.unwrap();
        Self { world, url, sql }
    }

    /// On a cluster of its own, which may be stopped.
    pub(crate) async fn with_cluster() -> (Self, Cluster) {
        let mut world = World::new().await;
        let cluster = Cluster::start(Settings { durable: true, ..Settings::default() }).await;
        postgres::connect(&cluster.url("postgres")).await.batch_execute("CREATE DATABASE surehook").await.unwrap();
        let url = cluster.url("surehook");
        world.database_url.clone_from(&url);
        // Any command makes the schema.
        world.run(&["endpoint", "list"]);
        let sql = postgres::connect(&url).await;
        sql.batch_execute(CHARGES).await.unwrap();
        (Self { world, url, sql }, cluster)
    }

    /// A worker that looks often, with settings that leave it room; `environment` is set for it beside the usual.
    pub(crate) fn worker(&self) -> Running {
        self.worker_with(&[])
    }

    pub(crate) fn worker_with(&self, environment: &[(&str, &str)]) -> Running {
        let config = self.world.data().join("worker.toml");
        std::fs::write(
            &config,
            "[stop]\ngrace_s = 2\n[worker]\npoll_ms = 100\nlanes_per_claim = 64\nwindow_start = 256\n",
        )
        .unwrap();
        let arguments = ["worker", "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
        self.world.start_in(&self.url, &arguments, environment)
    }

    /// A worker with these settings under `[worker]`.
    pub(crate) fn worker_set(&self, settings: &str) -> Running {
        let config = self.world.data().join("worker-set.toml");
        std::fs::write(&config, format!("[stop]\ngrace_s = 2\n[worker]\n{settings}\n")).unwrap();
        let arguments = ["worker", "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
        self.world.start_with(&self.url, &arguments)
    }

    /// An endpoint with much room that retries soon; `deadline` of one request.
    pub(crate) async fn endpoint(&self, url: &str, deadline: Duration) {
        let deadline_ms = i32::try_from(deadline.as_millis()).unwrap();
        self.sql
            .execute(
                "INSERT INTO endpoints (name, url, secret, allow_private, timeout_ms, retry_max_delay_ms, in_flight_max)
                 VALUES ('ci', $1, $2, true, $3, 200, 256)",
                &[&url, &SECRET, &deadline_ms],
            )
            .await
            .unwrap();
    }

    /// So many lanes with so many deliveries each; a body is `lane/number`.
    pub(crate) async fn backlog(&self, lanes: i32, deliveries: i32) {
        self.sql
            .execute(
                "SELECT count(*) FROM (SELECT outbox_enqueue('Happened', 'key-' || lane, convert_to(lane || '/' || n, 'UTF8'))
                   FROM generate_series(1, $2::integer) AS n, generate_series(1, $1::integer) AS lane) AS all_of_them",
                &[&lanes, &deliveries],
            )
            .await
            .unwrap();
    }

    pub(crate) async fn count(&self, sql: &str) -> i64 {
        self.sql.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Waits until a count is this.
    pub(crate) async fn until(&self, sql: &str, wanted: i64) {
        let met =
            surehook_testkit::try_eventually(SOON, async || (self.count(sql).await == wanted).then_some(())).await;
        let log = || std::fs::read_to_string(self.world.data().join("log")).unwrap_or_default();
        assert!(met.is_some(), "{sql} did not become {wanted}:\n{}", log());
    }

    pub(crate) async fn drained(&self) {
        self.until("SELECT count(*) FROM outbox_lanes WHERE ready_at IS NOT NULL", 0).await;
    }

    /// Waits until so many workers move their counters.
    pub(crate) async fn alive(&self, workers: i64) {
        self.until("SELECT count(*) FROM outbox_workers WHERE heartbeat >= 2", workers).await;
    }

    /// Every delivery has ended once, as published; nothing is dead, held or charged for more than it should be.
    pub(crate) async fn all_published(&self, deliveries: i64) {
        assert_eq!(self.count("SELECT count(*) FROM outbox_attempts WHERE ends = 'published'").await, deliveries);
        assert_eq!(
            self.count("SELECT count(DISTINCT delivery_id) FROM outbox_attempts WHERE ends IS NOT NULL").await,
            deliveries
        );
        assert_eq!(self.count("SELECT count(*) FROM outbox_dlq").await, 0);
        assert_eq!(
            self.count("SELECT count(*) FROM outbox_lanes WHERE owner IS NOT NULL OR done_seq < last_seq").await,
            0
        );
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.world.data().join("log")).unwrap_or_default()
    }

    pub(crate) async fn nobody_was_declared_dead(&self) {
        assert!(!self.log().contains("stands still"), "{}", self.log());
        assert_eq!(self.count("SELECT count(*) FROM charges").await, 0, "no crash is charged");
    }
}

/// How often each body arrived.
pub(crate) fn arrivals(requests: &[Request]) -> HashMap<String, usize> {
    let mut arrivals = HashMap::new();
    for request in requests {
        *arrivals.entry(request.text().to_owned()).or_default() += 1;
    }
    arrivals
}

/// Of each lane the first arrivals came in order, without a gap.
pub(crate) fn in_order(requests: &[Request]) {
    let mut last: HashMap<String, i32> = HashMap::new();
    for request in requests {
        let (lane, number) = request.text().split_once('/').unwrap();
        let (last, number) = (last.entry(lane.to_owned()).or_default(), number.parse::<i32>().unwrap());
        assert!(number <= *last + 1, "{lane}/{number} came after {last}");
        *last = number.max(*last);
    }
}

/// Lets a fault last: its length is what the test is about.
pub(crate) async fn lasts(duration: Duration) {
    let until = std::time::Instant::now() + duration;
    eventually(duration * 2, async || (std::time::Instant::now() >= until).then_some(())).await;
}
