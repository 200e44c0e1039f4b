//! Endpoints and what an operator does, against a real PostgreSQL.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test makes its rows by SQL")]

use std::collections::BTreeMap;

mod common;

use surehook_outbox::endpoint::{EndpointChange, EndpointState, OnDead, Scope};
use surehook_outbox::store::endpoints::{self, EndpointError, NewEndpoint};
use surehook_outbox::store::operate::{
    DeadLetterFilter, DeadLetterReason, DeadLetterState, DeliveryFilter, DeliveryStatus, EventFilter, HowToReplay,
    LaneStanding, OnHead, Replayed, attempts, explain, list_dead_letters, list_deliveries, list_events, replay,
    retry_now, show_dead_letter, show_delivery, show_event, skip,
};
use surehook_outbox::store::{Database, Session, migrate};
use surehook_testkit::postgres::{Pgbouncer, TestDatabase};
use uuid::Uuid;

struct World {
    database: Database,
    session: Session,
    _pooler: Option<Pgbouncer>,
    _dropped_last: TestDatabase,
}

async fn world() -> World {
    let test_database = surehook_testkit::postgres::database("outbox", async |url| {
        let database = Database::connect(url, "test", 2).unwrap();
        migrate::migrate(&database, "outbox", migrate::OUTBOX).await.unwrap();
        database.close().await;
    })
    .await;
    let pooler = common::pooler().await;
    let database = common::connect(&test_database, pooler.as_ref(), 4);
    let session = database.session().await.unwrap();
    World { database, session, _pooler: pooler, _dropped_last: test_database }
}

impl World {
    async fn endpoint(&self, name: &str) -> Uuid {
        let new = NewEndpoint::new(name, "https://ci.example.com/hook", Scope::All);
        endpoints::add(&self.database, new).await.unwrap().endpoint_id
    }

    async fn enqueue(&self, aggregate: &str, payload: &str) -> Uuid {
        self.session
            .query_one("SELECT outbox_enqueue('RepositoryPushed', $1, $2)", &[&aggregate, &payload.as_bytes()])
            .await
            .unwrap()
            .get(0)
    }

    async fn deliveries_of(&self, event: Uuid) -> Vec<Uuid> {
        let filter = DeliveryFilter { event_ids: Some(vec![event]), limit: 10, ..DeliveryFilter::default() };
        list_deliveries(&self.database, &filter).await.unwrap().iter().map(|found| found.delivery_id).collect()
    }

    async fn sent(&self, aggregate: &str, payload: &str) -> Uuid {
        let event = self.enqueue(aggregate, payload).await;
        self.deliveries_of(event).await[0]
    }

    async fn lane(&self, delivery: Uuid) -> i64 {
        show_delivery(&self.database, delivery).await.unwrap().unwrap().lane_id
    }

    async fn sql(&self, statement: &str, lane: i64) {
        let changed = self.session.execute(statement, &[&lane]).await.unwrap();
        assert_eq!(changed, 1, "{statement}");
    }

    /// What a worker records when the head gets through, or dies.
    async fn end_head(&self, lane: i64, ends: &str, blocks: bool) {
        let outcome = if ends == "published" { "success" } else { "strike" };
        self.session
            .execute(
                "INSERT INTO outbox_attempts (lane_id, seq, attempt, delivery_id, outcome, ends, status_code, error, response_body, started_at, duration_ms, created_at)
                 SELECT l.lane_id, d.seq, 1, d.delivery_id, $2, $3, CASE $3 WHEN 'published' THEN 200 ELSE 500 END,
                        CASE $3 WHEN 'failed' THEN 'answered 500' END, '\\xff6f6b', clock_timestamp(), 3, clock_timestamp()
                   FROM outbox_lanes l JOIN outbox_deliveries d ON d.lane_id = l.lane_id AND d.seq = l.done_seq + 1 WHERE l.lane_id = $1",
                &[&lane, &outcome, &ends],
            )
            .await
            .unwrap();
        if ends == "failed" {
            self.session
                .execute(
                    "INSERT INTO outbox_dlq (delivery_id, endpoint_id, endpoint_name, url, ordering_key, event_id, event_type, aggregate_id,
                            aggregate_name, webhook_name, format, headers, body, reason, attempts, last_status_code, last_error, lane_id, seq,
                            event_created_at, failed_at, updated_at)
                     SELECT d.delivery_id, l.endpoint_id, ep.name, ep.url, l.ordering_key, d.event_id, e.event_type, e.aggregate_id,
                            e.aggregate_name, d.webhook_name, 'native', '{}', e.payload, 'max_attempts', 5, 500, 'answered 500', l.lane_id,
                            d.seq, e.created_at, clock_timestamp(), clock_timestamp()
                       FROM outbox_lanes l JOIN outbox_deliveries d ON d.lane_id = l.lane_id AND d.seq = l.done_seq + 1
                       JOIN outbox_events e ON e.event_id = d.event_id JOIN endpoints ep ON ep.endpoint_id = l.endpoint_id
                      WHERE l.lane_id = $1
                     ON CONFLICT (delivery_id) DO UPDATE SET state = 'dead', seq = excluded.seq",
                    &[&lane],
                )
                .await
                .unwrap();
        } else {
            self.session
                .execute(
                    "UPDATE outbox_dlq q SET state = 'delivered' FROM outbox_lanes l, outbox_deliveries d
                      WHERE l.lane_id = $1 AND d.lane_id = l.lane_id AND d.seq = l.done_seq + 1 AND d.replay AND q.delivery_id = d.delivery_id",
                    &[&lane],
                )
                .await
                .unwrap();
        }
        let moved = if blocks {
            "UPDATE outbox_lanes SET ready_at = 'infinity' WHERE lane_id = $1"
        } else {
            "UPDATE outbox_lanes SET done_seq = done_seq + 1, ready_at = CASE WHEN done_seq + 1 < last_seq THEN now() END,
                    owner = NULL, leased_until = NULL WHERE lane_id = $1"
        };
        self.sql(moved, lane).await;
    }

    async fn status(&self, delivery: Uuid) -> DeliveryStatus {
        show_delivery(&self.database, delivery).await.unwrap().unwrap().status
    }
}

fn ref_of(payload: &[u8]) -> Option<String> {
    let payload: serde_json::Value = serde_json::from_slice(payload).ok()?;
    payload["ref"].as_str().map(str::to_owned)
}

const CAREFULLY: HowToReplay = HowToReplay { subject_of: Some(ref_of), new_id: false };

const LEASE: &str = "UPDATE outbox_lanes SET owner = gen_random_uuid(), leased_until = now() + interval '1 min',
    ready_at = now() + interval '1 min', epoch = epoch + 1 WHERE lane_id = $1";
const BACK_OFF: &str =
    "UPDATE outbox_lanes SET ready_at = now() + interval '5 min', attempts = 2, strikes = 2, first_tried_at = now(),
    last_error = 'answered 500' WHERE lane_id = $1";

#[tokio::test]
async fn endpoints_are_added_changed_paused_and_removed() {
    let world = world().await;
    let database = &world.database;
    let mut new = NewEndpoint::new("ci", "https://CI.example.com:443/hook", Scope::Group("team".into()));
    new.settings.headers = Some(BTreeMap::from([("x-team".to_owned(), "blue".to_owned())]));
    new.settings.max_attempts = Some(7);
    let added = endpoints::add(database, new.clone()).await.unwrap();
    assert_eq!(added.url, "https://ci.example.com/hook");
    assert_eq!((added.aggregate_id.as_deref(), added.aggregate_group.as_deref()), (None, Some("team")));
    assert_eq!((added.max_attempts, added.timeout_ms, added.in_flight_max), (7, 10_000, 256));
    {
        use secrecy::ExposeSecret;
        assert!(added.secret.expose_secret().len() >= 43, "at least 256 bits");
    }
    assert!(!serde_json::to_string(&added).unwrap().contains("secret"));
    assert!(matches!(endpoints::add(database, new).await, Err(EndpointError::NameTaken(name)) if name == "ci"));

    let change = EndpointChange { scope: Some(Scope::All), timeout_ms: Some(500), ..EndpointChange::default() };
    let changed = endpoints::set(database, "ci", change).await.unwrap();
    assert_eq!((changed.timeout_ms, changed.max_attempts, changed.aggregate_group), (500, 7, None));
    assert_eq!(changed.headers["x-team"], "blue");
    let bad = EndpointChange { timeout_ms: Some(1), ..EndpointChange::default() };
    assert!(matches!(endpoints::set(database, "ci", bad).await, Err(EndpointError::Invalid(_))));

    assert_eq!(endpoints::pause(database, "ci", "CI moves house").await.unwrap().state, EndpointState::Paused);
    let resumed = endpoints::resume(database, &added.endpoint_id.to_string()).await.unwrap();
    assert_eq!((resumed.state, resumed.state_reason), (EndpointState::Active, None));

    let removed = endpoints::remove(database, "ci").await.unwrap();
    assert_eq!((removed.endpoint.state, removed.cancelled), (EndpointState::Removed, 0));
    assert!(matches!(endpoints::find(database, "ci").await, Err(EndpointError::NotFound(_))));
    assert!(matches!(
        endpoints::resume(database, &added.endpoint_id.to_string()).await,
        Err(EndpointError::NotFound(_))
    ));
    assert_eq!(endpoints::list(database, false).await.unwrap().len(), 0);
    assert_eq!(endpoints::list(database, true).await.unwrap().len(), 1);
    world.endpoint("ci").await; // the name is free again
}

#[tokio::test]
async fn addresses_that_are_not_public_are_refused_when_saved() {
    let world = world().await;
    for (nth, url) in [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://0x7f.1/",
        "http://2130706433/",
        "http://[::1]:8080/",
        "http://[::ffff:127.0.0.1]/",
        "http://10.1.2.3/",
        "http://169.254.169.254/latest",
        "http://100.64.0.1/",
        "http://0.0.0.0/",
        "http://224.0.0.1/",
        "http://localhost:3000/",
        "http://LOCALHOST./",
        "http://ci.localhost/",
    ]
    .into_iter()
    .enumerate()
    {
        let mut new = NewEndpoint::new(format!("private-{nth}"), url, Scope::All);
        match endpoints::add(&world.database, new.clone()).await {
            Err(EndpointError::Invalid(invalid)) => {
                assert!(invalid.problem.contains("not a public address"), "{url}: {invalid}");
            }
            other => panic!("{url}: {other:?}"),
        }
        new.settings.allow_private = Some(true);
        endpoints::add(&world.database, new).await.unwrap();
    }
    for url in [
        "ftp://ci.example.com/",
        "ci.example.com",
        "https://user:pw@ci.example.com/",
        "https://user@ci.example.com/",
        "https://ci.example.com/#top",
        "https://ci.example.com/ x",
        "https://ci.example.com/\r\nx",
        "https://",
        "https://ci.example.com:0/",
        "",
    ] {
        let new = NewEndpoint::new("bad", url, Scope::All);
        assert!(matches!(endpoints::add(&world.database, new).await, Err(EndpointError::Invalid(_))), "{url:?}");
    }
}

#[tokio::test]
async fn removal_cancels_what_waits_and_touches_nobody_else() {
    let world = world().await;
    let (gone, stays) = (world.endpoint("gone").await, world.endpoint("stays").await);
    for nth in 0..6 {
        world.enqueue(&format!("repository-{}", nth % 3), "{}").await;
    }
    let filter = |endpoint| DeliveryFilter { endpoint_id: Some(endpoint), limit: 100, ..DeliveryFilter::default() };
    let first = list_deliveries(&world.database, &filter(gone)).await.unwrap();
    world.sql(LEASE, first[0].lane_id).await;
    let removed = endpoints::remove(&world.database, "gone").await.unwrap();
    assert_eq!(removed.cancelled, 6);
    let left = list_deliveries(&world.database, &filter(gone)).await.unwrap();
    assert_eq!(left.iter().filter(|found| found.status == DeliveryStatus::Cancelled).count(), 6);
    let others = list_deliveries(&world.database, &filter(stays)).await.unwrap();
    assert_eq!(others.iter().filter(|found| found.status == DeliveryStatus::Pending).count(), 6);
    assert_eq!(
        retry_now(&world.database, first[0].delivery_id).await.unwrap(),
        OnHead::Ended(DeliveryStatus::Cancelled)
    );
}

#[tokio::test]
async fn lists_are_filtered_limited_and_newest_first() {
    let world = world().await;
    world.endpoint("ci").await;
    let mut events = Vec::new();
    for nth in 0..5 {
        events.push(world.enqueue(if nth < 3 { "app" } else { "web" }, &format!(r#"{{"after":"c0ffee{nth}"}}"#)).await);
    }
    let all = list_events(&world.database, &EventFilter { limit: 10, ..EventFilter::default() }).await.unwrap();
    let ids: Vec<Uuid> = all.iter().map(|event| event.event_id).collect();
    assert_eq!(ids, events.iter().rev().copied().collect::<Vec<_>>());
    assert!(all.iter().all(|event| event.deliveries == 1));
    let page = list_events(&world.database, &EventFilter { limit: 2, ..EventFilter::default() }).await.unwrap();
    assert_eq!(page.iter().map(|event| event.event_id).collect::<Vec<_>>(), ids[..2]);
    let filter = EventFilter { aggregate_id: Some("web".into()), limit: 10, ..EventFilter::default() };
    assert_eq!(list_events(&world.database, &filter).await.unwrap().len(), 2);
    let filter = EventFilter { payload_contains: Some(b"c0ffee1".to_vec()), limit: 10, ..EventFilter::default() };
    assert_eq!(list_events(&world.database, &filter).await.unwrap()[0].event_id, events[1]);
    let (event, payload) = show_event(&world.database, events[0]).await.unwrap().unwrap();
    assert_eq!((event.aggregate_id.as_str(), payload.as_slice()), ("app", br#"{"after":"c0ffee0"}"#.as_slice()));
    assert!(show_event(&world.database, Uuid::new_v4()).await.unwrap().is_none());

    let lane = world.lane(world.deliveries_of(events[0]).await[0]).await;
    world.end_head(lane, "published", false).await;
    let with = |status, aggregate: Option<&str>| DeliveryFilter {
        status,
        aggregate_id: aggregate.map(Into::into),
        limit: 10,
        ..DeliveryFilter::default()
    };
    for (status, aggregate, count) in [
        (None, None, 5),
        (Some(DeliveryStatus::Pending), None, 4),
        (Some(DeliveryStatus::Pending), Some("app"), 2),
        (Some(DeliveryStatus::Published), None, 1),
        (Some(DeliveryStatus::Published), Some("web"), 0),
        (Some(DeliveryStatus::Failed), None, 0),
    ] {
        let found = list_deliveries(&world.database, &with(status, aggregate)).await.unwrap();
        assert_eq!(found.len(), count, "{status:?} {aggregate:?}");
    }
    let tried = attempts(&world.database, world.deliveries_of(events[0]).await[0]).await.unwrap();
    assert_eq!((tried.len(), tried[0].status_code, tried[0].ends.as_deref()), (1, Some(200), Some("published")));
    assert_eq!(tried[0].response_body.as_deref(), Some("\u{fffd}ok"));
}

#[tokio::test]
async fn explain_says_what_a_delivery_waits_for() {
    let world = world().await;
    world.endpoint("ci").await;
    let (first, second) = (world.sent("app", "1").await, world.sent("app", "2").await);
    let lane = world.lane(first).await;
    let explained = async |delivery| explain(&world.database, delivery).await.unwrap().unwrap();

    let now = explained(first).await;
    assert!(matches!(now.lane, LaneStanding::Due { .. }));
    assert_eq!((now.ahead, now.head_delivery_id, now.attempts.len()), (0, None, 0));
    let behind = explained(second).await;
    assert_eq!((behind.ahead, behind.head_delivery_id), (1, Some(first)));

    world.sql(BACK_OFF, lane).await;
    let waiting = explained(first).await;
    assert!(matches!(waiting.lane, LaneStanding::BackingOff { until } if until > waiting.as_of));
    assert_eq!((waiting.head_strikes, waiting.max_attempts), (2, 5));
    world.sql(LEASE, lane).await;
    assert!(matches!(explained(first).await.lane, LaneStanding::Leased { .. }));
    world
        .sql("UPDATE outbox_lanes SET leased_until = now() - interval '1 s', ready_at = now() WHERE lane_id = $1", lane)
        .await;
    assert!(matches!(explained(first).await.lane, LaneStanding::LeaseExpired { .. }));
    world
        .sql(
            "UPDATE outbox_lanes SET owner = NULL, leased_until = NULL, ready_at = 'infinity' WHERE lane_id = $1",
            lane,
        )
        .await;
    let blocked = explained(first).await;
    assert_eq!((blocked.lane, blocked.delivery.next_attempt_at), (LaneStanding::Blocked, None));
    endpoints::pause(&world.database, "ci", "moving").await.unwrap();
    let paused = explained(second).await;
    assert_eq!(
        (paused.endpoint_state, paused.endpoint_state_reason.as_deref()),
        (EndpointState::Paused, Some("moving"))
    );
    assert!(explain(&world.database, Uuid::new_v4()).await.unwrap().is_none());
}

#[tokio::test]
async fn retry_now_moves_the_head_only() {
    let world = world().await;
    world.endpoint("ci").await;
    let (first, second) = (world.sent("app", "1").await, world.sent("app", "2").await);
    let lane = world.lane(first).await;
    world.sql(BACK_OFF, lane).await;
    assert_eq!(retry_now(&world.database, second).await.unwrap(), OnHead::Behind { head: Some(first), ahead: 1 });
    assert_eq!(retry_now(&world.database, first).await.unwrap(), OnHead::Done);
    let now = explain(&world.database, first).await.unwrap().unwrap();
    assert!(matches!(now.lane, LaneStanding::Due { .. }));
    assert_eq!((now.head_attempts, now.head_strikes), (2, 2), "its counts stay");
    world.sql(LEASE, lane).await;
    assert!(matches!(retry_now(&world.database, first).await.unwrap(), OnHead::Leased { .. }));
    world.end_head(lane, "published", false).await;
    assert_eq!(retry_now(&world.database, first).await.unwrap(), OnHead::Ended(DeliveryStatus::Published));
    assert_eq!(retry_now(&world.database, Uuid::new_v4()).await.unwrap(), OnHead::Unknown);
}

#[tokio::test]
async fn skip_ends_the_head_and_the_lane_goes_on() {
    let world = world().await;
    world.endpoint("ci").await;
    let (first, second) = (world.sent("app", "1").await, world.sent("app", "2").await);
    let lane = world.lane(first).await;
    assert_eq!(skip(&world.database, second, true).await.unwrap(), OnHead::Behind { head: Some(first), ahead: 1 });
    world.sql(BACK_OFF, lane).await;
    world.sql(LEASE, lane).await;
    assert!(matches!(skip(&world.database, first, false).await.unwrap(), OnHead::Leased { .. }));
    let epoch = async || -> i64 {
        world.session.query_one("SELECT epoch FROM outbox_lanes WHERE lane_id = $1", &[&lane]).await.unwrap().get(0)
    };
    let before = epoch().await;
    assert_eq!(skip(&world.database, first, true).await.unwrap(), OnHead::Done);
    assert_eq!(epoch().await, before + 1);
    assert_eq!(world.status(first).await, DeliveryStatus::Skipped);
    let tried = attempts(&world.database, first).await.unwrap();
    assert_eq!((tried.len(), tried[0].outcome.as_str(), tried[0].attempt), (1, "not_sent", 2));
    let next = explain(&world.database, second).await.unwrap().unwrap();
    assert!(matches!(next.lane, LaneStanding::Due { .. }));
    assert_eq!((next.ahead, next.head_attempts, next.head_strikes), (0, 0, 0));
    assert_eq!(skip(&world.database, second, false).await.unwrap(), OnHead::Done);
    assert_eq!(explain(&world.database, second).await.unwrap().unwrap().lane, LaneStanding::Idle);
    assert_eq!(skip(&world.database, second, false).await.unwrap(), OnHead::Ended(DeliveryStatus::Skipped));
}

#[tokio::test]
async fn a_dead_letter_is_replayed_under_its_id() {
    let world = world().await;
    world.endpoint("ci").await;
    let dead = world.sent("app", r#"{"ref":"refs/heads/main"}"#).await;
    let lane = world.lane(dead).await;
    world.end_head(lane, "failed", false).await;
    assert_eq!(world.status(dead).await, DeliveryStatus::Failed);
    let filter = DeadLetterFilter { state: Some(DeadLetterState::Dead), limit: 10, ..DeadLetterFilter::default() };
    let letters = list_dead_letters(&world.database, &filter).await.unwrap();
    assert_eq!((letters.len(), letters[0].delivery_id, letters[0].reason), (1, dead, DeadLetterReason::MaxAttempts));
    let (_, body) = show_dead_letter(&world.database, dead).await.unwrap().unwrap();
    assert_eq!(body.unwrap(), br#"{"ref":"refs/heads/main"}"#);

    // Swept away while it was idle: the lane is made again.
    world.sql("DELETE FROM outbox_lanes WHERE lane_id = $1", lane).await;
    assert_eq!(
        replay(&world.database, dead, &CAREFULLY).await.unwrap(),
        Replayed::Appended { delivery_id: dead, ahead: 0 }
    );
    assert_eq!(replay(&world.database, dead, &CAREFULLY).await.unwrap(), Replayed::AlreadyReplaying);
    let delivery = show_delivery(&world.database, dead).await.unwrap().unwrap();
    assert_eq!((delivery.status, delivery.replay, delivery.seq), (DeliveryStatus::Pending, true, 1));
    assert_eq!(list_dead_letters(&world.database, &filter).await.unwrap().len(), 0);

    // It dies again, and is replayed and let go: it is dead as before.
    world.end_head(delivery.lane_id, "failed", false).await;
    assert_eq!(
        replay(&world.database, dead, &CAREFULLY).await.unwrap(),
        Replayed::Appended { delivery_id: dead, ahead: 0 }
    );
    assert_eq!(skip(&world.database, dead, false).await.unwrap(), OnHead::Done);
    let (letter, _) = show_dead_letter(&world.database, dead).await.unwrap().unwrap();
    assert_eq!((letter.state, letter.replays), (DeadLetterState::Dead, 2));

    assert_eq!(
        replay(&world.database, dead, &CAREFULLY).await.unwrap(),
        Replayed::Appended { delivery_id: dead, ahead: 0 }
    );
    world.end_head(delivery.lane_id, "published", false).await;
    assert_eq!(replay(&world.database, dead, &CAREFULLY).await.unwrap(), Replayed::AlreadyDelivered);
    endpoints::remove(&world.database, "ci").await.unwrap();
    assert_eq!(replay(&world.database, dead, &HowToReplay::default()).await.unwrap(), Replayed::EndpointRemoved);
    assert_eq!(replay(&world.database, Uuid::new_v4(), &HowToReplay::default()).await.unwrap(), Replayed::Unknown);
}

#[tokio::test]
async fn an_older_message_about_the_same_thing_is_not_sent_after_a_newer_one() {
    let world = world().await;
    world.endpoint("ci").await;
    let main = r#"{"ref":"refs/heads/main"}"#;
    let first = world.sent("app", main).await;
    let lane = world.lane(first).await;
    let other = world.sent("app", r#"{"ref":"refs/heads/other"}"#).await;
    world.end_head(lane, "failed", false).await;
    world.end_head(lane, "published", false).await;
    // Another ref does not outdate it; a newer one of the same ref that is dead does not either.
    let second = world.sent("app", main).await;
    world.end_head(lane, "failed", false).await;

    // Both in their old order: each is allowed.
    assert_eq!(
        replay(&world.database, first, &CAREFULLY).await.unwrap(),
        Replayed::Appended { delivery_id: first, ahead: 0 }
    );
    assert_eq!(
        replay(&world.database, second, &CAREFULLY).await.unwrap(),
        Replayed::Appended { delivery_id: second, ahead: 1 }
    );
    world.end_head(lane, "failed", false).await;
    let outdated = |published| Replayed::Outdated { by: second, published, subject: "refs/heads/main".into() };
    assert_eq!(replay(&world.database, first, &CAREFULLY).await.unwrap(), outdated(false));
    world.end_head(lane, "published", false).await;
    assert_eq!(replay(&world.database, first, &CAREFULLY).await.unwrap(), outdated(true));
    assert_eq!(
        replay(&world.database, first, &HowToReplay::default()).await.unwrap(),
        Replayed::Appended { delivery_id: first, ahead: 0 }
    );
    assert_eq!(world.status(other).await, DeliveryStatus::Published);
}

#[tokio::test]
async fn a_lane_that_stopped_goes_on_by_retry_replay_or_skip() {
    let world = world().await;
    let mut new = NewEndpoint::new("strict", "https://ci.example.com/", Scope::All);
    new.settings.on_dead = Some(OnDead::Block);
    endpoints::add(&world.database, new).await.unwrap();
    for act in ["retry", "replay", "skip"] {
        let (first, second) = (world.sent(act, "1").await, world.sent(act, "2").await);
        let lane = world.lane(first).await;
        world.end_head(lane, "failed", true).await;
        assert_eq!(world.status(first).await, DeliveryStatus::Failed);
        assert_eq!(world.status(second).await, DeliveryStatus::Pending);
        match act {
            "retry" => assert_eq!(retry_now(&world.database, first).await.unwrap(), OnHead::Done),
            "replay" => assert_eq!(
                replay(&world.database, first, &HowToReplay::default()).await.unwrap(),
                Replayed::Revived { delivery_id: first }
            ),
            _ => assert_eq!(skip(&world.database, first, false).await.unwrap(), OnHead::Done),
        }
        let (letter, _) = show_dead_letter(&world.database, first).await.unwrap().unwrap();
        let next = explain(&world.database, second).await.unwrap().unwrap();
        assert!(matches!(next.lane, LaneStanding::Due { .. }));
        if act == "skip" {
            assert_eq!((world.status(first).await, next.ahead), (DeliveryStatus::Failed, 0));
            assert_eq!(letter.state, DeadLetterState::Dead);
        } else {
            assert_eq!((world.status(first).await, next.ahead), (DeliveryStatus::Pending, 1));
            assert_eq!(letter.state, DeadLetterState::Replaying);
            world.end_head(lane, "published", false).await;
            assert_eq!(world.status(first).await, DeliveryStatus::Published);
        }
    }
}
