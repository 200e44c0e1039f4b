//! What a back-fill tells, what it counts beforehand, and what is refused.

use jiff::{SignedDuration, Timestamp};
use surehook_outbox::store::endpoints;
use surehook_outbox::store::jobs::{
    Backfill, BackfillError, JobState, OnJob, Stepped, add_with_backfill, count_backfill, create_backfill, resume,
};
use uuid::Uuid;

use crate::common::{Outbox, SOON};
use crate::ground::{RATE, all, new_endpoint};

const EVER: Timestamp = Timestamp::UNIX_EPOCH;

#[tokio::test]
async fn it_does_what_was_counted_and_a_second_time_finds_nothing() {
    let outbox = Outbox::new().await;
    outbox.numbered(&["a", "b"], 0, 3).await;
    let since = outbox.now().await;
    outbox.numbered(&["a", "b", "c"], 3, 6).await;
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    outbox.numbered(&["a"], 6, 7).await;

    let counts = count_backfill(&outbox.database, ci, since).await.unwrap();
    assert_eq!(counts.len(), 1);
    assert_eq!((&*counts[0].event_type, counts[0].items, counts[0].aggregates, counts[0].late), ("Happened", 9, 3, 3));
    assert!(counts[0].oldest_at >= since);
    let job = outbox.backfill(ci, since).await;
    let job = outbox.work_to_the_end(&job).await;
    assert_eq!((job.state, job.items_total, job.items_done, job.items_taken_up), (JobState::Done, 9, 9, 0));
    let told = outbox.enqueued(ci).await;
    assert_eq!((&told["a"][..], &told["b"][..], &told["c"][..]), (&[6, 3, 4, 5][..], &[3, 4, 5][..], &[3, 4, 5][..]));

    assert_eq!(outbox.missing(ci, since).await, 0);
    let again = outbox.backfill(ci, since).await;
    let again = outbox.work_to_the_end(&again).await;
    assert_eq!((again.state, again.items_total, again.items_done), (JobState::Done, 0, 0));
    assert_eq!(outbox.enqueued(ci).await, told);
    assert_eq!(outbox.missing(ci, EVER).await, 6, "what is older was left alone");
    let unique = "SELECT count(*) FROM (SELECT DISTINCT delivery_id FROM outbox_deliveries) AS d";
    assert_eq!(outbox.count(unique).await, outbox.count("SELECT count(*) FROM outbox_deliveries").await);
}

#[tokio::test]
async fn only_what_goes_to_the_endpoint_is_told() {
    let outbox = Outbox::new().await;
    outbox.numbered(&["a", "team/b", "team/c"], 0, 2).await;
    for (name, settings, items) in [
        ("one", "aggregate_id = 'a'", 2),
        ("group", "aggregate_group = 'team'", 4),
        ("type", "event_types = '{Else}'", 0),
        ("paused", "state = 'paused', state_reason = 'later'", 6),
    ] {
        let endpoint = outbox.endpoint(name, "http://127.0.0.1:9/", settings).await;
        assert_eq!(outbox.missing(endpoint, EVER).await, items, "{name}");
        let job = outbox.backfill(endpoint, EVER).await;
        assert_eq!(outbox.work_to_the_end(&job).await.items_done, items, "{name}");
        assert_eq!(outbox.enqueued(endpoint).await.values().map(Vec::len).sum::<usize>(), items as usize, "{name}");
    }
}

#[tokio::test]
async fn other_formats_are_told_what_was_rendered_for_them() {
    let outbox = Outbox::new().await;
    outbox.numbered(&["a"], 0, 3).await;
    outbox
        .sql
        .batch_execute(
            "INSERT INTO outbox_bodies (event_id, format, webhook_name, body, created_at)
             SELECT e.event_id, 'other', w, '', e.created_at FROM outbox_events AS e, unnest('{create,push}'::text[]) AS w
              WHERE convert_from(e.payload, 'UTF8') IN ('a 0', 'a 2')",
        )
        .await
        .unwrap();
    let endpoint = outbox.endpoint("ci", "http://127.0.0.1:9/", "format = 'other'").await;
    assert_eq!(outbox.missing(endpoint, EVER).await, 4);
    let job = outbox.backfill(endpoint, EVER).await;
    assert_eq!(outbox.work_to_the_end(&job).await.items_done, 4);
    assert_eq!(outbox.enqueued(endpoint).await["a"], [0, 0, 2, 2]);
    let rows = outbox.sql.query("SELECT webhook_name FROM outbox_deliveries ORDER BY seq", &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<String>>(), ["create", "push", "create", "push"]);
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_and_changes_nothing() {
    let outbox = Outbox::new().await;
    outbox.numbered(&["a"], 0, 2).await;
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    let wanted = |since| Backfill { since, rate: RATE };
    let create = async |endpoint, since| create_backfill(&outbox.database, endpoint, &wanted(since)).await.unwrap_err();
    let future = outbox.now().await + SignedDuration::from_hours(1);
    assert!(matches!(create(ci, future).await, BackfillError::InFuture { .. }));
    assert!(matches!(create(Uuid::new_v4(), EVER).await, BackfillError::Endpoint(_)));
    let taken = add_with_backfill(&outbox.database, new_endpoint("ci", "http://127.0.0.1:9/"), &wanted(EVER)).await;
    assert!(matches!(taken, Err(BackfillError::Endpoint(endpoints::EndpointError::NameTaken(_)))));
    let added = add_with_backfill(&outbox.database, new_endpoint("new", "http://127.0.0.1:9/"), &wanted(future)).await;
    assert!(matches!(added, Err(BackfillError::InFuture { .. })));
    assert!(endpoints::find(&outbox.database, "new").await.is_err(), "neither endpoint nor job");
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_jobs").await + outbox.held().await, 0);

    let job = outbox.backfill(ci, EVER).await;
    assert!(matches!(create(ci, EVER).await, BackfillError::Running(id) if id == job.job_id));
    outbox.sql.execute("UPDATE outbox_jobs SET state = 'cancelled', ended_at = now()", &[]).await.unwrap();
    let second = outbox.backfill(ci, EVER).await;
    let OnJob::Refused { why } = resume(&outbox.database, job.job_id).await.unwrap() else { panic!("two at once") };
    assert!(why.contains(&second.job_id.to_string()), "{why}");
    outbox.work_to_the_end(&second).await;
    assert!(matches!(resume(&outbox.database, job.job_id).await.unwrap(), OnJob::Done(_)));
    assert_eq!(outbox.work_to_the_end(&job).await.items_done, 0);
    assert_eq!(outbox.enqueued(ci).await, all(&["a"], 2));

    endpoints::remove(&outbox.database, "ci").await.unwrap();
    assert!(matches!(create(ci, EVER).await, BackfillError::EndpointRemoved { .. }));
}

/// The count of what is missing reads all of it, once; a step reads by indexes what it enqueues.
#[tokio::test]
async fn a_step_reads_no_table_as_a_whole() {
    let outbox = Outbox::new().await;
    outbox.numbered(&["a"], 0, 60).await;
    outbox
        .sql
        .batch_execute(
            "INSERT INTO outbox_events (event_id, event_type, aggregate_id, aggregate_name, ordering_key, payload, created_at)
             SELECT gen_random_uuid(), 'Happened', 'a-' || n % 500, 'a', 'a-' || n % 500, '', now() FROM generate_series(1, 20000) AS n;
             ANALYZE outbox_events",
        )
        .await
        .unwrap();
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    let job = create_backfill(&outbox.database, ci, &Backfill { since: EVER, rate: 100 }).await.unwrap();
    surehook_testkit::eventually(SOON, async || {
        outbox.one_step(&job).await;
        outbox.sql.query_one("SELECT settled FROM outbox_jobs", &[]).await.unwrap().get::<_, bool>(0).then_some(())
    })
    .await;
    // A session counts its scans for all to see when it ends.
    outbox.database.close().await;
    let ended = "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'outbox-test%'";
    outbox.until(ended).await;
    let before = scans(&outbox).await;
    let database = surehook_outbox::Database::connect(outbox.test_database.url(), "outbox-test", 1).unwrap();
    for _ in 0..5 {
        outbox.sql.execute("UPDATE outbox_jobs SET next_at = now()", &[]).await.unwrap();
        let stepped = surehook_outbox::store::jobs::step(&database, Some(job.job_id), |_| None, "test").await.unwrap();
        assert!(matches!(stepped, Stepped::Did { done: 10, .. }), "{stepped:?}");
    }
    database.close().await;
    surehook_testkit::eventually(SOON, async || (scans(&outbox).await.1 >= before.1 + 5).then_some(())).await;
    assert_eq!(scans(&outbox).await.0, before.0, "no step reads all events");
}

/// Sequential scans of events that found any, and scans of the indexes by aggregate.
async fn scans(outbox: &Outbox) -> (i64, i64) {
    let row = outbox
        .sql
        .query_one(
            "SELECT (SELECT sum(seq_tup_read)::bigint FROM pg_stat_user_tables WHERE relname LIKE 'outbox\\_events\\_%'),
                    (SELECT sum(idx_scan)::bigint FROM pg_stat_user_indexes WHERE indexrelname LIKE 'outbox\\_events\\_%aggregate%')",
            &[],
        )
        .await
        .unwrap();
    (row.get(0), row.get(1))
}
