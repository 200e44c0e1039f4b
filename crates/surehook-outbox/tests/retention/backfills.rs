//! What a back-fill has still to tell stays, and what has gone is not promised.

use jiff::{SignedDuration, Timestamp};
use surehook_outbox::store::jobs::{
    Backfill, BackfillError, Job, OnJob, Stepped, cancel, create_backfill, resume, step,
};
use uuid::Uuid;

use crate::aged::Made;
use crate::common::{Outbox, SOON};

async fn weeks_ago(outbox: &Outbox, weeks: i64) -> Timestamp {
    let now: Timestamp = outbox.sql.query_one("SELECT clock_timestamp()", &[]).await.unwrap().get(0);
    now - SignedDuration::from_hours(weeks * 7 * 24)
}

/// The weeks that are old enough to go on every day of this one.
async fn old_weeks(outbox: &Outbox) -> Vec<i32> {
    outbox.weeks().await.into_iter().filter(|ago| *ago > 5).collect()
}

async fn backfill(outbox: &Outbox, endpoint: Uuid, weeks: i64) -> Result<Job, BackfillError> {
    let since = weeks_ago(outbox, weeks).await;
    create_backfill(&outbox.database, endpoint, &Backfill { since, rate: 1_000 }).await
}

/// An outbox of a year ago, whose events of some past weeks were told to one endpoint and not to the other.
async fn old() -> (Outbox, Uuid) {
    let outbox = Outbox::new().await;
    outbox.sql.batch_execute("UPDATE surehook_migrations SET applied_at = now() - interval '1 year'").await.unwrap();
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    for ago in 1..10 {
        outbox.week(ago).await;
    }
    outbox.made(ci, Made::Published, 6).await;
    outbox.made(ci, Made::Published, 8).await;
    let late = outbox.endpoint("late", "http://127.0.0.1:9/", "").await;
    (outbox, late)
}

#[tokio::test]
async fn the_weeks_that_a_job_has_to_tell_of_stay_until_it_has_and_they_arrived() {
    let (outbox, late) = old().await;
    let job = backfill(&outbox, late, 7).await.unwrap();
    assert_eq!(job.items_total, 1);
    outbox.turn().await;
    assert_eq!(old_weeks(&outbox).await, [6, 7], "what is older than it needs went");
    assert!(outbox.pins().await.contains(&"backfill late".to_owned()), "{:?}", outbox.pins().await);

    surehook_testkit::eventually(SOON, async || {
        let stepped = step(&outbox.database, Some(job.job_id), |_| None, "test").await.unwrap();
        matches!(stepped, Stepped::Did { ended: true, .. }).then_some(())
    })
    .await;
    outbox.turn().await;
    assert_eq!((old_weeks(&outbox).await, outbox.pins().await), (vec![6], vec!["undelivered late".to_owned()]));
}

#[tokio::test]
async fn a_cancelled_job_holds_nothing_and_cannot_go_on_when_the_weeks_are_gone() {
    let (outbox, late) = old().await;
    let job = backfill(&outbox, late, 9).await.unwrap();
    assert_eq!(job.items_total, 2);
    cancel(&outbox.database, job.job_id).await.unwrap();
    outbox.turn().await;
    assert_eq!(old_weeks(&outbox).await, Vec::<i32>::new());
    let OnJob::Refused { why } = resume(&outbox.database, job.job_id).await.unwrap() else { panic!("weeks are gone") };
    assert!(why.contains("removed"), "{why}");
    let Err(BackfillError::Removed { oldest }) = backfill(&outbox, late, 9).await else { panic!("weeks are gone") };
    assert!(oldest > weeks_ago(&outbox, 6).await, "{oldest}");
    let since = oldest;
    create_backfill(&outbox.database, late, &Backfill { since, rate: 1 }).await.unwrap();
}

/// A week that is about to leave is not whole any more; one that a job has come to need in the meantime does not leave.
#[tokio::test]
async fn a_job_and_a_removal_agree_on_a_week() {
    let (outbox, late) = old().await;
    outbox
        .sql
        .batch_execute(
            "INSERT INTO outbox_partition_notes (partition, ends_at, leaving_since)
             SELECT partition, ends_at, now() FROM outbox_partitions WHERE parent = 'outbox_bodies' AND ends_at < now() - interval '7 weeks'",
        )
        .await
        .unwrap();
    assert!(matches!(backfill(&outbox, late, 9).await, Err(BackfillError::Removed { .. })));
    // Made while a turn is on its way: the turn waits for it, and then sees it.
    let other = outbox.test_database.client().await;
    other
        .batch_execute(&format!(
            "BEGIN; SELECT FROM outbox_retention FOR UPDATE;
             INSERT INTO outbox_jobs (kind, endpoint_id, since, until, rate, items_total)
             VALUES ('backfill', '{late}', now() - interval '7 weeks', now(), 1, 1)"
        ))
        .await
        .unwrap();
    let turn = crate::aged::turn(&outbox.database);
    let commit = async {
        outbox
            .until("SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
            .await;
        other.batch_execute("COMMIT").await.unwrap();
    };
    let (turn, ()) = tokio::join!(turn, commit);
    turn.unwrap();
    assert!(outbox.weeks().await.contains(&6));
}
