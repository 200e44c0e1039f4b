//! The feed: reads on for lanes that are kept in hand, many lanes in one statement. Changes nothing in the database.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, oneshot};

use super::{Shared, chain};
use crate::store::claim::{self, Delivery, Range};
use crate::store::{DatabaseError, Session};

/// Lanes read in one statement at most.
const TOGETHER_MAX: usize = 64;

/// The rows of this time are looked for first: their partitions are few.
const RECENT: SignedDuration = SignedDuration::from_hours(24);

/// The lanes' end.
#[derive(Clone)]
pub(super) struct Feed(mpsc::UnboundedSender<Ask>);

pub(super) struct Ask {
    range: Range,
    reply: oneshot::Sender<Vec<Delivery>>,
}

impl Feed {
    /// Asks for the deliveries of a range. The answer begins with the first of it, unless that is missing in the database.
    /// No answer: the database is away, or the worker ends.
    pub(super) fn ask(&self, range: Range) -> oneshot::Receiver<Vec<Delivery>> {
        let (reply, answer) = oneshot::channel();
        // Should the feed have ended, the sender is dropped, and the lane sees that no answer comes.
        let _ = self.0.send(Ask { range, reply });
        answer
    }
}

/// Bounded by the lanes in hand, each of which asks once at a time.
pub(super) fn channel() -> (Feed, mpsc::UnboundedReceiver<Ask>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Feed(sender), receiver)
}

/// Answers until the last lane and the claim loop are gone.
pub(super) async fn run(shared: Arc<Shared>, mut asks: mpsc::UnboundedReceiver<Ask>) {
    let mut together = Vec::with_capacity(TOGETHER_MAX);
    while asks.recv_many(&mut together, TOGETHER_MAX).await > 0 {
        shared.watched.feed.works();
        let (ranges, replies): (Vec<Range>, Vec<_>) = together.drain(..).map(|ask| (ask.range, ask.reply)).unzip();
        match answer(&shared, &ranges).await {
            Ok(mut found) => {
                for (range, reply) in ranges.iter().zip(replies) {
                    // A lane that ended meanwhile needs no answer.
                    let _ = reply.send(found.remove(&range.lane_id).unwrap_or_default());
                }
            }
            // Dropped replies tell the lanes, which go back; the scout complains of the database.
            Err(error) => tracing::debug!(error = %chain(&error), lanes = ranges.len(), "cannot read on"),
        }
        shared.watched.feed.rests();
    }
    // Should they have died, that is theirs to tell of, and nobody's after them.
    shared.stops.soft.cancelled().await;
}

async fn answer(shared: &Shared, ranges: &[Range]) -> Result<HashMap<i64, Vec<Delivery>>, DatabaseError> {
    let session = shared.database.worker_session().await?;
    let mut found = claim::read(&session, ranges, recent(shared)).await?;
    look_everywhere(&session, ranges, &mut found).await?;
    Ok(found)
}

/// Reads again, among all partitions, what begins with a gap.
pub(super) async fn look_everywhere(
    session: &Session,
    ranges: &[Range],
    found: &mut HashMap<i64, Vec<Delivery>>,
) -> Result<(), DatabaseError> {
    let gaps: Vec<Range> =
        ranges.iter().filter(|range| begins_with_gap(range, found.get(&range.lane_id))).cloned().collect();
    if !gaps.is_empty() {
        found.extend(claim::read(session, &gaps, Timestamp::UNIX_EPOCH).await?);
    }
    Ok(())
}

fn begins_with_gap(range: &Range, found: Option<&Vec<Delivery>>) -> bool {
    found.and_then(|rows| rows.first()).is_none_or(|first| first.seq != range.after_seq + 1)
}

/// From when on rows are looked for first.
pub(super) fn recent(shared: &Shared) -> Timestamp {
    shared.clock.now().checked_sub(RECENT).unwrap_or(Timestamp::MIN)
}
