//! All SQL of the outbox, by table. The only place of this crate that may speak to PostgreSQL.
#![expect(clippy::disallowed_methods, reason = "this is the door for SQL")]

pub mod database;
pub mod migrate;

pub use database::{Database, DatabaseError, Session};
