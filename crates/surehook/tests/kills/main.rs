//! Random kills: real git clients push at once while the server is killed and restarted, alone or with its whole process
//! tree. What refs and reflogs say in the end is the truth: as many events, in the same order, each of them delivered.
//!
//! `SUREHOOK_SEED` repeats what was chosen at random; what the machine does in between is different every time.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test starts programs, speaks SQL, and panics where it cannot go on"
)]

mod storm;
#[expect(dead_code, reason = "shared with the tests that need all of it")]
#[path = "../serve/world.rs"]
mod world;
