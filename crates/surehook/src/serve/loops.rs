//! The loops of the server beside its workers, each begun again when it dies. May start tasks.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use surehook_outbox::jobs::{self, JobSettings};
use surehook_outbox::loops::{Loops, Pulse};
use surehook_outbox::news::{self, NewsObserver};
use surehook_outbox::{Database, Pulse as PulseOfAll, Wake, retention, sweep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::scan::Scan;
use crate::alerting;
use crate::config::file::Config;
use crate::telemetry::metrics::Metrics;
use crate::upkeep::Upkeep;

/// A turn of statements that takes longer than this stands still.
const STILL_AFTER: Duration = Duration::from_secs(300);

/// Every loop, by the name under which it is reported. The first five are those of a worker, and `worker` is all of one.
pub(crate) const NAMES: [&str; 14] = [
    "scout",
    "claims",
    "feed",
    "recorder",
    "heartbeat",
    "sweep",
    "retention",
    "news",
    "jobs",
    "alerting",
    "scan",
    "doorbell",
    "upkeep",
    "listener",
];

/// Without which nothing is delivered, or told in time.
pub(super) const NEEDED: [&str; 2] = ["worker", "scan"];

/// Where loops are begun and how they are stopped.
#[derive(Clone)]
pub(super) struct Keeper {
    pub(super) loops: Loops,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
}

impl Keeper {
    /// Keeps what `begin` makes running until the stop. `still_after`: how long a turn may take that shows when it begins.
    fn keep<Run>(
        &self,
        name: &'static str,
        still_after: Option<Duration>,
        begin: impl Fn(Pulse, CancellationToken) -> Run + Send + Sync + 'static,
    ) where
        Run: Future<Output = ()> + Send + 'static,
    {
        let (loops, stop) = (self.loops.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            let begin = |pulse| begin(pulse, stop.clone());
            loops.keep(name, still_after, stop.clone(), begin).await;
        });
    }

    /// Those of every process that delivers.
    pub(super) fn keep_outbox(
        &self,
        database: &Database,
        config: &Config,
        wake: &Wake,
        metrics: &Metrics,
        pulse: &PulseOfAll,
    ) {
        let swept = database.clone();
        self.keep("sweep", Some(STILL_AFTER), move |pulse, stop| sweep::run(swept.clone(), pulse, stop));
        let (removed, settings) = (database.clone(), config.retention());
        self.keep("retention", Some(STILL_AFTER), move |pulse, stop| {
            retention::run(removed.clone(), settings, stop, move || pulse.works())
        });
        if config.worker.notify {
            let (told, telling, observed) = (database.clone(), wake.clone(), metrics.clone());
            let observer: NewsObserver = Arc::new(move |seen| observed.observe_news(seen));
            self.keep("news", None, move |_, stop| {
                news::run(told.clone(), telling.clone(), Some(Arc::clone(&observer)), stop)
            });
        }
        let (watched, wake, alerts) = (database.clone(), wake.clone(), config.alerts.clone());
        let beat = pulse.of("watch");
        self.keep("alerting", None, move |_, stop| {
            let node = crate::config::node_name();
            alerting::run(watched.clone(), wake.clone(), node, alerts.clone(), beat.clone(), stop)
        });
    }

    /// Jobs are worked on by whoever delivers.
    pub(super) fn keep_jobs(&self, database: &Database, wake: &Wake, settings: JobSettings) {
        let (database, wake) = (database.clone(), wake.clone());
        self.keep("jobs", None, move |_, stop| jobs::run(database.clone(), wake.clone(), settings.clone(), stop));
    }

    /// Those of a process that has repositories. How long a turn takes here depends on them, so none is held to stand still.
    pub(super) fn keep_storage(&self, config: &Config, scan: Scan, upkeep: Upkeep) {
        let Scan { storage, announcer, database, .. } = scan.clone();
        let every = Duration::from_secs(config.scan.every_s);
        self.keep("scan", None, move |_, stop| scan.clone().run(every, stop));
        self.keep("doorbell", None, move |_, stop| {
            super::doorbell::run(storage.clone(), Arc::clone(&announcer), database.clone(), stop)
        });
        let (upkeep, every) = (Arc::new(upkeep), Duration::from_secs(config.upkeep.every_s));
        self.keep("upkeep", None, move |_, stop| {
            let upkeep = Arc::clone(&upkeep);
            async move { upkeep.run(every, stop).await }
        });
    }
}
