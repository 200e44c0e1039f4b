//! News between processes: a command is heard by a worker that would look by itself only after ten minutes; what is lost with a
//! listener is found again; with `notify = false` all is found by looking.

use std::time::Duration;

use surehook_testkit::eventually;
use surehook_testkit::receiver::{Answer, Receiver};

use super::world::{Running, SOON};
use super::yard::Yard;

/// The one delivery that has not ended.
async fn pending(yard: &Yard) -> String {
    let pending = eventually(SOON, async || {
        let list = yard.world.json(&["delivery", "list", "--state", "pending"]);
        let waits = list[0]["attempts"].as_i64() == Some(1);
        waits.then(|| list[0]["delivery_id"].as_str().unwrap().to_owned())
    });
    pending.await
}

async fn shows(worker: &Running, line: &str) {
    eventually(SOON, async || worker.get("/metrics").await.1.lines().any(|shown| shown == line).then_some(())).await;
}

#[tokio::test]
async fn a_command_is_heard_by_a_worker_that_would_look_in_ten_minutes() {
    let yard = Yard::new().await;
    let receiver = Receiver::with_answers([Answer::status(500)], Answer::status(200)).await;
    yard.endpoint(&receiver.url("/"), Duration::from_secs(10)).await;
    yard.sql.batch_execute("UPDATE endpoints SET retry_max_delay_ms = 3600000").await.unwrap();
    // It looks when it starts, and then not for a long time.
    yard.backlog(1, 1).await;
    let worker = yard.worker_set("poll_ms = 600000");
    receiver.wait_for(1).await;
    shows(&worker, "surehook_listening 1").await;
    shows(&worker, "surehook_listener_reconnects_total 0").await;
    yard.world.run(&["delivery", "retry", &pending(&yard).await]);
    receiver.wait_for(2).await;
    yard.drained().await;

    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = 'surehook news'";
    // Nobody tells of these: it looks because it does not hear for a moment.
    yard.backlog(20, 1).await;
    assert_eq!(yard.count(cut).await, 1);
    shows(&worker, "surehook_listener_reconnects_total 1").await;
    shows(&worker, "surehook_listening 1").await;
    receiver.wait_for(22).await;
    yard.drained().await;
}

#[tokio::test]
async fn without_news_a_worker_finds_everything_by_looking() {
    let yard = Yard::new().await;
    let receiver = Receiver::with_answers([Answer::status(500)], Answer::status(200)).await;
    yard.endpoint(&receiver.url("/"), Duration::from_secs(10)).await;
    yard.sql.batch_execute("UPDATE endpoints SET retry_max_delay_ms = 3600000").await.unwrap();
    let worker = yard.worker_set("poll_ms = 200\nnotify = false");
    shows(&worker, "surehook_listening 0").await;
    yard.backlog(1, 1).await;
    receiver.wait_for(1).await;
    yard.world.run(&["delivery", "retry", &pending(&yard).await]);
    receiver.wait_for(2).await;
    yard.backlog(20, 1).await;
    receiver.wait_for(22).await;
    yard.drained().await;
    let listeners = "SELECT count(*) FROM pg_stat_activity
                      WHERE datname = current_database() AND application_name LIKE '% news'";
    assert_eq!(yard.count(listeners).await, 0);
}
