//! Retention: weeks that nobody needs any more go as whole partitions, what is not partitioned goes in small pages. Runs on a
//! timer, one turn at a time in the whole cluster, safe to run twice and to be killed at any moment.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::deliver::chain;
use crate::store::retention::pins::{self, Pins};
use crate::store::retention::removal::{self, Stepped};
use crate::store::retention::rows::{self, Page};
use crate::store::retention::{self, Horizons, Partition, Taken, Week};
use crate::store::{Database, DatabaseError, Session};

/// How long rows are kept, and how often is looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionSettings {
    /// What ended longer ago than this goes, in days; with the rest of its week.
    pub published_days: u16,
    /// Answers of receivers go earlier than their attempts, in days.
    pub attempt_bodies_days: u16,
    /// From one turn to the next.
    pub every: Duration,
}

impl Default for RetentionSettings {
    fn default() -> Self {
        Self { published_days: 30, attempt_bodies_days: 7, every: Duration::from_secs(3_600) }
    }
}

/// What a turn did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Another's was under way, so this one did nothing.
    pub held_by_other: bool,
    /// Partitions that are gone now.
    pub dropped: Vec<String>,
    /// Partitions that leave, but somebody holds a lock.
    pub busy: Vec<String>,
    /// Weeks that are old enough and stay, because something of them is still needed.
    pub pinned: usize,
    /// Rows of other tables that were removed.
    pub rows: u64,
}

/// After a turn in which somebody held a lock.
const AGAIN: Duration = Duration::from_secs(60);
/// How often in one turn is tried to get a lock, and how long is waited in between.
const TRIES: usize = 3;
const BETWEEN_TRIES: Duration = Duration::from_secs(1);
/// Lanes and dead letters of one statement.
const LANES_PAGE: i64 = 5_000;
const LETTERS_PAGE: i64 = 1_000;
/// Between two pages: the database has other work.
const BETWEEN_PAGES: Duration = Duration::from_millis(10);
/// How often the turn is renewed while it lasts.
const RENEW_EVERY: Duration = Duration::from_secs(30);

/// Removes what is old until stopped. A turn that fails is logged, noted in the database, and made again. `progress` is called at
/// each step, so that a loop that stands still is noticed.
pub async fn run(
    database: Database,
    settings: RetentionSettings,
    stop: CancellationToken,
    progress: impl Fn() + Send + Sync,
) {
    while !stop.is_cancelled() {
        progress();
        let wait = match turn(&database, settings, &stop, &progress).await {
            Ok(turn) => {
                report(&turn);
                if turn.busy.is_empty() { settings.every } else { settings.every.min(AGAIN) }
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "what is old could not be removed; it is tried again");
                settings.every.min(AGAIN)
            }
        };
        pause(wait, &stop, &progress).await;
    }
}

/// Waits, and shows meanwhile that the loop is alive.
async fn pause(wait: Duration, stop: &CancellationToken, progress: &impl Fn()) {
    let until = Instant::now() + wait;
    while !stop.is_cancelled() && Instant::now() < until {
        progress();
        tokio::select! {
            () = tokio::time::sleep(until.saturating_duration_since(Instant::now()).min(Duration::from_secs(10))) => {}
            () = stop.cancelled() => {}
        }
    }
}

fn report(turn: &Turn) {
    if !turn.dropped.is_empty() {
        tracing::info!(partitions = turn.dropped.join(", "), "removed weeks that are old and that nobody needs");
    }
    if !turn.busy.is_empty() {
        let partitions = turn.busy.join(", ");
        tracing::info!(partitions, "old weeks leave, but somebody has read them in a transaction that is still open");
    }
}

/// One turn, or a part of it if it is stopped. Err: what was done until then is done; the next turn goes on.
pub async fn turn(
    database: &Database,
    settings: RetentionSettings,
    stop: &CancellationToken,
    progress: &(impl Fn() + Sync),
) -> Result<Turn, DatabaseError> {
    let id = Uuid::new_v4();
    let mut session = database.session().await?;
    if retention::hold(&session, id).await? == Taken::HeldByOther {
        return Ok(Turn { held_by_other: true, ..Turn::default() });
    }
    let mut working = Working { id, stop, progress, renewed: Instant::now(), settings, turn: Turn::default() };
    let result = working.work(&mut session).await;
    let finished = matches!(result, Ok(GoOn::Yes)) && working.turn.busy.is_empty();
    let words = result.as_ref().err().map(|error| chain(error));
    // The session may be what broke.
    let released = retention::release(&session, id, settings.published_days, finished, words.as_deref()).await;
    result?;
    released?;
    Ok(working.turn)
}

/// Whether a turn goes on, or was stopped, or overtaken by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoOn {
    Yes,
    No,
}

/// What became of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removed {
    Gone,
    /// Somebody held a lock for too long.
    Busy,
    /// The turn is over.
    Stopped,
}

struct Working<'a, Progress> {
    id: Uuid,
    stop: &'a CancellationToken,
    progress: &'a Progress,
    renewed: Instant,
    settings: RetentionSettings,
    turn: Turn,
}

/// Leaves the function if the turn does not go on.
macro_rules! unless_over {
    ($working:expr, $session:expr) => {
        if $working.goes_on($session).await? == GoOn::No {
            return Ok(GoOn::No);
        }
    };
}

impl<Progress: Fn() + Sync> Working<'_, Progress> {
    async fn work(&mut self, session: &mut Session) -> Result<GoOn, DatabaseError> {
        let horizons =
            retention::horizons(session, self.settings.published_days, self.settings.attempt_bodies_days).await?;
        let half_gone = removal::half_gone(session).await?;
        if !half_gone.is_empty() {
            rows::lanes_are_due(session).await?;
        }
        let mut busy = Vec::new();
        for (partition, parent) in half_gone {
            match self.remove(session, &partition).await? {
                Removed::Stopped => return Ok(GoOn::No),
                Removed::Gone => {}
                Removed::Busy => busy.extend(parent),
            }
        }
        if self.weeks(session, horizons, busy).await? == GoOn::No || self.lanes(session, horizons).await? == GoOn::No {
            return Ok(GoOn::No);
        }
        self.rows(session, horizons).await
    }

    /// Removes the weeks that are old and that nothing holds. From the tables in `busy` nothing can be detached now.
    async fn weeks(
        &mut self,
        session: &mut Session,
        horizons: Horizons,
        mut busy: Vec<String>,
    ) -> Result<GoOn, DatabaseError> {
        let partitions = retention::partitions(session, horizons.weeks).await?;
        let mut weeks: Vec<Week> = partitions.iter().map(|partition| partition.week).collect();
        weeks.dedup();
        let Some(found) = self.pins(session, &weeks, horizons.published).await? else { return Ok(GoOn::No) };
        pins::note(session, &found).await?;
        self.turn.pinned = weeks.iter().filter(|week| found.hold_attempts(**week)).count();
        let stays = |p: &Partition| {
            if p.parent == "outbox_attempts" { found.hold_attempts(p.week) } else { found.hold(p.week) }
        };
        let (staying, leaving): (Vec<_>, Vec<_>) = partitions.iter().partition(|partition| stays(partition));
        removal::take_back(session, &staying).await?;
        let leaving = removal::decide(session, &leaving).await?;
        removal::forget_gone(session, horizons.weeks).await?;
        for week in weeks {
            let mut of_week: Vec<&Partition> = leaving.iter().copied().filter(|p| p.week == week).collect();
            of_week.sort_by_key(|partition| place_in_removal(&partition.parent));
            for partition in of_week {
                // What comes after it in the week is still told of by it.
                if busy.contains(&partition.parent) {
                    self.turn.busy.push(partition.name.clone());
                    break;
                }
                if partition.parent == "outbox_deliveries" {
                    rows::lanes_are_due(session).await?;
                }
                match self.remove(session, &partition.name).await? {
                    Removed::Stopped => return Ok(GoOn::No),
                    Removed::Gone => {}
                    Removed::Busy => {
                        busy.push(partition.parent.clone());
                        break;
                    }
                }
            }
        }
        Ok(GoOn::Yes)
    }

    /// What holds these weeks. None: the turn is over.
    async fn pins(
        &mut self,
        session: &Session,
        weeks: &[Week],
        ended_since: Timestamp,
    ) -> Result<Option<Pins>, DatabaseError> {
        let mut found = Pins::default();
        if weeks.is_empty() {
            return Ok(Some(found));
        }
        let mut after = 0;
        while let Some(until) = pins::lanes_page(session, after, LANES_PAGE).await? {
            found.add(pins::by_lanes(session, (after, until), weeks, ended_since).await?);
            after = until;
            if self.goes_on(session).await? == GoOn::No {
                return Ok(None);
            }
        }
        let mut after = Uuid::nil();
        while let Some(until) = pins::letters_page(session, after, LETTERS_PAGE).await? {
            found.add(pins::by_letters(session, (after, until), weeks).await?);
            after = until;
            if self.goes_on(session).await? == GoOn::No {
                return Ok(None);
            }
        }
        found.add(pins::by_older_events(session, weeks).await?);
        found.add(pins::by_backfills(session, weeks).await?);
        let (staying, leaving): (Vec<Week>, Vec<Week>) = weeks.iter().partition(|week| found.hold(**week));
        let mut after = 0;
        while !staying.is_empty()
            && !leaving.is_empty()
            && let Some(until) = pins::lanes_page(session, after, LANES_PAGE).await?
        {
            found.add(pins::by_older_weeks(session, (after, until), &leaving, &staying).await?);
            after = until;
            if self.goes_on(session).await? == GoOn::No {
                return Ok(None);
            }
        }
        Ok(Some(found))
    }

    /// Detaches and drops one partition, or leaves it to the next turn if somebody holds a lock for long.
    async fn remove(&mut self, session: &mut Session, partition: &str) -> Result<Removed, DatabaseError> {
        let mut tries = 0;
        loop {
            if self.goes_on(session).await? == GoOn::No {
                return Ok(Removed::Stopped);
            }
            match removal::step(session, partition).await? {
                Stepped::On => {}
                Stepped::Gone => {
                    self.turn.dropped.push(partition.to_owned());
                    return Ok(Removed::Gone);
                }
                Stepped::Busy if tries + 1 < TRIES => {
                    tries += 1;
                    pause(BETWEEN_TRIES, self.stop, self.progress).await;
                }
                Stepped::Busy => {
                    self.turn.busy.push(partition.to_owned());
                    return Ok(Removed::Busy);
                }
            }
        }
    }

    /// Removes idle lanes that have no deliveries any more, if a week of them was dropped.
    async fn lanes(&mut self, session: &Session, horizons: Horizons) -> Result<GoOn, DatabaseError> {
        let Some(mut after) = rows::lanes_after(session).await? else { return Ok(GoOn::Yes) };
        while let Some(until) = pins::lanes_page(session, after, LANES_PAGE).await? {
            self.turn.rows += rows::remove_empty_lanes(session, (after, until), horizons.published).await?;
            rows::lanes_walked(session, Some(until)).await?;
            after = until;
            unless_over!(self, session);
        }
        rows::lanes_walked(session, None).await?;
        Ok(GoOn::Yes)
    }

    /// Removes what is not partitioned, and the answers of receivers.
    async fn rows(&mut self, session: &Session, horizons: Horizons) -> Result<GoOn, DatabaseError> {
        loop {
            let keys = rows::remove_keys(session, horizons.published).await?;
            let letters = rows::remove_settled_letters(session, horizons.published).await?;
            self.turn.rows += keys.removed() + letters.removed();
            if matches!((keys, letters), (Page::Last(_), Page::Last(_))) {
                break;
            }
            unless_over!(self, session);
        }
        self.turn.rows += rows::remove_workers(session).await?;
        for (partition, ends_at, blocks) in rows::with_answers(session, horizons.answers).await? {
            let mut block = 0;
            while block < blocks {
                block = rows::remove_answers(session, &partition, block).await?;
                unless_over!(self, session);
            }
            rows::answers_removed(session, &partition, ends_at).await?;
        }
        Ok(GoOn::Yes)
    }

    /// A moment for others; then whether this turn goes on.
    async fn goes_on(&mut self, session: &Session) -> Result<GoOn, DatabaseError> {
        (self.progress)();
        if self.stop.is_cancelled() {
            return Ok(GoOn::No);
        }
        tokio::time::sleep(BETWEEN_PAGES).await;
        if self.renewed.elapsed() >= RENEW_EVERY {
            if retention::hold(session, self.id).await? == Taken::HeldByOther {
                return Ok(GoOn::No);
            }
            self.renewed = Instant::now();
        }
        Ok(GoOn::Yes)
    }
}

/// Deliveries go before what they refer to, attempts last: how a delivery ended is there as long as the delivery.
fn place_in_removal(parent: &str) -> usize {
    ["outbox_deliveries", "outbox_bodies", "outbox_events", "outbox_attempts"]
        .iter()
        .position(|known| *known == parent)
        .unwrap_or(0)
}
