//! Old weeks go, whatever is still needed stays, nobody waits for it, and a removal that was cut off is finished.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests speak SQL directly, and panic where they cannot go on"
)]

mod aged;
mod backfills;
#[path = "../common/mod.rs"]
mod common;
mod locks;
mod rows;
mod weeks;
