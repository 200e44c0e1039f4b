//! The worker: claims lanes, delivers them side by side, records what happened. Holds no transaction while it sends.
//!
//! Tasks: one claim loop; one per lane in hand; the recorder; the heartbeat. All are joined by [`Worker::stop`].

mod heartbeat;
mod lane;
mod recorder;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::SignedDuration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::clock::DatabaseClock;
use crate::crash::point;
use crate::retry::Outcome;
use crate::send::Sender;
use crate::store::claim::{self, ClaimedLane, Delivery, Quota};
use crate::store::{Database, DatabaseError, Session};
use crate::target::Target;
use crate::wake::Wake;

/// Told of every attempt as it ends.
pub type Observer = Arc<dyn Fn(&AttemptSeen) + Send + Sync>;

/// Settings of one worker process.
#[derive(Clone)]
pub struct WorkerSettings {
    /// How long to wait at most before looking for work again.
    pub poll: Duration,
    /// Lanes claimed at once from one endpoint.
    pub lanes_per_claim: usize,
    /// Deliveries taken at once from a lane.
    pub deliveries_per_read: usize,
    /// Lanes in hand at once, over all endpoints.
    pub lanes_in_flight_max: usize,
    /// At a soft stop: how long requests under way may go on.
    pub grace: Duration,
    /// How this process is called in lists: host and process id.
    pub node: String,
    /// Told of every attempt, for metrics.
    pub observer: Option<Observer>,
}

impl std::fmt::Debug for WorkerSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerSettings").field("node", &self.node).field("poll", &self.poll).finish_non_exhaustive()
    }
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(1),
            lanes_per_claim: 16,
            deliveries_per_read: 20,
            lanes_in_flight_max: 512,
            grace: Duration::from_secs(20),
            node: format!("process {}", std::process::id()),
            observer: None,
        }
    }
}

/// One attempt, as told to the observer.
#[derive(Clone, Copy, Debug)]
pub struct AttemptSeen {
    /// How it counts.
    pub outcome: Outcome,
    /// How long it took.
    pub duration: Duration,
}

/// A running worker. Dropping it stops it hard; [`Worker::stop`] is the soft way.
#[derive(Debug)]
pub struct Worker {
    /// This worker's id, the owner of its lanes.
    pub id: Uuid,
    /// Wakes it.
    pub wake: Wake,
    stops: Stops,
    grace: Duration,
    tasks: TaskTracker,
}

/// The three stages of stopping.
#[derive(Clone, Debug, Default)]
struct Stops {
    /// Take no new work, begin no new request.
    soft: CancellationToken,
    /// Abandon the requests under way.
    hard: CancellationToken,
    /// Nobody reports any more: record what there is, then end.
    recorder: CancellationToken,
    /// The recorder must not try any longer.
    give_up: CancellationToken,
}

/// What the tasks of a worker share.
struct Shared {
    id: Uuid,
    database: Database,
    settings: WorkerSettings,
    wake: Wake,
    clock: DatabaseClock,
    sender: Sender,
    stops: Stops,
}

impl Worker {
    /// Starts the tasks; the database need not be there yet.
    pub fn start(database: Database, settings: WorkerSettings, wake: Wake) -> Self {
        let stops = Stops::default();
        let id = Uuid::new_v4();
        let grace = settings.grace;
        let shared = Arc::new(Shared {
            id,
            database,
            settings,
            wake: wake.clone(),
            clock: DatabaseClock::default(),
            sender: Sender::new(),
            stops: stops.clone(),
        });
        let (reports, inbox) = recorder::channel();
        let tasks = TaskTracker::new();
        spawn(&tasks, recorder::run(Arc::clone(&shared), inbox));
        spawn(&tasks, heartbeat::run(Arc::clone(&shared)));
        spawn(&tasks, run(shared, reports));
        tasks.close();
        Self { id, wake, stops, grace, tasks }
    }

    /// Stops: takes no new work, lets requests under way end within the grace time, abandons the rest uncharged, gives all
    /// lanes back, records, and joins every task. Calling it again while it runs, or afterwards, is harmless.
    pub async fn stop(&self) {
        self.stops.soft.cancel();
        if tokio::time::timeout(self.grace, self.tasks.wait()).await.is_ok() {
            return;
        }
        self.stop_now().await;
    }

    /// Stops without waiting for requests under way.
    pub async fn stop_now(&self) {
        self.stops.soft.cancel();
        self.stops.hard.cancel();
        // What was said must still be written: a few seconds for a database that is there.
        if tokio::time::timeout(Duration::from_secs(5), self.tasks.wait()).await.is_err() {
            self.stops.give_up.cancel();
            self.tasks.wait().await;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stops.soft.cancel();
        self.stops.hard.cancel();
        self.stops.give_up.cancel();
    }
}

fn spawn(tasks: &TaskTracker, task: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(task);
}

/// The claim loop's books: which lanes are in hand, per endpoint.
struct Books {
    in_hand: HashMap<Uuid, usize>,
    lanes: JoinSet<Uuid>,
}

/// What a look for work brought.
enum Looked {
    /// Some endpoint had more due lanes than were taken.
    MoreIsDue,
    /// All that was due and allowed is in hand.
    Satisfied,
}

async fn run(shared: Arc<Shared>, reports: recorder::Reports) {
    let mut books = Books { in_hand: HashMap::new(), lanes: JoinSet::new() };
    let mut failures = 0u32;
    while !shared.stops.soft.is_cancelled() {
        // Registered before the look, so that work which arrives during it is not missed.
        let notified = shared.wake.notified();
        let mut more_is_due = false;
        match look(&shared, &reports, &mut books).await {
            Ok(looked) => {
                failures = 0;
                more_is_due = matches!(looked, Looked::MoreIsDue);
            }
            Err(error) => {
                failures += 1;
                if failures == 1 || failures.is_multiple_of(60) {
                    tracing::warn!(error = %chain(&error), failures, "cannot look for work; trying again every second");
                }
            }
        }
        tokio::select! {
            () = notified, if failures == 0 => {}
            () = tokio::time::sleep(shared.settings.poll) => {}
            () = shared.stops.soft.cancelled() => {}
            () = one_lane_ends(&mut books), if !books.lanes.is_empty() && more_is_due => {}
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
    if room == 0 {
        return Ok(Looked::MoreIsDue);
    }
    let session = shared.database.session().await?;
    let (now, targets) = claim::due_endpoints(&session).await?;
    if let Some(now) = now {
        shared.clock.set(now);
    }
    let mut more_is_due = false;
    let mut quotas = Vec::new();
    let mut room_left = room;
    for target in &targets {
        let busy = books.in_hand.get(&target.endpoint_id).copied().unwrap_or(0);
        let free = target.in_flight_max.saturating_sub(busy).min(shared.settings.lanes_per_claim).min(room_left);
        if free == 0 {
            more_is_due = true;
            continue;
        }
        room_left -= free;
        quotas.push(Quota { endpoint_id: target.endpoint_id, lanes: free, timeout: target.timeout });
    }
    if quotas.is_empty() {
        return Ok(if more_is_due { Looked::MoreIsDue } else { Looked::Satisfied });
    }
    let claimed_at = Instant::now();
    let read_max = i64::try_from(shared.settings.deliveries_per_read).unwrap_or(i64::MAX);
    point("claim.chosen");
    let claimed = claim::claim(&session, shared.id, &quotas, read_max).await?;
    if !claimed.is_empty() {
        point("claim.committed");
    }
    more_is_due |=
        quotas.iter().any(|q| claimed.iter().filter(|lane| lane.endpoint_id == q.endpoint_id).count() == q.lanes);
    let targets: HashMap<Uuid, Arc<Target>> = targets.into_iter().map(|t| (t.endpoint_id, Arc::new(t))).collect();
    let mut work = match read_claimed(&session, shared, &claimed, &targets).await {
        Ok(work) => work,
        Err(error) => {
            // What was claimed but could not be read is given back as it was, as soon as the database answers again.
            claimed.iter().for_each(|lane| reports.send(recorder::Report::give_back(lane)));
            return Err(error);
        }
    };
    drop(session);
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
            lane,
        };
        books.lanes.spawn(run.run());
    }
    Ok(if more_is_due { Looked::MoreIsDue } else { Looked::Satisfied })
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

/// An error with all its causes, for one log line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(current) = cause {
        let more = current.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = current.source();
    }
    text
}
