//! Recording what happened: attempts, how far each lane has come, and dead letters, of many lanes in one transaction.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::{DatabaseError, Session, Sql, Transaction, column};
use crate::clock::milliseconds;
use crate::crash::{self, point};
use crate::retry::{DeathReason, Head, Outcome};

/// How a lane is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Due at once, if it has work.
    Now,
    /// Due after a wait.
    After(Duration),
    /// Not due until an operator acts.
    Blocked,
}

/// Where a lane stands after some of its deliveries.
#[derive(Clone, Debug)]
pub struct LaneState {
    /// The lane.
    pub lane_id: i64,
    /// The epoch of the claim under which this is said.
    pub epoch: i64,
    /// Every delivery up to this number has ended.
    pub done_seq: i64,
    /// What the head went through; the default for a head that was not tried yet.
    pub head: Head,
    /// When the head was first tried, as far as this claim knows; an earlier time in the database stands.
    pub first_tried_at: Option<Timestamp>,
    /// What last went wrong with the head under this claim.
    pub last_error: Option<String>,
    /// Given back, or still held.
    pub release: Option<Release>,
    /// How long a lane that is still held may be held from now on; renewed when half of it is over.
    pub lease: Duration,
}

/// One request that was made, or the decision that ended a delivery without one.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The lane.
    pub lane_id: i64,
    /// The delivery in the lane.
    pub seq: i64,
    /// Requests made for it so far.
    pub attempt: u32,
    /// The idempotency key.
    pub delivery_id: Uuid,
    /// How it counts.
    pub outcome: Outcome,
    /// Set on the row that ends the delivery.
    pub ends: Option<Ends>,
    /// The HTTP status.
    pub status_code: Option<u16>,
    /// What went wrong.
    pub error: Option<String>,
    /// The first bytes of the answer.
    pub response_body: Option<Vec<u8>>,
    /// Database time at its start.
    pub started_at: Timestamp,
    /// How long it took.
    pub duration: Duration,
}

/// How a delivery ended; the words are those of `outbox_attempts.ends`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// It arrived.
    Published,
    /// It is dead.
    Failed,
    /// An operator skipped it.
    Skipped,
}

impl Ends {
    /// The word in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// A delivery that died, with all that is needed to look at it and to send it again.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Where it died.
    pub lane_id: i64,
    /// Its place there.
    pub seq: i64,
    /// What was to be sent.
    pub delivery: super::claim::Delivery,
    /// Which limit ended it.
    pub reason: DeathReason,
    /// Requests made.
    pub attempts: u32,
    /// The last status.
    pub last_status_code: Option<u16>,
    /// What last went wrong.
    pub last_error: Option<String>,
}

/// All that is recorded in one transaction.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// One per lane.
    pub lanes: Vec<LaneState>,
    /// The attempts.
    pub attempts: Vec<Attempt>,
    /// The dead.
    pub dead: Vec<DeadLetter>,
    /// Dead letters whose replay got through.
    pub replays_delivered: Vec<(i64, Uuid)>,
    /// Endpoints that answered 410, and why they are paused.
    pub pauses: Vec<(Uuid, String)>,
}

impl Batch {
    /// Nothing but lanes and attempts.
    fn is_plain(&self) -> bool {
        self.dead.is_empty() && self.replays_delivered.is_empty() && self.pauses.is_empty()
    }
}

/// What became of a lane in a batch. A lane that is in no list was locked by another: say it again.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// Recorded and committed.
    pub done: Vec<Written>,
    /// Given back under this very claim already: this was said before, and the answer was lost; or there was nothing left to say.
    pub ended: Vec<i64>,
    /// No longer this worker's: what it said was discarded.
    pub lost: Vec<i64>,
}

impl Recorded {
    /// Whether some recorded lane is due again at once.
    pub fn more_is_due(&self) -> bool {
        self.done.iter().any(|written| written.is_due)
    }
}

/// A lane as it stands after it was recorded.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// The lane.
    pub lane_id: i64,
    /// Its newest delivery.
    pub last_seq: i64,
    /// How long it is still held; None: it is not.
    pub lease_left: Option<Duration>,
    /// It may be claimed at once.
    pub is_due: bool,
}

/// Locks in lane order without waiting (a stranger's open enqueue on one lane must not hold up the others), checks epoch
/// and owner inside the locking step, then writes lanes and attempts. An idle lane gives up its lease by itself; one that is
/// still held keeps it, and only a renewal touches the index on ready_at. What is said a
/// second time, because the answer to the commit was lost, shows by the numbers: those attempts are in already.
pub const RECORD: &str = "
    WITH said AS (
        SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::integer[], $6::integer[], $7::integer[], $8::boolean[],
                             $9::timestamptz[], $10::text[], $11::boolean[], $12::bigint[], $24::bigint[])
          AS s (lane_id, epoch, done_seq, attempts, strikes, unanswered, may_have_arrived, first_tried_at, last_error, release, delay_ms, lease_ms)
    ), held AS MATERIALIZED (
        SELECT l.lane_id, l.epoch = s.epoch AND l.owner IS NOT DISTINCT FROM $1 AS mine, l.epoch = s.epoch AND l.owner IS NULL AS ended,
               l.done_seq, l.attempts, l.leased_until
          FROM (SELECT lane_id, epoch FROM said ORDER BY lane_id) AS s
         CROSS JOIN LATERAL (SELECT x.lane_id, x.epoch, x.owner, x.done_seq, x.attempts, x.leased_until FROM outbox_lanes AS x
                              WHERE x.lane_id = s.lane_id FOR UPDATE SKIP LOCKED) AS l
    ), moved AS (
        UPDATE outbox_lanes AS l
           SET done_seq = s.done_seq, attempts = s.attempts, strikes = s.strikes, unanswered = s.unanswered,
               may_have_arrived = s.may_have_arrived,
               last_error = CASE WHEN s.done_seq = l.done_seq THEN coalesce(s.last_error, l.last_error) ELSE s.last_error END,
               first_tried_at = CASE WHEN s.attempts = 0 THEN NULL WHEN s.done_seq = l.done_seq THEN coalesce(l.first_tried_at, s.first_tried_at)
                                     ELSE s.first_tried_at END,
               crashes = CASE WHEN s.done_seq > l.done_seq OR s.attempts > l.attempts THEN 0 ELSE l.crashes END,
               owner = CASE WHEN s.release OR l.last_seq = s.done_seq THEN NULL ELSE l.owner END,
               leased_until = CASE WHEN s.release OR l.last_seq = s.done_seq THEN NULL ELSE n.held_until END,
               ready_at = CASE WHEN l.last_seq = s.done_seq THEN NULL
                               WHEN NOT s.release THEN n.held_until
                               WHEN s.delay_ms < 0 THEN 'infinity'::timestamptz
                               ELSE clock_timestamp() + s.delay_ms * interval '1 millisecond' END,
               updated_at = clock_timestamp()
          FROM held AS h JOIN said AS s ON s.lane_id = h.lane_id
         CROSS JOIN LATERAL (SELECT CASE WHEN h.leased_until < clock_timestamp() + s.lease_ms * interval '0.5 millisecond'
                                         THEN clock_timestamp() + s.lease_ms * interval '1 millisecond' ELSE h.leased_until END AS held_until) AS n
         WHERE h.mine AND l.lane_id = h.lane_id
        RETURNING l.lane_id, l.last_seq, l.leased_until, l.ready_at
    ), attempted AS (
        INSERT INTO outbox_attempts (lane_id, seq, attempt, delivery_id, outcome, ends, status_code, error, response_body,
                                     started_at, duration_ms, worker, created_at)
        SELECT a.lane_id, a.seq, a.attempt, a.delivery_id, a.outcome, a.ends, a.status_code, a.error, a.response_body,
               a.started_at, a.duration_ms, $1, clock_timestamp()
          FROM unnest($13::bigint[], $14::bigint[], $15::integer[], $16::uuid[], $17::text[], $18::text[], $19::integer[], $20::text[],
                      $21::bytea[], $22::timestamptz[], $23::integer[])
            AS a (lane_id, seq, attempt, delivery_id, outcome, ends, status_code, error, response_body, started_at, duration_ms)
          JOIN held AS h ON h.lane_id = a.lane_id AND h.mine AND (a.seq > h.done_seq + 1 OR (a.seq = h.done_seq + 1 AND a.attempt > h.attempts))
    )
    SELECT h.lane_id, h.mine, h.ended, h.done_seq, coalesce(m.ready_at <= clock_timestamp(), false) AS due,
           coalesce(m.last_seq, 0) AS last_seq, (extract(epoch FROM m.leased_until - clock_timestamp()) * 1000)::bigint AS lease_ms
      FROM held AS h LEFT JOIN moved AS m ON m.lane_id = h.lane_id";

const DEAD: &str = "
    INSERT INTO outbox_dlq (delivery_id, endpoint_id, endpoint_name, url, ordering_key, event_id, event_type, aggregate_id, aggregate_name,
                            webhook_name, format, headers, body, reason, attempts, last_status_code, last_error, lane_id, seq,
                            event_created_at, failed_at, updated_at)
    SELECT $1, e.endpoint_id, e.name, e.url, l.ordering_key, $2, $3, $4, $5, $6, e.format, ($7::text)::jsonb, $8, $9, $10, $11, $12, $13, $14, $15,
           clock_timestamp(), clock_timestamp()
      FROM outbox_lanes AS l JOIN endpoints AS e ON e.endpoint_id = l.endpoint_id WHERE l.lane_id = $13
    ON CONFLICT (delivery_id) DO UPDATE
       SET state = 'dead', reason = excluded.reason, attempts = outbox_dlq.attempts + excluded.attempts, seq = excluded.seq,
           lane_id = excluded.lane_id, last_status_code = excluded.last_status_code, last_error = excluded.last_error,
           failed_at = excluded.failed_at, updated_at = excluded.updated_at";

/// Records a batch for `worker`. Ok: what is in `done` is committed, what is in `lost` was discarded. Err: nothing was
/// changed, or the answer to the commit was lost; saying it again is safe: what is in already is passed over.
pub async fn record(session: &mut Session, worker: Uuid, batch: &Batch) -> Result<Recorded, DatabaseError> {
    point("record.gathered");
    // Lanes and attempts are one statement, which is a transaction by itself. Tests stop a process within one.
    if batch.is_plain() && !crash::is_watched() {
        let (recorded, _) = write(&*session, worker, batch).await?;
        point("record.committed");
        return Ok(recorded);
    }
    let transaction = session.transaction().await?;
    let (recorded, stood) = write(&transaction, worker, batch).await?;
    for letter in batch.dead.iter().filter(|letter| stood.get(&letter.lane_id).is_some_and(|seq| letter.seq > *seq)) {
        bury(&transaction, letter).await?;
    }
    let delivered: Vec<Uuid> =
        batch.replays_delivered.iter().filter(|(lane, _)| stood.contains_key(lane)).map(|(_, id)| *id).collect();
    if !delivered.is_empty() {
        transaction
            .execute(
                "UPDATE outbox_dlq SET state = 'delivered', updated_at = clock_timestamp() WHERE delivery_id = ANY ($1)",
                &[&delivered],
            )
            .await?;
    }
    for (endpoint_id, reason) in &batch.pauses {
        transaction
            .execute(
                "UPDATE endpoints SET state = 'paused', state_reason = $2, updated_at = clock_timestamp() WHERE endpoint_id = $1 AND state = 'active'",
                &[endpoint_id, reason],
            )
            .await?;
    }
    point("record.written");
    transaction.commit().await?;
    point("record.committed");
    Ok(recorded)
}

/// Writes lanes and attempts; also returns where each lane stood before that is still ours.
async fn write(sql: &impl Sql, worker: Uuid, batch: &Batch) -> Result<(Recorded, HashMap<i64, i64>), DatabaseError> {
    let (lanes, attempts) = (&batch.lanes, &batch.attempts);
    let rows = sql
        .query(
            RECORD,
            &[
                &worker,
                &column(lanes, |l| l.lane_id),
                &column(lanes, |l| l.epoch),
                &column(lanes, |l| l.done_seq),
                &column(lanes, |l| count(l.head.attempts)),
                &column(lanes, |l| count(l.head.strikes)),
                &column(lanes, |l| count(l.head.unanswered)),
                &column(lanes, |l| l.head.may_have_arrived),
                &column(lanes, |l| l.first_tried_at),
                &column(lanes, |l| l.last_error.as_deref()),
                &column(lanes, |l| l.release.is_some()),
                &column(lanes, |l| delay_ms(l.release)),
                &column(attempts, |a| a.lane_id),
                &column(attempts, |a| a.seq),
                &column(attempts, |a| count(a.attempt)),
                &column(attempts, |a| a.delivery_id),
                &column(attempts, |a| a.outcome.as_str()),
                &column(attempts, |a| a.ends.map(Ends::as_str)),
                &column(attempts, |a| a.status_code.map(i32::from)),
                &column(attempts, |a| a.error.as_deref()),
                &column(attempts, |a| a.response_body.as_deref()),
                &column(attempts, |a| a.started_at),
                &column(attempts, |a| milliseconds(a.duration)),
                &column(lanes, |l| i64::from(milliseconds(l.lease))),
            ],
        )
        .await?;
    let (mut recorded, mut stood) = (Recorded::default(), HashMap::new());
    for row in rows {
        let lane_id: i64 = row.get("lane_id");
        if row.get("mine") {
            let lease_ms: Option<i64> = row.get("lease_ms");
            stood.insert(lane_id, row.get("done_seq"));
            recorded.done.push(Written {
                lane_id,
                last_seq: row.get("last_seq"),
                lease_left: lease_ms.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))),
                is_due: row.get("due"),
            });
        } else if row.get("ended") {
            recorded.ended.push(lane_id);
        } else {
            recorded.lost.push(lane_id);
        }
    }
    Ok((recorded, stood))
}

async fn bury(transaction: &Transaction<'_>, letter: &DeadLetter) -> Result<(), DatabaseError> {
    let delivery = &letter.delivery;
    transaction
        .execute(
            DEAD,
            &[
                &delivery.delivery_id,
                &delivery.event_id,
                &delivery.event_type,
                &delivery.aggregate_id,
                &delivery.aggregate_name,
                &delivery.webhook_name,
                &delivery.headers,
                &delivery.body.as_deref(),
                &letter.reason.as_str(),
                &count(letter.attempts),
                &letter.last_status_code.map(i32::from),
                &letter.last_error,
                &letter.lane_id,
                &letter.seq,
                &delivery.event_created_at,
            ],
        )
        .await?;
    Ok(())
}

/// Notes that deliveries to these endpoints got through: at most about once a second each, and never waiting for a lock.
pub async fn note_success(session: &Session, endpoints: &[Uuid]) -> Result<(), DatabaseError> {
    session
        .execute(
            "UPDATE endpoints SET last_success_at = clock_timestamp()
              WHERE endpoint_id = ANY (ARRAY(SELECT endpoint_id FROM endpoints
                                              WHERE endpoint_id = ANY ($1)
                                                AND (last_success_at IS NULL OR last_success_at < clock_timestamp() - interval '1 second')
                                              ORDER BY endpoint_id FOR UPDATE SKIP LOCKED))",
            &[&endpoints],
        )
        .await?;
    Ok(())
}

fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn delay_ms(release: Option<Release>) -> i64 {
    match release {
        None | Some(Release::Now) => 0,
        Some(Release::After(delay)) => i64::from(milliseconds(delay)),
        Some(Release::Blocked) => -1,
    }
}
