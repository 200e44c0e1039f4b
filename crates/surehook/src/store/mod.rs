//! All SQL of the product, by table. The only place of this crate that may speak to PostgreSQL.
#![expect(clippy::disallowed_methods, reason = "this is the door for SQL")]

pub mod alerts;
pub mod announce;
pub mod lookup;
pub mod repositories;
pub mod tokens;
pub mod watch;

use surehook_outbox::store::migrate::Migration;

pub mod inbox;

pub use inbox::INBOX;

/// The schema of repositories, their announced refs, and tokens.
pub const REPOSITORIES: &[Migration] =
    &[Migration { name: "20261202_repositories", sql: include_str!("../../migrations/20261202_repositories.sql") }];
