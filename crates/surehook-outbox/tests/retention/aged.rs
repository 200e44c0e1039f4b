//! An outbox whose rows are made old: weeks of the past, and deliveries in every state moved into them.

use std::time::Duration;

use surehook_outbox::retention::{self, RetentionSettings, Turn};
use surehook_outbox::store::retention::pins::Pin;
use surehook_outbox::{Database, DatabaseError};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::common::Outbox;

/// How a delivery is made to stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    Pending,
    Retrying,
    InFlight,
    Blocked,
    Dead,
    Replaying,
    Published,
    Skipped,
    Cancelled,
    Settled,
}

pub(crate) const PARENTS: [&str; 4] = ["outbox_events", "outbox_bodies", "outbox_deliveries", "outbox_attempts"];

/// Partitions of the week `ago` weeks before this one.
const WEEK: &str = "
    DO $$
    DECLARE
        monday date := date_trunc('week', now() AT TIME ZONE 'UTC')::date - 7 * AGO;
        parent text;
    BEGIN
        FOREACH parent IN ARRAY ARRAY['outbox_events', 'outbox_bodies', 'outbox_deliveries', 'outbox_attempts'] LOOP
            EXECUTE format('CREATE TABLE IF NOT EXISTS %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)',
                parent || to_char(monday, '_IYYY\"w\"IW'), parent, monday::text || ' 00:00:00+00', (monday + 7)::text || ' 00:00:00+00');
        END LOOP;
    END $$";

/// The middle of that week.
const MIDDLE: &str =
    "((date_trunc('week', now() AT TIME ZONE 'UTC') - AGO * interval '7 days' + interval '3 days') AT TIME ZONE 'UTC')";

impl Outbox {
    pub(crate) async fn week(&self, ago: i32) {
        self.sql.batch_execute(&WEEK.replace("AGO", &ago.to_string())).await.unwrap();
    }

    /// One delivery in a lane of its own, of the week `ago` weeks before this one.
    pub(crate) async fn made(&self, endpoint: Uuid, made: Made, ago: i32) -> Uuid {
        self.week(ago).await;
        let key = Uuid::new_v4().to_string();
        self.tell_quietly(&key, b"{}").await;
        let row = self
            .sql
            .query_one(
                "SELECT d.delivery_id FROM outbox_deliveries AS d JOIN outbox_lanes AS l USING (lane_id)
                  WHERE l.ordering_key = $1 AND l.endpoint_id = $2",
                &[&key, &endpoint],
            )
            .await
            .unwrap();
        let delivery: Uuid = row.get(0);
        let end = |word: &str, outcome: &str| {
            format!(
                "INSERT INTO outbox_attempts (lane_id, seq, attempt, delivery_id, outcome, ends, response_body, started_at, duration_ms, created_at)
                 SELECT lane_id, seq, 1, delivery_id, '{outcome}', {word}, 'said', created_at, 3, created_at FROM outbox_deliveries WHERE delivery_id = 'ID'"
            )
        };
        let done = "UPDATE outbox_lanes SET done_seq = last_seq, ready_at = NULL WHERE ordering_key = 'KEY'".to_owned();
        let letter = |state: &str| {
            format!(
                "INSERT INTO outbox_dlq (delivery_id, endpoint_id, endpoint_name, url, ordering_key, event_id, event_type, aggregate_id, aggregate_name,
                        webhook_name, format, headers, body, reason, attempts, lane_id, seq, event_created_at, failed_at, state, updated_at)
                 SELECT d.delivery_id, l.endpoint_id, 'ci', 'http://x/', l.ordering_key, d.event_id, 'Happened', d.aggregate_id, '', '', 'native', '{{}}', '',
                        'max_attempts', 1, l.lane_id, d.seq, d.event_created_at, d.created_at, '{state}', d.created_at
                   FROM outbox_deliveries AS d JOIN outbox_lanes AS l USING (lane_id) WHERE d.delivery_id = 'ID'"
            )
        };
        let lane = |set: &str| format!("UPDATE outbox_lanes SET {set} WHERE ordering_key = 'KEY'");
        let aged = self.age_of_all(ago);
        let again = "INSERT INTO outbox_deliveries (lane_id, seq, delivery_id, event_id, event_created_at, webhook_name, aggregate_id, replay, created_at)
                     SELECT lane_id, 2, delivery_id, event_id, event_created_at, webhook_name, aggregate_id, true, now() FROM outbox_deliveries WHERE delivery_id = 'ID'";
        let statements = match made {
            Made::Pending => vec![aged],
            Made::Retrying => vec![
                end("NULL", "strike"),
                lane("attempts = 1, strikes = 1, ready_at = now() + interval '1 hour', first_tried_at = now()"),
                aged,
            ],
            Made::InFlight => {
                let held = "owner = gen_random_uuid(), leased_until = now() + interval '1 hour', ready_at = now() + interval '1 hour'";
                vec![lane(held), aged]
            }
            Made::Blocked => vec![end("'failed'", "strike"), letter("dead"), lane("ready_at = 'infinity'"), aged],
            Made::Dead => vec![end("'failed'", "strike"), letter("dead"), done, aged],
            Made::Replaying => {
                let append = lane("last_seq = 2, ready_at = now()");
                vec![end("'failed'", "strike"), letter("replaying"), done, aged, again.into(), append]
            }
            Made::Published => vec![end("'published'", "success"), done, aged],
            Made::Skipped => vec![end("'skipped'", "not_sent"), done, aged],
            Made::Cancelled => vec![done, aged],
            Made::Settled => vec![end("'failed'", "strike"), letter("delivered"), done, aged],
        };
        for statement in statements {
            let statement = statement.replace("KEY", &key).replace("ID", &delivery.to_string());
            self.sql.batch_execute(&statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
        delivery
    }

    /// Moves all rows of a lane into that week.
    fn age_of_all(&self, ago: i32) -> String {
        let then = MIDDLE.replace("AGO", &ago.to_string());
        format!(
            "UPDATE outbox_events SET created_at = {then} WHERE ordering_key = 'KEY';
             UPDATE outbox_attempts SET created_at = {then}, started_at = {then} WHERE delivery_id = 'ID';
             UPDATE outbox_deliveries SET created_at = {then}, event_created_at = {then} WHERE delivery_id = 'ID';
             UPDATE outbox_dlq SET event_created_at = {then}, failed_at = {then}, updated_at = {then} WHERE delivery_id = 'ID';
             UPDATE outbox_lanes SET updated_at = {then} WHERE ordering_key = 'KEY'"
        )
    }

    pub(crate) async fn turn(&self) -> Turn {
        turn(&self.database).await.unwrap()
    }

    /// The weeks of the past that a table still has, as weeks before this one; this and the last one are always there.
    pub(crate) async fn weeks_of(&self, parent: &str) -> Vec<i32> {
        let rows = self
            .sql
            .query(
                "SELECT ((date_trunc('week', now() AT TIME ZONE 'UTC')::date - (starts_at AT TIME ZONE 'UTC')::date) / 7)::integer
                   FROM outbox_partitions WHERE parent = $1 AND NOT detach_pending AND starts_at < now() - interval '15 days' ORDER BY 1",
                &[&parent],
            )
            .await
            .unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// The same for all four tables, which must agree.
    pub(crate) async fn weeks(&self) -> Vec<i32> {
        let weeks = self.weeks_of("outbox_deliveries").await;
        for parent in PARENTS {
            assert_eq!(self.weeks_of(parent).await, weeks, "{parent}");
        }
        weeks
    }

    pub(crate) async fn status_of(&self, delivery: Uuid) -> Option<String> {
        let row = self.sql.query_opt("SELECT status FROM outbox_status WHERE delivery_id = $1", &[&delivery]).await;
        row.unwrap().map(|row| row.get(0))
    }

    /// What holds weeks: `why endpoint`.
    pub(crate) async fn pins(&self) -> Vec<String> {
        let session = self.database.session().await.unwrap();
        let pinned = surehook_outbox::store::retention::pinned(&session, 100).await.unwrap();
        pinned.iter().map(|(Pin { why, .. }, name)| format!("{why} {name}")).collect()
    }

    pub(crate) async fn lag_s(&self) -> f64 {
        let session = self.database.session().await.unwrap();
        surehook_outbox::store::retention::standing(&session).await.unwrap().lag_s
    }
}

pub(crate) async fn turn(database: &Database) -> Result<Turn, DatabaseError> {
    let settings = RetentionSettings { every: Duration::from_secs(1), ..RetentionSettings::default() };
    retention::turn(database, settings, &CancellationToken::new(), &|| ()).await
}
