//! The product as a whole: the real program as processes, the real git, a real PostgreSQL, real HTTP.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test starts programs, speaks SQL, and panics where it cannot go on"
)]

mod access;
mod alerts;
mod backfill;
mod deliveries;
mod faults;
mod history;
mod jobs;
mod metrics;
mod pager;
mod paging;
mod restore;
mod stops;
mod watchdog;
mod world;
