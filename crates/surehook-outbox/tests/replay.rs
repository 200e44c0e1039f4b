//! What an operator does, with a worker that runs and a receiver that answers.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests speak SQL directly")]

mod common;

use std::time::Duration;

use common::{Outbox, SOON, settings};
use surehook_outbox::WorkerSettings;
use surehook_outbox::store::operate::{
    DeadLetterState, HowToReplay, OnHead, Replayed, replay, retry_now, show_dead_letter, skip,
};
use surehook_testkit::receiver::{Answer, Receiver};
use uuid::Uuid;

async fn head(outbox: &Outbox) -> Uuid {
    let sql = "SELECT delivery_id FROM outbox_status WHERE status = 'pending' AND is_head";
    surehook_testkit::eventually(SOON, async || outbox.sql.query_opt(sql, &[]).await.unwrap().map(|row| row.get(0)))
        .await
}

#[tokio::test]
async fn a_replay_sends_the_same_id_and_bytes() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::with_answers([Answer::status(500), Answer::status(500)], Answer::status(200)).await;
    outbox.endpoint("ci", &receiver.url("/"), "max_attempts = 2, retry_max_delay_ms = 10").await;
    let body = r#"{"b":1.0,"a":"é"}"#;
    outbox.tell("repo-1", body).await;
    let worker = outbox.worker();
    outbox.until("SELECT count(*) = 1 FROM outbox_dlq").await;
    let dead: Uuid = outbox.sql.query_one("SELECT delivery_id FROM outbox_dlq", &[]).await.unwrap().get(0);
    assert_eq!(
        replay(&outbox.database, dead, &HowToReplay { subject_of: Some(|_| None), new_id: false }).await.unwrap(),
        Replayed::Appended { delivery_id: dead, ahead: 0 }
    );
    outbox.until("SELECT state = 'delivered' FROM outbox_dlq").await;
    worker.stop().await;

    let requests = receiver.requests();
    assert_eq!(requests.len(), 3);
    for request in &requests {
        assert_eq!(request.header("x-webhook-id"), Some(dead.to_string().as_str()));
        assert_eq!(request.body, body.as_bytes());
    }
    assert_eq!(outbox.states().await, [("published".to_owned(), 1)]);
    let (letter, _) = show_dead_letter(&outbox.database, dead).await.unwrap().unwrap();
    assert_eq!((letter.state, letter.replays), (DeadLetterState::Delivered, 1));
}

#[tokio::test]
async fn retry_does_not_wait_for_the_back_off() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::with_answers([Answer::status(500)], Answer::status(200)).await;
    outbox.endpoint("ci", &receiver.url("/"), "retry_max_delay_ms = 3600000").await;
    outbox.tell("repo-1", "{}").await;
    // The next attempt is far away: without the retry, the test would end at its own deadline.
    let worker = outbox.worker();
    outbox.until("SELECT count(*) = 1 FROM outbox_lanes WHERE attempts = 1 AND owner IS NULL").await;
    outbox.sql.execute("UPDATE outbox_lanes SET ready_at = now() + interval '1 hour'", &[]).await.unwrap();
    let delivery = head(&outbox).await;
    assert_eq!(retry_now(&outbox.database, delivery).await.unwrap(), OnHead::Done);
    outbox.drained().await;
    worker.stop().await;
    assert_eq!(outbox.states().await, [("published".to_owned(), 1)]);
}

#[tokio::test]
async fn what_a_worker_says_of_a_skipped_delivery_is_discarded() {
    let outbox = Outbox::new().await;
    let slow = Answer::status(200).after(Duration::from_millis(700));
    let receiver = Receiver::with_answers([slow], Answer::status(200)).await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    outbox.tell("repo-1", "1").await;
    let worker = outbox.worker_with(WorkerSettings { node: "skipping".into(), ..settings() });
    receiver.wait_for(1).await;
    outbox.tell("repo-1", "2").await;
    let delivery = head(&outbox).await;
    assert!(matches!(skip(&outbox.database, delivery, false).await.unwrap(), OnHead::Leased { .. }));
    assert_eq!(skip(&outbox.database, delivery, true).await.unwrap(), OnHead::Done);
    outbox.drained().await;
    worker.stop().await;
    let states = [("published".to_owned(), 1), ("skipped".to_owned(), 1)];
    assert_eq!(outbox.states().await, states);
}
