//! What an operator reads and does: events, deliveries and dead letters listed and explained; retry, skip, replay.
//!
//! Reads are bounded: every list has a limit and a stable order, newest first. Nothing here holds a lock for longer than
//! its own statements take, and lanes are locked one at a time, so it cannot deadlock with workers or producers.

mod dead_letters;
mod deliveries;
mod events;
mod explain;
mod head;
mod replay;

pub use dead_letters::{
    DeadLetter, DeadLetterCount, DeadLetterFilter, DeadLetterReason, DeadLetterState, count_dead_letters,
    list_dead_letters, show_dead_letter,
};
pub use deliveries::{Attempt, Delivery, DeliveryFilter, DeliveryStatus, attempts, list_deliveries, show_delivery};
pub use events::{Event, EventFilter, SCANNED_MAX, list_events, show_event};
pub use explain::{Explanation, LaneStanding, explain};
pub use head::{OnHead, retry_now, skip};
pub(in crate::store) use replay::replay_in;
pub use replay::{COMPARED_MAX, HowToReplay, Replayed, SubjectOf, replay};

use super::{Database, DatabaseError};

/// The clock that decides what is due; people are told times relative to it.
pub async fn database_time(database: &Database) -> Result<jiff::Timestamp, DatabaseError> {
    Ok(database.session().await?.query_one("SELECT clock_timestamp()", &[]).await?.get(0))
}

/// Lists begin with the newest rows, and time has no index of its own (it would cost every delivery something). So they
/// look at the last hour first, then at more, and read everything only when the newer rows do not fill the page. Seconds.
const WINDOWS_S: [Option<f64>; 4] = [Some(3_600.0), Some(86_400.0), Some(8.0 * 86_400.0), None];

/// The longest page that a list returns.
pub const LIMIT_MAX: i64 = 10_000;
