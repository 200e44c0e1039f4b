//! Windows over sockets: the concurrency that a receiver bears is found, a silent one is left in peace and comes back by itself.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests speak SQL directly, and panic where they cannot go on"
)]

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Outbox, SOON};
use surehook_testkit::receiver::{Answer, Receiver};

/// Texts of the form key/number arrive in the order of their numbers, first arrivals counted.
fn assert_in_order(receiver: &Receiver) {
    let mut last: HashMap<String, u32> = HashMap::new();
    for request in receiver.requests() {
        let text = request.text();
        let (key, number) = text.split_once('/').unwrap();
        let (number, last) = (number.parse::<u32>().unwrap(), last.entry(key.to_owned()).or_default());
        assert!(number <= *last + 1, "{text} came before {}", *last + 1);
        *last = (*last).max(number);
    }
}

#[tokio::test]
async fn the_circuit_of_a_silent_endpoint_opens_probes_and_closes_by_itself() {
    let outbox = Outbox::new().await;
    let is_up = Arc::new(AtomicBool::new(false));
    let up = Arc::clone(&is_up);
    let receiver =
        Receiver::start(move |_| if up.load(Ordering::SeqCst) { Answer::status(200) } else { Answer::Reset }).await;
    outbox.endpoint("ci", &receiver.url("/"), "retry_max_delay_ms = 60000, max_unanswered = 3").await;
    for number in 1..=3 {
        for key in 0..100 {
            outbox.tell_quietly(&format!("{key}"), format!("{key}/{number}").as_bytes()).await;
        }
    }
    let worker = outbox.worker();
    outbox.until("SELECT count(*) = 1 FROM outbox_windows WHERE circuit = 'open' AND next_probe_at IS NOT NULL").await;
    // Whoever asks now sees one probe at a time and nothing else: of the hundred lanes most were never tried.
    let tried = receiver.requests().len();
    assert!((50..=70).contains(&tried), "{tried} requests went out before the circuit opened");
    // What is told meanwhile waits with the rest.
    outbox.tell("100", "100/1").await;
    is_up.store(true, Ordering::SeqCst);
    surehook_testkit::eventually(Duration::from_secs(100), async || {
        // Those that were tried wait for their own time, which is not what this test is about.
        let sql = "UPDATE outbox_lanes SET ready_at = now() WHERE owner IS NULL AND ready_at > now() AND attempts > 0";
        outbox.sql.execute(sql, &[]).await.unwrap();
        (outbox.pending().await == 0).then_some(())
    })
    .await;
    outbox.until("SELECT count(*) = 1 FROM outbox_windows WHERE circuit = 'closed'").await;
    worker.stop().await;
    assert_eq!(outbox.states().await, [("published".to_owned(), 301)], "an outage kills nothing");
    assert_in_order(&receiver);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_windows").await, 0, "who leaves takes its windows along");
}

#[tokio::test]
async fn the_window_finds_the_concurrency_of_a_slow_receiver() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::start(|_| Answer::status(200).after(Duration::from_millis(50))).await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    for number in 1..=20 {
        for key in 0..100 {
            outbox.tell_quietly(&format!("{key}"), format!("{key}/{number}").as_bytes()).await;
        }
    }
    let worker = outbox.worker();
    outbox.until("SELECT coalesce(max(in_flight_limit), 0) > 32 FROM outbox_windows").await;
    outbox.drained().await;
    worker.stop().await;
    assert_eq!(receiver.requests().len(), 2000, "nothing is sent twice");
    assert_in_order(&receiver);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_attempts").await, 2000);
}

#[tokio::test]
async fn a_limit_per_second_is_kept() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::accepting().await;
    outbox.endpoint("ci", &receiver.url("/"), "rate_max_per_s = 10").await;
    for key in 0..15 {
        outbox.tell_quietly(&format!("{key}"), b"x").await;
    }
    let began = Instant::now();
    let worker = outbox.worker();
    receiver.wait_for(15).await;
    assert!(began.elapsed() >= Duration::from_millis(1400), "15 requests took {:?}", began.elapsed());
    tokio::time::timeout(SOON, outbox.drained()).await.unwrap();
    worker.stop().await;
}

#[tokio::test]
async fn large_bodies_are_not_read_ahead_without_end() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::accepting().await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    for number in 1..=12u8 {
        outbox.tell_quietly("a", &vec![number; 200_000]).await;
    }
    let worker = outbox.worker();
    outbox.drained().await;
    worker.stop().await;
    let told: Vec<(u8, usize)> = receiver.requests().iter().map(|r| (r.body[0], r.body.len())).collect();
    assert_eq!(told, (1..=12).map(|number| (number, 200_000)).collect::<Vec<_>>(), "all of them, once and in order");
}
