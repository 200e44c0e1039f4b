//! Nobody waits for a removal, and one that was cut off is finished.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use surehook_outbox::Database;
use surehook_outbox::store::Pooler;
use surehook_testkit::receiver::Receiver;

use crate::aged::{Made, turn};
use crate::common::Outbox;

/// The database of an outbox, reached as it would be behind a pooler in transaction mode.
fn pooled(outbox: &Outbox) -> Database {
    Database::connect_through(Pooler::Transaction, outbox.test_database.url(), "outbox-test", 4).unwrap()
}

/// The longest time that an enqueue takes while `busy` is set.
async fn longest_enqueue(outbox: &Outbox, busy: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    while busy.load(Ordering::SeqCst) {
        let started = Instant::now();
        outbox.tell("a", "{}").await;
        longest = longest.max(started.elapsed());
    }
    longest
}

#[tokio::test]
async fn inserts_and_deliveries_go_on_beside_a_reader_that_stays() {
    for behind_pooler in [false, true] {
        let outbox = Outbox::new().await;
        let receiver = Receiver::accepting().await;
        let ci = outbox.endpoint("ci", &receiver.url("/"), "").await;
        for ago in [20, 21] {
            outbox.made(ci, Made::Published, ago).await;
        }
        let database = if behind_pooler { pooled(&outbox) } else { outbox.database.clone() };
        let worker = outbox.worker();
        let reader = outbox.test_database.client().await;
        reader
            .batch_execute("BEGIN; SELECT count(*) FROM outbox_deliveries; SELECT count(*) FROM outbox_attempts")
            .await
            .unwrap();
        let busy = AtomicBool::new(true);
        let removing = async {
            let turned = turn(&database).await.unwrap();
            busy.store(false, Ordering::SeqCst);
            turned
        };
        let (turned, longest) = tokio::join!(removing, longest_enqueue(&outbox, &busy));
        assert!(turned.busy.len() == 2, "behind a pooler {behind_pooler}: {turned:?}");
        assert!(longest < Duration::from_secs(1), "behind a pooler {behind_pooler}: an insert took {longest:?}");
        assert!(outbox.lag_s().await > 86_400.0, "and it is late");
        let turned = turn(&database).await.unwrap();
        assert!(turned.busy.len() >= 2, "a second turn meets the same: {turned:?}");
        // The view can be read all the while, also of a partition whose removal is half done.
        assert!(outbox.count("SELECT count(*) FROM outbox_status").await > 0);
        outbox.drained().await;
        reader.batch_execute("COMMIT").await.unwrap();
        let turned = turn(&database).await.unwrap();
        assert!(turned.busy.is_empty(), "{turned:?}");
        assert_eq!((outbox.weeks().await, outbox.lag_s().await), (vec![], 0.0));
        worker.stop().await;
    }
}

#[tokio::test]
async fn a_removal_that_was_cut_off_is_finished_by_the_next_turn() {
    for behind_pooler in [false, true] {
        let outbox = Outbox::new().await;
        let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
        for ago in [20, 21] {
            outbox.made(ci, Made::Published, ago).await;
        }
        // What an operator has detached to keep it is nobody's business.
        let kept: String = outbox.sql.query_one("SELECT max(partition) FROM outbox_partitions WHERE parent = 'outbox_events' AND starts_at < now() - interval '145 days'", &[]).await.unwrap().get(0);
        outbox.sql.batch_execute(&format!("ALTER TABLE outbox_events DETACH PARTITION {kept}")).await.unwrap();
        // A reader in the way: with a session of its own the first detach stays half done. Then the process dies.
        let reader = outbox.test_database.client().await;
        reader.batch_execute("BEGIN; SELECT count(*) FROM outbox_deliveries").await.unwrap();
        let database = if behind_pooler { pooled(&outbox) } else { outbox.database.clone() };
        let half = outbox.test_database.client().await;
        let cut = async {
            if !behind_pooler {
                outbox.until("SELECT bool_or(detach_pending) FROM outbox_partitions").await;
            }
            outbox.until("SELECT count(*) > 0 FROM outbox_partition_notes WHERE leaving_since IS NOT NULL").await;
            // Only a statement that is under way can be cut.
            outbox.until("SELECT count(*) > 0 FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'ALTER TABLE%' AND state = 'active' AND pid <> pg_backend_pid()) AS cut").await;
        };
        let (turned, ()) = tokio::join!(turn(&database), cut);
        assert!(turned.is_err(), "the session was cut: {turned:?}");
        reader.batch_execute("COMMIT").await.unwrap();
        // Another one died after a detach, before the drop.
        let detached: String = half.query_one("SELECT max(partition) FROM outbox_partitions WHERE parent = 'outbox_bodies' AND ends_at < now() - interval '100 days'", &[]).await.unwrap().get(0);
        half.batch_execute(&format!("ALTER TABLE outbox_bodies DETACH PARTITION {detached}")).await.unwrap();
        outbox
            .sql
            .batch_execute(
                "UPDATE outbox_retention SET held_until = now() - interval '1 second' WHERE held_by IS NOT NULL",
            )
            .await
            .unwrap();
        let turned = turn(&database).await.unwrap();
        assert!(turned.dropped.contains(&detached) && turned.busy.is_empty(), "{turned:?}");
        assert_eq!(outbox.weeks().await, Vec::<i32>::new());
        assert_eq!(outbox.count("SELECT count(*) FROM outbox_partition_notes").await, 0);
        let left = "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname ~ '^outbox_(events|bodies|deliveries|attempts)_' AND NOT relispartition";
        assert_eq!(outbox.count(left).await, 1, "that of the operator is still there");
        assert_eq!(outbox.count(&format!("SELECT count(*) FROM {kept}")).await, 1);
    }
}

#[tokio::test]
async fn one_turn_at_a_time_and_a_dead_ones_is_taken_over() {
    let outbox = Outbox::new().await;
    outbox
        .sql
        .batch_execute(
            "UPDATE outbox_retention SET held_by = gen_random_uuid(), held_until = now() + interval '5 minutes'",
        )
        .await
        .unwrap();
    assert!(outbox.turn().await.held_by_other);
    outbox.sql.batch_execute("UPDATE outbox_retention SET held_until = now() - interval '1 second'").await.unwrap();
    assert!(!outbox.turn().await.held_by_other);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_retention WHERE held_by IS NULL AND succeeded_at IS NOT NULL AND published_days = 30").await, 1);
}

#[tokio::test]
async fn weeks_to_come_are_made_beside_a_reader_that_stays() {
    let outbox = Outbox::new().await;
    let reader = outbox.test_database.client().await;
    reader
        .batch_execute("BEGIN; SELECT count(*) FROM outbox_deliveries; SELECT count(*) FROM outbox_events")
        .await
        .unwrap();
    let made = outbox.count("SELECT outbox_ensure_partitions(12)::bigint").await;
    assert_eq!(made, 16);
    reader.batch_execute("COMMIT").await.unwrap();
    // Made aside, they are what CREATE TABLE … PARTITION OF makes: the same indexes and constraints.
    let differ = "SELECT count(DISTINCT shape)::bigint FROM (
        SELECT p.parent, array_agg(regexp_replace(pg_get_indexdef(x.indexrelid), '_[0-9]{4}w[0-9]{2}', '', 'g') ORDER BY 1)::text AS shape
          FROM outbox_partitions AS p JOIN pg_index AS x ON x.indrelid = p.partition::regclass
         WHERE p.parent = 'outbox_attempts' GROUP BY p.parent, p.partition) AS shapes";
    let shapes = outbox.count(differ).await;
    assert_eq!(shapes, 1);
    assert_eq!(outbox.count("SELECT outbox_ensure_partitions(12)::bigint").await, 0);
}
