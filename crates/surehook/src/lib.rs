//! surehook: `git push`, and the webhook arrives.
//!
//! The way of a push: [`git`] takes it, [`capture`] turns ref changes into events (rendered by [`payload`]) in one
//! transaction ([`store`]), the outbox delivers them, and [`receive`] starts a build for each, once. [`serve`] puts the
//! parts together; [`cli`] is what a person types. ARCHITECTURE.md is the map.

pub mod alerting;
pub mod backup;
pub mod capture;
pub mod cli;
pub mod config;
pub mod doorbell;
pub mod embedded;
pub mod git;
pub mod hosting;
pub mod importing;
pub mod owner;
pub mod payload;
pub mod receive;
pub mod serve;
pub mod store;
pub mod telemetry;
pub mod upkeep;
pub mod watchdog;
