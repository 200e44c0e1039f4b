//! The worker: claims lanes, delivers them side by side, records what happened. Holds no transaction while it sends.
//!
//! Tasks: the scout; the claim loop; one per lane in hand; the feed; the recorder; the heartbeat. All are joined by
//! [`Worker::stop`].

mod claims;
mod feed;
mod fence;
mod gate;
mod heartbeat;
mod held;
mod lane;
mod recorder;
mod scout;
mod suspicion;
mod watch_loops;
mod window;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use self::fence::Fence;
use self::gate::Gate;
use self::held::Held;
use self::scout::Scout;
pub use self::watch_loops::KeptWorker;
use self::watch_loops::Watched;
use crate::clock::DatabaseClock;
use crate::loops::{Fault, caught};
use crate::pulse::{Beat, Pulse};
use crate::retry::Outcome;
use crate::send::Sender;
use crate::store::Database;
use crate::subscriber::Subscribers;
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
    /// Requests at once with which the window of an endpoint begins.
    pub window_start: usize,
    /// At a soft stop: how long requests under way may go on.
    pub grace: Duration,
    /// A loop of the worker whose turn lasts longer than this stands still; [`KeptWorker`] replaces the worker then.
    pub still_after: Duration,
    /// How this process is called in lists: host and process id.
    pub node: String,
    /// Told of every attempt, for metrics.
    pub observer: Option<Observer>,
    /// Handlers within this process.
    pub subscribers: Subscribers,
    /// Where the loops of the worker show that they come round.
    pub pulse: Pulse,
    /// A loop that has not come round for so long stands still; the row of the worker says so.
    pub stalled_after: Duration,
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
            lanes_in_flight_max: 2048,
            window_start: 8,
            grace: Duration::from_secs(20),
            still_after: Duration::from_secs(60),
            node: format!("process {}", std::process::id()),
            observer: None,
            subscribers: Subscribers::default(),
            pulse: Pulse::default(),
            stalled_after: Duration::from_secs(60),
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
    watched: Watched,
    pulses: Pulses,
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
    gate: Gate,
    scout: Scout,
    watched: Watched,
    pulses: Pulses,
}

/// The loops of a worker whose coming round is watched.
#[derive(Clone, Debug)]
struct Pulses {
    claims: Beat,
    recorder: Beat,
    heartbeat: Beat,
}

impl Worker {
    /// Starts the tasks; the database need not be there yet.
    pub fn start(database: Database, settings: WorkerSettings, wake: Wake) -> Self {
        let (stops, watched) = (Stops::default(), Watched::default());
        let id = Uuid::new_v4();
        let (grace, window_start) = (settings.grace, settings.window_start);
        let pulse = &settings.pulse;
        let pulses =
            Pulses { claims: pulse.of("claims"), recorder: pulse.of("recorder"), heartbeat: pulse.of("heartbeat") };
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
            gate: Gate::new(window_start),
            scout: Scout::default(),
            watched: watched.clone(),
            pulses: pulses.clone(),
        });
        let (reports, inbox) = recorder::channel();
        let (feed, asks) = feed::channel();
        let tasks = TaskTracker::new();
        spawn(&tasks, &shared, "recorder", recorder::run(Arc::clone(&shared), inbox));
        spawn(&tasks, &shared, "heartbeat", heartbeat::run(Arc::clone(&shared)));
        spawn(&tasks, &shared, "scout", scout::run(Arc::clone(&shared)));
        spawn(&tasks, &shared, "feed", feed::run(Arc::clone(&shared), asks));
        spawn(&tasks, &shared, "claims", claims::run(Arc::clone(&shared), reports, feed));
        tasks.close();
        Self { id, wake, stops, grace, tasks, watched, pulses }
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

    /// Ends what is left of a worker one of whose loops has died: nothing new is begun, requests under way are abandoned.
    async fn end_broken(&self) {
        self.stops.soft.cancel();
        self.stops.hard.cancel();
        // Nobody may be left who says that all is reported.
        self.stops.recorder.cancel();
        if tokio::time::timeout(Duration::from_secs(2), self.tasks.wait()).await.is_err() {
            self.stops.give_up.cancel();
            self.tasks.wait().await;
        }
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
        // A loop that has died cannot say that it rests, and one that is put in its place has a pulse of its own.
        for beat in [&self.pulses.claims, &self.pulses.recorder, &self.pulses.heartbeat] {
            beat.rest();
        }
    }
}

/// Starts a loop. One that ends before the worker is stopped, or panics, is noted.
fn spawn(
    tasks: &TaskTracker,
    shared: &Arc<Shared>,
    name: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let (watched, stops) = (shared.watched.clone(), shared.stops.clone());
    tasks.spawn(async move {
        let fault = caught(task).await;
        if fault != Fault::Ended || !stops.soft.is_cancelled() {
            watched.note(name, fault);
        }
    });
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
