//! What a worker holds: the lanes from their claim until the end of it is written. And the wish that they come back, for the
//! moment in which a lane under suspicion is to be handled alone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::store::claim::ClaimedLane;

/// The lanes, by their ids.
#[derive(Debug, Default)]
pub(super) struct Held {
    lanes: Mutex<HashMap<i64, Arc<Grip>>>,
    make_room: AtomicBool,
    body_bytes: AtomicUsize,
}

/// What is known of one lane in hand, by its task and the recorder.
#[derive(Debug)]
pub(super) struct Grip {
    epoch: i64,
    lease_ends: Mutex<Instant>,
    last_seq: AtomicI64,
    lost: AtomicBool,
}

impl Grip {
    /// Until when nobody else can have the lane.
    pub(super) fn lease_ends(&self) -> Instant {
        *self.lease_ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest delivery that is known of.
    pub(super) fn last_seq(&self) -> i64 {
        self.last_seq.load(Ordering::Acquire)
    }

    /// Whether another has it, or an operator intervened: what this worker says of it is not heard.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// What the recorder learned when it wrote.
    pub(super) fn learn(&self, last_seq: i64, lease_ends: Instant) {
        self.last_seq.fetch_max(last_seq, Ordering::AcqRel);
        *self.lease_ends.lock().unwrap_or_else(PoisonError::into_inner) = lease_ends;
    }
}

impl Held {
    pub(super) fn add(&self, lane: &ClaimedLane, claimed_at: Instant) -> Arc<Grip> {
        let grip = Arc::new(Grip {
            epoch: lane.epoch,
            lease_ends: Mutex::new(claimed_at + lane.lease),
            last_seq: AtomicI64::new(lane.last_seq),
            lost: AtomicBool::new(false),
        });
        self.lanes().insert(lane.lane_id, Arc::clone(&grip));
        grip
    }

    /// The lane as it was claimed under this epoch.
    pub(super) fn get(&self, lane_id: i64, epoch: i64) -> Option<Arc<Grip>> {
        self.lanes().get(&lane_id).filter(|grip| grip.epoch == epoch).map(Arc::clone)
    }

    /// Forgets a lane whose end was written, unless it was claimed anew meanwhile.
    pub(super) fn remove(&self, lane_id: i64, epoch: i64) {
        let mut lanes = self.lanes();
        if lanes.get(&lane_id).is_some_and(|grip| grip.epoch == epoch) {
            lanes.remove(&lane_id);
        }
    }

    /// Another has it: its task is told so.
    pub(super) fn lose(&self, lane_id: i64, epoch: i64) {
        if let Some(grip) = self.get(lane_id, epoch) {
            grip.lost.store(true, Ordering::Release);
            self.remove(lane_id, epoch);
        }
    }

    /// Lanes and the epochs of their claims.
    pub(super) fn all(&self) -> Vec<(i64, i64)> {
        self.lanes().iter().map(|(lane_id, grip)| (*lane_id, grip.epoch)).collect()
    }

    /// Whether lanes are to be given back after the request under way.
    pub(super) fn makes_room(&self) -> bool {
        self.make_room.load(Ordering::Relaxed)
    }

    pub(super) fn make_room(&self, wanted: bool) {
        self.make_room.store(wanted, Ordering::Relaxed);
    }

    /// Bytes of bodies that were read and not sent yet.
    pub(super) fn body_bytes(&self) -> usize {
        self.body_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn add_body_bytes(&self, bytes: usize) {
        self.body_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn take_body_bytes(&self, bytes: usize) {
        self.body_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<i64, Arc<Grip>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
