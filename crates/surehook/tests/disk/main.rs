//! What a killed git leaves, upkeep, and a disk that is in doubt: the real program as processes, the real git, a real
//! PostgreSQL.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test starts programs, speaks SQL, and panics where it cannot go on"
)]

mod doubt;
mod full;
mod locks;
mod upkeep;
#[path = "../serve/world.rs"]
#[expect(dead_code, reason = "the world of the tests of serve has more than these need")]
mod world;
