//! Claims take exactly what they may; dead workers are taken over; a stop loses and charges nothing.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests speak SQL directly, and panic where they cannot go on"
)]

mod common;

use std::collections::HashSet;
use std::time::Duration;

use common::{Outbox, SOON, is_pooled, settings};
use surehook_outbox::WorkerSettings;
use surehook_outbox::store::claim::{self, Quota, Reading};
use surehook_outbox::store::record::{Batch, LaneState, Release, record};
use surehook_outbox::store::workers;
use surehook_testkit::receiver::{Answer, Receiver};
use uuid::Uuid;

impl Outbox {
    async fn fill(&self, lanes: i32) {
        let sql = "SELECT count(*) FROM (SELECT outbox_enqueue('Happened', 'key-' || i, '{}') FROM generate_series(1, $1::integer) AS i) AS e";
        self.sql.execute(sql, &[&lanes]).await.unwrap();
    }
}

impl Outbox {
    /// A claim of so many lanes, of whatever is due.
    async fn quota(&self, endpoint_id: Uuid, lanes: usize) -> Quota {
        let sql = "SELECT updated_at FROM endpoints WHERE endpoint_id = $1";
        let version = self.sql.query_one(sql, &[&endpoint_id]).await.unwrap().get(0);
        Quota { endpoint_id, version, lanes, after: jiff::Timestamp::UNIX_EPOCH }
    }
}

const READING: Reading = Reading { deliveries_max: 20, not_before: jiff::Timestamp::UNIX_EPOCH, only_native: false };

#[tokio::test]
async fn a_claim_takes_exactly_its_quota_under_a_forced_plan() {
    let outbox = Outbox::new().await;
    let endpoint = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    outbox.fill(1000).await;
    let session = outbox.database.session().await.unwrap();
    for off in ["hashjoin", "mergejoin", "hashagg", "sort", "bitmapscan"] {
        session.batch_execute(&format!("SET enable_{off} = off")).await.unwrap();
    }
    let mut seen = HashSet::new();
    for _ in 0..20 {
        let claimed =
            claim::claim(&session, Uuid::new_v4(), &[outbox.quota(endpoint, 10).await], READING).await.unwrap();
        assert_eq!(claimed.len(), 10);
        assert!(claimed.iter().all(|lane| seen.insert(lane.lane_id)), "no lane is claimed twice");
    }
}

#[tokio::test]
async fn eight_claimers_never_take_the_same_lane() {
    let outbox = Outbox::new().await;
    let endpoint = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    outbox.fill(1000).await;
    let claimers = (0..8).map(|_| async {
        let (worker, session) = (Uuid::new_v4(), outbox.database.session().await.unwrap());
        let mut lanes = Vec::new();
        loop {
            let claimed = claim::claim(&session, worker, &[outbox.quota(endpoint, 7).await], READING).await.unwrap();
            if claimed.is_empty() {
                return lanes;
            }
            assert!(claimed.len() <= 7);
            lanes.extend(claimed.iter().map(|lane| lane.lane_id));
        }
    });
    let all: Vec<i64> = futures_util::future::join_all(claimers).await.concat();
    assert_eq!((all.len(), all.iter().collect::<HashSet<_>>().len()), (1000, 1000));
}

#[tokio::test]
async fn hot_statements_use_their_indexes() {
    let outbox = Outbox::new().await;
    let endpoint = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    outbox.fill(5000).await;
    outbox.sql.batch_execute("VACUUM ANALYZE outbox_lanes, outbox_deliveries, outbox_events, endpoints").await.unwrap();
    let week: String =
        outbox.sql.query_one("SELECT to_char(now() AT TIME ZONE 'UTC', 'IYYY\"w\"IW')", &[]).await.unwrap().get(0);
    let plans = [
        format!("SELECT lane_id FROM outbox_lanes WHERE endpoint_id = '{endpoint}' AND ready_at <= statement_timestamp() ORDER BY ready_at LIMIT 8 FOR UPDATE SKIP LOCKED"),
        "SELECT * FROM outbox_deliveries WHERE lane_id = 77 AND seq > 0 AND seq <= 20 AND created_at >= now() - interval '1 day'".to_owned(),
        "SELECT * FROM outbox_deliveries WHERE delivery_id = '00000000-0000-0000-0000-000000000001'".to_owned(),
        format!("SELECT 1 FROM outbox_lanes WHERE endpoint_id = '{endpoint}' AND ordering_key = 'key-9'"),
        "SELECT endpoint_id FROM outbox_lanes WHERE ready_at IS NOT NULL ORDER BY endpoint_id LIMIT 1".to_owned(),
    ];
    for sql in plans {
        let rows = outbox.sql.query(&format!("EXPLAIN {sql}"), &[]).await.unwrap();
        let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        // The other weeks are empty, where a scan is right.
        let filled = [" on outbox_lanes".to_owned(), format!(" on outbox_deliveries_{week} ")];
        let scanned = plan
            .iter()
            .any(|line| line.contains("Seq Scan") && filled.iter().any(|table| format!("{line} ").contains(table)));
        assert!(!scanned, "{sql}\n{}", plan.join("\n"));
    }
}

#[tokio::test]
async fn what_a_worker_says_under_an_old_claim_is_discarded() {
    let outbox = Outbox::new().await;
    let endpoint = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    outbox.fill(1).await;
    let mut session = outbox.database.session().await.unwrap();
    let worker = Uuid::new_v4();
    let lane = claim::claim(&session, worker, &[outbox.quota(endpoint, 1).await], READING).await.unwrap().remove(0);
    let say = |epoch| Batch {
        lanes: vec![LaneState {
            lane_id: lane.lane_id,
            epoch,
            done_seq: 1,
            head: Default::default(),
            first_tried_at: None,
            last_error: None,
            release: Some(Release::Now),
            lease: Duration::ZERO,
        }],
        ..Batch::default()
    };
    for (who, epoch) in [(worker, lane.epoch - 1), (worker, lane.epoch + 1), (Uuid::new_v4(), lane.epoch)] {
        let recorded = record(&mut session, who, &say(epoch)).await.unwrap();
        assert_eq!((recorded.done.len(), recorded.lost.len()), (0, 1));
    }
    assert_eq!(outbox.pending().await, 1);
    let done = record(&mut session, worker, &say(lane.epoch)).await.unwrap().done;
    assert_eq!(done.iter().map(|written| written.lane_id).collect::<Vec<_>>(), [lane.lane_id]);
    let again = record(&mut session, worker, &say(lane.epoch)).await.unwrap();
    assert_eq!(
        (again.done.len(), again.ended, again.lost),
        (0, vec![lane.lane_id], vec![]),
        "saying it twice changes nothing"
    );
    assert_eq!(outbox.pending().await, 0);
}

#[tokio::test]
async fn the_lanes_of_a_worker_that_vanished_are_taken_over() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::accepting().await;
    let endpoint = outbox.endpoint("ci", &receiver.url("/"), "timeout_ms = 60000").await;
    outbox.fill(20).await;
    let dead = Uuid::new_v4();
    let session = outbox.database.session().await.unwrap();
    workers::beat(&session, dead, "one that vanishes", None).await.unwrap();
    assert_eq!(claim::claim(&session, dead, &[outbox.quota(endpoint, 20).await], READING).await.unwrap().len(), 20);
    let worker = outbox.worker();
    outbox.drained().await;
    worker.stop().await;
    assert_eq!(receiver.requests().len(), 20);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_workers").await, 0);
}

#[tokio::test]
async fn three_vanished_workers_bury_a_head_and_spare_its_neighbours() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::accepting().await;
    let endpoint = outbox.endpoint("ci", &receiver.url("/"), "").await;
    for body in ["poison", "innocent", "harmless"] {
        outbox.tell_quietly("a", body.as_bytes()).await;
    }
    let session = outbox.database.session().await.unwrap();
    for crash in 0..3 {
        let claimed = if crash < 2 {
            claim::claim(&session, Uuid::new_v4(), &[outbox.quota(endpoint, 1).await], READING).await.unwrap().pop()
        } else {
            assert!(
                claim::claim(&session, Uuid::new_v4(), &[outbox.quota(endpoint, 1).await], READING)
                    .await
                    .unwrap()
                    .is_empty()
            );
            let Quota { version, after, .. } = outbox.quota(endpoint, 1).await;
            claim::claim_suspect(&session, Uuid::new_v4(), endpoint, version, after).await.unwrap()
        };
        let count = if crash == 0 { 3 } else { 1 };
        assert_eq!(claimed.unwrap().deliveries.len(), count, "after a crash one delivery at a time");
        outbox.sql.execute("UPDATE outbox_lanes SET ready_at = now(), leased_until = now()", &[]).await.unwrap();
    }
    let worker = outbox.worker();
    outbox.drained().await;
    worker.stop().await;
    assert_eq!(
        receiver.requests().iter().map(surehook_testkit::receiver::Request::text).collect::<Vec<_>>(),
        ["innocent", "harmless"]
    );
    assert_eq!(
        outbox.count("SELECT count(*) FROM outbox_dlq WHERE reason = 'crashed_worker' AND body = 'poison'").await,
        1
    );
}

#[tokio::test]
async fn a_stop_in_the_middle_loses_nothing_and_charges_nothing() {
    for _ in 0..5 {
        let outbox = Outbox::new().await;
        let receiver = Receiver::start(|r| match r.path.as_str() {
            "/fast" => Answer::status(200).after(Duration::from_millis(100)),
            _ => Answer::Hang,
        })
        .await;
        outbox.endpoint("fast", &receiver.url("/fast"), "in_flight_max = 10, timeout_ms = 60000").await;
        outbox.endpoint("never", &receiver.url("/never"), "in_flight_max = 10, timeout_ms = 60000").await;
        outbox.fill(10).await;
        let worker =
            outbox.worker_with(WorkerSettings { grace: Duration::from_secs(2), window_start: 10, ..settings() });
        receiver.wait_for(20).await;
        tokio::join!(worker.stop(), worker.stop());
        let count = async |sql: &str| outbox.count(sql).await;
        assert_eq!(
            count("SELECT count(*) FROM outbox_status WHERE status = 'published' AND endpoint_name = 'fast'").await,
            10
        );
        assert_eq!(count("SELECT count(*) FROM outbox_status WHERE status = 'pending' AND attempts = 0 AND endpoint_name = 'never'").await, 10);
        assert_eq!(count("SELECT count(*) FROM outbox_lanes WHERE owner IS NOT NULL OR attempts > 0").await, 0);
        assert_eq!(count("SELECT count(*) FROM outbox_lanes WHERE ready_at <= now()").await, 10, "and due at once");
        outbox.database.close().await;
        surehook_testkit::eventually(SOON, async || {
            // A pooler keeps its sessions, but no transaction is open in them.
            let kept = if is_pooled() { "idle" } else { "none" };
            let ours = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outbox-test' AND state <> '{kept}'");
            (outbox.count(&ours).await == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn work_goes_on_after_the_database_was_away() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::accepting().await;
    outbox.endpoint("ci", &receiver.url("/"), "").await;
    let worker = outbox.worker();
    for round in 0..5 {
        for n in 0..10 {
            let sql = "SELECT outbox_enqueue('Happened', $1, $2)";
            outbox.sql.execute(sql, &[&format!("key-{n}"), &format!("{round}").into_bytes()]).await.unwrap();
            outbox.wake.wake();
        }
        // Every session of ours is cut, whatever it is doing at that moment.
        let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE datname = current_database() AND application_name = 'outbox-test'";
        outbox.count(cut).await;
        surehook_testkit::eventually(SOON, async || {
            outbox.database.session().await.ok()?.batch_execute("SELECT 1").await.ok()
        })
        .await;
    }
    outbox.drained().await;
    worker.stop().await;
    let ids: HashSet<String> =
        receiver.requests().iter().map(|r| r.header("x-webhook-id").unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 50);
    assert_eq!(outbox.states().await, [("published".to_owned(), 50)]);
}
