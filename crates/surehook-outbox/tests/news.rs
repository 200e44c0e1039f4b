//! News between processes: it makes things sooner, and nothing relies on it. Each node here has a pool, a wake-up and a listener of
//! its own; the one that delivers would look by itself only after ten minutes.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests speak SQL and start tasks, and panic where they cannot go on"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Outbox, SOON, settings};
use surehook_outbox::news::{self, NewsSeen};
use surehook_outbox::{Database, NewEvent, Pooler, Wake, Worker, WorkerSettings, enqueue};
use surehook_testkit::eventually;
use surehook_testkit::postgres::{self, Cluster, Pgbouncer, Settings};
use surehook_testkit::receiver::{Answer, Receiver};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const NEVER: Duration = Duration::from_secs(600);
const LISTENERS: &str = "datname = current_database() AND application_name LIKE '% news'";

/// One process, as far as others can tell.
struct Node {
    database: Database,
    wake: Wake,
    stop: CancellationToken,
    task: JoinHandle<()>,
    began: Arc<AtomicUsize>,
    began_again: Arc<AtomicUsize>,
}

impl Node {
    async fn start(outbox: &Outbox) -> Self {
        let node = Self::with(Database::connect(outbox.test_database.url(), "node", 8).unwrap());
        node.listens(1).await;
        node
    }

    fn with(database: Database) -> Self {
        let (wake, stop) = (Wake::default(), CancellationToken::new());
        let (began, began_again) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (first, more) = (Arc::clone(&began), Arc::clone(&began_again));
        let observer: news::NewsObserver = Arc::new(move |seen| match seen {
            NewsSeen::Listening { again } => {
                first.fetch_add(1, Ordering::SeqCst);
                more.fetch_add(usize::from(again), Ordering::SeqCst);
            }
            NewsSeen::Deaf => {}
        });
        let running = news::run(database.clone(), wake.clone(), Some(observer), stop.clone());
        Self { database, wake, stop, task: tokio::spawn(running), began, began_again }
    }

    /// Waits until it has begun to listen for the so-manieth time.
    async fn listens(&self, times: usize) {
        eventually(SOON, async || (self.began.load(Ordering::SeqCst) >= times).then_some(())).await;
    }

    fn worker(&self, poll: Duration) -> Worker {
        Worker::start(self.database.clone(), WorkerSettings { poll, ..settings() }, self.wake.clone())
    }

    async fn tell(&self, aggregate_id: &str, payload: &[u8]) {
        let mut session = self.database.session().await.unwrap();
        let transaction = session.transaction().await.unwrap();
        let event = NewEvent { event_type: "Happened", aggregate_id, payload, ..NewEvent::default() };
        enqueue(&transaction, &event).await.unwrap();
        transaction.commit().await.unwrap();
        self.wake.wake();
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
        self.database.close().await;
    }
}

#[tokio::test]
async fn what_one_node_enqueues_another_delivers_without_looking() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::accepting().await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    let (producer, other) = (Node::start(&outbox).await, Node::start(&outbox).await);
    let worker = other.worker(NEVER);
    // More than fits into the payload of a notification.
    let large = "x".repeat(100 * 1024);
    producer.tell("a", large.as_bytes()).await;
    receiver.wait_for(1).await;
    assert_eq!(receiver.requests()[0].body.len(), large.len());
    for n in 0..200 {
        producer.tell(&format!("key-{}", n % 10), b"{}").await;
    }
    receiver.wait_for(201).await;
    outbox.drained().await;
    // A program that ends tells it itself.
    outbox.tell_quietly("b", b"{}").await;
    news::tell(&outbox.database).await.unwrap();
    receiver.wait_for(202).await;
    worker.stop().await;
    producer.stop().await;
    other.stop().await;
    outbox.until(&format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE {LISTENERS}")).await;
}

#[tokio::test]
async fn news_is_told_at_most_every_20_ms_and_not_heard_by_who_told_it() {
    let outbox = Outbox::new().await;
    let node = Node::start(&outbox).await;
    // Listening has begun: that is one.
    tokio::time::timeout(SOON, node.wake.notified()).await.unwrap();
    let heard = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&heard);
    let (client, mut connection) =
        tokio_postgres::connect(outbox.test_database.url(), tokio_postgres::NoTls).await.unwrap();
    let counting = tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if let tokio_postgres::AsyncMessage::Notification(note) = message {
                assert_eq!(note.payload(), "");
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    client.batch_execute("LISTEN surehook_work").await.unwrap();
    let begun = std::time::Instant::now();
    let mut woken = 0usize;
    while begun.elapsed() < Duration::from_millis(500) {
        node.wake.wake();
        woken += 1;
        tokio::time::timeout(SOON, node.wake.notified()).await.unwrap();
        tokio::task::yield_now().await;
    }
    let most = usize::try_from(begun.elapsed().as_millis() / 20).unwrap() + 4;
    eventually(SOON, async || (heard.load(Ordering::SeqCst) >= 1).then_some(())).await;
    // What is told last is heard: the sessions of one server hear in one order.
    news::tell(&outbox.database).await.unwrap();
    tokio::time::timeout(SOON, node.wake.notified()).await.unwrap();
    let told = heard.load(Ordering::SeqCst);
    assert!(woken > 2 * told && told <= most, "{woken} wake-ups, told {told} times, at most {most}");
    // Nothing of what it told itself has come back.
    let none = tokio::time::timeout(Duration::from_millis(1), node.wake.notified()).await;
    assert!(none.is_err(), "its own news woke it");
    node.stop().await;
    drop(client);
    counting.await.unwrap();
}

#[tokio::test]
async fn a_listener_that_is_killed_again_and_again_loses_nothing() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::start(|_| Answer::status(200).after(Duration::from_millis(5))).await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    let (producer, other) = (Node::start(&outbox).await, Node::start(&outbox).await);
    let worker = other.worker(NEVER);
    let kill = format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {LISTENERS}");
    for round in 1..=5usize {
        for n in 0..50 {
            producer.tell(&format!("key-{}", n % 10), b"{}").await;
            if n == 25 {
                assert!(outbox.count(&kill).await >= 1);
            }
        }
        producer.listens(1 + round).await;
        other.listens(1 + round).await;
    }
    receiver.wait_for(250).await;
    outbox.drained().await;
    assert_eq!(outbox.states().await, [("published".to_owned(), 250)]);
    assert!(other.began_again.load(Ordering::SeqCst) >= 5, "each time it began anew, and said so");
    worker.stop().await;
    producer.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_restart_of_the_database_under_load_loses_nothing() {
    let cluster = Cluster::start(Settings::default()).await;
    let admin = postgres::connect(&cluster.url("postgres")).await;
    admin.batch_execute("CREATE DATABASE outbox").await.unwrap();
    admin.close().await;
    let url = cluster.url("outbox");
    let node = || Node::with(Database::connect(&url, "node", 8).unwrap());
    let (producer, other) = (node(), node());
    surehook_outbox::store::migrate::migrate(&producer.database, "outbox", surehook_outbox::store::migrate::OUTBOX)
        .await
        .unwrap();
    let receiver = Receiver::start(|_| Answer::status(200).after(Duration::from_millis(5))).await;
    let sql = postgres::connect(&url).await;
    sql.execute(
        "INSERT INTO endpoints (name, url, secret, allow_private) VALUES ('ci', $1, 's', true)",
        &[&receiver.url("/")],
    )
    .await
    .unwrap();
    let worker = other.worker(Duration::from_secs(1));
    for n in 0..60 {
        producer.tell(&format!("key-{}", n % 10), b"{}").await;
    }
    cluster.restart().await;
    producer.listens(2).await;
    other.listens(2).await;
    for n in 0..60 {
        producer.tell(&format!("key-{}", n % 10), b"{}").await;
    }
    let sql = postgres::connect(&url).await;
    eventually(SOON, async || {
        let open = "SELECT count(*) FROM outbox_lanes WHERE ready_at IS NOT NULL";
        (sql.query_one(open, &[]).await.unwrap().get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    let published = "SELECT count(*) FROM outbox_status WHERE status = 'published'";
    assert_eq!(sql.query_one(published, &[]).await.unwrap().get::<_, i64>(0), 120);
    worker.stop().await;
    producer.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn without_news_polling_alone_delivers_what_anybody_enqueues() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::accepting().await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    // The wake-up of this worker is nobody else's.
    let settings = WorkerSettings { poll: Duration::from_millis(200), ..settings() };
    let worker = Worker::start(outbox.database.clone(), settings, Wake::default());
    for n in 0..20 {
        let sql = "SELECT outbox_enqueue('Happened', $1, '{}')";
        outbox.sql.execute(sql, &[&format!("key-{n}")]).await.unwrap();
    }
    receiver.wait_for(20).await;
    outbox.drained().await;
    worker.stop().await;
}

#[tokio::test]
async fn behind_a_pooler_nothing_is_listened_for_and_those_who_can_listen_are_told() {
    let outbox = Outbox::new().await;
    let Some(pgbouncer) = Pgbouncer::start(postgres::shared().await, 2).await else { return };
    let url = pgbouncer.url(outbox.test_database.name());
    let receiver = Receiver::accepting().await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    let producer = Node::with(Database::connect_through(Pooler::Transaction, &url, "node", 4).unwrap());
    let other = Node::start(&outbox).await;
    let worker = other.worker(NEVER);
    for n in 0..20 {
        producer.tell(&format!("key-{n}"), b"{}").await;
    }
    receiver.wait_for(20).await;
    assert_eq!(producer.began.load(Ordering::SeqCst), 0);
    assert_eq!(outbox.count(&format!("SELECT count(*) FROM pg_stat_activity WHERE {LISTENERS}")).await, 1);
    worker.stop().await;
    producer.stop().await;
    other.stop().await;
}
