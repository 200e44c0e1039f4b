//! Live events and back-filled ones: none overtakes, none is missed, none is told twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use surehook_outbox::store::jobs::{Backfill, JobState, Stepped, add_with_backfill, cancel};
use surehook_outbox::{NewEvent, enqueue, enqueue_many};
use surehook_testkit::receiver::{Answer, Receiver};

use crate::common::Outbox;
use crate::ground::{RATE, all, by_aggregate, new_endpoint};

const EVER: Timestamp = Timestamp::UNIX_EPOCH;

/// Writers go on all the time: before the endpoint is added, while it is, while the job runs, and after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_a_lane_arrive_in_order_while_others_are_recorded() {
    const AGGREGATES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let outbox = Arc::new(Outbox::new().await);
    let receiver = Receiver::with_answers([], Answer::status(200)).await;
    outbox.numbered(&AGGREGATES, 0, 30).await;
    let enough = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = AGGREGATES
        .into_iter()
        .map(|aggregate| {
            let (outbox, enough) = (outbox.clone(), enough.clone());
            tokio::spawn(async move {
                let mut n = 30;
                while !enough.load(Ordering::Relaxed) {
                    outbox.numbered(&[aggregate], n, n + 1).await;
                    outbox.wake.wake();
                    n += 1;
                }
                (aggregate, n)
            })
        })
        .collect();
    // The job begins in the middle of it: some aggregates are new to the endpoint only after that.
    outbox.until("SELECT count(*) > 240 FROM outbox_events").await;
    let worker = outbox.worker();
    let nodes = [outbox.service("one"), outbox.service("two")];
    let wanted = Backfill { since: EVER, rate: 400 };
    let (endpoint, job) =
        add_with_backfill(&outbox.database, new_endpoint("ci", &receiver.url("/")), &wanted).await.unwrap();
    assert!(job.items_total > 200, "{job:?}");
    outbox.until("SELECT state = 'done' FROM outbox_jobs").await;
    let more = format!(
        "SELECT count(*) > {} FROM outbox_events",
        outbox.count("SELECT count(*) FROM outbox_events").await + 60
    );
    outbox.until(&more).await;
    enough.store(true, Ordering::Relaxed);
    let mut written = std::collections::BTreeMap::new();
    for writer in writers {
        let (aggregate, n) = writer.await.unwrap();
        written.insert(aggregate.to_owned(), (0..n).collect::<Vec<_>>());
    }
    outbox.until("SELECT count(*) = 0 FROM outbox_lanes WHERE held_since IS NOT NULL").await;
    outbox.drained().await;
    for (stop, running) in nodes {
        stop.cancel();
        running.await.unwrap();
    }
    worker.stop().await;
    assert_eq!(outbox.enqueued(endpoint.endpoint_id).await, written);
    let arrived = by_aggregate(receiver.requests().iter().map(|request| request.text().to_owned()));
    assert_eq!(arrived, written, "each once, in order");
    let job = outbox.job(&job).await;
    assert_eq!(job.items_done, job.items_total, "what it said it would do");
    assert_eq!(outbox.missing(endpoint.endpoint_id, EVER).await, 0, "a second time it would find nothing");
}

/// Two events of one call have the same time; their places tell them apart.
#[tokio::test]
async fn events_of_one_call_keep_their_order() {
    let outbox = Outbox::new().await;
    let payloads: Vec<String> = (0..40).map(|n| format!("a {n}")).collect();
    for payloads in payloads.chunks(8) {
        let events: Vec<NewEvent<'_>> = payloads
            .iter()
            .map(|payload| NewEvent {
                event_type: "Happened",
                aggregate_id: "a",
                payload: payload.as_bytes(),
                ..NewEvent::default()
            })
            .collect();
        enqueue_many(&outbox.database.session().await.unwrap(), &events, &[], &[]).await.unwrap();
    }
    // Three a step: steps end in the middle of a call.
    let wanted = Backfill { since: EVER, rate: 30 };
    let (endpoint, job) =
        add_with_backfill(&outbox.database, new_endpoint("ci", "http://127.0.0.1:9/"), &wanted).await.unwrap();
    assert_eq!(outbox.work_to_the_end(&job).await.items_done, 40);
    assert_eq!(outbox.enqueued(endpoint.endpoint_id).await, all(&["a"], 40));
}

/// A transaction that began before the endpoint was there has not seen it, and commits when it likes.
#[tokio::test]
async fn what_was_being_recorded_when_the_endpoint_was_added_is_told_too() {
    for lasts_long in [false, true] {
        let outbox = Outbox::new().await;
        outbox.numbered(&["a", "b"], 0, 3).await;
        let mut other = outbox.database.session().await.unwrap();
        let other = other.transaction().await.unwrap();
        for (aggregate_id, payload) in [("a", "a 3"), ("c", "c 0")] {
            let payload = payload.as_bytes();
            let event = NewEvent { event_type: "Happened", aggregate_id, payload, ..NewEvent::default() };
            enqueue(&other, &event).await.unwrap();
        }
        let wanted = Backfill { since: EVER, rate: RATE };
        let (endpoint, job) =
            add_with_backfill(&outbox.database, new_endpoint("ci", "http://127.0.0.1:9/"), &wanted).await.unwrap();
        outbox.numbered(&["b"], 3, 5).await;
        assert!(matches!(outbox.one_step(&job).await, Stepped::Did { done: 0, ended: false, .. }));
        assert!(matches!(outbox.one_step(&job).await, Stepped::Did { done: 0, ended: false, .. }), "it waits for them");
        assert_eq!(outbox.enqueued(endpoint.endpoint_id).await.len(), 0);
        if lasts_long {
            // Then nobody waits: what is known goes out.
            outbox
                .sql
                .execute("UPDATE outbox_jobs SET created_at = created_at - interval '1 minute'", &[])
                .await
                .unwrap();
            surehook_testkit::eventually(crate::common::SOON, async || {
                outbox.one_step(&job).await;
                (outbox.enqueued(endpoint.endpoint_id).await.values().map(Vec::len).sum::<usize>() == 8).then_some(())
            })
            .await;
            assert_eq!(outbox.job(&job).await.state, JobState::Running, "it has still to be told of the rest");
            assert_eq!(outbox.held().await, 0);
        }
        other.commit().await.unwrap();
        let job = outbox.work_to_the_end(&job).await;
        assert_eq!((job.state, job.items_done, job.items_taken_up, job.items_total), (JobState::Done, 8, 2, 8));
        let told = outbox.enqueued(endpoint.endpoint_id).await;
        assert_eq!(
            (&told["a"][..], &told["b"][..], &told["c"][..]),
            (&[0, 1, 2, 3][..], &[0, 1, 2, 3, 4][..], &[0][..])
        );
    }
}

/// An endpoint that has lanes, of which some events were not told.
#[tokio::test]
async fn live_events_do_not_overtake_in_lanes_that_there_are() {
    let outbox = Outbox::new().await;
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    outbox.numbered(&["a", "b"], 0, 2).await;
    outbox.sql.execute("UPDATE endpoints SET event_types = '{Else}'", &[]).await.unwrap();
    outbox.numbered(&["a"], 2, 5).await;
    outbox.sql.execute("UPDATE endpoints SET event_types = NULL", &[]).await.unwrap();
    let job = outbox.backfill(ci, EVER).await;
    assert_eq!((job.items_total, outbox.held().await), (3, 1), "only the lane in which something is missing");
    outbox.numbered(&["a"], 5, 8).await;
    outbox.numbered(&["b"], 2, 4).await;
    let told = outbox.enqueued(ci).await;
    assert_eq!((&told["a"][..], &told["b"][..]), (&[0, 1][..], &[0, 1, 2, 3][..]), "who misses nothing does not wait");
    let job = outbox.work_to_the_end(&job).await;
    assert_eq!((job.items_done, job.items_taken_up), (3, 3));
    outbox.numbered(&["a"], 8, 9).await;
    assert_eq!(outbox.enqueued(ci).await["a"], (0..9).collect::<Vec<_>>());
}

/// What an endpoint wants in no order goes out at once, and what it is told of from before goes by repository.
#[tokio::test]
async fn where_no_order_is_kept_live_events_do_not_wait() {
    let outbox = Outbox::new().await;
    outbox.numbered(&["a", "b"], 0, 4).await;
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "ordered = false").await;
    let job = outbox.backfill(ci, EVER).await;
    outbox.numbered(&["a"], 4, 6).await;
    assert_eq!(outbox.enqueued(ci).await["a"], [4, 5]);
    let job = outbox.work_to_the_end(&job).await;
    assert_eq!((job.items_done, job.items_taken_up), (8, 0));
    let mut told = outbox.enqueued(ci).await;
    told.values_mut().for_each(|numbers| numbers.sort_unstable());
    assert_eq!((&told["a"][..], &told["b"][..]), (&[0, 1, 2, 3, 4, 5][..], &[0, 1, 2, 3][..]));
}

/// Lanes of keys that producers choose.
#[tokio::test]
async fn keys_that_are_finer_than_the_aggregate_have_lanes_of_their_own() {
    let outbox = Outbox::new().await;
    for n in 0..12 {
        let (payload, key) = (format!("{} {}", n % 3, n / 3), format!("key-{}", n % 3));
        let event = NewEvent {
            event_type: "Happened",
            aggregate_id: "one",
            payload: payload.as_bytes(),
            ordering_key: Some(&key),
            ..NewEvent::default()
        };
        enqueue(&outbox.database.session().await.unwrap(), &event).await.unwrap();
    }
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    let job = outbox.backfill(ci, EVER).await;
    outbox.work_to_the_end(&job).await;
    assert_eq!(outbox.enqueued(ci).await, all(&["0", "1", "2"], 4));
    assert_eq!(
        outbox.count("SELECT count(*) FROM outbox_lanes WHERE ordering_key LIKE 'key-%' AND last_seq = 4").await,
        3
    );
}

/// Calls that lock many lanes, and jobs that hold as many, made, cancelled and ended all the time: no ring of waits, and at the end
/// each event was told once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_over_many_lanes_and_jobs_that_hold_them_do_not_deadlock() {
    const AGGREGATES: [&str; 8] = ["h", "b", "g", "a", "f", "c", "e", "d"];
    let outbox = Arc::new(Outbox::new().await);
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    let enough = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let (outbox, enough) = (outbox.clone(), enough.clone());
            tokio::spawn(async move {
                let (mut written, mut calls) = (0, 0);
                let session = outbox.database.session().await.unwrap();
                while !enough.load(Ordering::Relaxed) {
                    // Each call begins elsewhere in the row of the lanes that there are, and some make one too.
                    let mut aggregates = AGGREGATES.map(str::to_owned).to_vec();
                    aggregates.rotate_left((writer + calls) % AGGREGATES.len());
                    if calls % 8 == 0 {
                        aggregates.push(format!("fresh-{writer}-{calls}"));
                    }
                    let events: Vec<NewEvent<'_>> = aggregates
                        .iter()
                        .map(|aggregate| NewEvent {
                            event_type: "Happened",
                            aggregate_id: aggregate,
                            payload: b"x 0",
                            ..NewEvent::default()
                        })
                        .collect();
                    enqueue_many(&session, &events, &[], &[]).await.unwrap();
                    calls += 1;
                    written += aggregates.len();
                }
                written
            })
        })
        .collect();
    for round in 0..10 {
        let since = outbox.now().await;
        // What is recorded while the endpoint wants something else is missing in every lane.
        for types in ["'{Else}'", "NULL"] {
            outbox.sql.execute(&format!("UPDATE endpoints SET event_types = {types}"), &[]).await.unwrap();
            let more = outbox.count("SELECT count(*) FROM outbox_events").await + 20;
            outbox.until(&format!("SELECT count(*) > {more} FROM outbox_events")).await;
        }
        let job = outbox.backfill(ci, since).await;
        if round % 2 == 0 {
            cancel(&outbox.database, job.job_id).await.unwrap();
            outbox.released().await;
        } else {
            assert_eq!(outbox.work_to_the_end(&job).await.failures, 0);
        }
    }
    enough.store(true, Ordering::Relaxed);
    let mut written = 0;
    for writer in writers {
        written += writer.await.unwrap();
    }
    let job = outbox.backfill(ci, EVER).await;
    outbox.work_to_the_end(&job).await;
    outbox.released().await;
    let told = "SELECT count(DISTINCT event_id) FROM outbox_deliveries";
    assert_eq!(outbox.count(told).await, i64::try_from(written).unwrap());
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_deliveries").await, i64::try_from(written).unwrap());
}
