//! A back-fill that is cut off, cancelled, or loses its endpoint.

use jiff::Timestamp;
use surehook_outbox::store::endpoints;
use surehook_outbox::store::jobs::{Backfill, Job, JobState, OnJob, Stepped, cancel, create_backfill, resume};
use uuid::Uuid;

use crate::common::{Outbox, SOON};
use crate::ground::all;

const EVER: Timestamp = Timestamp::UNIX_EPOCH;

/// A job that has told half of what one lane misses, and nothing of the other.
async fn half_done(outbox: &Outbox) -> (Uuid, Job) {
    outbox.numbered(&["a", "b"], 0, 10).await;
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    let job = create_backfill(&outbox.database, ci, &Backfill { since: EVER, rate: 50 }).await.unwrap();
    surehook_testkit::eventually(SOON, async || {
        matches!(outbox.one_step(&job).await, Stepped::Did { done: 5, .. }).then_some(())
    })
    .await;
    assert_eq!(outbox.enqueued(ci).await, all(&["a"], 5));
    (ci, job)
}

#[tokio::test]
async fn when_it_is_cancelled_lanes_go_on_with_what_came_since() {
    let outbox = Outbox::new().await;
    let (ci, job) = half_done(&outbox).await;
    outbox.numbered(&["a", "b", "c"], 10, 12).await;
    assert_eq!(
        (outbox.held().await, outbox.released().await),
        (2, 0),
        "the job has them; in a new lane nothing is older"
    );
    assert!(matches!(cancel(&outbox.database, job.job_id).await.unwrap(), OnJob::Done(_)));
    outbox.numbered(&["a"], 12, 13).await;
    assert!(matches!(outbox.one_step(&job).await, Stepped::Nothing { due_in: None }));
    assert_eq!((outbox.released().await, outbox.held().await), (5, 0));
    outbox.numbered(&["b"], 12, 13).await;
    let told = outbox.enqueued(ci).await;
    assert_eq!(told["a"], [0, 1, 2, 3, 4, 10, 11, 12]);
    assert_eq!((&told["b"][..], &told["c"][..]), (&[10, 11, 12][..], &[10, 11][..]));
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_lanes WHERE ready_at IS NULL").await, 0);

    let OnJob::Done(resumed) = resume(&outbox.database, job.job_id).await.unwrap() else { panic!("it can go on") };
    assert_eq!((resumed.state, resumed.items_done, resumed.items_total), (JobState::Running, 5, 20));
    outbox.numbered(&["b"], 13, 14).await;
    let done = outbox.work_to_the_end(&job).await;
    assert_eq!((done.state, done.items_done), (JobState::Done, 20));
    let told = outbox.enqueued(ci).await;
    assert_eq!(told["a"], [&[0, 1, 2, 3, 4, 10, 11, 12][..], &[5, 6, 7, 8, 9][..]].concat());
    assert_eq!(told["b"], [&[10, 11, 12][..], &(0..10).collect::<Vec<_>>(), &[13][..]].concat());
}

/// More than one step of a release takes.
#[tokio::test]
async fn a_lane_in_which_much_has_come_is_let_go_in_several_steps() {
    let outbox = Outbox::new().await;
    let (ci, job) = half_done(&outbox).await;
    let events = "SELECT count(*) FROM generate_series(10, 1209) AS n,
                         LATERAL outbox_enqueue('Happened', 'b', convert_to('b ' || n, 'UTF8')) AS e";
    assert_eq!(outbox.count(events).await, 1_200);
    cancel(&outbox.database, job.job_id).await.unwrap();
    assert_eq!(outbox.released().await, 1_200);
    assert_eq!(outbox.enqueued(ci).await["b"], (10..1_210).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_service_lets_lanes_go_that_no_job_holds() {
    let outbox = Outbox::new().await;
    let (ci, job) = half_done(&outbox).await;
    outbox.numbered(&["b"], 10, 11).await;
    cancel(&outbox.database, job.job_id).await.unwrap();
    let (stop, running) = outbox.service("one");
    outbox.until("SELECT count(*) = 0 FROM outbox_lanes WHERE held_since IS NOT NULL").await;
    stop.cancel();
    running.await.unwrap();
    assert_eq!(outbox.enqueued(ci).await["b"], [10]);
}

#[tokio::test]
async fn a_removed_endpoint_ends_its_job() {
    let outbox = Outbox::new().await;
    let (ci, job) = half_done(&outbox).await;
    outbox.numbered(&["a"], 10, 12).await;
    endpoints::remove(&outbox.database, "ci").await.unwrap();
    let ended = outbox.work_to_the_end(&job).await;
    assert_eq!((ended.state, ended.items_done), (JobState::Cancelled, 5));
    assert_eq!((outbox.released().await, outbox.held().await), (0, 0));
    assert_eq!(outbox.enqueued(ci).await, all(&["a"], 5));
    assert!(matches!(resume(&outbox.database, job.job_id).await.unwrap(), OnJob::Refused { .. }));
}

/// The step holds the job's row and waits for a lane when its session is cut off, as by a kill.
#[tokio::test]
async fn a_step_that_is_cut_off_leaves_nothing_behind() {
    let outbox = Outbox::new().await;
    let (ci, job) = half_done(&outbox).await;
    outbox.sql.execute("UPDATE outbox_jobs SET next_at = now()", &[]).await.unwrap();
    let other = outbox.test_database.client().await;
    other.batch_execute("BEGIN; LOCK outbox_deliveries IN SHARE ROW EXCLUSIVE MODE").await.unwrap();
    let (database, job_id) = (outbox.database.clone(), job.job_id);
    let stuck =
        tokio::spawn(
            async move { surehook_outbox::store::jobs::step(&database, Some(job_id), |_| None, "test").await },
        );
    let waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    outbox.until(&format!("SELECT count(*) = 1 {waiting}")).await;
    assert!(matches!(outbox.one_step(&job).await, Stepped::Nothing { due_in: Some(_) }), "one at a time");
    outbox.count(&format!("SELECT count(pg_terminate_backend(pid)) {waiting}")).await;
    assert!(matches!(stuck.await.unwrap(), Err(_) | Ok(Stepped::Failed { .. })));
    other.batch_execute("ROLLBACK").await.unwrap();
    outbox.sql.execute("UPDATE outbox_jobs SET next_at = now()", &[]).await.unwrap();
    assert_eq!(outbox.work_to_the_end(&job).await.items_done, 20);
    assert_eq!(outbox.enqueued(ci).await, all(&["a", "b"], 10));
}
