//! A step of a back-fill: the next events of a lane that is held. And what becomes of lanes that are held when no job is.
//!
//! A lane is done when, under its lock, there is nothing left to tell: everybody who found it held has had that lock and given it
//! back, so what they recorded is seen. See docs/adr/0020.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::step::Progress;
use super::{Job, JobState, hold, untold};
use crate::store::{Database, DatabaseError, Transaction};

/// What one step enqueues beyond the rate, of events that would have gone out at once without the job.
const LIVE_MAX: i64 = 500;
/// A step enqueues what may go in this part of a second, so that a lane's lock is not held for long.
const STEPS_PER_S: i64 = 10;
/// How long is waited before the next look at what somebody else must end first.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How the job stands, and what there is to know of its endpoint.
const STANDING: &str = "
    SELECT j.after_lane_id, j.after_event_at, j.settled, p.state = 'removed' AS removed, p.endpoint_id, p.format, p.aggregate_id,
           j.transactions_before IS NULL OR j.transactions_before > pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS numbers_unknown,
           coalesce(pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= j.transactions_before, false) AS others_ended,
           clock_timestamp() < j.created_at + interval '2 seconds' AS young,
           EXISTS (SELECT FROM outbox_lanes AS l WHERE l.endpoint_id = j.endpoint_id AND l.held_since IS NOT NULL) AS holds
      FROM outbox_jobs AS j JOIN endpoints AS p ON p.endpoint_id = j.endpoint_id WHERE j.job_id = $1";

pub(super) async fn work(transaction: &Transaction<'_>, job: &Job) -> Result<Progress, DatabaseError> {
    let standing = transaction.query_one(STANDING, &[&job.job_id]).await?;
    if standing.try_get("removed")? {
        // Its lanes that are held are let go by whoever looks for such.
        return Ok(Progress { ends: Some(JobState::Cancelled), ..Progress::default() });
    }
    if standing.try_get("numbers_unknown")? {
        // Also after the database was restored into another cluster, whose numbers are lower.
        let sql = "UPDATE outbox_jobs SET transactions_before = pg_snapshot_xmax(pg_current_snapshot())::text::bigint WHERE job_id = $1";
        transaction.execute(sql, &[&job.job_id]).await?;
        return Ok(Progress::default());
    }
    let (settled, others_ended): (bool, bool) = (standing.try_get("settled")?, standing.try_get("others_ended")?);
    if !settled && others_ended {
        return settle(transaction, job, &standing).await;
    }
    // Whoever records events and began before the endpoint was there has not seen it. Such transactions end within milliseconds
    // as a rule, and then what they recorded is in its order. For one that lasts nobody waits: what it leaves is told last.
    if (settled || !standing.try_get::<_, bool>("young")?)
        && let Some(lane) = held_lane(transaction, job.endpoint_id).await?
    {
        return fill_lane(transaction, job, &standing, lane).await;
    }
    if settled && !standing.try_get::<_, bool>("holds")? {
        return Ok(Progress { ends: Some(JobState::Done), ..Progress::default() });
    }
    Ok(Progress { wait: Some(LOOK_EVERY), ..Progress::default() })
}

/// Nobody is left who has not seen the endpoint: holds the lanes in which such have left something. Those that are held are gone
/// through from their beginning once more.
async fn settle(transaction: &Transaction<'_>, job: &Job, standing: &Row) -> Result<Progress, DatabaseError> {
    let of = hold::Of {
        endpoint_id: standing.try_get("endpoint_id")?,
        format: standing.try_get("format")?,
        aggregate_id: standing.try_get("aggregate_id")?,
    };
    let missing = hold::missing(transaction, &of, job.since.unwrap_or_default(), job.until).await?;
    hold::hold(transaction, of.endpoint_id, &missing.keys).await?;
    let sql = "UPDATE outbox_jobs SET settled = true, after_lane_id = NULL, after_event_at = NULL, items_total = items_done + $2
                WHERE job_id = $1";
    transaction.execute(sql, &[&job.job_id, &missing.items]).await?;
    Ok(Progress::default())
}

/// A lane, locked.
struct Lane {
    lane_id: i64,
    ordering_key: String,
    last_seq: i64,
}

fn read_lane(row: &Row) -> Result<Lane, DatabaseError> {
    Ok(Lane {
        lane_id: row.try_get("lane_id")?,
        ordering_key: row.try_get("ordering_key")?,
        last_seq: row.try_get("last_seq")?,
    })
}

/// One that is held, locked. Who records events there at this moment is waited for only if that is so in all of them.
async fn held_lane(transaction: &Transaction<'_>, endpoint_id: Option<Uuid>) -> Result<Option<Lane>, DatabaseError> {
    const HELD: &str = "SELECT lane_id, ordering_key, last_seq FROM outbox_lanes
                         WHERE endpoint_id = $1 AND held_since IS NOT NULL ORDER BY lane_id LIMIT 1 FOR UPDATE";
    let mut row = transaction.query_opt(&format!("{HELD} SKIP LOCKED"), &[&endpoint_id]).await?;
    if row.is_none() {
        row = transaction.query_opt(HELD, &[&endpoint_id]).await?;
    }
    row.as_ref().map(read_lane).transpose()
}

/// Appends to a lane, after `$8`, the next events of its key in their order: `$4` ≤ time < `$5`, at most `$6`. Two looks, because
/// where key and aggregate are the same the index by aggregate finds them.
const FILL: &str = concat!(
    "WITH chosen AS MATERIALIZED (
        SELECT e.* FROM (
            (SELECT e.event_id, e.created_at, e.position_in_call, e.event_type, e.aggregate_id FROM outbox_events AS e
              WHERE e.aggregate_id = $3::text AND e.ordering_key = e.aggregate_id
                AND e.created_at >= $4::timestamptz AND e.created_at < coalesce($5::timestamptz, 'infinity') AND ",
    untold::wanted_and_untold!(),
    " ORDER BY e.created_at, e.position_in_call, e.event_id LIMIT $6::bigint)
            UNION ALL
            (SELECT e.event_id, e.created_at, e.position_in_call, e.event_type, e.aggregate_id FROM outbox_events AS e
              WHERE e.ordering_key = $3::text AND e.ordering_key <> e.aggregate_id
                AND e.created_at >= $4::timestamptz AND e.created_at < coalesce($5::timestamptz, 'infinity') AND ",
    untold::wanted_and_untold!(),
    " ORDER BY e.created_at, e.position_in_call, e.event_id LIMIT $6::bigint)
        ) AS e ORDER BY e.created_at, e.position_in_call, e.event_id LIMIT $6::bigint
    ), enqueued AS (
        INSERT INTO outbox_deliveries (lane_id, seq, delivery_id, event_id, event_created_at, webhook_name, aggregate_id, created_at)
        SELECT $7::bigint, $8::bigint + row_number() OVER (ORDER BY e.created_at, e.position_in_call, e.event_id, w.webhook_name),
               outbox_delivery_id($1::uuid, e.event_id, w.webhook_name), e.event_id, e.created_at, w.webhook_name, e.aggregate_id,
               (SELECT clock_timestamp())
          FROM chosen AS e CROSS JOIN LATERAL ",
    untold::webhooks!(),
    " AS w WHERE ",
    untold::untold!(),
    " RETURNING 1
    )
    SELECT (SELECT count(*) FROM chosen) AS events, (SELECT count(*) FROM enqueued) AS deliveries,
           (SELECT max(created_at) FROM chosen) AS last_at"
);

/// From when on, before when, and how many events at most.
#[derive(Clone, Copy)]
struct Part {
    from: Timestamp,
    before: Option<Timestamp>,
    events_max: i64,
}

/// What a part has come to.
struct Filled {
    /// There is nothing left of it.
    all: bool,
    deliveries: i64,
    last_at: Option<Timestamp>,
}

/// Enqueues a part of what is missing in a locked lane; the caller moves the lane's end.
async fn fill(
    transaction: &Transaction<'_>,
    (endpoint_id, format): (Option<Uuid>, &str),
    lane: &Lane,
    last_seq: i64,
    Part { from, before, events_max }: Part,
) -> Result<Filled, DatabaseError> {
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 8] =
        [&endpoint_id, &format, &lane.ordering_key, &from, &before, &events_max, &lane.lane_id, &last_seq];
    let row = transaction.query_one(FILL, &values).await?;
    Ok(Filled {
        all: row.try_get::<_, i64>("events")? < events_max,
        deliveries: row.try_get("deliveries")?,
        last_at: row.try_get("last_at")?,
    })
}

/// `$2` more deliveries; and held as before, or from `$4` on, or let go (`$3`).
const MOVE_END: &str = "
    UPDATE outbox_lanes
       SET last_seq = last_seq + $2, ready_at = CASE WHEN $2::bigint > 0 THEN coalesce(ready_at, clock_timestamp()) ELSE ready_at END,
           held_since = CASE WHEN NOT $3::boolean THEN coalesce($4::timestamptz, held_since) END
     WHERE lane_id = $1";

/// First what the job is for, at its rate. When nothing of that is left, what came meanwhile, which would have gone out at once.
async fn fill_lane(
    transaction: &Transaction<'_>,
    job: &Job,
    standing: &Row,
    lane: Lane,
) -> Result<Progress, DatabaseError> {
    let (since, until) = (job.since.unwrap_or_default(), job.until.unwrap_or_default());
    let is_at_it = standing.try_get::<_, Option<i64>>("after_lane_id")? == Some(lane.lane_id);
    let from = standing.try_get::<_, Option<Timestamp>>("after_event_at")?.filter(|_| is_at_it).unwrap_or(since);
    let endpoint = (job.endpoint_id, standing.try_get("format")?);
    let events_max = (i64::from(job.rate) / STEPS_PER_S).clamp(1, LIVE_MAX);
    let older =
        fill(transaction, endpoint, &lane, lane.last_seq, Part { from, before: Some(until), events_max }).await?;
    let newer = if older.all {
        let part = Part { from: from.max(until), before: None, events_max: LIVE_MAX };
        fill(transaction, endpoint, &lane, lane.last_seq + older.deliveries, part).await?
    } else {
        Filled { all: false, deliveries: 0, last_at: None }
    };
    let added = older.deliveries + newer.deliveries;
    transaction.execute(MOVE_END, &[&lane.lane_id, &added, &newer.all, &None::<Timestamp>]).await?;
    let at = (!newer.all).then(|| newer.last_at.or(older.last_at).unwrap_or(from));
    transaction
        .execute(
            "UPDATE outbox_jobs SET after_lane_id = $2, after_event_at = $3, items_taken_up = items_taken_up + $4 WHERE job_id = $1",
            &[&job.job_id, &at.map(|_| lane.lane_id), &at, &newer.deliveries],
        )
        .await?;
    Ok(Progress { done: older.deliveries, taken_up: newer.deliveries, ..Progress::default() })
}

/// Lets go of one lane that is held although no back-fill of its endpoint runs, with the events that came since it was held: all
/// of them would have been enqueued without the job. Ok: how many deliveries were enqueued, committed; None: there is no such
/// lane that nobody is at. May be repeated, also from several processes at once.
pub async fn release_lane(database: &Database) -> Result<Option<i64>, DatabaseError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let row = transaction
        .query_opt(
            "SELECT l.lane_id, l.ordering_key, l.last_seq, l.held_since, l.endpoint_id,
                    (SELECT p.format FROM endpoints AS p WHERE p.endpoint_id = l.endpoint_id) AS format
               FROM outbox_lanes AS l
              WHERE l.held_since IS NOT NULL
                AND NOT EXISTS (SELECT FROM outbox_jobs AS j WHERE j.kind = 'backfill' AND j.state = 'running' AND j.endpoint_id = l.endpoint_id)
              ORDER BY l.endpoint_id, l.lane_id LIMIT 1 FOR UPDATE OF l SKIP LOCKED",
            &[],
        )
        .await?;
    let Some(row) = row else { return Ok(None) };
    let (lane, from) = (read_lane(&row)?, row.try_get::<_, Timestamp>("held_since")?);
    let format: Option<&str> = row.try_get("format")?;
    let endpoint = (Some(row.try_get("endpoint_id")?), format.unwrap_or_default());
    let part = Part { from, before: None, events_max: LIVE_MAX };
    let filled = fill(&transaction, endpoint, &lane, lane.last_seq, part).await?;
    transaction.execute(MOVE_END, &[&lane.lane_id, &filled.deliveries, &filled.all, &filled.last_at]).await?;
    transaction.commit().await?;
    Ok(Some(filled.deliveries))
}
