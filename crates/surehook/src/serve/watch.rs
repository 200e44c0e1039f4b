//! Starts the watchdog on a thread of its own and joins it; and the task that shows that the runtime of the server runs.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use surehook_outbox::pulse::Beat;
use surehook_outbox::send::direct::Direct;
use surehook_outbox::{Database, Pulse};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::file::Config;
use crate::telemetry::metrics::Metrics;
use crate::watchdog::Watchdog;

/// What the watchdog needs beside the settings.
#[derive(Debug)]
pub struct WatchdogSettings {
    /// Where its messages go.
    pub to: Direct,
    /// A pool of its own, which must not have been used: its sessions live on the watchdog's thread. It closes it.
    pub database: Database,
}

/// The thread of the watchdog; told to end when dropped.
pub(super) struct WatchdogThread {
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    _stop: DropGuard,
}

impl WatchdogThread {
    pub(super) fn start(
        settings: WatchdogSettings,
        config: &Config,
        pulse: &Pulse,
        metrics: &Metrics,
        stop: &CancellationToken,
    ) -> std::io::Result<Self> {
        let mut watchdog = config.watchdog.clone();
        if watchdog.name.is_empty() {
            watchdog.name = crate::config::node_name();
        }
        let dog = Watchdog {
            config: watchdog,
            to: settings.to,
            database: settings.database,
            pulse: pulse.clone(),
            runbook_url: config.alerts.runbook_url.clone(),
            counts: metrics.watchdog(),
        };
        let stop = stop.child_token();
        let until = stop.clone();
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(move || dog.run(&until))?;
        Ok(Self { thread: Mutex::new(Some(thread)), _stop: stop.drop_guard() })
    }

    /// Waits until it has ended; it must have been told to.
    pub(super) async fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // One that panicked has said so in the log.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

/// Shows that the runtime runs its tasks.
pub(super) async fn come_round(beat: Beat, stop: CancellationToken) {
    while !stop.is_cancelled() {
        beat.beat();
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = stop.cancelled() => {}
        }
    }
    beat.rest();
}
