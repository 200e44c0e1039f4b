//! The heartbeat: moves this worker's counter, and takes the lanes of a worker whose counter stands still.
//!
//! A worker is declared dead only after two reads of our own, at least [`HELD_FOR_ALIVE`] apart, showed the same counter,
//! and only if our own beats went through all the while, over one connection. After an outage of the database nobody is: what
//! was seen is forgotten with the connection, and each one has [`SETTLE`] to come back. If everything stood still, this
//! process, the machine or the database, our own beat was late too, and what was seen is forgotten as well.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fence::{Beaten, HELD_FOR_ALIVE};
use super::{Shared, chain};
use crate::store::workers::{self, Heartbeat};
use crate::store::{DatabaseError, Session};

/// How often this worker's counter moves.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// Beats further apart than this say that something stood still.
const LATE: Duration = Duration::from_secs(2);
/// How long after an outage nobody is judged.
const SETTLE: Duration = Duration::from_secs(10);

pub(super) async fn run(shared: Arc<Shared>) {
    let mut judge_from = Instant::now();
    // Until the lanes are given back the worker is alive, so the beat goes on during a soft stop.
    while !shared.stops.recorder.is_cancelled() && !shared.stops.give_up.is_cancelled() {
        if let Err(error) = watch(&shared, &mut judge_from).await {
            tracing::debug!(error = %chain(&error), "heartbeat interrupted; what was seen of other workers is forgotten");
        }
        judge_from = Instant::now() + SETTLE;
        tokio::select! {
            () = tokio::time::sleep(BEAT_EVERY) => {}
            () = shared.stops.recorder.cancelled() => {}
            () = shared.stops.give_up.cancelled() => {}
        }
    }
}

/// Beats and looks over one session until it breaks or the worker stops.
async fn watch(shared: &Shared, judge_from: &mut Instant) -> Result<(), DatabaseError> {
    let mut session = shared.database.session().await?;
    let mut seen: Vec<Heartbeat> = Vec::new();
    let mut looked: Option<Instant> = None;
    let mut last_beat = Instant::now();
    loop {
        let sent = Instant::now();
        let count = workers::beat(&session, shared.id, &shared.settings.node).await?;
        note(shared, sent, count);
        if last_beat.elapsed() > LATE {
            (seen, looked) = (Vec::new(), None);
        }
        last_beat = Instant::now();
        if last_beat >= *judge_from && looked.is_none_or(|at| at.elapsed() >= HELD_FOR_ALIVE) {
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

fn note(shared: &Shared, sent: Instant, count: i64) {
    match shared.fence.beaten(sent, count) {
        Beaten::Open => return,
        Beaten::Opened => {}
        Beaten::WasDeclaredDead => {
            tracing::warn!("this worker stood still, and others took over what it held; it begins anew");
        }
    }
    shared.wake.wake();
}

async fn take_over(session: &mut Session, shared: &Shared, dead: Heartbeat) -> Result<(), DatabaseError> {
    if let Some(lanes) = workers::declare_dead(session, dead).await? {
        tracing::warn!(worker = %dead.worker_id, lanes, "a worker's heartbeat stands still; its lanes are free again");
        shared.wake.wake();
    }
    Ok(())
}
