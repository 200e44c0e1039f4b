//! The wake-up: "there may be work". It carries no data, and everything that waits for it also runs on a timer.
//! Touches this process only; [`crate::news`] carries it to others.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Wakes the worker of this process, and those of others where [`crate::news::run`] runs. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Wake {
    here: Arc<Notify>,
    elsewhere: Arc<Notify>,
}

impl Wake {
    /// Says that there may be work. Call it after the commit: before it there is nothing to see.
    pub fn wake(&self) {
        self.wake_here();
        self.elsewhere.notify_one();
    }

    /// The same for this process alone: what is said here was heard from others, or is no news to them.
    pub fn wake_here(&self) {
        self.here.notify_one();
    }

    /// Resolves at the next wake-up, or at once if one came since the last wait. Register before you look for work.
    pub fn notified(&self) -> Notified<'_> {
        self.here.notified()
    }

    /// Resolves when there is something to tell to others.
    pub(crate) fn news(&self) -> Notified<'_> {
        self.elsewhere.notified()
    }
}
