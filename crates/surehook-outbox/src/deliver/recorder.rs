//! The recorder: gathers what the lanes report and writes it in groups, at once when idle. What cannot be written (the
//! database is away, a lane is locked by another) waits for the next flush; nothing is dropped.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use uuid::Uuid;

use super::{Shared, chain};
use crate::store::claim::ClaimedLane;
use crate::store::record::{self, Attempt, Batch, DeadLetter, LaneState, Release, Written};
use crate::store::{DatabaseError, workers};

/// How long a group gathers while reports keep coming.
const GATHER: Duration = Duration::from_millis(5);
/// Lanes written in one transaction at most.
const GROUP_MAX: usize = 1000;
/// How often it is noted of an endpoint at most that something got through to it.
const NOTE_SUCCESS_EVERY: Duration = Duration::from_secs(1);
/// Pause before lanes that were locked, or a database that is away, are tried again.
const AGAIN: Duration = Duration::from_millis(50);

/// What a lane says after one of its deliveries.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) endpoint_id: Uuid,
    pub(super) lane: Option<LaneState>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) dead: Vec<DeadLetter>,
    pub(super) replays_delivered: Vec<(i64, Uuid)>,
    pub(super) pauses: Vec<(Uuid, String)>,
    pub(super) succeeded: bool,
}

impl Report {
    /// Gives a lane back as it was claimed.
    pub(super) fn give_back(lane: &ClaimedLane) -> Self {
        let lane = LaneState {
            lane_id: lane.lane_id,
            epoch: lane.epoch,
            done_seq: lane.done_seq,
            head: lane.head,
            first_tried_at: None,
            last_error: None,
            release: Some(Release::Now),
            lease: Duration::ZERO,
        };
        Self { lane: Some(lane), ..Self::default() }
    }
}

/// The lanes' end of the channel.
#[derive(Clone)]
pub(super) struct Reports(mpsc::UnboundedSender<Report>);

impl Reports {
    pub(super) fn send(&self, report: Report) {
        // The recorder outlives the lanes; only a hard end of the whole worker closes it before them.
        if self.0.send(report).is_err() {
            tracing::warn!("a report came after the recorder had ended; the delivery will be repeated");
        }
    }
}

/// The channel is unbounded: its size is bounded by the lanes in hand times the deliveries of one read.
pub(super) fn channel() -> (Reports, mpsc::UnboundedReceiver<Report>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Reports(sender), receiver)
}

/// Reports waiting to be written, merged per lane.
#[derive(Default)]
struct Waiting {
    lanes: HashMap<i64, Report>,
    /// When it was last noted of an endpoint that something got through to it.
    successes_noted: HashMap<Uuid, Instant>,
}

impl Waiting {
    fn add(&mut self, report: Report) {
        let Some(state) = &report.lane else { return };
        match self.lanes.entry(state.lane_id) {
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(report);
            }
            std::collections::hash_map::Entry::Occupied(mut entry) => {
                let old = entry.get_mut();
                match old.lane.as_ref().map_or(Ordering::Less, |old| old.epoch.cmp(&state.epoch)) {
                    Ordering::Equal => merge(old, report),
                    // The lane was claimed anew meanwhile: what was said under the old claim counts no more.
                    Ordering::Less => {
                        entry.insert(report);
                    }
                    // Claimed anew by this very worker, and the task of the earlier claim says its last word only now.
                    Ordering::Greater => {}
                }
            }
        }
    }

    /// Takes up to `GROUP_MAX` lanes out as one batch.
    fn take(&mut self) -> (Batch, HashMap<i64, Report>) {
        let ids: Vec<i64> = self.lanes.keys().copied().take(GROUP_MAX).collect();
        let taken: HashMap<i64, Report> =
            ids.into_iter().filter_map(|id| Some((id, self.lanes.remove(&id)?))).collect();
        let mut batch = Batch::default();
        for report in taken.values() {
            batch.lanes.extend(report.lane.clone());
            batch.attempts.extend(report.attempts.iter().cloned());
            batch.dead.extend(report.dead.iter().cloned());
            batch.replays_delivered.extend(report.replays_delivered.iter().copied());
            batch.pauses.extend(report.pauses.iter().cloned());
        }
        (batch, taken)
    }
}

fn merge(old: &mut Report, new: Report) {
    let before = std::mem::replace(&mut old.lane, new.lane);
    if let (Some(before), Some(now)) = (before, old.lane.as_mut())
        && before.done_seq == now.done_seq
    {
        now.first_tried_at = now.first_tried_at.or(before.first_tried_at);
        now.last_error = now.last_error.take().or(before.last_error);
    }
    old.attempts.extend(new.attempts);
    old.dead.extend(new.dead);
    old.replays_delivered.extend(new.replays_delivered);
    old.pauses.extend(new.pauses);
    old.succeeded |= new.succeeded;
}

pub(super) async fn run(shared: Arc<Shared>, mut inbox: mpsc::UnboundedReceiver<Report>) {
    let mut waiting = Waiting::default();
    let mut failures = 0u32;
    loop {
        shared.pulses.recorder.rest();
        if waiting.lanes.is_empty() {
            shared.watched.recorder.rests();
            tokio::select! {
                report = inbox.recv() => match report {
                    Some(report) => waiting.add(report),
                    None => break,
                },
                () = shared.stops.give_up.cancelled() => break,
            }
        }
        shared.pulses.recorder.beat();
        while let Ok(report) = inbox.try_recv() {
            waiting.add(report);
        }
        shared.watched.recorder.works();
        let pause = match flush(&shared, &mut waiting).await {
            Ok(()) if waiting.lanes.is_empty() => {
                failures = 0;
                GATHER
            }
            // Lanes that were locked, or a group that was full.
            Ok(()) => GATHER,
            Err(error) => {
                failures += 1;
                if failures == 1 || failures.is_multiple_of(200) {
                    let lanes = waiting.lanes.len();
                    tracing::warn!(error = %chain(&error), lanes, failures, "cannot record; keeping it and trying again");
                }
                AGAIN
            }
        };
        // While reports keep coming they gather for a moment; an idle recorder writes the next one at once.
        if !waiting.lanes.is_empty() || !inbox.is_empty() {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shared.stops.give_up.cancelled() => break,
            }
        }
    }
    shared.pulses.recorder.rest();
    if !waiting.lanes.is_empty() {
        let lanes = waiting.lanes.len();
        tracing::warn!(
            lanes,
            "stopping without the database: these lanes are free again when their lease ends, and may be delivered twice"
        );
    }
    leave(&shared).await;
}

async fn flush(shared: &Shared, waiting: &mut Waiting) -> Result<(), DatabaseError> {
    let (batch, mut taken) = waiting.take();
    let began = Instant::now();
    match write(shared, &batch).await {
        Ok(recorded) => {
            let mut successes: Vec<Uuid> = Vec::new();
            for written in &recorded.done {
                let Some(report) = taken.remove(&written.lane_id) else { continue };
                if report.succeeded {
                    successes.push(report.endpoint_id);
                }
                note(shared, &report, written, began);
            }
            for report in recorded.ended.iter().filter_map(|lane_id| taken.remove(lane_id)) {
                with_lane(&report, |lane| shared.held.remove(lane.lane_id, lane.epoch));
            }
            for report in recorded.lost.iter().filter_map(|lane_id| taken.remove(lane_id)) {
                with_lane(&report, |lane| {
                    let lane_id = lane.lane_id;
                    shared.held.lose(lane_id, lane.epoch);
                    tracing::warn!(
                        lane_id,
                        "this lane was taken over meanwhile; what this worker says of it is discarded"
                    );
                });
            }
            // What is left was locked by another: it waits for the next flush.
            taken.into_values().for_each(|report| waiting.add(report));
            if recorded.more_is_due() {
                shared.wake.wake_here();
            }
            note_success(shared, &mut waiting.successes_noted, successes).await
        }
        Err(error) => {
            taken.into_values().for_each(|report| waiting.add(report));
            Err(error)
        }
    }
}

/// Tells the lane's task how far it may go; a lane that was given back is held no longer. `began` lies before the write, so
/// that the lease is rather too short than too long.
fn note(shared: &Shared, report: &Report, written: &Written, began: Instant) {
    with_lane(report, |lane| match (lane.release, written.lease_left) {
        (None, Some(left)) => {
            if let Some(grip) = shared.held.get(lane.lane_id, lane.epoch) {
                grip.learn(written.last_seq, began + left);
            }
        }
        // The lane gave itself up because nothing is left in it; its task learns that nobody listens any more.
        (None, None) => shared.held.lose(lane.lane_id, lane.epoch),
        (Some(_), _) => shared.held.remove(lane.lane_id, lane.epoch),
    });
}

fn with_lane(report: &Report, act: impl FnOnce(&LaneState)) {
    if let Some(lane) = &report.lane {
        act(lane);
    }
}

async fn write(shared: &Shared, batch: &Batch) -> Result<record::Recorded, DatabaseError> {
    let mut session = shared.database.worker_session().await?;
    record::record(&mut session, shared.id, batch).await
}

async fn note_success(
    shared: &Shared,
    noted: &mut HashMap<Uuid, Instant>,
    mut endpoints: Vec<Uuid>,
) -> Result<(), DatabaseError> {
    let now = Instant::now();
    noted.retain(|_, at| now.duration_since(*at) < NOTE_SUCCESS_EVERY);
    endpoints.retain(|endpoint_id| !noted.contains_key(endpoint_id));
    endpoints.sort_unstable();
    endpoints.dedup();
    if endpoints.is_empty() {
        return Ok(());
    }
    let session = shared.database.worker_session().await?;
    record::note_success(&session, &endpoints).await?;
    noted.extend(endpoints.into_iter().map(|endpoint_id| (endpoint_id, now)));
    Ok(())
}

async fn leave(shared: &Shared) {
    let left = async {
        let session = shared.database.worker_session().await?;
        // Of a claim whose answer was lost lanes may bear our name that nobody here knows of.
        workers::give_back_unknown(&session, shared.id, &shared.held.all()).await?;
        workers::leave(&session, shared.id).await
    };
    match tokio::time::timeout(Duration::from_secs(2), left).await {
        Ok(Ok(())) => {}
        // The others find out by the heartbeat.
        Ok(Err(error)) => tracing::debug!(error = %chain(&error), "could not sign off"),
        Err(_) => tracing::debug!("could not sign off in time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(epoch: i64, done_seq: i64, release: Option<Release>) -> Report {
        let lane = LaneState {
            lane_id: 1,
            epoch,
            done_seq,
            head: crate::retry::Head::default(),
            first_tried_at: None,
            last_error: None,
            release,
            lease: Duration::ZERO,
        };
        Report { lane: Some(lane), succeeded: release.is_none(), ..Report::default() }
    }

    fn waits(waiting: &Waiting) -> Option<(i64, i64, bool)> {
        let report = waiting.lanes.get(&1)?;
        report.lane.as_ref().map(|lane| (lane.epoch, lane.done_seq, report.succeeded))
    }

    #[test]
    fn the_newest_claim_has_the_word_whoever_speaks_last() {
        let mut waiting = Waiting::default();
        waiting.add(report(1, 1, None));
        waiting.add(report(1, 2, Some(Release::Now)));
        assert_eq!(waits(&waiting), Some((1, 2, true)));
        waiting.add(report(3, 1, None));
        assert_eq!(waits(&waiting), Some((3, 1, true)));
        waiting.add(report(1, 2, Some(Release::Now)));
        assert_eq!(waits(&waiting), Some((3, 1, true)));
    }
}
