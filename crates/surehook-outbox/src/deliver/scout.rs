//! The scout: looks which endpoints have work, on a timer and when it is asked to, and tells the claim loop. A session of its
//! own, so that a slow look holds up no claim: while an old snapshot is held this is what becomes slow.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use super::{Shared, chain};
use crate::store::DatabaseError;
use crate::store::claim;
use crate::target::Target;

/// An endpoint is looked at for this long after it last had work.
const REMEMBER: Duration = Duration::from_secs(60);
/// So many without work are remembered at most. Those beyond are found when a look shows their work.
const REMEMBERED_MAX: usize = 64;
/// Failures in a row between two complaints.
const COMPLAIN_EVERY: u32 = 60;

/// What the last look showed.
#[derive(Debug, Default)]
pub(super) struct Scene {
    pub(super) endpoints: HashMap<Uuid, Known>,
}

/// An endpoint that is active, and has or lately had work.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) target: Arc<Target>,
    /// When its settings last changed.
    pub(super) version: Timestamp,
    /// Since when its oldest due lane is due.
    pub(super) due_since: Option<Timestamp>,
    pub(super) has_suspect: bool,
    with_work_at: Instant,
}

#[derive(Debug)]
pub(super) struct Scout {
    asked: Notify,
    scene: watch::Sender<Arc<Scene>>,
}

impl Default for Scout {
    fn default() -> Self {
        Self { asked: Notify::new(), scene: watch::Sender::new(Arc::default()) }
    }
}

impl Scout {
    /// Asks for a look now.
    pub(super) fn ask(&self) {
        self.asked.notify_one();
    }

    /// Follows the scenes.
    pub(super) fn follow(&self) -> watch::Receiver<Arc<Scene>> {
        self.scene.subscribe()
    }

    /// An endpoint as it was last seen; None if it is paused, removed, or has had no work for long.
    pub(super) fn target(&self, endpoint_id: Uuid) -> Option<Arc<Target>> {
        self.scene.borrow().endpoints.get(&endpoint_id).map(|known| Arc::clone(&known.target))
    }
}

pub(super) async fn run(shared: Arc<Shared>) {
    let mut failures = 0u32;
    while !shared.stops.soft.is_cancelled() {
        shared.watched.scout.works();
        // Registered before the look, so that who asks during it is heard.
        let asked = shared.scout.asked.notified();
        match look(&shared).await {
            Ok(()) => failures = 0,
            Err(error) => {
                failures += 1;
                if failures == 1 || failures.is_multiple_of(COMPLAIN_EVERY) {
                    tracing::warn!(error = %chain(&error), failures, "cannot look for work; trying again at every poll");
                }
            }
        }
        tokio::select! {
            () = asked, if failures == 0 => {}
            () = tokio::time::sleep(shared.settings.poll) => {}
            () = shared.stops.soft.cancelled() => {}
        }
    }
    shared.watched.scout.rests();
}

async fn look(shared: &Shared) -> Result<(), DatabaseError> {
    let before = shared.scout.scene.borrow().clone();
    let now = Instant::now();
    let mut known: Vec<(Instant, Uuid)> = before
        .endpoints
        .iter()
        .filter(|(_, known)| now.duration_since(known.with_work_at) < REMEMBER)
        .map(|(endpoint_id, known)| (known.with_work_at, *endpoint_id))
        .collect();
    known.sort_unstable_by(|a, b| b.cmp(a));
    known.truncate(REMEMBERED_MAX);
    let known: Vec<Uuid> = known.into_iter().map(|(_, endpoint_id)| endpoint_id).collect();
    let session = shared.database.worker_session().await?;
    let seen = claim::scene(&session, &known).await?;
    drop(session);
    if let Some(now) = seen.now {
        shared.clock.set(now);
    }
    let mut scene = Scene::default();
    // What only another process can handle is none of ours.
    let reachable = seen.endpoints.into_iter().filter(|seen| shared.settings.subscribers.can_reach(&seen.target.url));
    for endpoint in reachable {
        let endpoint_id = endpoint.target.endpoint_id;
        let was = before.endpoints.get(&endpoint_id);
        let target = match was.filter(|was| was.version == endpoint.version) {
            Some(was) => Arc::clone(&was.target),
            None => Arc::new(endpoint.target),
        };
        let with_work_at = match was {
            Some(was) if endpoint.due_since.is_none() => was.with_work_at,
            _ => now,
        };
        let (version, due_since, has_suspect) = (endpoint.version, endpoint.due_since, endpoint.has_suspect);
        scene.endpoints.insert(endpoint_id, Known { target, version, due_since, has_suspect, with_work_at });
    }
    shared.scout.scene.send_replace(Arc::new(scene));
    Ok(())
}
