//! Recording events: with the caller's transaction or not at all, without gaps, without deadlocks, once per key.
#![expect(clippy::disallowed_methods, reason = "tests speak SQL directly")]

mod common;

use common::Outbox;
use surehook_outbox::store::enqueue::FORMAT_NOT_RENDERED;
use surehook_outbox::store::migrate::{Migrated, OUTBOX, migrate};
use surehook_outbox::{Database, DatabaseError, Enqueued, NewEvent, Rendering, enqueue, enqueue_many};
use surehook_testkit::postgres;
use uuid::Uuid;

fn event<'a>(aggregate_id: &'a str, payload: &'a str) -> NewEvent<'a> {
    NewEvent { event_type: "Happened", aggregate_id, payload: payload.as_bytes(), ..NewEvent::default() }
}

#[tokio::test]
async fn a_rollback_leaves_nothing_and_no_gap() {
    let outbox = Outbox::new().await;
    outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    outbox.tell("a", "1").await;
    let mut session = outbox.database.session().await.unwrap();
    let transaction = session.transaction().await.unwrap();
    enqueue(&transaction, &event("a", "never")).await.unwrap();
    transaction.rollback().await.unwrap();
    outbox.tell("a", "2").await;
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_events").await, 2);
    assert_eq!(outbox.count("SELECT last_seq FROM outbox_lanes").await, 2);
    assert_eq!(outbox.count("SELECT count(DISTINCT seq) FROM outbox_deliveries WHERE seq IN (1, 2)").await, 2);
}

#[tokio::test]
async fn a_key_that_was_used_stands_for_the_first_event() {
    let outbox = Outbox::new().await;
    outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    let mut session = outbox.database.session().await.unwrap();
    let keyed = |payload| NewEvent { idempotency_key: Some("order-7"), ..event("a", payload) };
    let transaction = session.transaction().await.unwrap();
    let first = enqueue(&transaction, &keyed("first")).await.unwrap();
    transaction.commit().await.unwrap();
    let transaction = session.transaction().await.unwrap();
    let many =
        enqueue_many(&transaction, &[event("a", "other"), keyed("second"), keyed("third")], &[], &[]).await.unwrap();
    transaction.commit().await.unwrap();
    let first = match first {
        Enqueued::New(id) => id,
        Enqueued::Already(id) => panic!("{id} was there before"),
    };
    assert_eq!(many[1..], [Enqueued::Already(first), Enqueued::Already(first)]);
    assert!(matches!(many[0], Enqueued::New(_)));
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_deliveries").await, 2);
}

#[tokio::test]
async fn a_key_used_by_two_transactions_at_once_counts_once() {
    let outbox = Outbox::new().await;
    outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    let attempts = (0..16).map(|_| async {
        let mut session = outbox.database.session().await.unwrap();
        let transaction = session.transaction().await.unwrap();
        let enqueued =
            enqueue(&transaction, &NewEvent { idempotency_key: Some("k"), ..event("a", "x") }).await.unwrap();
        transaction.commit().await.unwrap();
        enqueued
    });
    let outcomes = futures_util::future::join_all(attempts).await;
    let ids: std::collections::HashSet<Uuid> = outcomes.iter().map(|outcome| outcome.event_id()).collect();
    assert_eq!((ids.len(), outcomes.iter().filter(|outcome| matches!(outcome, Enqueued::New(_))).count()), (1, 1));
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_events").await, 1);
}

#[tokio::test]
async fn concurrent_calls_over_the_same_lanes_neither_deadlock_nor_leave_gaps() {
    let outbox = Outbox::new().await;
    for name in ["one", "two", "three"] {
        outbox.endpoint(name, "http://127.0.0.1:9/", "").await;
    }
    let tasks = (0..8).map(|task: usize| {
        let outbox = &outbox;
        async move {
            for round in 0..25 {
                let keys: Vec<String> = (0..6).map(|n| format!("key-{}", (n * 7 + task * 3 + round) % 10)).collect();
                let events: Vec<NewEvent<'_>> = keys.iter().map(|key| event(key, "x")).collect();
                let mut session = outbox.database.session().await.unwrap();
                let transaction = session.transaction().await.unwrap();
                enqueue_many(&transaction, &events, &[], &[]).await.unwrap();
                transaction.commit().await.unwrap();
            }
        }
    });
    futures_util::future::join_all(tasks).await;
    assert_eq!(outbox.pending().await, 8 * 25 * 6 * 3);
    let broken = outbox
        .count(
            "SELECT count(*) FROM (SELECT l.lane_id FROM outbox_lanes AS l LEFT JOIN outbox_deliveries AS d USING (lane_id)
              GROUP BY l.lane_id, l.last_seq HAVING count(DISTINCT d.seq) <> l.last_seq OR max(d.seq) <> l.last_seq) AS gaps",
        )
        .await;
    assert_eq!(broken, 0, "every lane is numbered without a gap");
    let backwards = outbox
        .count(
            "SELECT count(*) FROM (SELECT created_at < lag(created_at) OVER (PARTITION BY lane_id ORDER BY seq) AS back FROM outbox_deliveries) AS t
              WHERE back",
        )
        .await;
    assert_eq!(backwards, 0, "time does not run against the order within a lane");
}

#[tokio::test]
async fn endpoints_match_by_type_and_scope() {
    let outbox = Outbox::new().await;
    for (name, settings) in [
        ("all", ""),
        ("exact", "aggregate_id = '7'"),
        ("group", "aggregate_group = 'team'"),
        ("typed", "event_types = '{Other,Happened}'"),
        ("other-type", "event_types = '{Other}'"),
        ("removed", "state = 'removed'"),
        ("paused", "state = 'paused'"),
        ("other-format", "format = 'strange'"),
    ] {
        outbox.endpoint(name, "http://127.0.0.1:9/", settings).await;
    }
    let reached = async |aggregate_id: &str, aggregate_name: Option<&str>| -> Vec<String> {
        let mut session = outbox.database.session().await.unwrap();
        let transaction = session.transaction().await.unwrap();
        let id =
            enqueue(&transaction, &NewEvent { aggregate_name, ..event(aggregate_id, "x") }).await.unwrap().event_id();
        transaction.commit().await.unwrap();
        let rows = outbox
            .sql
            .query("SELECT endpoint_name FROM outbox_status WHERE event_id = $1 ORDER BY 1", &[&id])
            .await
            .unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    assert_eq!(reached("7", None).await, ["all", "exact", "paused", "typed"]);
    assert_eq!(reached("8", Some("team/app")).await, ["all", "group", "paused", "typed"]);
    assert_eq!(reached("9", Some("teamwork/app")).await, ["all", "paused", "typed"], "a group ends at a slash");
}

#[tokio::test]
async fn renderings_go_to_endpoints_of_their_format_and_a_missing_one_is_an_error() {
    let outbox = Outbox::new().await;
    outbox.endpoint("native", "http://127.0.0.1:9/", "").await;
    outbox.endpoint("strange", "http://127.0.0.1:9/", "format = 'strange'").await;
    let mut session = outbox.database.session().await.unwrap();
    let transaction = session.transaction().await.unwrap();
    let error = enqueue_many(&transaction, &[event("a", "x")], &["familiar"], &[]).await.unwrap_err();
    assert_eq!(error.sqlstate(), Some(FORMAT_NOT_RENDERED));
    drop(transaction);
    let transaction = session.transaction().await.unwrap();
    let rendering = |webhook_name, body| Rendering {
        event: 0,
        format: "strange",
        webhook_name,
        headers: r#"{"x-kind":"k"}"#,
        body,
    };
    let renderings = [rendering("create", b"c".as_slice()), rendering("push", b"p".as_slice())];
    enqueue_many(&transaction, &[event("a", "x")], &["strange"], &renderings).await.unwrap();
    transaction.commit().await.unwrap();
    let rows = outbox
        .sql
        .query("SELECT endpoint_name, webhook_name, seq, delivery_id FROM outbox_status ORDER BY 1, 3", &[])
        .await
        .unwrap();
    let told: Vec<(&str, &str, i64)> = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    assert_eq!(told, [("native", "Happened", 1), ("strange", "create", 1), ("strange", "push", 2)]);
    let ids: std::collections::HashSet<Uuid> = rows.iter().map(|row| row.get(3)).collect();
    assert_eq!(ids.len(), 3, "each webhook has an id of its own");
}

#[tokio::test]
async fn the_sql_function_alone_serves_every_language() {
    let outbox = Outbox::new().await;
    outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    let id: Uuid = outbox.sql.query_one("SELECT outbox_enqueue('T', 'a', '{}')", &[]).await.unwrap().get(0);
    let again: Uuid = outbox
        .sql
        .query_one(
            "SELECT outbox_enqueue('T', 'a', '{}', event_id => $1, ordering_key => 'k', idempotency_key => 'i')",
            &[&id],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(id, again);
    let ids: i64 = outbox.count("SELECT count(DISTINCT delivery_id) FROM outbox_deliveries").await;
    assert_eq!((ids, outbox.pending().await), (1, 2), "the same event at the same endpoint has the same delivery id");
}

#[tokio::test]
async fn delivery_ids_are_uuids_of_version_eight_and_depend_on_every_part() {
    let outbox = Outbox::new().await;
    let parts = [
        (Uuid::from_u128(1), Uuid::from_u128(2), "a"),
        (Uuid::from_u128(1), Uuid::from_u128(3), "a"),
        (Uuid::from_u128(2), Uuid::from_u128(2), "a"),
        (Uuid::from_u128(1), Uuid::from_u128(2), "b"),
    ];
    let mut ids = std::collections::HashSet::new();
    for (endpoint, event, name) in parts {
        let id: Uuid = outbox
            .sql
            .query_one("SELECT outbox_delivery_id($1, $2, $3)", &[&endpoint, &event, &name])
            .await
            .unwrap()
            .get(0);
        assert_eq!((id.get_version_num(), id.get_variant()), (8, uuid::Variant::RFC4122));
        ids.insert(id);
    }
    assert_eq!(ids.len(), parts.len());
}

#[tokio::test]
async fn migrations_run_once_from_many_places_and_notice_a_changed_text() {
    let empty = postgres::empty_database().await;
    let database = Database::connect(empty.url(), "migrate-test", 8).unwrap();
    let all = futures_util::future::join_all((0..8).map(|_| migrate(&database, "outbox", OUTBOX))).await;
    let applied = all.into_iter().filter(|outcome| matches!(outcome, Ok(Migrated::Applied(_)))).count();
    assert_eq!(applied, 1);
    empty.client().await.execute("UPDATE surehook_migrations SET text_hash = 'changed'", &[]).await.unwrap();
    assert!(matches!(migrate(&database, "outbox", OUTBOX).await, Err(DatabaseError::MigrationChanged { .. })));
}

#[tokio::test]
async fn every_table_and_column_is_explained() {
    let outbox = Outbox::new().await;
    let bare = outbox
        .sql
        .query(
            "SELECT format('%s.%s', c.relname, a.attname) FROM pg_class AS c
               JOIN pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = 'public'
               LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
                AND (col_description(c.oid, a.attnum) IS NULL OR obj_description(c.oid) IS NULL)",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(bare.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>(), Vec::<String>::new());
    let key = outbox.sql.query_one("SELECT col_description('outbox_events'::regclass, 3)", &[]).await.unwrap();
    assert!(key.get::<_, &str>(0).contains("PARTITION KEY"));
}

#[tokio::test]
async fn bad_rows_are_impossible() {
    let outbox = Outbox::new().await;
    outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    outbox.tell("a", "1").await;
    for sql in [
        "UPDATE outbox_lanes SET done_seq = last_seq + 1",
        "UPDATE outbox_lanes SET ready_at = NULL",
        "UPDATE outbox_lanes SET done_seq = last_seq",
        "UPDATE outbox_lanes SET owner = gen_random_uuid()",
        "UPDATE outbox_lanes SET strikes = 1",
        "UPDATE endpoints SET state = 'silent'",
        "UPDATE endpoints SET url = 'ftp://x'",
        "UPDATE endpoints SET secret = ''",
        "UPDATE endpoints SET aggregate_id = 'a', aggregate_group = 'b'",
        "UPDATE endpoints SET timeout_ms = 0",
        "INSERT INTO outbox_attempts SELECT lane_id, 1, 1, gen_random_uuid(), 'strike', 'published', 500, 'x', NULL, now(), 1, NULL, now() FROM outbox_lanes",
        "INSERT INTO outbox_attempts SELECT lane_id, 1, 1, gen_random_uuid(), 'success', NULL, 200, NULL, NULL, now(), 1, NULL, now() FROM outbox_lanes",
    ] {
        let error = outbox.sql.execute(sql, &[]).await.expect_err(sql);
        assert_eq!(error.code(), Some(&tokio_postgres::error::SqlState::CHECK_VIOLATION), "{sql}: {error}");
    }
}
