//! What surehook's tests share: a real PostgreSQL, a real git client, a recording HTTP receiver, waiting on conditions.
//! Never part of the product. Everything here panics with a sentence when the world does not play along: a test that
//! cannot be set up has failed.

pub mod git;
pub mod postgres;
pub mod receiver;
mod wait;

pub use wait::{eventually, try_eventually};
