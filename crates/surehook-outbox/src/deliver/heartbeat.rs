//! The heartbeat: moves this worker's counter, and takes the lanes of a worker whose counter stands still.
//!
//! A worker is declared dead only after two reads of our own, at least [`LOOK_EVERY`] apart, over a connection that stayed
//! up in between, showed the same counter. After an outage of the database nobody is: the memory goes with the connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Shared, chain};
use crate::store::workers::{self, Heartbeat};
use crate::store::{DatabaseError, Session};

/// How often this worker's counter moves.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// The least time between two reads that are compared.
const LOOK_EVERY: Duration = Duration::from_secs(3);

pub(super) async fn run(shared: Arc<Shared>) {
    // Until the lanes are given back the worker is alive, so the beat goes on during a soft stop.
    while !shared.stops.recorder.is_cancelled() && !shared.stops.give_up.is_cancelled() {
        if let Err(error) = watch(&shared).await {
            tracing::debug!(error = %chain(&error), "heartbeat interrupted; what was seen of other workers is forgotten");
        }
        tokio::select! {
            () = tokio::time::sleep(BEAT_EVERY) => {}
            () = shared.stops.recorder.cancelled() => {}
            () = shared.stops.give_up.cancelled() => {}
        }
    }
}

/// Beats and looks over one session until it breaks or the worker stops.
async fn watch(shared: &Shared) -> Result<(), DatabaseError> {
    let mut session = shared.database.session().await?;
    let mut seen: Vec<Heartbeat> = Vec::new();
    let mut looked: Option<Instant> = None;
    loop {
        workers::beat(&session, shared.id, &shared.settings.node).await?;
        if looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            let now = workers::others(&session, shared.id).await?;
            for standing in now.iter().filter(|heartbeat| seen.contains(heartbeat)) {
                take_over(&mut session, shared, *standing).await?;
            }
            seen = now;
            looked = Some(Instant::now());
        }
        tokio::select! {
            () = tokio::time::sleep(BEAT_EVERY) => {}
            () = shared.stops.recorder.cancelled() => return Ok(()),
            () = shared.stops.give_up.cancelled() => return Ok(()),
        }
    }
}

async fn take_over(session: &mut Session, shared: &Shared, dead: Heartbeat) -> Result<(), DatabaseError> {
    if let Some(lanes) = workers::declare_dead(session, dead).await? {
        tracing::warn!(worker = %dead.worker_id, lanes, "a worker's heartbeat stands still; its lanes are free again");
        shared.wake.wake();
    }
    Ok(())
}
