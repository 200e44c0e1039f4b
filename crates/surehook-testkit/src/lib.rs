//! What surehook's tests and its drill share: a real PostgreSQL, a real git client and clients that push like people, a
//! recording HTTP receiver, a fault proxy, a ledger of what happened, chance that can be repeated, waiting on conditions.
//! Never part of the product. Everything here panics with a sentence when the world does not play along: a test that
//! cannot be set up has failed.

pub mod dice;
pub mod fault_proxy;
pub mod git;
pub mod ledger;
pub mod postgres;
pub mod pusher;
pub mod receiver;
pub mod sshd;
mod wait;

pub use wait::{eventually, try_eventually};
