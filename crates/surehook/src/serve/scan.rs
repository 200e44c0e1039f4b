//! The scan: announces every repository of this storage at start and then at intervals, so that what no push told of
//! (a crash, `git update-ref`, a push past the hook) is told all the same.

use std::sync::Arc;
use std::time::Duration;

use surehook_outbox::Database;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::capture::announce::{AnnounceError, Announcer};
use crate::hosting::Storage;
use crate::store::alerts::AlertChange;
use crate::store::repositories;

/// Scans until stopped.
pub(super) async fn run(
    announcer: Arc<Announcer>,
    storage: Storage,
    database: Database,
    every: Duration,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            outcome = scan(&announcer, &storage, &database) => report(outcome),
            // Abandoning a scan is safe: what it had not committed is found by the next.
            () = stop.cancelled() => return,
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Where the whole storage is in doubt, one alert says so for all of its repositories.
async fn scan(announcer: &Announcer, storage: &Storage, database: &Database) -> Result<Outcomes, AnnounceError> {
    let storage_id = storage.storage_id;
    if let Err(reason) = storage.check() {
        if repositories::mark_storage_unavailable(database, storage_id, &reason).await? == AlertChange::Opened {
            tracing::error!(%storage_id, reason, "Nothing of this storage is served or announced until this is put right");
        }
        return Ok(Outcomes::new());
    }
    if repositories::mark_storage_available(database, storage_id).await? == AlertChange::Resolved {
        tracing::info!(%storage_id, "The storage is there again");
    }
    announcer.scan(storage_id).await
}

type Outcomes = Vec<(Uuid, Result<crate::capture::announce::Announced, AnnounceError>)>;

fn report(outcome: Result<Outcomes, AnnounceError>) {
    match outcome {
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "the scan could not begin; it runs again");
        }
        Ok(repositories) => {
            for (repository_id, outcome) in repositories {
                match outcome {
                    Ok(announced) if announced.events > 0 => {
                        tracing::info!(%repository_id, events = announced.events, "the scan found changes that no push had told of");
                    }
                    Ok(_) => {}
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(%repository_id, error, "this repository could not be announced");
                    }
                }
            }
        }
    }
}
