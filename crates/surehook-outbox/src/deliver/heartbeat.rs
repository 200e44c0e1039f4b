//! The heartbeat: moves this worker's counter, shows its windows, and takes the lanes of a worker whose counter stands still.
//!
//! A worker is declared dead only after two reads of our own, at least [`HELD_FOR_ALIVE`] apart, showed the same counter,
//! and only if our own beats went through all the while, over one connection. After an outage of the database nobody is: what
//! was seen is forgotten with the connection, and each one has [`SETTLE`] to come back. If everything stood still, this
//! process, the machine or the database, our own beat was late too, and what was seen is forgotten as well.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::fence::{Beaten, HELD_FOR_ALIVE};
use super::{Shared, chain};
use crate::store::workers::{self, Heartbeat};
use crate::store::{DatabaseError, Session, windows};

/// How often this worker's counter moves, and those of the others are read: so one that is dead is found out within four
/// seconds of its last beat.
const BEAT_EVERY: Duration = Duration::from_millis(500);
/// Beats further apart than this say that something stood still.
const LATE: Duration = Duration::from_secs(2);
/// How long after an outage nobody is judged.
const SETTLE: Duration = Duration::from_secs(10);

pub(super) async fn run(shared: Arc<Shared>) {
    let mut judge_from = Instant::now();
    // Until the lanes are given back the worker is alive, so the beat goes on during a soft stop.
    while !shared.stops.recorder.is_cancelled() && !shared.stops.give_up.is_cancelled() {
        shared.watched.heartbeat.works();
        shared.pulses.heartbeat.beat();
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
    shared.pulses.heartbeat.rest();
}

/// The loop of this worker that stands still although the process goes on.
fn stalled(shared: &Shared) -> Option<&'static str> {
    let ages = [shared.pulses.claims.age(), shared.pulses.recorder.age()];
    ages.into_iter().find(|age| age.age >= shared.settings.stalled_after).map(|age| age.name)
}

/// Beats and looks over one session until it breaks or the worker stops.
async fn watch(shared: &Shared, judge_from: &mut Instant) -> Result<(), DatabaseError> {
    let mut session = shared.database.worker_session().await?;
    // Where each counter stands, and since when.
    let mut seen: HashMap<Uuid, (i64, Instant)> = HashMap::new();
    let mut last_beat = Instant::now();
    loop {
        shared.pulses.heartbeat.beat();
        let sent = Instant::now();
        shared.watched.heartbeat.works();
        let count = workers::beat(&session, shared.id, &shared.settings.node, stalled(shared)).await?;
        note(shared, sent, count);
        let (changed, forgotten) = shared.gate.changed();
        windows::write(&session, shared.id, &changed, &forgotten).await?;
        shared.gate.written(changed);
        shared.sender.close_idle();
        if last_beat.elapsed() > LATE {
            seen.clear();
        }
        last_beat = Instant::now();
        if last_beat >= *judge_from {
            // Taken before the read, so that a counter stands rather longer than it seems.
            let looked_at = Instant::now();
            let others = workers::others(&session, shared.id).await?;
            seen.retain(|worker_id, _| others.iter().any(|other| other.worker_id == *worker_id));
            for other in others {
                let stands = seen.entry(other.worker_id).or_insert_with(|| (other.count, Instant::now()));
                if stands.0 != other.count {
                    *stands = (other.count, Instant::now());
                } else if looked_at.duration_since(stands.1) >= HELD_FOR_ALIVE {
                    seen.remove(&other.worker_id);
                    take_over(&mut session, shared, other).await?;
                }
            }
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
    shared.wake.wake_here();
}

async fn take_over(session: &mut Session, shared: &Shared, dead: Heartbeat) -> Result<(), DatabaseError> {
    if let Some(lanes) = workers::declare_dead(session, dead).await? {
        tracing::warn!(worker = %dead.worker_id, lanes, "a worker's heartbeat stands still; its lanes are free again");
        shared.wake.wake();
    }
    Ok(())
}
