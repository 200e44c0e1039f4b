//! The plainest worker: each second it claims ten rows, POSTs them inside the claiming transaction, and commits. It is given
//! the kinder of the usual choices: a failed row waits longer each time and goes behind those that were due before it.

use std::time::Duration;

use surehook_outbox::retry::{Answer, Conflict, Policy};
use surehook_outbox::send::Sender;
use surehook_outbox::store::claim::Delivery;
use surehook_outbox::target::Target;
use surehook_testkit::postgres::{self, Client};
use surehook_webhook::secret::Secret;
use uuid::Uuid;

use super::{Result, WORKER};

pub(crate) async fn create(client: &Client) -> Result<()> {
    let sql = "CREATE TABLE queue (
                   id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, url text, body text,
                   status text NOT NULL DEFAULT 'pending', attempts integer NOT NULL DEFAULT 0,
                   due_at timestamptz NOT NULL DEFAULT clock_timestamp());
               CREATE INDEX ON queue (due_at) WHERE status = 'pending'";
    Ok(client.batch_execute(sql).await?)
}

pub(crate) async fn enqueue(client: &Client, url: &str, body: &str) -> Result<()> {
    client.execute("INSERT INTO queue (url, body) VALUES ($1, $2)", &[&url, &body]).await?;
    Ok(())
}

/// Works until it is aborted or its process ends.
pub(crate) async fn work(url: &str, deadline: Duration) -> Result<()> {
    let mut client = postgres::connect(&format!("{url} application_name={WORKER}")).await;
    let sender = Sender::new();
    loop {
        let transaction = client.transaction().await?;
        let claim = "SELECT id, url, body FROM queue WHERE status = 'pending' AND due_at <= now()
                      ORDER BY due_at LIMIT 10 FOR UPDATE SKIP LOCKED";
        for row in transaction.query(claim, &[]).await? {
            let target = target(row.get("url"), deadline)?;
            let sent = sender.send(&target, &delivery(), row.get::<_, String>("body").into(), 0).await;
            let record = if matches!(sent.answer, Answer::Status(200..=299, _)) {
                "UPDATE queue SET status = 'published', attempts = attempts + 1 WHERE id = $1"
            } else {
                "UPDATE queue SET attempts = attempts + 1, status = CASE WHEN attempts < 4 THEN 'pending' ELSE 'failed' END,
                        due_at = clock_timestamp() + 2 ^ attempts * interval '1 second' WHERE id = $1"
            };
            transaction.execute(record, &[&row.get::<_, i64>("id")]).await?;
        }
        transaction.commit().await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The sender wants to know all this; what counts here are the address and the deadline.
fn target(url: String, timeout: Duration) -> Result<Target> {
    Ok(Target {
        endpoint_id: Uuid::nil(),
        name: "plain".into(),
        url,
        secrets: Ok(vec![Secret::parse("secret")?]),
        headers: Vec::new(),
        format: "native".into(),
        allow_private: true,
        timeout,
        in_flight_max: 1,
        rate_max_per_s: None,
        block_on_dead: false,
        policy: Policy {
            max_attempts: 5,
            max_unanswered: 5,
            count_every_silence: true,
            max_age: Duration::from_secs(3600),
            retry_max_delay: Duration::from_secs(16),
            conflict: Conflict::Success,
        },
        route: Default::default(),
    })
}

fn delivery() -> Delivery {
    Delivery {
        seq: 1,
        delivery_id: Uuid::nil(),
        event_id: Uuid::nil(),
        event_type: String::new(),
        aggregate_id: String::new(),
        aggregate_name: String::new(),
        webhook_name: String::new(),
        replay: false,
        event_created_at: jiff::Timestamp::UNIX_EPOCH,
        headers: "{}".into(),
        body: None,
    }
}
