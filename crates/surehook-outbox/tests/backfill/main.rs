//! Back-fills: an endpoint is told of earlier events, in order, each once, none left out, whatever happens meanwhile.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests speak SQL directly, and panic where they cannot go on"
)]

mod choice;
#[path = "../common/mod.rs"]
mod common;
mod ends;
mod ground;
mod order;
