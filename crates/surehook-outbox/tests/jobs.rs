//! Jobs: replays of many dead letters, worked on step by step by one process or several.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests speak SQL directly")]

mod common;

use std::collections::BTreeMap;

use common::{Outbox, SOON};
use jiff::Timestamp;
use surehook_outbox::jobs::{self, JobSettings};
use surehook_outbox::store::jobs::{
    Job, JobState, NewReplay, OnJob, Stepped, cancel, create_replay, find, list, resume, step,
};
use surehook_outbox::store::operate::{DeadLetterFilter, DeadLetterReason, HowToReplay, Replayed, replay};
use surehook_testkit::receiver::{Answer, Receiver};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// What stands before the first blank.
fn subject_of(payload: &[u8]) -> Option<String> {
    String::from_utf8(payload.to_vec()).ok()?.split_once(' ').map(|(subject, _)| subject.to_owned())
}

const ALL: DeadLetterFilter = DeadLetterFilter {
    state: None,
    endpoint_id: None,
    aggregate_id: None,
    reason: None,
    since: None,
    until: None,
    limit: 0,
};

fn of(filter: DeadLetterFilter) -> NewReplay {
    NewReplay { filter, anyway: false, new_ids: false, rate: 100_000 }
}

/// The heads of all lanes die, one after another, until nothing is pending.
async fn everything_dies(outbox: &Outbox) {
    for statement in [
        "INSERT INTO outbox_attempts (lane_id, seq, attempt, delivery_id, outcome, ends, status_code, started_at, duration_ms, created_at)
         SELECT d.lane_id, d.seq, 5, d.delivery_id, 'strike', 'failed', 500, now(), 1, clock_timestamp()
           FROM outbox_deliveries AS d JOIN outbox_lanes AS l ON l.lane_id = d.lane_id AND d.seq > l.done_seq",
        "INSERT INTO outbox_dlq (delivery_id, endpoint_id, endpoint_name, url, ordering_key, event_id, event_type, aggregate_id, aggregate_name,
                webhook_name, format, headers, body, reason, attempts, last_status_code, lane_id, seq, event_created_at, failed_at, updated_at)
         SELECT d.delivery_id, l.endpoint_id, p.name, p.url, l.ordering_key, d.event_id, e.event_type, e.aggregate_id, e.aggregate_name,
                d.webhook_name, 'native', '{}', e.payload, 'max_attempts', 5, 500, l.lane_id, d.seq, e.created_at, now(), now()
           FROM outbox_deliveries AS d JOIN outbox_lanes AS l ON l.lane_id = d.lane_id AND d.seq > l.done_seq
           JOIN outbox_events AS e ON e.event_id = d.event_id JOIN endpoints AS p ON p.endpoint_id = l.endpoint_id
         ON CONFLICT (delivery_id) DO UPDATE SET state = 'dead', seq = excluded.seq, failed_at = clock_timestamp()",
        "UPDATE outbox_lanes SET done_seq = last_seq, ready_at = NULL WHERE ready_at IS NOT NULL",
    ] {
        outbox.sql.execute(statement, &[]).await.unwrap();
    }
}

/// `lanes` × `each` dead letters of one endpoint, each about something else.
async fn dead_letters(outbox: &Outbox, url: &str, lanes: usize, each: usize) -> Uuid {
    let endpoint = outbox.endpoint("ci", url, "").await;
    for n in 0..each {
        for lane in 0..lanes {
            outbox.tell_quietly(&format!("repo-{lane}"), format!("subject-{lane}-{n} {n}").as_bytes()).await;
        }
    }
    everything_dies(outbox).await;
    endpoint
}

async fn one_step(outbox: &Outbox, job: &Job) -> Stepped {
    step(&outbox.database, Some(job.job_id), subject_of, "test").await.unwrap()
}

/// Works on a job until it has ended, and says how it stands.
async fn work_to_the_end(outbox: &Outbox, job: &Job) -> Job {
    loop {
        match one_step(outbox, job).await {
            Stepped::Did { ended: true, .. } => break,
            Stepped::Did { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    now(outbox, job).await
}

async fn now(outbox: &Outbox, job: &Job) -> Job {
    find(&outbox.database, job.job_id).await.unwrap().unwrap()
}

fn service(outbox: &Outbox, node: &str) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let stop = CancellationToken::new();
    let settings = JobSettings { subject_of, node: node.into(), observer: None };
    let running = jobs::run(outbox.database.clone(), outbox.wake.clone(), settings, stop.clone());
    (stop, tokio::spawn(running))
}

#[tokio::test]
async fn two_nodes_replay_each_letter_once_and_in_its_order() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::with_answers([], Answer::status(200)).await;
    dead_letters(&outbox, &receiver.url("/"), 5, 40).await;
    let job = create_replay(&outbox.database, &of(ALL)).await.unwrap();
    assert_eq!((job.items_total, job.state), (200, JobState::Running));
    let worker = outbox.worker();
    let nodes = [service(&outbox, "one"), service(&outbox, "two")];
    outbox.until("SELECT state = 'done' FROM outbox_jobs").await;
    outbox.drained().await;
    for (stop, running) in nodes {
        stop.cancel();
        running.await.unwrap();
    }
    worker.stop().await;

    let job = now(&outbox, &job).await;
    assert_eq!((job.items_done, job.items_skipped(), job.failures), (200, 0, 0));
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_dlq WHERE state = 'delivered' AND replays = 1").await, 200);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_deliveries WHERE replay").await, 200);
    let mut arrived: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for request in receiver.requests() {
        let text = String::from_utf8(request.body.to_vec()).unwrap();
        let (subject, n) = text.split_once(' ').unwrap();
        let lane = subject.rsplit_once('-').unwrap().0.to_owned();
        arrived.entry(lane).or_default().push(n.parse().unwrap());
    }
    assert_eq!(arrived.len(), 5);
    for (lane, numbers) in arrived {
        assert_eq!(numbers, (0..40).collect::<Vec<_>>(), "{lane}");
    }
}

#[tokio::test]
async fn a_step_that_is_cut_off_leaves_nothing_behind_and_is_done_by_another() {
    let outbox = Outbox::new().await;
    dead_letters(&outbox, "http://127.0.0.1:9/", 1, 3).await;
    let job = create_replay(&outbox.database, &of(ALL)).await.unwrap();
    assert!(matches!(one_step(&outbox, &job).await, Stepped::Did { done: 1, ended: false, .. }));
    // The next step waits for the lane, which somebody else holds; its session is then cut off, as by a kill.
    let other = outbox.test_database.client().await;
    other.batch_execute("BEGIN; SELECT FROM outbox_lanes FOR UPDATE").await.unwrap();
    let database = outbox.database.clone();
    let stuck = tokio::spawn(async move { step(&database, None, subject_of, "test").await });
    outbox
        .until(
            "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
        )
        .await;
    // Others pass the job over: one process at a time.
    assert!(matches!(one_step(&outbox, &job).await, Stepped::Nothing { due_in: Some(_) }));
    outbox
        .count("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
        .await;
    assert!(stuck.await.unwrap().is_err_and_or_failed());
    other.batch_execute("ROLLBACK").await.unwrap();
    outbox.sql.execute("UPDATE outbox_jobs SET next_at = now()", &[]).await.unwrap();
    let job = work_to_the_end(&outbox, &job).await;
    assert_eq!((job.items_done, job.state), (3, JobState::Done));
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_dlq WHERE replays = 1 AND state = 'replaying'").await, 3);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_deliveries WHERE replay").await, 3);
}

trait CutOff {
    fn is_err_and_or_failed(&self) -> bool;
}

impl<E> CutOff for Result<Stepped, E> {
    /// The step did not happen, whether its process could still note that or not.
    fn is_err_and_or_failed(&self) -> bool {
        matches!(self, Err(_) | Ok(Stepped::Failed { .. }))
    }
}

#[tokio::test]
async fn each_filter_chooses() {
    let outbox = Outbox::new().await;
    let ci = dead_letters(&outbox, "http://127.0.0.1:9/", 2, 2).await;
    outbox.endpoint("other", "http://127.0.0.1:9/", "aggregate_id = 'repo-9'").await;
    outbox.sql.execute("UPDATE endpoints SET aggregate_id = 'repo-0' WHERE name = 'ci'", &[]).await.unwrap();
    outbox.tell_quietly("repo-9", b"nine 1").await;
    everything_dies(&outbox).await;
    for (reason, ago, nth) in [("max_age", "3 hours", 0), ("max_unanswered", "2 hours", 1)] {
        let sql = format!(
            "UPDATE outbox_dlq SET reason = '{reason}', failed_at = now() - interval '{ago}' WHERE delivery_id =
               (SELECT delivery_id FROM outbox_dlq WHERE aggregate_id = 'repo-1' ORDER BY event_created_at OFFSET {nth} LIMIT 1)"
        );
        outbox.sql.execute(&sql, &[]).await.unwrap();
    }
    let hours_ago = |hours: i64| -> Timestamp { Timestamp::from_second(1_000_000_000).unwrap().max(now_minus(hours)) };
    for (filter, expected) in [
        (ALL, 5),
        (DeadLetterFilter { endpoint_id: Some(ci), ..ALL }, 4),
        (DeadLetterFilter { aggregate_id: Some("repo-1".into()), ..ALL }, 2),
        (DeadLetterFilter { reason: Some(DeadLetterReason::MaxAge), ..ALL }, 1),
        (DeadLetterFilter { since: Some(hours_ago(1)), ..ALL }, 3),
        (DeadLetterFilter { until: Some(hours_ago(1)), ..ALL }, 2),
        (DeadLetterFilter { since: Some(hours_ago(4)), until: Some(hours_ago(2)), ..ALL }, 1),
        (DeadLetterFilter { endpoint_id: Some(ci), reason: Some(DeadLetterReason::CrashedWorker), ..ALL }, 0),
    ] {
        let job = create_replay(&outbox.database, &of(filter.clone())).await.unwrap();
        assert_eq!(job.items_total, expected, "{filter:?}");
        let job = work_to_the_end(&outbox, &job).await;
        assert_eq!((job.items_done, job.items_skipped()), (expected, 0), "{filter:?}");
        // Back to where they were.
        outbox.sql.execute("UPDATE outbox_dlq SET state = 'dead'", &[]).await.unwrap();
    }
}

/// By the clock of the database, which on the machine of a test is that of the test.
fn now_minus(hours: i64) -> Timestamp {
    let since_1970 = std::time::UNIX_EPOCH.elapsed().unwrap();
    Timestamp::from_second(i64::try_from(since_1970.as_secs()).unwrap() - hours * 3_600 - 600).unwrap()
}

#[tokio::test]
async fn what_dies_again_is_no_item_of_the_same_job() {
    let outbox = Outbox::new().await;
    dead_letters(&outbox, "http://127.0.0.1:9/", 1, 2).await;
    let job = create_replay(&outbox.database, &of(ALL)).await.unwrap();
    one_step(&outbox, &job).await;
    everything_dies(&outbox).await;
    outbox.tell_quietly("repo-0", b"late 1").await;
    everything_dies(&outbox).await;
    let job = work_to_the_end(&outbox, &job).await;
    assert_eq!((job.items_total, job.items_done), (2, 2));
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_dlq WHERE state = 'dead'").await, 2);
}

#[tokio::test]
async fn what_something_newer_has_outdated_is_passed_over_and_counted() {
    let outbox = Outbox::new().await;
    outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    outbox.tell_quietly("repo", b"main 1").await;
    outbox.tell_quietly("repo", b"topic 1").await;
    everything_dies(&outbox).await;
    outbox.tell_quietly("repo", b"main 2").await;
    let job = create_replay(&outbox.database, &of(ALL)).await.unwrap();
    let job = work_to_the_end(&outbox, &job).await;
    assert_eq!((job.items_done, job.skipped), (1, BTreeMap::from([("outdated".to_owned(), 1)])));
    let anyway = NewReplay { anyway: true, ..of(ALL) };
    let job = create_replay(&outbox.database, &anyway).await.unwrap();
    let job = work_to_the_end(&outbox, &job).await;
    assert_eq!((job.items_done, job.items_skipped()), (1, 0));
}

#[tokio::test]
async fn a_cancelled_job_stops_and_goes_on_where_it_stood() {
    let outbox = Outbox::new().await;
    dead_letters(&outbox, "http://127.0.0.1:9/", 1, 4).await;
    let job = create_replay(&outbox.database, &of(ALL)).await.unwrap();
    one_step(&outbox, &job).await;
    let OnJob::Done(cancelled) = cancel(&outbox.database, job.job_id).await.unwrap() else { panic!() };
    assert_eq!((cancelled.state, cancelled.items_done), (JobState::Cancelled, 1));
    assert!(matches!(cancel(&outbox.database, job.job_id).await.unwrap(), OnJob::AlreadySo(_)));
    assert!(matches!(one_step(&outbox, &job).await, Stepped::Nothing { due_in: None }));
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_dlq WHERE state = 'dead'").await, 3);
    assert_eq!(list(&outbox.database, Some(JobState::Running), 10).await.unwrap().len(), 0);

    assert!(matches!(resume(&outbox.database, job.job_id).await.unwrap(), OnJob::Done(_)));
    let job = work_to_the_end(&outbox, &job).await;
    assert_eq!((job.state, job.items_done), (JobState::Done, 4));
    assert!(matches!(resume(&outbox.database, job.job_id).await.unwrap(), OnJob::AlreadySo(_)));
    assert!(matches!(cancel(&outbox.database, Uuid::new_v4()).await.unwrap(), OnJob::Unknown));
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_dlq WHERE replays = 1").await, 4);
}

#[tokio::test]
async fn the_rate_is_kept_by_the_row_whoever_does_the_steps() {
    let outbox = Outbox::new().await;
    dead_letters(&outbox, "http://127.0.0.1:9/", 1, 30).await;
    let slow = NewReplay { rate: 10, ..of(ALL) };
    let job = create_replay(&outbox.database, &slow).await.unwrap();
    let nodes = [service(&outbox, "one"), service(&outbox, "two")];
    outbox.until("SELECT items_done >= 25 FROM outbox_jobs").await;
    cancel(&outbox.database, job.job_id).await.unwrap();
    for (stop, running) in nodes {
        stop.cancel();
        running.await.unwrap();
    }
    // The times at which they were enqueued: within no second more than a second's share, and what one second has saved.
    let most = outbox
        .count(
            "SELECT max(n) FROM (SELECT count(*) OVER (ORDER BY created_at RANGE BETWEEN CURRENT ROW AND '1 second' FOLLOWING) AS n
                                   FROM outbox_deliveries WHERE replay) AS w",
        )
        .await;
    assert!((5..=21).contains(&most), "{most} within a second at 10 a second");
    let took = outbox
        .count("SELECT (extract(epoch FROM max(created_at) - min(created_at)) * 1000)::bigint FROM outbox_deliveries WHERE replay")
        .await;
    assert!(took >= 1_300, "25 items at 10 a second, one second of them saved: {took} ms");
}

#[tokio::test]
async fn a_step_that_fails_again_and_again_fails_the_job_which_can_be_resumed() {
    let outbox = Outbox::new().await;
    dead_letters(&outbox, "http://127.0.0.1:9/", 1, 1).await;
    let job = create_replay(&outbox.database, &of(ALL)).await.unwrap();
    outbox
        .sql
        .batch_execute(
            "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'it is broken'; END $$;
             CREATE TRIGGER broken BEFORE INSERT ON outbox_deliveries FOR EACH ROW EXECUTE FUNCTION broken()",
        )
        .await
        .unwrap();
    let mut failures = 0;
    loop {
        let Stepped::Failed { error, given_up, .. } = one_step(&outbox, &job).await else { panic!() };
        failures += 1;
        assert!(error.contains("it is broken"), "{error}");
        if given_up {
            break;
        }
        let job = now(&outbox, &job).await;
        assert!(job.next_at > job.updated_at, "it waits before it tries again");
        outbox.sql.execute("UPDATE outbox_jobs SET next_at = now()", &[]).await.unwrap();
    }
    let failed = now(&outbox, &job).await;
    assert_eq!((failures, failed.state, failed.items_done), (9, JobState::Failed, 0));
    assert!(failed.last_error.unwrap().contains("it is broken"));
    outbox.sql.batch_execute("DROP TRIGGER broken ON outbox_deliveries").await.unwrap();
    resume(&outbox.database, job.job_id).await.unwrap();
    assert_eq!(work_to_the_end(&outbox, &job).await.items_done, 1);
}

#[tokio::test]
async fn a_new_id_is_a_letter_of_its_own() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::with_answers([Answer::status(500)], Answer::status(200)).await;
    outbox.endpoint("ci", &receiver.url("/"), "max_attempts = 1").await;
    outbox.tell("repo", "main 1").await;
    let worker = outbox.worker();
    outbox.until("SELECT count(*) = 1 FROM outbox_dlq").await;
    let old: Uuid = outbox.sql.query_one("SELECT delivery_id FROM outbox_dlq", &[]).await.unwrap().get(0);
    let job = create_replay(&outbox.database, &NewReplay { new_ids: true, ..of(ALL) }).await.unwrap();
    work_to_the_end(&outbox, &job).await;
    outbox.wake.wake();
    outbox.until("SELECT count(*) = 1 FROM outbox_dlq WHERE state = 'delivered'").await;
    worker.stop().await;
    let new: Uuid = outbox
        .sql
        .query_one("SELECT replaced_by FROM outbox_dlq WHERE delivery_id = $1", &[&old])
        .await
        .unwrap()
        .get(0);
    let requests = receiver.requests();
    let ids: Vec<_> = requests.iter().map(|request| request.header("x-webhook-id").unwrap().to_owned()).collect();
    assert_eq!(ids, [old.to_string(), new.to_string()]);
    assert_eq!(requests[0].body, requests[1].body);
    assert_eq!(outbox.states().await, [("failed".to_owned(), 1), ("published".to_owned(), 1)]);
    let again = replay(&outbox.database, old, &HowToReplay { subject_of: None, new_id: true }).await.unwrap();
    assert_eq!(again, Replayed::AlreadyReplaced { by: Some(new) });
}

#[tokio::test]
async fn a_lane_that_stopped_at_a_dead_head_goes_on_with_a_new_id_in_its_place() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::with_answers([Answer::status(500)], Answer::status(200)).await;
    outbox.endpoint("ci", &receiver.url("/"), "max_attempts = 1, on_dead = 'block'").await;
    outbox.tell("repo", "main 1").await;
    outbox.tell("repo", "main 2").await;
    let worker = outbox.worker();
    outbox.until("SELECT count(*) = 1 FROM outbox_dlq").await;
    let old: Uuid = outbox.sql.query_one("SELECT delivery_id FROM outbox_dlq", &[]).await.unwrap().get(0);
    let how = HowToReplay { subject_of: None, new_id: true };
    let Replayed::Revived { delivery_id } = replay(&outbox.database, old, &how).await.unwrap() else { panic!() };
    outbox.wake.wake();
    surehook_testkit::eventually(SOON, async || (receiver.requests().len() == 3).then_some(())).await;
    outbox.drained().await;
    worker.stop().await;
    let bodies: Vec<_> = receiver.requests().iter().map(|r| String::from_utf8(r.body.to_vec()).unwrap()).collect();
    assert_eq!(bodies, ["main 1", "main 1", "main 2"]);
    assert_eq!(receiver.requests()[1].header("x-webhook-id"), Some(delivery_id.to_string().as_str()));
}

#[tokio::test]
async fn the_walk_over_many_dead_letters_reads_an_index_in_its_order() {
    let outbox = Outbox::new().await;
    dead_letters(&outbox, "http://127.0.0.1:9/", 1, 1).await;
    outbox
        .sql
        .batch_execute(
            "INSERT INTO outbox_dlq (delivery_id, endpoint_id, endpoint_name, url, ordering_key, event_id, event_type, aggregate_id, aggregate_name,
                    webhook_name, format, headers, body, reason, attempts, lane_id, seq, event_created_at, failed_at, updated_at)
             SELECT gen_random_uuid(), endpoint_id, endpoint_name, url, ordering_key, gen_random_uuid(), event_type, aggregate_id, aggregate_name,
                    webhook_name, format, headers, body, reason, attempts, lane_id, n, event_created_at + n * interval '1 ms', failed_at, updated_at
               FROM outbox_dlq, generate_series(2, 20000) AS n;
             ANALYZE outbox_dlq",
        )
        .await
        .unwrap();
    let job = create_replay(&outbox.database, &of(ALL)).await.unwrap();
    // A session counts its scans for all to see when it ends: those so far, then those of the steps.
    outbox.database.close().await;
    outbox.sql.batch_execute("SELECT pg_stat_force_next_flush()").await.unwrap();
    let ended = "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'outbox-test%'";
    outbox.until(ended).await;
    let before = scans(&outbox).await;
    let database = surehook_outbox::Database::connect(outbox.test_database.url(), "outbox-test", 1).unwrap();
    for _ in 0..5 {
        let stepped = step(&database, Some(job.job_id), subject_of, "test").await.unwrap();
        assert!(matches!(stepped, Stepped::Did { done: 1, .. }));
    }
    database.close().await;
    surehook_testkit::eventually(SOON, async || (scans(&outbox).await.1 >= before.1 + 5).then_some(())).await;
    assert_eq!(scans(&outbox).await.0, before.0, "no step reads the whole table");
}

/// Sequential scans of the dead letters, and scans of the index of their order.
async fn scans(outbox: &Outbox) -> (i64, i64) {
    let row = outbox
        .sql
        .query_one(
            "SELECT (SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'outbox_dlq'),
                    (SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'outbox_dlq_in_order')",
            &[],
        )
        .await
        .unwrap();
    (row.get(0), row.get(1))
}
