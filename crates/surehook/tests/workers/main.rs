//! Several workers on one backlog: killed, paused, cut off from the database, with clocks that are wrong.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test starts programs, speaks SQL, and panics where it cannot go on"
)]

mod clocks;
#[cfg(feature = "crash-points")]
mod loops;
mod news;
mod outages;
mod pooler;
mod replica;
mod rolling;
mod takeover;
#[expect(dead_code, reason = "shared with the tests that need all of it")]
#[path = "../serve/world.rs"]
mod world;
mod yard;
