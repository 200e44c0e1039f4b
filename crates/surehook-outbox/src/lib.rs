//! A transactional outbox on PostgreSQL.
//!
//! Events are recorded in the transaction of the change that they tell of ([`enqueue`]) and delivered as signed webhooks,
//! at least once and in order. Nothing in this crate knows of Git.

pub mod retry;
pub mod store;
