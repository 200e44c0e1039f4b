//! What goes row by row.

use crate::aged::Made;
use crate::common::Outbox;

#[tokio::test]
async fn used_keys_idle_lanes_and_workers_of_the_past_go() {
    let outbox = Outbox::new().await;
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    outbox.made(ci, Made::Published, 20).await;
    outbox.made(ci, Made::Published, 1).await;
    outbox.made(ci, Made::Pending, 10).await;
    outbox
        .sql
        .batch_execute(
            "INSERT INTO outbox_idempotency_keys (idempotency_key, event_id, created_at)
             SELECT 'old ' || n, gen_random_uuid(), now() - interval '31 days' FROM generate_series(1, 4500) AS n;
             INSERT INTO outbox_idempotency_keys VALUES ('new', gen_random_uuid(), now() - interval '29 days');
             INSERT INTO outbox_workers (worker_id, node, heartbeat_at) VALUES
                 (gen_random_uuid(), 'gone', now() - interval '2 days'), (gen_random_uuid(), 'lately', now() - interval '1 minute'),
                 ('11111111-1111-1111-1111-111111111111', 'holds a lane', now() - interval '2 days');
             UPDATE outbox_lanes SET owner = '11111111-1111-1111-1111-111111111111', leased_until = now() WHERE ready_at IS NOT NULL",
        )
        .await
        .unwrap();
    let turn = outbox.turn().await;
    assert_eq!(turn.rows, 4500 + 1 + 1, "{turn:?}");
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_idempotency_keys WHERE idempotency_key = 'new'").await, 1);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_workers WHERE node <> 'gone'").await, 2);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_lanes").await, 2, "the lane of the dropped week is gone");
    // Its key may be used again: the lane is made anew.
    outbox.tell_quietly("a", b"{}").await;
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_lanes").await, 3);
}

#[tokio::test]
async fn answers_go_earlier_than_their_attempts_but_not_of_what_is_open() {
    let outbox = Outbox::new().await;
    let ci = outbox.endpoint("ci", "http://127.0.0.1:9/", "").await;
    for (made, ago) in
        [(Made::Published, 1), (Made::Published, 2), (Made::Dead, 2), (Made::Retrying, 2), (Made::Skipped, 3)]
    {
        outbox.made(ci, made, ago).await;
    }
    let with_answer = "SELECT count(*) FROM outbox_attempts WHERE response_body IS NOT NULL";
    outbox.turn().await;
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_attempts").await, 5, "the attempts stay");
    assert_eq!(outbox.count(with_answer).await, 3, "that of last week, and those of a dead letter and a retry");
    // Each partition is gone through once.
    outbox
        .sql
        .batch_execute("UPDATE outbox_attempts SET response_body = 'again' WHERE response_body IS NULL")
        .await
        .unwrap();
    outbox.turn().await;
    assert_eq!(outbox.count(with_answer).await, 5);
}
