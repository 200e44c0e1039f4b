//! Database time between two looks at the database: its clock at the last look, plus monotonic time since.
//! May read the monotonic clock; never the wall clock.

use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;

/// The database's clock, as far as this process knows it. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct DatabaseClock {
    last_look: Arc<RwLock<Option<(Timestamp, Instant)>>>,
}

impl DatabaseClock {
    /// Notes what the database's clock showed just now.
    pub fn set(&self, database_time: Timestamp) {
        *self.last_look.write().unwrap_or_else(std::sync::PoisonError::into_inner) =
            Some((database_time, Instant::now()));
    }

    /// Database time now. Before the first look, the start of 1970.
    pub fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// Database time at an instant of this process.
    pub fn at(&self, instant: Instant) -> Timestamp {
        match *self.last_look.read().unwrap_or_else(std::sync::PoisonError::into_inner) {
            Some((time, seen)) => {
                let shift = match instant.checked_duration_since(seen) {
                    Some(ahead) => time.checked_add(ahead),
                    None => time.checked_sub(seen.duration_since(instant)),
                };
                shift.unwrap_or(time)
            }
            None => Timestamp::UNIX_EPOCH,
        }
    }
}

/// Milliseconds of a duration, for an `integer` column.
pub(crate) fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}
