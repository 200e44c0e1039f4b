//! All SQL of the product, by table. The only place of this crate that may speak to PostgreSQL.
#![expect(clippy::disallowed_methods, reason = "this is the door for SQL")]

pub mod alerts;
pub mod announce;
pub mod lookup;
pub mod repositories;
pub mod tokens;
pub mod watch;

use surehook_outbox::store::migrate::{Migration, OUTBOX, migrate};
use surehook_outbox::store::{Database, DatabaseError};

pub mod inbox;

pub use inbox::INBOX;

/// The schema of repositories, their announced refs, tokens and alerts.
pub const REPOSITORIES: &[Migration] = &[
    Migration { name: "20261202_repositories", sql: include_str!("../../migrations/20261202_repositories.sql") },
    Migration { name: "20261202_alerts", sql: include_str!("../../migrations/20261202_alerts.sql") },
];

/// Brings the outbox and the repositories to this program's schema. May be repeated. Err: what was applied stays, each migration whole.
pub async fn prepare(database: &Database) -> Result<(), DatabaseError> {
    migrate(database, "outbox", OUTBOX).await?;
    migrate(database, "repositories", REPOSITORIES).await?;
    Ok(())
}
