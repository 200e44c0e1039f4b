//! The bulkhead: how many git processes run at once, fetches and pushes apart.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::settings::GitHttpSettings;
use crate::git::command::Service;

pub(super) struct Slots {
    fetches: Arc<Semaphore>,
    pushes: Arc<Semaphore>,
    wait_max: Duration,
}

impl Slots {
    pub(super) fn new(settings: &GitHttpSettings) -> Self {
        let semaphore = |slots: usize| Arc::new(Semaphore::new(slots.clamp(1, Semaphore::MAX_PERMITS)));
        Self {
            fetches: semaphore(settings.fetches_max),
            pushes: semaphore(settings.pushes_max),
            wait_max: settings.slot_wait_max,
        }
    }

    /// Waits for a slot in the order of arrival; `None` when the wait was too long.
    pub(super) async fn take(&self, service: Service) -> Option<OwnedSemaphorePermit> {
        let semaphore = match service {
            Service::UploadPack => &self.fetches,
            Service::ReceivePack => &self.pushes,
        };
        tokio::time::timeout(self.wait_max, Arc::clone(semaphore).acquire_owned()).await.ok()?.ok()
    }
}
