//! The crash matrix: at each named step of the product, and of git under it, surehook or its git child or PostgreSQL is
//! killed, once and twice in a row. Afterwards every ref that moved has exactly one event, which arrived and was built once.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test starts programs, speaks SQL, and panics where it cannot go on"
)]

mod document;
mod ground;
mod matrix;
#[expect(dead_code, reason = "shared with the tests that need all of it")]
#[path = "../serve/world.rs"]
mod world;
