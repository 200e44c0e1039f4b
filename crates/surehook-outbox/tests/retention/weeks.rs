//! Which weeks go and which stay.

use std::time::{Duration, Instant};

use surehook_outbox::Database;
use surehook_outbox::store::operate::{DeliveryFilter, DeliveryStatus, list_deliveries};
use uuid::Uuid;

use crate::aged::Made;
use crate::common::Outbox;

#[tokio::test]
async fn of_every_state_only_what_has_ended_goes() {
    let outbox = Outbox::new().await;
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    let staying = [Made::Pending, Made::Retrying, Made::InFlight, Made::Blocked, Made::Dead, Made::Replaying];
    let going = [Made::Published, Made::Skipped, Made::Cancelled, Made::Settled];
    let mut kept: Vec<(i32, Uuid, String)> = Vec::new();
    for (ago, made) in (52..).zip(staying) {
        for made in [made, Made::Published] {
            let delivery = outbox.made(ci, made, ago).await;
            kept.push((ago, delivery, outbox.status_of(delivery).await.unwrap()));
        }
    }
    let mut gone = Vec::new();
    for (ago, made) in (62..).zip(going) {
        gone.push(outbox.made(ci, made, ago).await);
    }
    let lately = outbox.made(ci, Made::Published, 2).await;
    let before = outbox.count("SELECT count(*) FROM outbox_attempts").await;
    assert!(outbox.lag_s().await > 300.0 * 86_400.0);

    let turn = outbox.turn().await;
    assert_eq!((turn.dropped.len(), turn.busy.len(), turn.pinned), (16, 0, 6), "{turn:?}");
    let mut weeks: Vec<i32> = kept.iter().map(|(ago, ..)| *ago).collect();
    weeks.dedup();
    assert_eq!(outbox.weeks().await, [&[2], &weeks[..]].concat());
    for (_, delivery, status) in &kept {
        assert_eq!(outbox.status_of(*delivery).await.as_ref(), Some(status), "shown as before");
    }
    for delivery in gone {
        assert_eq!(outbox.status_of(delivery).await, None);
    }
    assert_eq!(outbox.status_of(lately).await.as_deref(), Some("published"));
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_attempts").await, before - 3);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_dlq WHERE state = 'delivered'").await, 0);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_dlq").await, 3, "dead letters that nobody settled stay");
    let mut pins = outbox.pins().await;
    pins.sort();
    assert_eq!(
        pins,
        [["dead_letter ci"; 3].as_slice(), ["undelivered ci"; 5].as_slice()].concat(),
        "a blocked head and a replay are both"
    );
    assert_eq!(outbox.lag_s().await, 0.0, "what is held is not late");
    assert_eq!(outbox.turn().await.dropped, Vec::<String>::new(), "a second turn finds nothing more");
}

#[tokio::test]
async fn what_was_held_goes_when_it_has_been_settled_for_long_enough() {
    let outbox = Outbox::new().await;
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    let pending = outbox.made(ci, Made::Pending, 20).await;
    outbox.turn().await;
    assert_eq!(outbox.weeks().await, [20]);
    // It arrives now, after months: who looks for it still finds it.
    outbox
        .sql
        .batch_execute(
            "INSERT INTO outbox_attempts (lane_id, seq, attempt, delivery_id, outcome, ends, started_at, duration_ms, created_at)
             SELECT lane_id, seq, 1, delivery_id, 'success', 'published', now(), 3, now() FROM outbox_deliveries;
             UPDATE outbox_lanes SET done_seq = last_seq, ready_at = NULL, updated_at = now()",
        )
        .await
        .unwrap();
    outbox.turn().await;
    assert_eq!((outbox.weeks().await, outbox.pins().await), (vec![20], vec!["ended_lately ci".to_owned()]));
    assert_eq!(outbox.status_of(pending).await.as_deref(), Some("published"));
    // A month later.
    outbox
        .sql
        .batch_execute(
            "UPDATE outbox_attempts SET created_at = now() - interval '8 days';
             UPDATE outbox_lanes SET updated_at = now() - interval '31 days'",
        )
        .await
        .unwrap();
    outbox.turn().await;
    assert_eq!((outbox.weeks().await, outbox.pins().await), (vec![], vec![]));
    assert_eq!(outbox.status_of(pending).await, None);
}

#[tokio::test]
async fn attempts_stay_as_long_as_the_deliveries_that_they_ended() {
    let outbox = Outbox::new().await;
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    let other = outbox.endpoint("other", "http://127.0.0.1:9/", "aggregate_id = 'nothing'").await;
    outbox.made(ci, Made::Dead, 20).await;
    let published = outbox.made(ci, Made::Published, 20).await;
    for ago in [18, 19] {
        outbox.made(ci, Made::Published, ago).await;
    }
    let week_later = "UPDATE outbox_attempts SET created_at = created_at + interval '7 days' WHERE delivery_id = $1";
    outbox.sql.execute(week_later, &[&published]).await.unwrap();
    outbox.turn().await;
    assert_eq!(outbox.weeks_of("outbox_deliveries").await, [20]);
    assert_eq!(outbox.weeks_of("outbox_attempts").await, [19, 20], "how it ended is told by the week after");
    assert_eq!(outbox.status_of(published).await.as_deref(), Some("published"));
    assert_eq!(outbox.pins().await, ["older_week ci", "dead_letter ci"][..].iter().rev().copied().collect::<Vec<_>>());
    // The dead letter of an endpoint that is gone cannot be sent again; it lives by its own copy.
    let removed = "UPDATE endpoints SET state = 'removed' WHERE endpoint_id <> $1";
    outbox.sql.execute(removed, &[&other]).await.unwrap();
    outbox.turn().await;
    assert_eq!(outbox.weeks().await, Vec::<i32>::new());
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_dlq WHERE state = 'dead'").await, 1);
}

#[tokio::test]
async fn an_old_event_stays_while_a_new_delivery_tells_it() {
    let outbox = Outbox::new().await;
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    outbox.made(ci, Made::Published, 20).await;
    let appended = "
        INSERT INTO outbox_deliveries (lane_id, seq, delivery_id, event_id, event_created_at, webhook_name, aggregate_id, created_at)
        SELECT lane_id, 2, gen_random_uuid(), event_id, event_created_at, webhook_name, aggregate_id, now() FROM outbox_deliveries;
        UPDATE outbox_lanes SET last_seq = 2, ready_at = now()";
    outbox.sql.batch_execute(appended).await.unwrap();
    outbox.turn().await;
    assert_eq!((outbox.weeks().await, outbox.pins().await), (vec![20], vec!["undelivered ci".to_owned()]));
    outbox.sql.batch_execute("UPDATE outbox_lanes SET done_seq = 2, ready_at = NULL").await.unwrap();
    outbox.turn().await;
    assert_eq!(outbox.weeks().await, Vec::<i32>::new());
}

/// A week with so many deliveries, all published, in as many lanes as that takes at `per_lane` each.
async fn fill(outbox: &Outbox, ago: i32, lanes: i32, per_lane: i32) {
    outbox.week(ago).await;
    let sql = format!(
        "DO $$
         DECLARE at timestamptz := (date_trunc('week', now() AT TIME ZONE 'UTC') - {ago} * interval '7 days' + interval '3 days') AT TIME ZONE 'UTC';
                 ci uuid := (SELECT endpoint_id FROM endpoints LIMIT 1);
         BEGIN
             INSERT INTO outbox_lanes (endpoint_id, ordering_key, last_seq, done_seq, updated_at)
             SELECT ci, 'week {ago} lane ' || n, {per_lane}, {per_lane}, at FROM generate_series(1, {lanes}) AS n;
             INSERT INTO outbox_deliveries (lane_id, seq, delivery_id, event_id, event_created_at, webhook_name, aggregate_id, created_at)
             SELECT lane_id, seq, gen_random_uuid(), gen_random_uuid(), at, 'Happened', 'a', at
               FROM outbox_lanes, generate_series(1, {per_lane}) AS seq WHERE starts_with(ordering_key, 'week {ago} ');
             INSERT INTO outbox_events (event_id, event_type, aggregate_id, aggregate_name, ordering_key, payload, created_at)
             SELECT event_id, 'Happened', 'a', 'a', 'a', decode(repeat('ab', 40), 'hex'), at FROM outbox_deliveries WHERE created_at = at;
             INSERT INTO outbox_attempts (lane_id, seq, attempt, delivery_id, outcome, ends, started_at, duration_ms, created_at)
             SELECT lane_id, seq, 1, delivery_id, 'success', 'published', at, 3, at FROM outbox_deliveries WHERE created_at = at;
         END $$"
    );
    outbox.sql.batch_execute(&sql).await.unwrap();
    outbox.sql.batch_execute("VACUUM ANALYZE").await.unwrap();
}

/// Rows read so far by scans of whole partitions. Sessions report what they did when they end, so nobody else may be left.
async fn rows_scanned(outbox: &Outbox) -> i64 {
    outbox.until("SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outbox-test'").await;
    outbox.sql.batch_execute("SELECT pg_stat_force_next_flush()").await.unwrap();
    outbox
        .count("SELECT coalesce(sum(seq_tup_read), 0)::bigint FROM pg_stat_user_tables WHERE relname ~ '^outbox_(deliveries|attempts|events)_'")
        .await
}

#[tokio::test]
async fn a_week_is_judged_without_being_read() {
    let outbox = Outbox::new().await;
    outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    for ago in [10, 11, 12] {
        fill(&outbox, ago, 300, 40).await;
    }
    // One is held; and lanes that were used lately make every question be asked.
    outbox.sql.batch_execute("UPDATE outbox_lanes SET updated_at = now(); UPDATE outbox_lanes SET done_seq = 39, ready_at = now() WHERE ordering_key = 'week 11 lane 7'").await.unwrap();
    outbox.database.close().await;
    let before = rows_scanned(&outbox).await;
    let database = Database::connect(outbox.test_database.url(), "outbox-test", 2).unwrap();
    let turn = crate::aged::turn(&database).await.unwrap();
    assert_eq!((turn.pinned, turn.dropped.len()), (1, 8), "{turn:?}");
    database.close().await;
    let read = rows_scanned(&outbox).await - before;
    assert!(read < 1_000, "{read} rows of 36,000 were read by scans");
}

#[tokio::test]
async fn what_was_skipped_is_listed_without_reading_what_was_not() {
    let outbox = Outbox::new().await;
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    fill(&outbox, 10, 300, 40).await;
    let skipped = outbox.made(ci, Made::Skipped, 1).await;
    outbox.database.close().await;
    let before = rows_scanned(&outbox).await;
    let database = Database::connect(outbox.test_database.url(), "outbox-test", 2).unwrap();
    let filter = DeliveryFilter { status: Some(DeliveryStatus::Skipped), limit: 100, ..DeliveryFilter::default() };
    let listed = list_deliveries(&database, &filter).await.unwrap();
    assert_eq!(listed.iter().map(|delivery| delivery.delivery_id).collect::<Vec<_>>(), [skipped]);
    database.close().await;
    let read = rows_scanned(&outbox).await - before;
    assert!(read < 1_000, "{read} rows of 12,000 were read by scans");
}

/// Five million deliveries of five weeks, and claims beside the removal. `cargo test … -- --ignored` (about three minutes).
#[tokio::test]
#[ignore = "long"]
async fn five_million_go_while_claims_stay_quick() {
    let outbox = Outbox::new().await;
    let receiver = surehook_testkit::receiver::Receiver::accepting().await;
    outbox.endpoint("ci", &receiver.url("/"), "in_flight_max = 64").await;
    for ago in 10..15 {
        fill(&outbox, ago, 20_000, 50).await;
    }
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_deliveries").await, 5_000_000);
    let worker = outbox.worker();
    let quiet = latencies(&outbox, Duration::from_secs(20)).await;
    let started = Instant::now();
    let (turn, busy) = tokio::join!(outbox.turn(), latencies(&outbox, Duration::from_secs(20)));
    println!(
        "quiet p50 {:?} p99 {:?} max {:?}; beside the removal p50 {:?} p99 {:?} max {:?}; removed within {:?}",
        quiet[quiet.len() / 2],
        quiet[quiet.len() * 99 / 100],
        quiet[quiet.len() - 1],
        busy[busy.len() / 2],
        busy[busy.len() * 99 / 100],
        busy[busy.len() - 1],
        started.elapsed()
    );
    worker.stop().await;
    assert_eq!((turn.dropped.len(), turn.rows), (20, 100_000));
    assert!(busy[busy.len() - 1] < Duration::from_secs(1), "nobody waits long");
}

/// From telling an event to its end, again and again, sorted.
async fn latencies(outbox: &Outbox, lasting: Duration) -> Vec<Duration> {
    let started = Instant::now();
    let mut all = Vec::new();
    while started.elapsed() < lasting {
        let told = Instant::now();
        outbox.tell("latency", "{}").await;
        outbox.drained().await;
        all.push(told.elapsed());
    }
    all.sort();
    all
}
