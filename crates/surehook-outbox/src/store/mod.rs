//! All SQL of the outbox, by table. The only place of this crate that may speak to PostgreSQL.
#![expect(clippy::disallowed_methods, reason = "this is the door for SQL")]

pub mod claim;
mod claim_statements;
pub mod database;
pub mod endpoints;
pub mod enqueue;
pub mod jobs;
pub mod listen;
pub mod migrate;
pub mod operate;
pub mod pooler;
pub mod record;
pub mod retention;
pub mod session;
pub mod upkeep;
pub mod windows;
pub mod workers;

pub use database::{Database, DatabaseError};
pub use pooler::Pooler;
pub use session::{Session, Sql, Transaction};

/// One parameter of a statement over many rows: a value of each item, in their order.
fn column<'a, Item, Value>(items: &'a [Item], value: impl Fn(&'a Item) -> Value) -> Vec<Value> {
    items.iter().map(value).collect()
}
