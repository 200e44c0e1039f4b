//! A loop of a worker panics or stands still: the worker is replaced, reported, and nothing is lost or stuck.

use std::path::PathBuf;
use std::time::Duration;

use surehook_testkit::eventually;
use surehook_testkit::receiver::{Answer, Receiver};

use super::world::{Running, SOON};
use super::yard::{Yard, arrivals};

/// A worker whose crash points lie in a folder of its own, and whose loops stand still after a second.
fn worker(yard: &Yard) -> (Running, PathBuf) {
    let points = yard.world.data().join("points");
    std::fs::create_dir_all(&points).unwrap();
    let config = yard.world.data().join("loops.toml");
    std::fs::write(&config, "[stop]\ngrace_s = 2\n[worker]\npoll_ms = 100\nstill_after_s = 1\n").unwrap();
    let arguments = ["worker", "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
    let running = yard.world.start_in(&yard.url, &arguments, &[("CRASH_POINTS", points.to_str().unwrap())]);
    (running, points)
}

async fn restarts(worker: &Running, name: &str) -> u64 {
    let (_, text) = worker.get("/metrics").await;
    let sample = format!("surehook_loop_restarts_total{{loop=\"{name}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&sample)).unwrap().parse().unwrap()
}

/// Lets the process come by a point, where it panics.
async fn panics_at(points: &std::path::Path, point: &str) {
    std::fs::write(points.join(point), "panic").unwrap();
    eventually(SOON, async || (!points.join(point).exists()).then_some(())).await;
}

#[tokio::test]
async fn a_claim_loop_that_panics_is_replaced_and_told_of() {
    let yard = Yard::new().await;
    let receiver = Receiver::start(|_| Answer::status(200)).await;
    yard.endpoint(&receiver.url("/"), Duration::from_secs(30)).await;
    let (mut worker, points) = worker(&yard);
    yard.alive(1).await;
    assert_eq!(restarts(&worker, "claims").await, 0);
    std::fs::write(points.join("claim.chosen"), "panic").unwrap();
    yard.backlog(20, 3).await;
    yard.drained().await;
    yard.all_published(60).await;
    assert_eq!(restarts(&worker, "claims").await, 1);
    assert_eq!(restarts(&worker, "recorder").await, 0, "what follows from it is not told twice");
    let log = yard.log();
    assert!(log.contains("ERROR") && log.contains("it panicked: the crash point claim.chosen asks for it"), "{log}");
    assert_eq!(yard.count("SELECT count(*) FROM charges").await, 0, "it held nothing yet");
    assert_eq!(worker.get("/readyz").await.0, 200);
    worker.signal("TERM");
    assert_eq!(worker.ended().await, Some(0));
    assert_eq!(yard.count("SELECT count(*) FROM outbox_workers").await, 0);
}

#[tokio::test]
async fn what_a_recorder_that_panics_had_to_say_is_done_again() {
    let yard = Yard::new().await;
    let receiver = Receiver::start(|_| Answer::status(200)).await;
    yard.endpoint(&receiver.url("/"), Duration::from_secs(60)).await;
    let (worker, points) = worker(&yard);
    yard.alive(1).await;
    std::fs::write(points.join("record.gathered"), "panic").unwrap();
    yard.backlog(20, 3).await;
    // Long before the leases of a minute and more.
    yard.drained().await;
    yard.all_published(60).await;
    assert_eq!(restarts(&worker, "recorder").await, 1);
    let arrivals = arrivals(&receiver.requests());
    assert_eq!(arrivals.len(), 60);
    assert!(arrivals.values().all(|times| *times <= 2), "only what was in hand comes again");
}

#[tokio::test]
async fn a_delivery_that_makes_a_loop_panic_each_time_is_given_up_and_stops_nothing_else() {
    let yard = Yard::new().await;
    let receiver = Receiver::start(|_| Answer::status(200)).await;
    yard.endpoint(&receiver.url("/"), Duration::from_secs(60)).await;
    let (worker, points) = worker(&yard);
    yard.alive(1).await;
    yard.backlog(1, 1).await;
    for _ in 0..3 {
        panics_at(&points, "record.gathered").await;
    }
    yard.until("SELECT count(*) FROM outbox_dlq WHERE reason = 'crashed_worker'", 1).await;
    yard.backlog(10, 2).await;
    yard.drained().await;
    assert_eq!(yard.count("SELECT count(*) FROM outbox_attempts WHERE ends = 'published'").await, 20);
    assert_eq!(yard.count("SELECT count(*) FROM outbox_dlq").await, 1);
    assert_eq!(restarts(&worker, "recorder").await, 3);
}

#[tokio::test]
async fn a_loop_that_stands_still_is_replaced_and_does_no_harm_when_it_goes_on() {
    let yard = Yard::new().await;
    let receiver = Receiver::start(|_| Answer::status(200)).await;
    yard.endpoint(&receiver.url("/"), Duration::from_secs(30)).await;
    let (mut worker, points) = worker(&yard);
    yard.alive(1).await;
    std::fs::write(points.join("claim.committed"), "").unwrap();
    yard.backlog(20, 3).await;
    let reached = points.join("claim.committed.reached");
    eventually(SOON, async || reached.exists().then_some(())).await;
    // While it still stands there with what it has claimed.
    yard.drained().await;
    yard.all_published(60).await;
    assert_eq!(restarts(&worker, "claims").await, 1);
    assert!(yard.log().contains("it has stood still for"), "{}", yard.log());
    std::fs::remove_file(&reached).unwrap();
    yard.backlog(20, 1).await;
    yard.drained().await;
    yard.all_published(80).await;
    assert_eq!(receiver.requests().len(), 80, "each came once: the old one sent nothing");
    worker.signal("TERM");
    assert_eq!(worker.ended().await, Some(0));
}
