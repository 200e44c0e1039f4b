//! A database of its own, and the program that is run against it.

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use surehook_outbox::Database;
use surehook_testkit::postgres::{Client, TestDatabase};
use uuid::Uuid;

pub(crate) struct World {
    pub(crate) database: TestDatabase,
    pub(crate) client: Client,
}

pub(crate) async fn world() -> World {
    let database = surehook_testkit::postgres::database("surehook", async |url| {
        let database = Database::connect(url, "test", 2).unwrap();
        surehook::store::prepare(&database).await.unwrap();
        database.close().await;
    })
    .await;
    let client = database.client().await;
    World { database, client }
}

pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_surehook"));
    for name in ["SUREHOOK_DATA", "SUREHOOK_DATABASE_URL", "SUREHOOK_SECRET", "RUST_BACKTRACE"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

impl World {
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        program().env("SUREHOOK_DATABASE_URL", self.database.url()).args(arguments).output().unwrap()
    }

    pub(crate) fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Fails with exit code 1 and two lines: what went wrong, and what to do.
    pub(crate) fn fails(&self, arguments: &[&str]) -> (String, String) {
        let output = self.run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let lines: Vec<&str> = stderr.lines().collect();
        assert_eq!(lines.len(), 2, "{arguments:?}: {stderr}");
        (lines[0].strip_prefix("error: ").unwrap().to_owned(), lines[1].to_owned())
    }

    pub(crate) async fn repository(&self, name: &str) -> Uuid {
        let id = Uuid::new_v4();
        self.client
            .execute(
                "WITH storage AS (INSERT INTO storages (storage_id, node, root) VALUES (gen_random_uuid(), 'here', '/r') RETURNING storage_id)
                 INSERT INTO repositories (repository_id, name, storage_id, path, origin, state)
                 SELECT $1, $2, storage_id, convert_to($2 || '.git', 'UTF8'), 'hosted', 'active' FROM storage",
                &[&id, &name],
            )
            .await
            .unwrap();
        id
    }

    pub(crate) async fn push(&self, repository: Uuid, name: &str, payload: &str) -> Uuid {
        self.client
            .query_one(
                "SELECT event_id FROM outbox_enqueue_many(ARRAY['RepositoryPushed'], ARRAY[$1], ARRAY[$2::bytea], NULL, ARRAY[$3])",
                &[&repository.to_string(), &payload.as_bytes(), &name],
            )
            .await
            .unwrap()
            .get(0)
    }

    pub(crate) async fn kill_head(&self, delivery: &str) {
        let delivery: Uuid = delivery.parse().unwrap();
        for statement in [
            "INSERT INTO outbox_attempts (lane_id, seq, attempt, delivery_id, outcome, ends, status_code, error, response_body, started_at, duration_ms, created_at)
             SELECT lane_id, seq, 5, delivery_id, 'strike', 'failed', 500, 'answered 500', 'oh no', now(), 7, now() FROM outbox_deliveries WHERE delivery_id = $1",
            "INSERT INTO outbox_dlq (delivery_id, endpoint_id, endpoint_name, url, ordering_key, event_id, event_type, aggregate_id, aggregate_name,
                    webhook_name, format, headers, body, reason, attempts, last_status_code, last_error, lane_id, seq, event_created_at, failed_at, updated_at)
             SELECT d.delivery_id, l.endpoint_id, p.name, p.url, l.ordering_key, d.event_id, e.event_type, e.aggregate_id, e.aggregate_name,
                    d.webhook_name, 'native', '{}', e.payload, 'max_attempts', 5, 500, 'answered 500', l.lane_id, d.seq, e.created_at, now(), now()
               FROM outbox_deliveries d JOIN outbox_lanes l USING (lane_id) JOIN outbox_events e ON e.event_id = d.event_id
               JOIN endpoints p ON p.endpoint_id = l.endpoint_id WHERE d.delivery_id = $1",
            "UPDATE outbox_lanes l SET done_seq = d.seq, ready_at = CASE WHEN d.seq < l.last_seq THEN now() END
               FROM outbox_deliveries d WHERE d.lane_id = l.lane_id AND d.delivery_id = $1",
        ] {
            assert_eq!(self.client.execute(statement, &[&delivery]).await.unwrap(), 1, "{statement}");
        }
    }
}

pub(crate) fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}
