//! The hot statements read by their indexes, and no more than they need, whatever waits and whatever is done.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests speak SQL directly, and panic where they cannot go on"
)]

mod common;

use common::{Outbox, settings};
use surehook_outbox::store::claim::{CLAIM, CLAIM_NATIVE, READ, READ_NATIVE, SCENE};
use surehook_outbox::store::record::RECORD;
use surehook_outbox::subscriber::Told;
use surehook_outbox::{Subscribers, WorkerSettings};
use uuid::Uuid;

/// A lane with 20 deliveries per key, made without the detour over single calls.
const FILL: &str = "
    WITH lanes AS (
        INSERT INTO outbox_lanes (endpoint_id, ordering_key, last_seq, ready_at)
        SELECT e.endpoint_id, 'key-' || i, 20, now() - i * interval '1 millisecond'
          FROM endpoints AS e, generate_series(1, $1::integer) AS i RETURNING lane_id
    ), events AS (
        INSERT INTO outbox_events (event_id, event_type, aggregate_id, aggregate_name, ordering_key, payload, created_at)
        SELECT md5(lane_id || '-' || i)::uuid, 'Happened', 'a', 'a', 'a', convert_to(repeat('x', 500), 'UTF8'), now()
          FROM lanes, generate_series(1, 20) AS i
    )
    INSERT INTO outbox_deliveries (lane_id, seq, delivery_id, event_id, event_created_at, webhook_name, aggregate_id, created_at)
    SELECT lane_id, i, gen_random_uuid(), md5(lane_id || '-' || i)::uuid, now(), 'Happened', 'a', now()
      FROM lanes, generate_series(1, 20) AS i";

/// Prepares a statement and says it, once under its generic plan; returns the plan as run.
async fn explain(outbox: &Outbox, statement: &str, types: &str, values: &str) -> String {
    let sql = &outbox.sql;
    sql.batch_execute("DEALLOCATE ALL; SET plan_cache_mode = force_generic_plan; SET jit = off").await.unwrap();
    sql.batch_execute(&format!("PREPARE hot ({types}) AS {statement}")).await.unwrap();
    sql.batch_execute("BEGIN").await.unwrap();
    let rows = sql
        .query(&format!("EXPLAIN (ANALYZE, BUFFERS, TIMING off, SUMMARY off) EXECUTE hot ({values})"), &[])
        .await
        .unwrap();
    sql.batch_execute("ROLLBACK").await.unwrap();
    rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join("\n")
}

/// Buffers touched by the whole statement.
fn buffers(plan: &str) -> u64 {
    let line = plan.lines().find(|line| line.contains("Buffers:")).unwrap();
    line.split(['=', ' ']).filter_map(|word| word.parse::<u64>().ok()).sum()
}

fn assert_no_scan(plan: &str, name: &str) {
    for line in plan.lines().filter(|line| line.contains("Seq Scan on outbox_")) {
        // Weeks that are empty may be scanned, and are not even begun where the time excludes them.
        assert!(line.contains("never executed") || line.contains("rows=0"), "{name} scans a table:\n{plan}");
    }
}

#[tokio::test]
async fn hot_statements_cost_the_same_behind_a_hundred_thousand_deliveries() {
    let outbox = Outbox::new().await;
    let endpoint = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    let version: String = outbox.sql.query_one("SELECT updated_at::text FROM endpoints", &[]).await.unwrap().get(0);
    let mut costs = Vec::new();
    // Beyond the first some ten thousand rows the indexes have their height.
    for lanes in [3_000, 3_001] {
        outbox.sql.execute(&FILL.replace("'key-' ||", &format!("'{lanes}-' ||")), &[&lanes]).await.unwrap();
        outbox
            .sql
            .batch_execute("VACUUM ANALYZE outbox_lanes, outbox_deliveries, outbox_events, endpoints")
            .await
            .unwrap();
        let scene = explain(&outbox, SCENE, "uuid[]", &format!("'{{{endpoint}}}'")).await;
        assert_no_scan(&scene, "the scene");
        let mut cost = vec![buffers(&scene)];
        for (claim, read) in [(CLAIM, READ), (CLAIM_NATIVE, READ_NATIVE)] {
            let claim = explain(
                &outbox,
                claim,
                "uuid, uuid[], bigint[], timestamptz[], timestamptz[], bigint, bigint, timestamptz, boolean, bigint",
                &format!(
                    "'{}', '{{{endpoint}}}', '{{16}}', '{{1970-01-01}}', '{{\"{version}\"}}', 20, 10000, now() - interval '1 day', false, 262144",
                    Uuid::new_v4()
                ),
            )
            .await;
            let ids: Vec<String> = (1..=64).map(|id: i32| id.to_string()).collect();
            let (ids, zeros) = (ids.join(","), vec!["0"; 64].join(","));
            let (twenties, native) = (vec!["20"; 64].join(","), vec!["native"; 64].join(","));
            let read = explain(
                &outbox,
                read,
                "bigint[], bigint[], bigint[], timestamptz, text[], bigint",
                &format!(
                    "'{{{ids}}}', '{{{zeros}}}', '{{{twenties}}}', now() - interval '1 day', '{{{native}}}', 262144"
                ),
            )
            .await;
            assert_no_scan(&claim, "the claim");
            assert_no_scan(&read, "the read");
            assert!(claim.contains("rows=320"), "16 lanes of 20:\n{claim}");
            assert!(!claim.contains("Rows Removed by Join Filter"), "pairs of lanes were compared:\n{claim}");
            cost.extend([buffers(&claim), buffers(&read)]);
        }
        costs.push(cost);
    }
    for (before, after) in costs[0].iter().zip(&costs[1]) {
        assert!(after * 10 <= before * 13, "twice the lanes cost {after} buffers instead of {before}: {costs:?}");
    }
}

#[tokio::test]
async fn a_thousand_lanes_are_recorded_by_one_walk_over_them() {
    let outbox = Outbox::new().await;
    outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    outbox.sql.execute(FILL, &[&2_000]).await.unwrap();
    let owner = Uuid::new_v4();
    let lease = "UPDATE outbox_lanes SET owner = $1, leased_until = now() + interval '1 hour', ready_at = now() + interval '1 hour', epoch = 1";
    outbox.sql.execute(lease, &[&owner]).await.unwrap();
    outbox.sql.batch_execute("VACUUM ANALYZE outbox_lanes").await.unwrap();
    let of = |value: &str| format!("array_fill({value}, ARRAY[1000])");
    let ids = outbox
        .sql
        .query_one("SELECT array_agg(lane_id ORDER BY lane_id)::text FROM outbox_lanes WHERE lane_id <= 1000", &[]);
    let ids = format!("'{}'", ids.await.unwrap().get::<_, String>(0));
    let uuids = "SELECT array_agg(gen_random_uuid())::text FROM generate_series(1, 1000)";
    let uuids = format!("'{}'", outbox.sql.query_one(uuids, &[]).await.unwrap().get::<_, String>(0));
    let values = [
        format!("'{owner}'"),
        ids.clone(),
        of("1::bigint"),
        of("1::bigint"),
        of("0"),
        of("0"),
        of("0"),
        of("false"),
        of("NULL::timestamptz"),
        of("NULL::text"),
        of("false"),
        of("0::bigint"),
        ids.clone(),
        of("1::bigint"),
        of("1"),
        uuids,
        of("'success'::text"),
        of("'published'::text"),
        of("200"),
        of("NULL::text"),
        of("NULL::bytea"),
        of("now()"),
        of("3"),
        of("60000::bigint"),
    ];
    let plan = explain(
        &outbox,
        RECORD,
        "uuid, bigint[], bigint[], bigint[], integer[], integer[], integer[], boolean[], timestamptz[], text[], boolean[], bigint[], \
         bigint[], bigint[], integer[], uuid[], text[], text[], integer[], text[], bytea[], timestamptz[], integer[], bigint[]",
        &values.join(", "),
    )
    .await;
    assert_no_scan(&plan, "the record");
    // A nested loop over the lanes and what was said would touch a million pairs.
    assert!(!plan.lines().any(|line| line.contains("Rows Removed by Join Filter")), "{plan}");
    assert!(plan.contains("rows=1000"), "{plan}");
}

/// Reads of whole tables, by whoever has ended.
const WHOLE_READS: &str = "
    SELECT coalesce(sum(seq_scan), 0)::bigint FROM pg_stat_user_tables WHERE relname ~ '^outbox_(lanes|deliveries|events|attempts)'";

/// Somebody vacuums a database that is still empty, and what is planned then is kept for as long as the sessions live.
#[tokio::test]
async fn what_was_planned_while_all_was_empty_reads_no_whole_table_later() {
    let outbox = Outbox::new().await;
    outbox.endpoint("ci", "subscriber:counter", "").await;
    outbox.sql.batch_execute("VACUUM ANALYZE").await.unwrap();
    outbox.sql.batch_execute("SET enable_seqscan = off").await.unwrap();
    let before = outbox.count(WHOLE_READS).await;
    let subscribers = Subscribers::default().with("counter", |_: Told| async { Ok(()) });
    let worker = outbox.worker_with(WorkerSettings { subscribers, ..settings() });
    for lane in 0..300 {
        outbox.tell(&format!("lane-{lane}"), "{}").await;
    }
    outbox.drained().await;
    worker.stop().await;
    outbox.database.close().await;
    // A session tells its counts as it ends, before it is gone from the list.
    outbox.until("SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'").await;
    outbox.sql.batch_execute("SELECT pg_stat_clear_snapshot()").await.unwrap();
    assert_eq!(outbox.count(WHOLE_READS).await, before);
}
