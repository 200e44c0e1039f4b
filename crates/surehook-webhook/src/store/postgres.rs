//! The memory of ids in a table of PostgreSQL, for receivers written in Rust. The only SQL of this crate.
#![expect(clippy::disallowed_methods, reason = "this is the door for SQL")]

use tokio_postgres::{Error, Transaction};

use crate::store::{BodyHash, Recorded, SeenStore};

/// Creates the table; run it once, or make it a step of your own migrations. Rows may be deleted when a sender will
/// surely not repeat them any more (surehook: some weeks, or later by hand).
pub const MIGRATION: &str = "\
CREATE TABLE IF NOT EXISTS webhooks_seen (
    webhook_id  text NOT NULL UNIQUE CHECK (octet_length(webhook_id) BETWEEN 1 AND 200),
    body_hash   bytea NOT NULL CHECK (octet_length(body_hash) = 32),
    received_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE webhooks_seen IS 'Deliveries that were received; one row per id, so that a repeated one counts once.';
COMMENT ON COLUMN webhooks_seen.webhook_id IS 'X-Webhook-Id: the idempotency key.';
COMMENT ON COLUMN webhooks_seen.body_hash IS 'SHA-256 of the first body that came with it.';
COMMENT ON COLUMN webhooks_seen.received_at IS 'When it first came.';
";

/// Records ids in the caller's transaction, so that an id and the work that it starts commit together:
///
/// ```no_run
/// # use surehook_webhook::{Recorded, SeenStore, body_hash, store::postgres::PostgresSeen};
/// # async fn receive(client: &mut tokio_postgres::Client, id: &str, body: &[u8]) -> Result<u16, tokio_postgres::Error> {
/// let transaction = client.transaction().await?;
/// let answer = match PostgresSeen::new(&transaction).record(id, &body_hash(body)).await? {
///     Recorded::New => {
///         transaction.execute("INSERT INTO jobs (payload) VALUES ($1)", &[&body]).await?;
///         202
///     }
///     Recorded::Seen { .. } => 409,
/// };
/// transaction.commit().await?;
/// # Ok(answer) }
/// ```
pub struct PostgresSeen<'t> {
    transaction: &'t Transaction<'t>,
}

impl<'t> PostgresSeen<'t> {
    /// Works in this transaction, at the isolation level READ COMMITTED, the default.
    pub fn new(transaction: &'t Transaction<'t>) -> Self {
        Self { transaction }
    }
}

impl SeenStore for PostgresSeen<'_> {
    type Error = Error;

    async fn record(&mut self, webhook_id: &str, body_hash: &BodyHash) -> Result<Recorded, Error> {
        loop {
            // Waits for a concurrent transaction that has inserted the same id: if that one commits, this inserts nothing.
            let inserted = self
                .transaction
                .execute(
                    "INSERT INTO webhooks_seen (webhook_id, body_hash) VALUES ($1, $2) ON CONFLICT (webhook_id) DO NOTHING",
                    &[&webhook_id, &body_hash.as_slice()],
                )
                .await?;
            if inserted == 1 {
                return Ok(Recorded::New);
            }
            let known = self
                .transaction
                .query_opt(
                    "SELECT body_hash = $2 FROM webhooks_seen WHERE webhook_id = $1",
                    &[&webhook_id, &body_hash.as_slice()],
                )
                .await?;
            // No row: it was deleted as too old just now, so this sight is the first again.
            if let Some(row) = known {
                return Ok(Recorded::Seen { same_body: row.get(0) });
            }
        }
    }
}
