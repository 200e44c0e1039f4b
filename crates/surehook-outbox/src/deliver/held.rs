//! What a worker holds: the lanes from their claim until the end of it is written. And the wish that they come back, for the
//! moment in which a lane under suspicion is to be handled alone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lanes and the epochs of their claims.
#[derive(Debug, Default)]
pub(super) struct Held {
    lanes: Mutex<HashMap<i64, i64>>,
    make_room: AtomicBool,
}

impl Held {
    pub(super) fn add(&self, lane_id: i64, epoch: i64) {
        self.lanes().insert(lane_id, epoch);
    }

    /// Forgets a lane whose end was written, unless it was claimed anew meanwhile.
    pub(super) fn remove(&self, lane_id: i64, epoch: i64) {
        let mut lanes = self.lanes();
        if lanes.get(&lane_id) == Some(&epoch) {
            lanes.remove(&lane_id);
        }
    }

    pub(super) fn all(&self) -> Vec<(i64, i64)> {
        self.lanes().iter().map(|(lane_id, epoch)| (*lane_id, *epoch)).collect()
    }

    /// Whether lanes are to be given back after the request under way.
    pub(super) fn makes_room(&self) -> bool {
        self.make_room.load(Ordering::Relaxed)
    }

    pub(super) fn make_room(&self, wanted: bool) {
        self.make_room.store(wanted, Ordering::Relaxed);
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<i64, i64>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
