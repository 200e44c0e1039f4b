//! Upkeep gives way to pushes: whoever is about to push to a repository asks, and the upkeep that works there ends soon.

use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Where upkeep works now. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct GiveWay(Arc<Mutex<Option<(Uuid, CancellationToken)>>>);

/// Upkeep works here until this is dropped.
#[derive(Debug)]
pub struct Working {
    owner: GiveWay,
    asked: CancellationToken,
}

impl GiveWay {
    /// Asks upkeep to leave this repository. It may be working elsewhere, or nowhere.
    pub fn ask(&self, repository_id: Uuid) {
        if let Some((id, asked)) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner)
            && *id == repository_id
        {
            asked.cancel();
        }
    }

    /// Says that upkeep works in this repository now; one at a time.
    pub fn begin(&self, repository_id: Uuid) -> Working {
        let asked = CancellationToken::new();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((repository_id, asked.clone()));
        Working { owner: self.clone(), asked }
    }
}

impl Working {
    /// Cancelled when a push asks.
    pub fn asked(&self) -> &CancellationToken {
        &self.asked
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        *self.owner.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
