//! An endpoint is removed while deliveries to it wait and others are in flight.
#![expect(clippy::disallowed_methods, reason = "tests speak SQL directly")]

mod common;

use std::time::Duration;

use common::{Outbox, settings};
use surehook_outbox::WorkerSettings;
use surehook_outbox::store::endpoints;
use surehook_outbox::store::operate::{
    DeliveryFilter, DeliveryStatus, HowToReplay, Replayed, attempts, list_deliveries, replay,
};
use surehook_testkit::receiver::{Answer, Receiver};

#[tokio::test]
async fn a_hundred_waiting_and_five_in_flight_end_as_cancelled_and_nobody_else_notices() {
    let outbox = Outbox::new().await;
    let slow = Receiver::start(|_| Answer::status(200).after(Duration::from_millis(1_500))).await;
    let other = Receiver::start(|_| Answer::status(200)).await;
    let gone = outbox.endpoint("gone", &slow.url("/"), "in_flight_max = 5, timeout_ms = 5000").await;
    let stays = outbox.endpoint("stays", &other.url("/"), "").await;
    for n in 0..105 {
        outbox.tell_quietly(&format!("repo-{}", n % 21), n.to_string().as_bytes()).await;
    }
    let worker = outbox.worker_with(WorkerSettings { node: "removal".into(), ..settings() });
    outbox.wake.wake();
    let in_flight = slow.wait_for(5).await.len();
    let removed = endpoints::remove(&outbox.database, "gone").await.unwrap();
    // The answers to those in flight come now, and are discarded.
    other.wait_for(105).await;
    outbox.drained().await;
    worker.stop().await;
    assert!(slow.requests().len() <= 2 * in_flight, "what was in flight, and at most one more of each of these lanes");

    let of = |endpoint_id| DeliveryFilter { endpoint_id: Some(endpoint_id), limit: 1_000, ..DeliveryFilter::default() };
    let history = list_deliveries(&outbox.database, &of(gone)).await.unwrap();
    let published = history.iter().filter(|found| found.status == DeliveryStatus::Published).count();
    let cancelled = history.iter().filter(|found| found.status == DeliveryStatus::Cancelled).count();
    assert_eq!((published, cancelled, removed.cancelled), (0, 105, 105));
    assert!(history.iter().all(|found| found.endpoint_name == "gone"));
    assert!(attempts(&outbox.database, history[0].delivery_id).await.unwrap().is_empty());
    let others = list_deliveries(&outbox.database, &of(stays)).await.unwrap();
    assert_eq!(others.iter().filter(|found| found.status == DeliveryStatus::Published).count(), 105);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_events").await, 105);

    // No worker that comes later finds anything to do there, or to stumble over.
    let sent = slow.requests().len();
    let worker = outbox.worker();
    outbox.tell("repo-0", "more").await;
    other.wait_for(106).await;
    outbox.drained().await;
    worker.stop().await;
    assert_eq!(slow.requests().len(), sent);
    assert_eq!(
        outbox
            .count(
                "SELECT count(*) FROM outbox_lanes WHERE owner IS NOT NULL OR attempts > 0 OR last_error IS NOT NULL"
            )
            .await,
        0
    );
}

#[tokio::test]
async fn a_replay_on_its_way_to_a_removed_endpoint_leaves_its_dead_letter_dead() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::start(|_| Answer::status(500)).await;
    outbox.endpoint("ci", &receiver.url("/"), "max_attempts = 1").await;
    outbox.tell("repo", "1").await;
    let worker = outbox.worker();
    outbox.until("SELECT count(*) = 1 FROM outbox_dlq WHERE state = 'dead'").await;
    worker.stop().await;
    let dead = outbox.sql.query_one("SELECT delivery_id FROM outbox_dlq", &[]).await.unwrap().get(0);
    let replayed = replay(&outbox.database, dead, &HowToReplay::default()).await.unwrap();
    assert!(matches!(replayed, Replayed::Appended { .. }));
    let removed = endpoints::remove(&outbox.database, "ci").await.unwrap();
    assert_eq!(removed.cancelled, 1);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_dlq WHERE state = 'dead'").await, 1);
    assert_eq!(replay(&outbox.database, dead, &HowToReplay::default()).await.unwrap(), Replayed::EndpointRemoved);
}
