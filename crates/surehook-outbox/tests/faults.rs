//! Receivers that fail in every way, and what becomes of the deliveries.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests speak SQL directly, and panic where they cannot go on"
)]

mod common;

use std::time::{Duration, Instant};

use common::{Outbox, SOON, settings};
use surehook_outbox::WorkerSettings;
use surehook_testkit::receiver::{Answer, Receiver};

/// Delivers one event to a receiver that misbehaves a few times and then accepts; returns attempts and the last error.
async fn overcome(answers: Vec<Answer>) -> (usize, String) {
    let outbox = Outbox::new().await;
    let receiver = Receiver::with_answers(answers, Answer::status(200)).await;
    outbox.endpoint("ci", &receiver.url("/"), "timeout_ms = 300").await;
    outbox.tell("a", "{\"z\":1,\"a\":\"é\"}").await;
    let worker = outbox.worker();
    outbox.drained().await;
    worker.stop().await;
    let requests = receiver.requests();
    let first = &requests[0];
    for request in &requests {
        assert_eq!(request.body, first.body, "every attempt sends the same bytes");
        assert_eq!(request.header("x-webhook-id"), first.header("x-webhook-id"), "and the same id");
        assert_eq!(request.header("x-signature"), first.header("x-signature"));
    }
    let row = outbox.sql.query_one("SELECT status, attempts, last_error FROM outbox_status", &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>("status"), "published");
    assert_eq!(usize::try_from(row.get::<_, i32>("attempts")).unwrap(), requests.len());
    (requests.len(), row.get::<_, Option<String>>("last_error").unwrap_or_default())
}

#[tokio::test]
async fn every_kind_of_failure_is_retried_and_told_in_words() {
    for (answer, words) in [
        (Answer::status(500), "HTTP 500 Internal Server Error"),
        (Answer::status(404), "HTTP 404 Not Found"),
        (Answer::status(425), "HTTP 425"),
        (Answer::status(429), "HTTP 429"),
        (Answer::status(503), "HTTP 503"),
        (Answer::Close, "closed"),
        (Answer::Reset, "reset"),
        (Answer::Hang, "no answer within 300ms"),
        (Answer::HalfHead, ""),
        (Answer::Garbage, "invalid HTTP"),
    ] {
        let what = format!("{answer:?}");
        let (requests, error) = overcome(vec![answer.clone(), answer]).await;
        assert_eq!(requests, 3, "{what}");
        assert!(error.contains(words) && !error.is_empty(), "{what}: {error}");
    }
}

#[tokio::test]
async fn a_2xx_counts_however_its_body_ends() {
    for answer in [
        Answer::status(204),
        Answer::Endless,
        Answer::Drip { interval: Duration::from_millis(50) },
        Answer::HalfBody { code: 200 },
        Answer::Status { code: 200, headers: vec![], body: vec![0; 100_000] },
    ] {
        let what = format!("{answer:?}");
        let started = Instant::now();
        let outbox = Outbox::new().await;
        let receiver = Receiver::with_answers([answer], Answer::status(500)).await;
        outbox.endpoint("ci", &receiver.url("/"), "timeout_ms = 400").await;
        outbox.tell("a", "{}").await;
        let worker = outbox.worker();
        outbox.drained().await;
        worker.stop().await;
        assert_eq!(outbox.states().await, [("published".to_owned(), 1)], "{what}");
        let kept = outbox.count("SELECT max(octet_length(response_body))::bigint FROM outbox_attempts").await;
        assert!(kept <= 16 * 1024, "{what}: {kept} bytes kept");
        assert!(started.elapsed() < SOON, "{what} took {:?}", started.elapsed());
    }
}

#[tokio::test]
async fn an_answer_with_nul_bytes_is_recorded() {
    let outbox = Outbox::new().await;
    let body = b"nul \0 and \xff\xfe".to_vec();
    let receiver = Receiver::with_answers(
        [Answer::Status { code: 500, headers: vec![], body: body.clone() }],
        Answer::status(200),
    )
    .await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    outbox.tell("a", "{}").await;
    let worker = outbox.worker();
    outbox.drained().await;
    worker.stop().await;
    let kept = outbox.sql.query_one("SELECT response_body FROM outbox_attempts WHERE attempt = 1", &[]).await.unwrap();
    assert_eq!(kept.get::<_, Vec<u8>>(0), body);
}

#[tokio::test]
async fn redirects_are_never_followed() {
    let outbox = Outbox::new().await;
    let trap = Receiver::accepting().await;
    let url = trap.url("/login");
    let redirects = [301, 302, 303, 307, 308].map(|code| Answer::with_header(code, "Location", &url));
    let receiver = Receiver::with_answers(redirects, Answer::status(200)).await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    outbox.tell("a", "{}").await;
    let worker = outbox.worker();
    outbox.until("SELECT count(*) = 1 FROM outbox_dlq").await;
    outbox.drained().await;
    worker.stop().await;
    assert_eq!((trap.requests().len(), receiver.requests().len()), (0, 5));
    let codes = outbox.sql.query("SELECT status_code FROM outbox_attempts ORDER BY attempt", &[]).await.unwrap();
    assert_eq!(codes.iter().map(|row| row.get::<_, i32>(0)).collect::<Vec<_>>(), [301, 302, 303, 307, 308]);
}

#[tokio::test]
async fn five_refusals_end_in_the_dead_letter_queue_and_the_lane_goes_on() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::start(|r| if r.text() == "bad" { Answer::status(500) } else { Answer::status(200) }).await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    outbox.tell("a", "bad").await;
    outbox.tell("a", "good").await;
    let worker = outbox.worker();
    outbox.drained().await;
    worker.stop().await;
    assert_eq!(outbox.states().await, [("failed".to_owned(), 1), ("published".to_owned(), 1)]);
    let letter = outbox.sql.query_one("SELECT * FROM outbox_dlq", &[]).await.unwrap();
    assert_eq!((letter.get::<_, &str>("reason"), letter.get::<_, i32>("attempts")), ("max_attempts", 5));
    assert_eq!(
        (letter.get::<_, Vec<u8>>("body"), letter.get::<_, Option<i32>>("last_status_code")),
        (b"bad".to_vec(), Some(500))
    );
    assert_eq!(receiver.requests().iter().filter(|r| r.text() == "bad").count(), 5);
}

#[tokio::test]
async fn a_lane_set_to_block_stops_at_its_dead_head() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::start(|r| if r.text() == "bad" { Answer::status(400) } else { Answer::status(200) }).await;
    outbox.endpoint("ci", &receiver.url("/"), "on_dead = 'block'").await;
    outbox.tell("a", "bad").await;
    outbox.tell("a", "good").await;
    outbox.tell("b", "good too").await;
    let worker = outbox.worker();
    outbox.until("SELECT count(*) = 1 FROM outbox_lanes WHERE ready_at = 'infinity'").await;
    outbox.until("SELECT count(*) = 1 FROM outbox_lanes WHERE ready_at IS NOT NULL").await;
    worker.stop().await;
    assert_eq!(receiver.requests().iter().filter(|r| r.text() == "good").count(), 0);
    assert_eq!(
        outbox.states().await,
        [("failed".to_owned(), 1), ("pending".to_owned(), 1), ("published".to_owned(), 1)]
    );
}

#[tokio::test]
async fn an_outage_kills_nothing_and_all_arrives_in_order() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::accepting().await;
    let address = receiver.address();
    outbox.endpoint("ci", &receiver.url("/"), "max_unanswered = 5").await;
    drop(receiver);
    let worker = outbox.worker();
    for n in 0..50 {
        outbox.tell("a", &format!("{n:02}")).await;
    }
    outbox.until("SELECT attempts >= 12 FROM outbox_lanes").await;
    let receiver = Receiver::start_at(address, |_| Answer::status(200)).await;
    outbox.drained().await;
    worker.stop().await;
    let bodies: Vec<String> = receiver.requests().iter().map(|r| r.text().to_owned()).collect();
    assert_eq!(bodies, (0..50).map(|n| format!("{n:02}")).collect::<Vec<_>>());
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_dlq").await, 0);
}

#[tokio::test]
async fn the_textbook_rule_counts_every_silence() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::start(|_| Answer::Close).await;
    outbox.endpoint("ci", &receiver.url("/"), "max_unanswered = 5, count_every_silence = true").await;
    outbox.tell("a", "{}").await;
    let worker = outbox.worker();
    outbox.drained().await;
    worker.stop().await;
    let letter = outbox.sql.query_one("SELECT reason, attempts FROM outbox_dlq", &[]).await.unwrap();
    assert_eq!((letter.get::<_, &str>(0), letter.get::<_, i32>(1)), ("max_unanswered", 5));
}

#[tokio::test]
async fn silence_counts_where_others_get_through() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::start(|r| if r.text() == "bad" { Answer::Close } else { Answer::status(200) }).await;
    outbox.endpoint("ci", &receiver.url("/"), "max_unanswered = 2, retry_max_delay_ms = 1200").await;
    outbox.tell("bad lane", "bad").await;
    let worker = outbox.worker();
    surehook_testkit::eventually(SOON, async || {
        outbox.tell("good lane", "good").await;
        (outbox.count("SELECT count(*) FROM outbox_dlq WHERE reason = 'max_unanswered'").await == 1).then_some(())
    })
    .await;
    worker.stop().await;
}

#[tokio::test]
async fn gone_pauses_the_endpoint_and_keeps_what_waits() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::with_answers([Answer::status(410)], Answer::status(200)).await;
    let id = outbox.endpoint("ci", &receiver.url("/"), "").await;
    outbox.tell("a", "1").await;
    outbox.tell("a", "2").await;
    let worker = outbox.worker();
    outbox.until("SELECT state = 'paused' FROM endpoints").await;
    assert_eq!(outbox.pending().await, 2);
    outbox.sql.execute("UPDATE endpoints SET state = 'active' WHERE endpoint_id = $1", &[&id]).await.unwrap();
    outbox.drained().await;
    worker.stop().await;
    assert_eq!(
        receiver.requests().iter().map(surehook_testkit::receiver::Request::text).collect::<Vec<_>>(),
        ["1", "1", "2"]
    );
}

#[tokio::test]
async fn conflict_means_seen() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::start(|_| Answer::status(409)).await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    outbox.tell("a", "{}").await;
    let worker = outbox.worker();
    outbox.drained().await;
    worker.stop().await;
    assert_eq!(outbox.states().await, [("published".to_owned(), 1)]);
    assert_eq!(
        outbox.count("SELECT count(*) FROM outbox_attempts WHERE outcome = 'conflict' AND status_code = 409").await,
        1
    );
}

#[tokio::test]
async fn one_dead_endpoint_starves_no_other_and_leaves_no_open_transaction() {
    let outbox = Outbox::new().await;
    let hole = Receiver::start(|_| Answer::Hang).await;
    let receiver = Receiver::accepting().await;
    outbox.endpoint("hole", &hole.url("/"), "timeout_ms = 60000, event_types = '{Swallowed}'").await;
    outbox.endpoint("healthy", &receiver.url("/"), "event_types = '{Happened}'").await;
    outbox
        .sql
        .execute("SELECT count(*) FROM (SELECT outbox_enqueue('Swallowed', 'key-' || i, 'x') FROM generate_series(1, 10000) AS i) AS e", &[])
        .await
        .unwrap();
    let worker = outbox.worker_with(WorkerSettings { grace: Duration::ZERO, ..settings() });
    hole.wait_for(8).await;
    for n in 0..10 {
        outbox.tell("a", &n.to_string()).await;
    }
    receiver.wait_for(10).await;
    outbox.until("SELECT count(*) = 10 FROM outbox_status WHERE status = 'published'").await;
    assert_eq!(hole.requests().len(), 8, "the hole has its own share and no more");
    // Looked at for a while: at no moment is a transaction open and idle for longer than an instant.
    for _ in 0..20 {
        let open = outbox
            .count(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
                    AND state LIKE 'idle in transaction%' AND clock_timestamp() - state_change > interval '1 second'",
            )
            .await;
        assert_eq!(open, 0);
    }
    worker.stop().await;
    let charged = outbox.count("SELECT count(*) FROM outbox_attempts WHERE outcome <> 'success'").await;
    assert_eq!(charged, 0, "what was abandoned at the stop is charged to nobody");
    outbox.until("SELECT count(*) = 0 FROM outbox_lanes WHERE owner IS NOT NULL").await;
}

#[tokio::test]
async fn what_cannot_be_sent_ends_in_the_dead_letter_queue_and_stops_nothing_else() {
    for (settings, words) in [
        ("url = 'http://'", "URL"),
        ("url = 'http://exa mple/'", "URL"),
        ("url = 'http://[::1/'", "URL"),
        (r#"headers = '{"bad name": "x"}'"#, "header name"),
        (r#"headers = '{"x-y": "a\nb"}'"#, "value of header"),
        ("secret = 'é'", "secret"),
    ] {
        let outbox = Outbox::new().await;
        let receiver = Receiver::accepting().await;
        outbox.endpoint("bad", "http://127.0.0.1:9/", settings).await;
        outbox.endpoint("good", &receiver.url("/"), "").await;
        outbox.tell("a", "{}").await;
        let worker = outbox.worker();
        outbox.drained().await;
        worker.stop().await;
        assert_eq!(receiver.requests().len(), 1, "{settings}");
        let letter = outbox.sql.query_one("SELECT last_error FROM outbox_dlq", &[]).await.unwrap();
        assert!(letter.get::<_, &str>(0).contains(words), "{settings}: {}", letter.get::<_, &str>(0));
    }
}

#[tokio::test]
async fn private_addresses_are_refused_at_connect_time_and_kept() {
    for host in [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0x7f.1",
        "127.1",
        "100.64.0.1",
        "0.0.0.0",
        "169.254.169.254",
        "10.0.0.1",
    ] {
        let outbox = Outbox::new().await;
        let receiver = Receiver::accepting().await;
        let url = format!("http://{host}:{}/", receiver.address().port());
        outbox.endpoint("ci", &url, "allow_private = false").await;
        outbox.tell("a", "{}").await;
        let worker = outbox.worker();
        outbox.until("SELECT count(*) >= 1 FROM outbox_attempts").await;
        worker.stop().await;
        let row = outbox.sql.query_one("SELECT last_error, status FROM outbox_status", &[]).await.unwrap();
        assert!(row.get::<_, &str>(0).contains("not a public address"), "{host}: {}", row.get::<_, &str>(0));
        assert_eq!((row.get::<_, &str>(1), receiver.connections()), ("pending", 0), "{host}");
    }
}

#[tokio::test]
async fn a_name_that_cannot_be_looked_up_is_retried() {
    let outbox = Outbox::new().await;
    outbox.endpoint("ci", "http://no-such-host.invalid/", "").await;
    outbox.tell("a", "{}").await;
    let worker = outbox.worker();
    outbox
        .until("SELECT count(*) >= 2 FROM outbox_attempts WHERE outcome = 'unanswered' AND error LIKE '%looked up%'")
        .await;
    worker.stop().await;
    assert_eq!(outbox.pending().await, 1);
}

#[tokio::test]
async fn a_lost_row_is_buried_and_the_lane_goes_on() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::accepting().await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    for body in ["one", "two", "three"] {
        outbox.tell("a", body).await;
    }
    outbox.sql.execute("DELETE FROM outbox_deliveries WHERE seq = 1", &[]).await.unwrap();
    outbox.sql.execute("DELETE FROM outbox_events WHERE payload = 'two'", &[]).await.unwrap();
    let worker = outbox.worker();
    outbox.drained().await;
    worker.stop().await;
    assert_eq!(
        receiver.requests().iter().map(surehook_testkit::receiver::Request::text).collect::<Vec<_>>(),
        ["three"]
    );
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_dlq WHERE reason = 'row_missing'").await, 2);
}
