//! The scan: announces every repository of this storage at start and then at intervals, so that what no push told of
//! (a crash, `git update-ref`, a push past the hook) is told all the same.

use std::sync::Arc;
use std::time::{Duration, Instant};

use surehook_outbox::pulse::Beat;
use surehook_outbox::{Database, DatabaseError};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::drift::Drift;
use crate::capture::announce::{AnnounceError, Announced, Announcer};
use crate::hosting::Storage;
use crate::store::alerts::{self, AlertChange, AlertKind};
use crate::store::repositories::{self, Origin};

/// The scan of one storage.
#[derive(Clone)]
pub(super) struct Scan {
    pub(super) announcer: Arc<Announcer>,
    pub(super) storage: Storage,
    pub(super) database: Database,
    pub(super) drift: Drift,
    pub(super) pulse: Beat,
}

type Outcomes = Vec<(Uuid, Result<Announced, AnnounceError>)>;

impl Scan {
    /// Scans until stopped.
    pub(super) async fn run(self, every: Duration, stop: CancellationToken) {
        // What the first one finds happened while nobody served: no push could have told of it.
        let mut is_first = true;
        loop {
            self.pulse.beat();
            let begun = Instant::now();
            tokio::select! {
                outcome = self.turn() => match outcome {
                    Ok(outcomes) => {
                        self.report(&outcomes, (!is_first).then_some(begun)).await;
                        is_first = false;
                    }
                    Err(error) => {
                        tracing::warn!(error = &error as &dyn std::error::Error, "the scan could not begin; it runs again");
                    }
                },
                // Abandoning a scan is safe: what it had not committed is found by the next.
                () = stop.cancelled() => break,
            }
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = stop.cancelled() => break,
            }
        }
        self.pulse.rest();
    }

    /// Where the whole storage is in doubt, one alert says so for all of its repositories.
    async fn turn(&self) -> Result<Outcomes, AnnounceError> {
        let storage_id = self.storage.storage_id;
        if let Err(reason) = self.storage.check() {
            if repositories::mark_storage_unavailable(&self.database, storage_id, &reason).await? == AlertChange::Opened
            {
                tracing::error!(%storage_id, reason, "Nothing of this storage is served or announced until this is put right");
            }
            return Ok(Outcomes::new());
        }
        if repositories::mark_storage_available(&self.database, storage_id).await? == AlertChange::Resolved {
            tracing::info!(%storage_id, "The storage is there again");
        }
        self.announcer.scan(storage_id).await
    }

    /// `looked_at`: when a look began at what pushes should have told of.
    async fn report(&self, outcomes: &Outcomes, looked_at: Option<Instant>) {
        for (repository_id, events) in self.drift.judge() {
            if let Err(error) = self.alert(repository_id, events).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%repository_id, error, "changes past surehook were found and told, but no alert could be opened");
            }
        }
        for (repository_id, outcome) in outcomes {
            match outcome {
                Ok(announced) if announced.events > 0 => {
                    let events = announced.events;
                    tracing::info!(%repository_id, events, "the scan found changes that no push had told of");
                    if let Some(looked_at) = looked_at {
                        self.drift.found(*repository_id, looked_at, events);
                    }
                }
                Ok(_) => {}
                Err(error) => {
                    let error = error as &dyn std::error::Error;
                    tracing::warn!(%repository_id, error, "this repository could not be announced");
                }
            }
        }
    }

    /// Imported repositories are changed past surehook by their nature.
    async fn alert(&self, repository_id: Uuid, events: usize) -> Result<(), DatabaseError> {
        let Some(repository) = repositories::find_by_id(&self.database, repository_id).await? else { return Ok(()) };
        if repository.origin != Origin::Hosted {
            return Ok(());
        }
        let name = &repository.name;
        let changes = if events == 1 { "a change".to_owned() } else { format!("{events} changes") };
        let details = format!("{name}: the scan found {changes} of refs that no push to this server told of");
        let session = self.database.session().await?;
        let change = alerts::open(&session, AlertKind::Drift, &repository_id.to_string(), name, &details).await?;
        if change == AlertChange::Opened {
            tracing::warn!(repository = %name, events, "refs changed past surehook; they are told, and an alert is open");
        }
        Ok(())
    }
}
