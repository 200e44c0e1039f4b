//! The worker: claims lanes, delivers them side by side, records what happened. Holds no transaction while it sends.
//!
//! Tasks: one claim loop; one per lane in hand; the recorder; the heartbeat. All are joined by [`Worker::stop`].

mod claims;
mod fence;
mod heartbeat;
mod held;
mod lane;
mod recorder;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use self::fence::Fence;
use self::held::Held;
use crate::clock::DatabaseClock;
use crate::retry::Outcome;
use crate::send::Sender;
use crate::store::Database;
use crate::wake::Wake;

/// Told of every attempt as it ends.
pub type Observer = Arc<dyn Fn(&AttemptSeen) + Send + Sync>;

/// Settings of one worker process.
#[derive(Clone)]
pub struct WorkerSettings {
    /// How long to wait at most before looking for work again.
    pub poll: Duration,
    /// Lanes claimed at once from one endpoint.
    pub lanes_per_claim: usize,
    /// Deliveries taken at once from a lane.
    pub deliveries_per_read: usize,
    /// Lanes in hand at once, over all endpoints.
    pub lanes_in_flight_max: usize,
    /// At a soft stop: how long requests under way may go on.
    pub grace: Duration,
    /// How this process is called in lists: host and process id.
    pub node: String,
    /// Told of every attempt, for metrics.
    pub observer: Option<Observer>,
}

impl std::fmt::Debug for WorkerSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerSettings").field("node", &self.node).field("poll", &self.poll).finish_non_exhaustive()
    }
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(1),
            lanes_per_claim: 16,
            deliveries_per_read: 20,
            lanes_in_flight_max: 512,
            grace: Duration::from_secs(20),
            node: format!("process {}", std::process::id()),
            observer: None,
        }
    }
}

/// One attempt, as told to the observer.
#[derive(Clone, Copy, Debug)]
pub struct AttemptSeen {
    /// How it counts.
    pub outcome: Outcome,
    /// How long it took.
    pub duration: Duration,
}

/// A running worker. Dropping it stops it hard; [`Worker::stop`] is the soft way.
#[derive(Debug)]
pub struct Worker {
    /// This worker's id, the owner of its lanes.
    pub id: Uuid,
    /// Wakes it.
    pub wake: Wake,
    stops: Stops,
    grace: Duration,
    tasks: TaskTracker,
}

/// The three stages of stopping.
#[derive(Clone, Debug, Default)]
struct Stops {
    /// Take no new work, begin no new request.
    soft: CancellationToken,
    /// Abandon the requests under way.
    hard: CancellationToken,
    /// Nobody reports any more: record what there is, then end.
    recorder: CancellationToken,
    /// The recorder must not try any longer.
    give_up: CancellationToken,
}

/// What the tasks of a worker share.
struct Shared {
    id: Uuid,
    database: Database,
    settings: WorkerSettings,
    wake: Wake,
    clock: DatabaseClock,
    sender: Sender,
    stops: Stops,
    fence: Fence,
    held: Held,
}

impl Worker {
    /// Starts the tasks; the database need not be there yet.
    pub fn start(database: Database, settings: WorkerSettings, wake: Wake) -> Self {
        let stops = Stops::default();
        let id = Uuid::new_v4();
        let grace = settings.grace;
        let shared = Arc::new(Shared {
            id,
            database,
            settings,
            wake: wake.clone(),
            clock: DatabaseClock::default(),
            sender: Sender::new(),
            stops: stops.clone(),
            fence: Fence::default(),
            held: Held::default(),
        });
        let (reports, inbox) = recorder::channel();
        let tasks = TaskTracker::new();
        spawn(&tasks, recorder::run(Arc::clone(&shared), inbox));
        spawn(&tasks, heartbeat::run(Arc::clone(&shared)));
        spawn(&tasks, claims::run(shared, reports));
        tasks.close();
        Self { id, wake, stops, grace, tasks }
    }

    /// Stops: takes no new work, lets requests under way end within the grace time, abandons the rest uncharged, gives all
    /// lanes back, records, and joins every task. Calling it again while it runs, or afterwards, is harmless.
    pub async fn stop(&self) {
        self.stops.soft.cancel();
        if tokio::time::timeout(self.grace, self.tasks.wait()).await.is_ok() {
            return;
        }
        self.stop_now().await;
    }

    /// Stops without waiting for requests under way.
    pub async fn stop_now(&self) {
        self.stops.soft.cancel();
        self.stops.hard.cancel();
        // What was said must still be written: a few seconds for a database that is there.
        if tokio::time::timeout(Duration::from_secs(5), self.tasks.wait()).await.is_err() {
            self.stops.give_up.cancel();
            self.tasks.wait().await;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stops.soft.cancel();
        self.stops.hard.cancel();
        self.stops.give_up.cancel();
    }
}

fn spawn(tasks: &TaskTracker, task: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(task);
}

/// An error with all its causes, for one log line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(current) = cause {
        let more = current.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = current.source();
    }
    text
}
