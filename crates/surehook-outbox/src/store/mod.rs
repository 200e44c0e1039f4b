//! All SQL of the outbox, by table. The only place of this crate that may speak to PostgreSQL.
#![expect(clippy::disallowed_methods, reason = "this is the door for SQL")]

pub mod claim;
pub mod database;
pub mod endpoints;
pub mod enqueue;
pub mod migrate;
pub mod operate;
pub mod record;
pub mod upkeep;
pub mod workers;

pub use database::{Database, DatabaseError, Session};
