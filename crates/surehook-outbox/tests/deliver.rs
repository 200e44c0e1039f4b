//! Deliveries as they should be: signed, in order, once, from any number of workers.
#![expect(clippy::disallowed_methods, reason = "tests speak SQL directly")]

mod common;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use common::{Outbox, SECRET, SOON, settings};
use surehook_outbox::WorkerSettings;
use surehook_testkit::receiver::{Answer, Receiver};
use surehook_webhook::secret::Secret;
use surehook_webhook::signature::{verify_standard_signature, verify_x_signature};
use uuid::Uuid;

#[tokio::test]
async fn a_delivery_is_one_signed_post_of_the_exact_bytes() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::accepting().await;
    outbox.endpoint("ci", &receiver.url("/hook?x=1"), r#"headers = '{"X-Team": "blue"}'"#).await;
    let body = "{\"b\":1.0,\"a\":\"é😀/\\u0000\",\"b\":2}";
    let event_id = outbox.tell("repo-1", body).await;
    let worker = outbox.worker();
    outbox.drained().await;
    worker.stop().await;

    let requests = receiver.requests();
    assert_eq!(requests.len(), 1);
    let request = &requests[0];
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/hook?x=1"));
    assert_eq!(request.body, body.as_bytes(), "not one byte of the payload is touched");
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!(request.header("content-length"), Some(body.len().to_string().as_str()));
    assert_eq!(request.header("x-team"), Some("blue"));
    let secret = Secret::parse(SECRET).unwrap();
    verify_x_signature(&secret, &request.body, request.header("x-signature").unwrap().as_bytes()).unwrap();
    let id = request.header("x-webhook-id").unwrap();
    assert_eq!(request.header("webhook-id"), Some(id));
    let timestamp: i64 = request.header("webhook-timestamp").unwrap().parse().unwrap();
    let row =
        outbox.sql.query_one("SELECT extract(epoch FROM now())::bigint, * FROM outbox_status", &[]).await.unwrap();
    assert!((row.get::<_, i64>(0) - timestamp).abs() <= 60, "webhook-timestamp is database time");
    verify_standard_signature(
        &secret,
        id,
        timestamp,
        &request.body,
        request.header("webhook-signature").unwrap().as_bytes(),
    )
    .unwrap();

    assert_eq!(row.get::<_, Uuid>("event_id"), event_id);
    assert_eq!(row.get::<_, Uuid>("delivery_id").to_string(), id);
    assert_eq!(row.get::<_, &str>("aggregate_id"), "repo-1");
    assert_eq!(row.get::<_, &str>("event_type"), "Happened");
    assert_eq!(row.get::<_, &str>("webhook_url"), receiver.url("/hook?x=1"));
    assert_eq!((row.get::<_, &str>("status"), row.get::<_, i32>("attempts")), ("published", 1));
    assert_eq!(row.get::<_, Option<&str>>("last_error"), None);
    assert!(row.get::<_, Option<jiff::Timestamp>>("published_at") >= row.get("created_at"));
}

#[tokio::test]
async fn order_holds_although_first_tries_fail() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::start({
        let mut seen = HashSet::new();
        move |request| {
            let id = request.header("x-webhook-id").unwrap_or_default().to_owned();
            let unlucky = request.body.len() % 3 == 0 && seen.insert(id);
            if unlucky { Answer::status(503) } else { Answer::status(200) }
        }
    })
    .await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    let worker = outbox.worker();
    for n in 0..200 {
        outbox.tell(["a", "b", "c"][n % 3], &format!("{{\"n\":{n}}}")).await;
    }
    outbox.drained().await;
    worker.stop().await;
    let mut first_arrivals = HashSet::new();
    let mut last: HashMap<usize, usize> = HashMap::new();
    for request in receiver.requests() {
        let n: usize = request.text().trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
        if first_arrivals.insert(n) {
            let before = last.insert(n % 3, n);
            assert!(before.is_none_or(|before| before + 3 == n), "{n} came after {before:?}");
        }
    }
    assert_eq!(first_arrivals.len(), 200);
    assert_eq!(outbox.states().await, [("published".to_owned(), 200)]);
}

#[tokio::test]
async fn several_workers_share_the_work_and_never_a_row() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::accepting().await;
    for name in ["one", "two"] {
        outbox.endpoint(name, &receiver.url(&format!("/{name}")), "").await;
    }
    let workers: Vec<_> =
        (0..3).map(|_| outbox.worker_with(WorkerSettings { deliveries_per_read: 3, ..settings() })).collect();
    for n in 0..300 {
        outbox.tell(&format!("key-{}", n % 40), &n.to_string()).await;
    }
    outbox.drained().await;
    for worker in &workers {
        worker.stop().await;
    }
    let requests = receiver.requests();
    let ids: HashSet<_> = requests.iter().map(|request| request.header("x-webhook-id").unwrap().to_owned()).collect();
    assert_eq!((requests.len(), ids.len()), (600, 600), "each delivery was sent once, under an id of its own");
    let mut last: HashMap<(String, usize), usize> = HashMap::new();
    for request in &requests {
        let n: usize = request.text().parse().unwrap();
        let before = last.insert((request.path.clone(), n % 40), n);
        assert!(before.is_none_or(|before| before + 40 == n), "{n} came after {before:?}");
    }
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_workers").await, 0, "workers that stopped have signed off");
}

#[tokio::test]
async fn polling_alone_delivers_and_a_late_commit_is_not_passed_over() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::accepting().await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    let worker = outbox.worker();
    let mut slow = outbox.database.session().await.unwrap();
    let open = slow.transaction().await.unwrap();
    let event = surehook_outbox::NewEvent {
        event_type: "T",
        aggregate_id: "slow",
        payload: b"first recorded",
        ..Default::default()
    };
    surehook_outbox::enqueue(&open, &event).await.unwrap();
    outbox.tell_quietly("quick", b"second recorded").await;
    receiver.wait_for(1).await;
    open.commit().await.unwrap();
    let requests = receiver.wait_for(2).await;
    assert_eq!(
        requests.iter().map(surehook_testkit::receiver::Request::text).collect::<Vec<_>>(),
        ["second recorded", "first recorded"]
    );
    outbox.drained().await;
    worker.stop().await;
}

#[tokio::test]
async fn an_open_enqueue_on_one_lane_holds_up_no_other() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::accepting().await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    for key in ["a", "b", "c"] {
        outbox.tell_quietly(key, key.as_bytes()).await;
    }
    let mut other = outbox.database.session().await.unwrap();
    let open = other.transaction().await.unwrap();
    let event = surehook_outbox::NewEvent { event_type: "T", aggregate_id: "b", payload: b"b2", ..Default::default() };
    surehook_outbox::enqueue(&open, &event).await.unwrap();
    let worker = outbox.worker();
    receiver.wait_for(2).await;
    outbox.until("SELECT count(*) = 2 FROM outbox_lanes WHERE done_seq = last_seq").await;
    open.commit().await.unwrap();
    outbox.drained().await;
    worker.stop().await;
    assert_eq!(receiver.requests().len(), 4);
}

#[tokio::test]
async fn connections_are_reused_and_the_cap_per_endpoint_holds() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::start(|_| Answer::status(200).after(Duration::from_millis(20))).await;
    outbox.endpoint("ci", &receiver.url("/"), "in_flight_max = 3").await;
    for n in 0..60 {
        outbox.tell_quietly(&format!("key-{}", n % 20), b"{}").await;
    }
    let worker = outbox.worker();
    outbox.drained().await;
    worker.stop().await;
    assert_eq!(receiver.requests().len(), 60);
    assert!(receiver.in_flight_max() <= 3, "{} at once", receiver.in_flight_max());
    assert!(receiver.connections() <= 6, "{} connections", receiver.connections());
}

#[tokio::test]
async fn a_rotation_signs_with_both_secrets() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::accepting().await;
    outbox.endpoint("ci", &receiver.url("/"), "secret_next = 'the next one'").await;
    outbox.tell("a", "{}").await;
    let worker = outbox.worker();
    let request = receiver.wait_for(1).await.remove(0);
    outbox.drained().await;
    worker.stop().await;
    let (id, timestamp) =
        (request.header("webhook-id").unwrap(), request.header("webhook-timestamp").unwrap().parse().unwrap());
    for text in [SECRET, "the next one"] {
        let secret = Secret::parse(text).unwrap();
        let signature = request.header("webhook-signature").unwrap().as_bytes();
        verify_standard_signature(&secret, id, timestamp, &request.body, signature).unwrap();
    }
    verify_x_signature(
        &Secret::parse(SECRET).unwrap(),
        &request.body,
        request.header("x-signature").unwrap().as_bytes(),
    )
    .unwrap();
}

#[tokio::test]
async fn unordered_endpoints_do_not_wait_for_a_failing_neighbour() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::start(|r| if r.text() == "bad" { Answer::status(503) } else { Answer::status(200) }).await;
    outbox.endpoint("ci", &receiver.url("/"), "ordered = false").await;
    outbox.tell("a", "bad").await;
    outbox.tell("a", "good").await;
    let worker = outbox.worker();
    surehook_testkit::eventually(SOON, async || receiver.requests().iter().any(|r| r.text() == "good").then_some(()))
        .await;
    receiver.answer_all(Answer::status(200));
    outbox.drained().await;
    worker.stop().await;
}
