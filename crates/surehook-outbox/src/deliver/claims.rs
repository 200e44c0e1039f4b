//! The claim loop: looks for due lanes, claims within the free slots, and starts a task per lane.
//!
//! Two things are special. After a claim whose answer was lost there may be lanes that bear this worker's name and that
//! nobody works on: [`Doubt`]. And a lane that two workers vanished with is handled alone: [`Suspicion`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::SignedDuration;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::fence::Life;
use super::{Shared, chain, lane, recorder};
use crate::crash::point;
use crate::store::claim::{self, ClaimedLane, Delivery, Quota};
use crate::store::{DatabaseError, Session, workers};
use crate::target::Target;

/// The claim loop's books.
#[derive(Default)]
struct Books {
    /// Which lanes are in hand, per endpoint.
    in_hand: HashMap<Uuid, usize>,
    lanes: JoinSet<Uuid>,
    doubt: Option<Doubt>,
    suspicion: Suspicion,
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

/// Where the handling of lanes under suspicion stands, each of which is handled alone.
#[derive(Default)]
enum Suspicion {
    #[default]
    None,
    /// Lanes in hand come back, nothing is claimed.
    MakingRoom { since: Instant },
    /// One is in hand, alone.
    Alone { since: Instant },
    /// The others have their turn, for as long as that took.
    Resting { until: Instant },
}

/// Lanes just claimed: when, and in which life of the worker.
struct Claim {
    lanes: Vec<ClaimedLane>,
    at: Instant,
    life: Life,
}

/// What a look for work brought.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looked {
    /// As much as was asked for was taken: there may be more.
    Again,
    /// More is due than there are free slots.
    MoreIsDue,
    /// All that was due and allowed is in hand.
    Satisfied,
}

pub(super) async fn run(shared: Arc<Shared>, reports: recorder::Reports) {
    let mut books = Books::default();
    let mut failures = 0u32;
    while !shared.stops.soft.is_cancelled() {
        // Registered before the look, so that work which arrives during it is not missed.
        let notified = shared.wake.notified();
        let mut looked = Looked::Satisfied;
        match look(&shared, &reports, &mut books).await {
            Ok(found) => {
                failures = 0;
                looked = found;
            }
            Err(error) => {
                failures += 1;
                if failures == 1 || failures.is_multiple_of(60) {
                    tracing::warn!(error = %chain(&error), failures, "cannot look for work; trying again every second");
                }
            }
        }
        tokio::select! {
            () = std::future::ready(()), if looked == Looked::Again => {}
            () = notified, if failures == 0 => {}
            () = tokio::time::sleep(shared.settings.poll) => {}
            () = shared.stops.soft.cancelled() => {}
            () = one_lane_ends(&mut books), if !books.lanes.is_empty() && looked == Looked::MoreIsDue => {}
        }
        while let Some(ended) = books.lanes.try_join_next() {
            settle(&mut books.in_hand, ended);
        }
    }
    while !books.lanes.is_empty() {
        one_lane_ends(&mut books).await;
    }
    drop(reports);
    shared.stops.recorder.cancel();
}

async fn one_lane_ends(books: &mut Books) {
    if let Some(ended) = books.lanes.join_next().await {
        settle(&mut books.in_hand, ended);
    }
}

fn settle(in_hand: &mut HashMap<Uuid, usize>, ended: Result<Uuid, tokio::task::JoinError>) {
    match ended {
        Ok(endpoint_id) => {
            if let Some(count) = in_hand.get_mut(&endpoint_id) {
                *count -= 1;
                if *count == 0 {
                    in_hand.remove(&endpoint_id);
                }
            }
        }
        // Lane tasks catch panics themselves; should one get through, its lane is freed by the end of its lease.
        Err(error) => {
            tracing::error!(%error, "a lane task ended abnormally; its lane is free again when its lease ends");
        }
    }
}

/// Looks for due lanes, claims within the free slots, reads, and starts a task per lane.
async fn look(shared: &Arc<Shared>, reports: &recorder::Reports, books: &mut Books) -> Result<Looked, DatabaseError> {
    let room = shared.settings.lanes_in_flight_max.saturating_sub(books.lanes.len());
    if room == 0 || (matches!(books.suspicion, Suspicion::Alone { .. }) && !books.lanes.is_empty()) {
        return Ok(Looked::MoreIsDue);
    }
    // Taken before the claim: whoever declares this worker dead after it also takes what it claims now.
    let Some(life) = shared.fence.life() else { return Ok(Looked::Satisfied) };
    let session = shared.database.session().await?;
    clear_doubt(shared, &session, books).await?;
    let due = claim::due_endpoints(&session).await?;
    if let Some(now) = due.now {
        shared.clock.set(now);
    }
    let targets: HashMap<Uuid, Arc<Target>> = due.targets.into_iter().map(|t| (t.endpoint_id, Arc::new(t))).collect();
    let suspect_at = due.suspect_at.and_then(|endpoint_id| targets.get(&endpoint_id));
    if !may_claim_others(shared, books, suspect_at.is_some()) {
        let Some(target) = suspect_at.filter(|_| books.lanes.is_empty()) else { return Ok(Looked::MoreIsDue) };
        return take_suspect(shared, reports, books, &session, target, life).await;
    }
    let (quotas, some_are_full) = quotas(shared, books, room, &targets);
    let full = if some_are_full { Looked::MoreIsDue } else { Looked::Satisfied };
    if quotas.is_empty() {
        return Ok(full);
    }
    let claimed_at = Instant::now();
    let read_max = i64::try_from(shared.settings.deliveries_per_read).unwrap_or(i64::MAX);
    point("claim.chosen");
    let claimed = match claim::claim(&session, shared.id, &quotas, read_max).await {
        Ok(claimed) => claimed,
        Err(error) => return Err(doubt(books, error)),
    };
    let taken_whole =
        quotas.iter().any(|q| claimed.iter().filter(|lane| lane.endpoint_id == q.endpoint_id).count() == q.lanes);
    let claim = Claim { lanes: claimed, at: claimed_at, life };
    begin(shared, reports, books, &session, &targets, claim).await?;
    Ok(if taken_whole { Looked::Again } else { full })
}

/// How many lanes to claim from each endpoint, and whether some have no slot free.
fn quotas(shared: &Shared, books: &Books, room: usize, targets: &HashMap<Uuid, Arc<Target>>) -> (Vec<Quota>, bool) {
    let (mut quotas, mut some_are_full, mut room_left) = (Vec::new(), false, room);
    for target in targets.values() {
        let busy = books.in_hand.get(&target.endpoint_id).copied().unwrap_or(0);
        let free = target.in_flight_max.saturating_sub(busy).min(shared.settings.lanes_per_claim).min(room_left);
        if free == 0 {
            some_are_full = true;
            continue;
        }
        room_left -= free;
        quotas.push(Quota { endpoint_id: target.endpoint_id, lanes: free, timeout: target.timeout });
    }
    (quotas, some_are_full)
}

/// Whether lanes that are not under suspicion have their turn.
fn may_claim_others(shared: &Shared, books: &mut Books, suspect_is_due: bool) -> bool {
    let now = Instant::now();
    if let Suspicion::Alone { since } = books.suspicion {
        // It has ended: else nobody had looked.
        books.suspicion = Suspicion::Resting { until: now + (now - since) };
    }
    let rests = matches!(books.suspicion, Suspicion::Resting { until } if now < until);
    if !suspect_is_due || rests {
        if !rests {
            books.suspicion = Suspicion::None;
        }
        shared.held.make_room(false);
        return true;
    }
    if !matches!(books.suspicion, Suspicion::MakingRoom { .. }) {
        books.suspicion = Suspicion::MakingRoom { since: now };
        shared.held.make_room(true);
    }
    false
}

/// Takes one lane under suspicion, with nothing else in hand.
async fn take_suspect(
    shared: &Arc<Shared>,
    reports: &recorder::Reports,
    books: &mut Books,
    session: &Session,
    target: &Arc<Target>,
    life: Life,
) -> Result<Looked, DatabaseError> {
    let since = match books.suspicion {
        Suspicion::MakingRoom { since } => since,
        _ => Instant::now(),
    };
    shared.held.make_room(false);
    books.suspicion = Suspicion::Alone { since };
    let claimed_at = Instant::now();
    let claimed = match claim::claim_suspect(session, shared.id, target.endpoint_id, target.timeout).await {
        Ok(claimed) => claimed,
        Err(error) => return Err(doubt(books, error)),
    };
    let targets = HashMap::from([(target.endpoint_id, Arc::clone(target))]);
    let claim = Claim { lanes: claimed.into_iter().collect(), at: claimed_at, life };
    begin(shared, reports, books, session, &targets, claim).await?;
    Ok(Looked::Again)
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

/// Reads what claimed lanes have to deliver and starts a task for each.
async fn begin(
    shared: &Arc<Shared>,
    reports: &recorder::Reports,
    books: &mut Books,
    session: &Session,
    targets: &HashMap<Uuid, Arc<Target>>,
    claim: Claim,
) -> Result<(), DatabaseError> {
    let Claim { lanes: claimed, at: claimed_at, life } = claim;
    if !claimed.is_empty() {
        point("claim.committed");
    }
    claimed.iter().for_each(|lane| shared.held.add(lane.lane_id, lane.epoch));
    let mut work = match read_claimed(session, shared, &claimed, targets).await {
        Ok(work) => work,
        Err(error) => {
            // What was claimed but could not be read is given back as it was, as soon as the database answers again.
            claimed.iter().for_each(|lane| reports.send(recorder::Report::give_back(lane)));
            return Err(error);
        }
    };
    if !claimed.is_empty() {
        point("claim.read");
    }
    for lane in claimed {
        let Some(target) = targets.get(&lane.endpoint_id) else { continue };
        *books.in_hand.entry(lane.endpoint_id).or_default() += 1;
        let deliveries = work.remove(&lane.lane_id).unwrap_or_default();
        let run = lane::LaneRun {
            shared: Arc::clone(shared),
            reports: reports.clone(),
            target: Arc::clone(target),
            deliveries,
            lease_ends: claimed_at + lane.lease,
            life,
            lane,
        };
        books.lanes.spawn(run.run());
    }
    Ok(())
}

/// Reads what the claimed lanes have to deliver: first among recent partitions only, then, where a row is missing, in all.
async fn read_claimed(
    session: &Session,
    shared: &Shared,
    claimed: &[ClaimedLane],
    targets: &HashMap<Uuid, Arc<Target>>,
) -> Result<HashMap<i64, Vec<Delivery>>, DatabaseError> {
    let recent = shared.clock.now().checked_sub(SignedDuration::from_hours(24)).unwrap_or(jiff::Timestamp::MIN);
    let lanes: Vec<(&ClaimedLane, &str)> =
        claimed.iter().filter_map(|lane| Some((lane, targets.get(&lane.endpoint_id)?.format.as_str()))).collect();
    let mut found = group(claim::read(session, &lanes, recent).await?);
    let gaps: Vec<(&ClaimedLane, &str)> =
        lanes.into_iter().filter(|(lane, _)| !is_complete(lane, found.get(&lane.lane_id))).collect();
    if !gaps.is_empty() {
        for (lane, _) in &gaps {
            found.remove(&lane.lane_id);
        }
        found.extend(group(claim::read(session, &gaps, jiff::Timestamp::UNIX_EPOCH).await?));
    }
    Ok(found)
}

fn group(rows: Vec<(i64, Delivery)>) -> HashMap<i64, Vec<Delivery>> {
    let mut lanes: HashMap<i64, Vec<Delivery>> = HashMap::new();
    for (lane, delivery) in rows {
        lanes.entry(lane).or_default().push(delivery);
    }
    lanes
}

fn is_complete(lane: &ClaimedLane, found: Option<&Vec<Delivery>>) -> bool {
    found.is_some_and(|rows| rows.iter().map(|row| row.seq).eq(lane.done_seq + 1..=lane.until_seq))
}
