//! The sweep: keeps week partitions ahead and ends the work of removed endpoints. Runs on a timer, safe to run twice.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::deliver::chain;
use crate::loops::Pulse;
use crate::store::{Database, DatabaseError, upkeep, windows};

/// How often it runs.
const EVERY: Duration = Duration::from_secs(60);

/// Sweeps until stopped. A failure is logged and tried again at the next turn.
pub async fn run(database: Database, pulse: Pulse, stop: CancellationToken) {
    while !stop.is_cancelled() {
        pulse.works();
        if let Err(error) = sweep(&database).await {
            tracing::warn!(error = %chain(&error), "the sweep failed; it runs again in a minute");
        }
        pulse.rests();
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// One turn.
pub async fn sweep(database: &Database) -> Result<(), DatabaseError> {
    let session = database.session().await?;
    let made = upkeep::ensure_partitions(&session).await?;
    if made > 0 {
        tracing::info!(partitions = made, "made storage for the weeks to come");
    }
    windows::sweep(&session).await?;
    upkeep::forget_lost_workers(&session).await?;
    let cancelled = upkeep::cancel_removed(&session).await?;
    if cancelled > 0 {
        tracing::info!(deliveries = cancelled, "cancelled what was still queued for removed endpoints");
    }
    Ok(())
}
