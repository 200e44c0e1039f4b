//! Repositories that live elsewhere: imported, followed and let go, with the real program and the ways in which people write
//! to their repositories: over SSH, by gitolite, in the folder itself.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test starts programs, speaks SQL, and panics where it cannot go on"
)]

mod commands;
mod doorbell;
mod following;
mod kills;
mod owners;
mod refusals;
mod ssh;
mod support;
#[expect(dead_code, reason = "shared with the tests that need all of it")]
#[path = "../serve/world.rs"]
mod world;
