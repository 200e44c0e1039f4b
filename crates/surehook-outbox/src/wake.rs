//! The in-process wake-up: "there may be work". It carries no data, and everything that waits for it also runs on a timer.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Wakes the worker of this process. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Wake {
    notify: Arc<Notify>,
}

impl Wake {
    /// Says that there may be work. Call it after the commit: before it there is nothing to see.
    pub fn wake(&self) {
        self.notify.notify_one();
    }

    /// Resolves at the next wake-up, or at once if one came since the last wait. Register before you look for work.
    pub fn notified(&self) -> Notified<'_> {
        self.notify.notified()
    }
}
