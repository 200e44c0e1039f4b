//! The claim loop: takes due lanes as far as their endpoints' windows allow, and starts a task for each.
//!
//! What there is to take from is what the scout last saw ([`Scene`]); a wake-up claims at once from the endpoints that are
//! known, and only if that brings nothing is the scout asked to look. Two things are special. After a claim whose answer was
//! lost there may be lanes that bear this worker's name and that nobody works on: [`Doubt`]. And a lane that two workers
//! vanished with is handled alone: [`Suspicion`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::feed::{self, Feed};
use super::fence::Life;
use super::scout::{Known, Scene};
use super::suspicion::{Suspicion, Turn};
use super::{Shared, chain, lane, recorder};
use crate::crash::point;
use crate::store::claim::{self, ClaimedLane, Quota, Range, Reading};
use crate::store::{DatabaseError, Session, workers};
use crate::target::NATIVE;

/// The claim loop's books.
#[derive(Default)]
struct Books {
    lanes: JoinSet<()>,
    doubt: Option<Doubt>,
    suspicion: Suspicion,
    /// What the scout last saw.
    scene: Arc<Scene>,
    /// Per endpoint: of what became due before this time, all was taken. The scout finds what was committed late.
    after: HashMap<Uuid, Timestamp>,
}

impl Books {
    /// Takes over a new scene: what is due behind a mark pulls the mark back.
    fn note(&mut self, scene: Arc<Scene>) {
        self.after.retain(|endpoint_id, _| scene.endpoints.contains_key(endpoint_id));
        for (endpoint_id, known) in &scene.endpoints {
            if let (Some(due_since), Some(after)) = (known.due_since, self.after.get_mut(endpoint_id)) {
                *after = (*after).min(due_since - SignedDuration::from_micros(1));
            }
        }
        self.scene = scene;
    }
}

/// After a claim whose answer did not come: it may have taken lanes that nobody here knows of, now or in a moment.
#[derive(Clone, Copy)]
struct Doubt {
    until: Instant,
    next_look: Instant,
}

/// How long such a claim may still take effect; its session was cut, and statements are short.
const DOUBT: Duration = Duration::from_secs(15);
/// How often is looked for its lanes.
const DOUBT_LOOK_EVERY: Duration = Duration::from_secs(1);
/// What is committed this long after it became due is still found by the claims themselves, later things by the scout.
const COMMITTED_WITHIN: SignedDuration = SignedDuration::from_secs(2);
/// Bodies that were read ahead and not sent yet; above it nothing is claimed.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What a look for work brought.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looked {
    /// As much as was asked for was taken: there may be more.
    Again,
    /// More is due than there is room for.
    MoreIsDue,
    /// Nothing was taken, or all that was due.
    Satisfied { lanes: usize },
}

pub(super) async fn run(shared: Arc<Shared>, reports: recorder::Reports, feed: Feed) {
    let mut books = Books::default();
    let mut scenes = shared.scout.follow();
    let mut failures = 0u32;
    let mut woken = false;
    while !shared.stops.soft.is_cancelled() {
        shared.watched.claims.works();
        shared.pulses.claims.beat();
        // Registered before the look, so that work which arrives during it is not missed.
        let (notified, room) = (shared.wake.notified(), shared.gate.room());
        let mut looked = Looked::Satisfied { lanes: 0 };
        match look(&shared, &reports, &feed, &mut books, &scenes).await {
            Ok(found) => {
                failures = 0;
                looked = found;
            }
            Err(error) => {
                failures += 1;
                if failures == 1 || failures.is_multiple_of(60) {
                    tracing::warn!(error = %chain(&error), failures, "cannot claim work; trying again at every poll");
                }
            }
        }
        // Somebody says that there is work, and none is seen: perhaps at an endpoint that is not known here.
        if woken && looked == (Looked::Satisfied { lanes: 0 }) {
            shared.scout.ask();
        }
        woken = tokio::select! {
            () = std::future::ready(()), if looked == Looked::Again => false,
            () = notified, if failures == 0 => true,
            Ok(()) = scenes.changed(), if failures == 0 => false,
            () = room, if looked == Looked::MoreIsDue => false,
            () = one_lane_ends(&mut books), if !books.lanes.is_empty() && looked == Looked::MoreIsDue => false,
            () = tokio::time::sleep(shared.settings.poll) => false,
            () = shared.stops.soft.cancelled() => false,
        };
        while let Some(ended) = books.lanes.try_join_next() {
            settle(ended);
        }
    }
    shared.watched.claims.rests();
    shared.pulses.claims.rest();
    while !books.lanes.is_empty() {
        one_lane_ends(&mut books).await;
    }
    drop(reports);
    shared.stops.recorder.cancel();
}

async fn one_lane_ends(books: &mut Books) {
    if let Some(ended) = books.lanes.join_next().await {
        settle(ended);
    }
}

fn settle(ended: Result<(), tokio::task::JoinError>) {
    // Lane tasks catch panics themselves; should one get through, its lane is freed by the end of its lease.
    if let Err(error) = ended {
        tracing::error!(%error, "a lane task ended abnormally; its lane is free again when its lease ends");
    }
}

/// Claims within the windows, reads, and starts a task per lane.
async fn look(
    shared: &Arc<Shared>,
    reports: &recorder::Reports,
    feed: &Feed,
    books: &mut Books,
    scenes: &watch::Receiver<Arc<Scene>>,
) -> Result<Looked, DatabaseError> {
    let scene = scenes.borrow().clone();
    if !Arc::ptr_eq(&scene, &books.scene) {
        books.note(Arc::clone(&scene));
    }
    let room = shared.settings.lanes_in_flight_max.saturating_sub(books.lanes.len());
    let is_full = room == 0 || shared.held.body_bytes() > BODY_BYTES_MAX;
    if is_full || (books.suspicion.is_alone() && !books.lanes.is_empty()) {
        return Ok(Looked::MoreIsDue);
    }
    // Taken before the claim: whoever declares this worker dead after it also takes what it claims now.
    let Some(life) = shared.fence.life() else { return Ok(Looked::Satisfied { lanes: 0 }) };
    let session = shared.database.worker_session().await?;
    clear_doubt(shared, &session, books).await?;
    let hands = Hands { shared, reports, feed, scene: &scene, life };
    let suspect_at = scene.endpoints.values().find(|known| known.has_suspect);
    let turn = books.suspicion.turn(suspect_at.is_some(), Instant::now());
    shared.held.make_room(turn == Turn::Suspect);
    if turn == Turn::Suspect {
        let Some(known) = suspect_at.filter(|_| books.lanes.is_empty()) else { return Ok(Looked::MoreIsDue) };
        return hands.take_suspect(books, &session, known).await;
    }
    hands.take(books, &session, room).await
}

/// What taking lanes needs.
struct Hands<'a> {
    shared: &'a Arc<Shared>,
    reports: &'a recorder::Reports,
    feed: &'a Feed,
    scene: &'a Scene,
    life: Life,
}

impl Hands<'_> {
    async fn take(&self, books: &mut Books, session: &Session, room: usize) -> Result<Looked, DatabaseError> {
        let (quotas, some_are_full) = self.quotas(books, room);
        if quotas.is_empty() {
            return Ok(if some_are_full { Looked::MoreIsDue } else { Looked::Satisfied { lanes: 0 } });
        }
        let (claimed_at, asked_at) = (Instant::now(), self.shared.clock.now());
        let reading = Reading {
            deliveries_max: self.shared.settings.deliveries_per_read,
            not_before: feed::recent(self.shared),
            only_native: self.scene.endpoints.values().all(|known| known.target.format == NATIVE),
        };
        point("claim.chosen");
        let claimed = match claim::claim(session, self.shared.id, &quotas, reading).await {
            Ok(claimed) => claimed,
            Err(error) => return Err(doubt(books, error)),
        };
        let mut is_more = false;
        for quota in &quotas {
            let taken = claimed.iter().filter(|lane| lane.endpoint_id == quota.endpoint_id).count();
            let is_whole = taken == quota.lanes;
            is_more |= is_whole;
            self.shared.gate.crowded(quota.endpoint_id, is_whole);
            if !is_whole {
                books.after.insert(quota.endpoint_id, quota.after.max(asked_at - COMMITTED_WITHIN));
            }
        }
        let lanes = claimed.len();
        self.begin(books, session, claimed, claimed_at).await?;
        Ok(match (is_more, some_are_full) {
            (true, _) => Looked::Again,
            (false, true) => Looked::MoreIsDue,
            (false, false) => Looked::Satisfied { lanes },
        })
    }

    /// How many lanes to claim from each endpoint, and whether some that have work are full.
    fn quotas(&self, books: &Books, room: usize) -> (Vec<Quota>, bool) {
        let (mut quotas, mut some_are_full, mut room_left) = (Vec::new(), false, room);
        for known in self.scene.endpoints.values() {
            let endpoint_id = known.target.endpoint_id;
            let free = self.shared.gate.free(&known.target);
            let lanes = free.min(self.shared.settings.lanes_per_claim).min(room_left);
            if lanes == 0 {
                let has_work = known.due_since.is_some() || self.shared.gate.is_crowded(endpoint_id);
                self.shared.gate.crowded(endpoint_id, has_work);
                some_are_full |= has_work;
                continue;
            }
            room_left -= lanes;
            let after = books.after.get(&endpoint_id).copied().unwrap_or(Timestamp::UNIX_EPOCH);
            quotas.push(Quota { endpoint_id, version: known.version, lanes, after });
        }
        (quotas, some_are_full)
    }

    /// Takes one lane under suspicion, with nothing else in hand.
    async fn take_suspect(&self, books: &mut Books, session: &Session, known: &Known) -> Result<Looked, DatabaseError> {
        self.shared.held.make_room(false);
        books.suspicion.begins(Instant::now());
        let (claimed_at, endpoint_id) = (Instant::now(), known.target.endpoint_id);
        let not_before = feed::recent(self.shared);
        let claimed = claim::claim_suspect(session, self.shared.id, endpoint_id, known.version, not_before).await;
        let claimed = claimed.map_err(|error| doubt(books, error))?;
        // What the scout saw is no longer so: the lane is in hand, or another's.
        self.shared.scout.ask();
        let lanes = usize::from(claimed.is_some());
        self.begin(books, session, claimed.into_iter().collect(), claimed_at).await?;
        Ok(if lanes > 0 { Looked::MoreIsDue } else { Looked::Satisfied { lanes } })
    }

    /// Starts a task for each lane.
    async fn begin(
        &self,
        books: &mut Books,
        session: &Session,
        mut claimed: Vec<ClaimedLane>,
        claimed_at: Instant,
    ) -> Result<(), DatabaseError> {
        if claimed.is_empty() {
            return Ok(());
        }
        point("claim.committed");
        let grips: Vec<_> = claimed.iter().map(|lane| self.shared.held.add(lane, claimed_at)).collect();
        if let Err(error) = self.read_gaps(session, &mut claimed).await {
            // What was claimed but could not be read is given back as it was, as soon as the database answers again.
            claimed.iter().for_each(|lane| self.reports.send(recorder::Report::give_back(lane)));
            return Err(error);
        }
        point("claim.read");
        for (lane, grip) in claimed.into_iter().zip(grips) {
            let Some(known) = self.scene.endpoints.get(&lane.endpoint_id) else { continue };
            self.shared.gate.enter(lane.endpoint_id);
            let run = lane::LaneRun::new(
                Arc::clone(self.shared),
                self.reports.clone(),
                self.feed.clone(),
                Arc::clone(&known.target),
                (lane, grip),
                self.life,
            );
            books.lanes.spawn(run.run());
        }
        Ok(())
    }

    /// Looks again for first deliveries that the claim did not see: it saw an older state, or they are of another week.
    async fn read_gaps(&self, session: &Session, claimed: &mut [ClaimedLane]) -> Result<(), DatabaseError> {
        let read_max = i64::try_from(self.shared.settings.deliveries_per_read).unwrap_or(i64::MAX);
        let ranges: Vec<Range> = claimed
            .iter()
            .filter(|lane| lane.deliveries.first().is_none_or(|first| first.seq != lane.done_seq + 1))
            .filter_map(|lane| {
                let format = self.scene.endpoints.get(&lane.endpoint_id)?.target.format.clone();
                let until_seq = lane.last_seq.min(lane.done_seq + if lane.crashes > 0 { 1 } else { read_max });
                Some(Range { lane_id: lane.lane_id, after_seq: lane.done_seq, until_seq, format })
            })
            .collect();
        if ranges.is_empty() {
            return Ok(());
        }
        let mut found = claim::read(session, &ranges, feed::recent(self.shared)).await?;
        feed::look_everywhere(session, &ranges, &mut found).await?;
        for lane in claimed {
            if let Some(deliveries) = found.remove(&lane.lane_id) {
                lane.deliveries = deliveries;
            }
        }
        Ok(())
    }
}

fn doubt(books: &mut Books, error: DatabaseError) -> DatabaseError {
    let now = Instant::now();
    books.doubt = Some(Doubt { until: now + DOUBT, next_look: now });
    error
}

/// Gives back what a claim took whose answer was lost, uncharged.
async fn clear_doubt(shared: &Shared, session: &Session, books: &mut Books) -> Result<(), DatabaseError> {
    let now = Instant::now();
    let Some(doubt) = books.doubt.filter(|doubt| doubt.next_look <= now) else { return Ok(()) };
    let lanes = workers::give_back_unknown(session, shared.id, &shared.held.all()).await?;
    if lanes > 0 {
        tracing::info!(lanes, "gave back what a claim had taken whose answer was lost");
    }
    books.doubt = (now < doubt.until).then_some(Doubt { next_look: now + DOUBT_LOOK_EVERY, ..doubt });
    Ok(())
}
