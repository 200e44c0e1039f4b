//! A worker that is replaced when one of its loops dies: the old one is stopped at once, what it held is free as if its process
//! had vanished, and a new one with a new id begins.
//!
//! As if it had vanished, because nobody knows what it was doing: a delivery that makes a loop panic again and again is counted
//! as one that kills its worker, handled alone, and given up at the third time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::{Worker, WorkerSettings, chain};
use crate::loops::{Again, Fault, Loops, Pulse};
use crate::store::{Database, DatabaseError, workers};
use crate::wake::Wake;

/// How often is looked at the loops.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a broken worker may take to write what it knows and to end.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// The name under which a worker without any of its loops is shown.
const WORKER: &str = "worker";

/// The loops of one worker: their signs of life, and the first that died.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    pub(super) scout: Pulse,
    pub(super) claims: Pulse,
    pub(super) feed: Pulse,
    pub(super) recorder: Pulse,
    pub(super) heartbeat: Pulse,
    died: Arc<watch::Sender<Option<(&'static str, Fault)>>>,
}

impl Default for Watched {
    fn default() -> Self {
        let (scout, claims, feed, recorder, heartbeat) = Default::default();
        Self { scout, claims, feed, recorder, heartbeat, died: Arc::new(watch::Sender::new(None)) }
    }
}

impl Watched {
    /// Notes the end of a loop that nobody asked to end; the first counts, the others may follow from it.
    pub(super) fn note(&self, name: &'static str, fault: Fault) {
        self.died.send_if_modified(|first| {
            let is_first = first.is_none();
            if is_first {
                *first = Some((name, fault));
            }
            is_first
        });
    }

    /// Resolves when a loop has died, or takes longer than `still_after` for a turn. While the heartbeat stands still as well it is
    /// the database that does, which no other worker would help; so that one has ten times as long.
    pub(super) async fn broken(&self, still_after: Duration) -> (&'static str, Fault) {
        let mut died = self.died.subscribe();
        loop {
            if let Some(first) = died.borrow_and_update().clone() {
                return first;
            }
            let heart = self.heartbeat.busy_for();
            let late =
                [("scout", &self.scout), ("claims", &self.claims), ("feed", &self.feed), ("recorder", &self.recorder)]
                    .map(|(name, pulse)| (name, pulse.busy_for()));
            let stands = late.into_iter().find(|(_, busy_for)| heart < still_after / 2 && *busy_for > still_after);
            if let Some((name, busy_for)) = stands {
                return (name, Fault::StandsStill(busy_for));
            }
            if heart > still_after * 10 {
                return ("heartbeat", Fault::StandsStill(heart));
            }
            tokio::select! {
                _ = died.changed() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }
}

/// A worker that is replaced when it breaks. Dropping it stops it hard; [`KeptWorker::stop`] is the soft way.
#[derive(Debug)]
pub struct KeptWorker {
    soft: CancellationToken,
    now: CancellationToken,
    tasks: TaskTracker,
}

impl KeptWorker {
    /// Starts it; the database need not be there yet. A loop that dies is told to `loops`.
    pub fn start(database: Database, settings: WorkerSettings, wake: Wake, loops: Loops) -> Self {
        let (soft, now, tasks) = (CancellationToken::new(), CancellationToken::new(), TaskTracker::new());
        tasks.spawn(keep(database, settings, wake, loops, soft.clone(), now.clone()));
        tasks.close();
        Self { soft, now, tasks }
    }

    /// Stops as [`Worker::stop`] does. May be called again.
    pub async fn stop(&self) {
        self.soft.cancel();
        self.tasks.wait().await;
    }

    /// Stops as [`Worker::stop_now`] does. May be called again.
    pub async fn stop_now(&self) {
        self.soft.cancel();
        self.now.cancel();
        self.tasks.wait().await;
    }
}

impl Drop for KeptWorker {
    fn drop(&mut self) {
        self.soft.cancel();
        self.now.cancel();
    }
}

async fn keep(
    database: Database,
    settings: WorkerSettings,
    wake: Wake,
    loops: Loops,
    soft: CancellationToken,
    now: CancellationToken,
) {
    let mut again = Again::default();
    while !soft.is_cancelled() {
        let worker = Worker::start(database.clone(), settings.clone(), wake.clone());
        again.begins();
        loops.runs(WORKER);
        let (name, fault) = tokio::select! {
            broken = worker.watched.broken(settings.still_after) => broken,
            () = soft.cancelled() => {
                tokio::select! {
                    () = worker.stop() => {}
                    () = now.cancelled() => worker.stop_now().await,
                }
                return;
            }
        };
        loops.died(name, &fault);
        // Shown under one name, whichever loop it was: the whole worker is down.
        loops.runs(name);
        loops.shows_down(WORKER, format!("{name}: {fault}"));
        if tokio::time::timeout(ENDS_WITHIN, worker.end_broken()).await.is_err() {
            tracing::error!(worker = %worker.id, "a broken worker does not end; it is left behind, and nothing that it says counts any more");
        }
        match free(&database, worker.id).await {
            Ok(lanes) => tracing::warn!(worker = %worker.id, lanes, "the lanes of the broken worker are free again"),
            Err(error) => tracing::warn!(
                worker = %worker.id, error = %chain(&error),
                "the lanes of the broken worker could not be freed; they are when another finds its heartbeat standing, or their lease ends"
            ),
        }
        drop(worker);
        again.wait(&soft).await;
        wake.wake();
    }
}

async fn free(database: &Database, worker: Uuid) -> Result<u64, DatabaseError> {
    workers::free(&mut database.session().await?, worker).await
}
