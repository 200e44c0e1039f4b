//! Claiming lanes and reading what they have to deliver.

use std::time::Duration;

use jiff::Timestamp;
use surehook_webhook::secret::Secret;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{DatabaseError, Session};
use crate::retry::{Conflict, Head, Policy};
use crate::target::Target;

/// What a lease adds to the time that its deliveries may take, for recording them.
pub const LEASE_MARGIN: Duration = Duration::from_secs(10);

/// A lane that this worker holds.
#[derive(Clone, Debug)]
pub struct ClaimedLane {
    /// The lane.
    pub lane_id: i64,
    /// The endpoint.
    pub endpoint_id: Uuid,
    /// Guards every later word about the lane.
    pub epoch: i64,
    /// Every delivery up to this number has ended.
    pub done_seq: i64,
    /// Deliver up to this number under this claim.
    pub until_seq: i64,
    /// What the head went through.
    pub head: Head,
    /// Workers that vanished with this head.
    pub crashes: i32,
    /// How long the lane is held, from the claim on.
    pub lease: Duration,
}

/// One thing to send.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Place in the lane.
    pub seq: i64,
    /// The idempotency key.
    pub delivery_id: Uuid,
    /// The event.
    pub event_id: Uuid,
    /// Its type.
    pub event_type: String,
    /// Its aggregate.
    pub aggregate_id: String,
    /// The aggregate's name.
    pub aggregate_name: String,
    /// Which webhook of the event.
    pub webhook_name: String,
    /// A dead letter sent again.
    pub replay: bool,
    /// When the event was created.
    pub event_created_at: Timestamp,
    /// Headers of the format, a JSON object.
    pub headers: String,
    /// The exact bytes; None if they are gone.
    pub body: Option<Vec<u8>>,
}

/// The active endpoints that have lanes which are due. A loose index scan: its cost is the number of endpoints with work.
const DUE_ENDPOINTS: &str = "
    WITH RECURSIVE busy AS (
        (SELECT endpoint_id FROM outbox_lanes WHERE ready_at IS NOT NULL ORDER BY endpoint_id LIMIT 1)
        UNION ALL
        SELECT (SELECT l.endpoint_id FROM outbox_lanes AS l
                 WHERE l.ready_at IS NOT NULL AND l.endpoint_id > busy.endpoint_id ORDER BY l.endpoint_id LIMIT 1)
          FROM busy WHERE busy.endpoint_id IS NOT NULL
    )
    SELECT clock_timestamp() AS now, e.endpoint_id, e.name, e.url, e.secret, e.secret_next, e.headers::text AS headers, e.format,
           e.allow_private, e.timeout_ms, e.in_flight_max, e.on_dead, e.conflict, e.max_attempts, e.max_unanswered,
           e.count_every_silence, e.max_age_s, e.retry_max_delay_ms,
           EXISTS (SELECT 1 FROM outbox_lanes AS l WHERE l.endpoint_id = e.endpoint_id AND l.crashes > 0 AND l.ready_at <= statement_timestamp()
                      AND l.crashes + (l.owner IS NOT NULL)::integer >= 2) AS has_suspect
      FROM busy JOIN endpoints AS e ON e.endpoint_id = busy.endpoint_id
     WHERE e.state = 'active'
       AND EXISTS (SELECT 1 FROM outbox_lanes AS l WHERE l.endpoint_id = e.endpoint_id AND l.ready_at <= statement_timestamp())";

/// Claims up to a quota of due lanes per endpoint, oldest first: those under suspicion, or the others (`$7`). Under
/// suspicion is a lane that two workers vanished with, the one counted that its next claim will charge. A lane that still has an owner was left by one that
/// vanished: that counts as a crash, and its head may have arrived. `= ANY(ARRAY(…))` runs the sub-select once; with
/// `IN (…)` a nested loop may run it again per row and take more than the limit.
const CLAIM: &str = "
    UPDATE outbox_lanes AS l
       SET owner = $1, epoch = l.epoch + 1, crashes = l.crashes + (l.owner IS NOT NULL)::integer,
           may_have_arrived = l.may_have_arrived OR l.owner IS NOT NULL,
           leased_until = statement_timestamp() + (least(l.last_seq - l.done_seq, $5) * e.timeout_ms + $6) * interval '1 millisecond',
           ready_at = statement_timestamp() + (least(l.last_seq - l.done_seq, $5) * e.timeout_ms + $6) * interval '1 millisecond'
      FROM unnest($2::uuid[], $4::bigint[]) AS e (endpoint_id, timeout_ms)
     WHERE l.endpoint_id = e.endpoint_id
       AND l.lane_id = ANY (ARRAY(
           SELECT c.lane_id
             FROM unnest($2::uuid[], $3::bigint[]) AS q (endpoint_id, quota)
            CROSS JOIN LATERAL (SELECT d.lane_id FROM outbox_lanes AS d
                                 WHERE d.endpoint_id = q.endpoint_id AND d.ready_at <= statement_timestamp()
                                   AND (d.crashes + (d.owner IS NOT NULL)::integer >= 2) = $7
                                 ORDER BY d.ready_at LIMIT q.quota FOR UPDATE SKIP LOCKED) AS c))
    RETURNING l.lane_id, l.endpoint_id, l.epoch, l.done_seq, l.last_seq, l.attempts, l.strikes, l.unanswered, l.crashes,
              l.may_have_arrived, coalesce(extract(epoch FROM clock_timestamp() - l.first_tried_at), 0)::float8 AS age_s,
              coalesce((SELECT x.last_success_at > l.updated_at FROM endpoints AS x WHERE x.endpoint_id = l.endpoint_id), false) AS others,
              (extract(epoch FROM l.leased_until - statement_timestamp()) * 1000)::bigint AS lease_ms";

/// The deliveries of claimed lanes by exact ranges. `$4` bounds the partitions from below; who finds a gap asks again
/// without it.
const READ: &str = "
    SELECT c.lane_id, d.seq, d.delivery_id, d.event_id, coalesce(e.event_type, q.event_type, '') AS event_type, d.aggregate_id,
           coalesce(e.aggregate_name, q.aggregate_name, '') AS aggregate_name, d.webhook_name, d.replay, d.event_created_at,
           coalesce(q.headers, b.headers, '{}')::text AS headers,
           CASE WHEN q.delivery_id IS NOT NULL THEN q.body WHEN c.format = 'native' THEN e.payload ELSE b.body END AS body
      FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $5::text[]) AS c (lane_id, done_seq, until_seq, format)
     CROSS JOIN LATERAL (SELECT * FROM outbox_deliveries AS x
                          WHERE x.lane_id = c.lane_id AND x.seq > c.done_seq AND x.seq <= c.until_seq
                            AND x.created_at >= $4 AND x.created_at < statement_timestamp() + interval '1 hour') AS d
      LEFT JOIN outbox_events AS e ON e.event_id = d.event_id AND e.created_at = d.event_created_at
      LEFT JOIN outbox_bodies AS b ON c.format <> 'native' AND b.event_id = d.event_id AND b.created_at = d.event_created_at
                                  AND b.format = c.format AND b.webhook_name = d.webhook_name
      LEFT JOIN outbox_dlq AS q ON d.replay AND q.delivery_id = d.delivery_id
     ORDER BY c.lane_id, d.seq";

/// What is due.
#[derive(Debug)]
pub struct Due {
    /// The database's time, if anything is.
    pub now: Option<Timestamp>,
    /// The endpoints with due lanes.
    pub targets: Vec<Target>,
    /// One of them that has a lane under suspicion.
    pub suspect_at: Option<Uuid>,
}

/// The endpoints with due work, and the database's time.
pub async fn due_endpoints(session: &Session) -> Result<Due, DatabaseError> {
    let rows = session.query(DUE_ENDPOINTS, &[]).await?;
    Ok(Due {
        now: rows.first().map(|row| row.get("now")),
        suspect_at: rows.iter().find(|row| row.get("has_suspect")).map(|row| row.get("endpoint_id")),
        targets: rows.iter().map(target).collect(),
    })
}

/// How many lanes to take from an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// The endpoint.
    pub endpoint_id: Uuid,
    /// At most this many lanes.
    pub lanes: usize,
    /// Deadline of one attempt there.
    pub timeout: Duration,
}

/// Claims due lanes for `worker`, but for those under suspicion. Ok: committed; the lanes are this worker's until their lease
/// ends. Err: perhaps committed all the same; [`give_back_unknown`](super::workers::give_back_unknown) undoes that.
pub async fn claim(
    session: &Session,
    worker: Uuid,
    quotas: &[Quota],
    read_max: i64,
) -> Result<Vec<ClaimedLane>, DatabaseError> {
    claim_of(session, worker, quotas, read_max, false).await
}

/// Claims one lane under suspicion. Whoever calls this holds no other, so that none is charged for what this one may do.
pub async fn claim_suspect(
    session: &Session,
    worker: Uuid,
    endpoint_id: Uuid,
    timeout: Duration,
) -> Result<Option<ClaimedLane>, DatabaseError> {
    let quota = Quota { endpoint_id, lanes: 1, timeout };
    Ok(claim_of(session, worker, &[quota], 1, true).await?.pop())
}

async fn claim_of(
    session: &Session,
    worker: Uuid,
    quotas: &[Quota],
    read_max: i64,
    suspects: bool,
) -> Result<Vec<ClaimedLane>, DatabaseError> {
    let endpoints: Vec<Uuid> = quotas.iter().map(|q| q.endpoint_id).collect();
    let lanes: Vec<i64> = quotas.iter().map(|q| i64::try_from(q.lanes).unwrap_or(i64::MAX)).collect();
    let timeouts: Vec<i64> = quotas.iter().map(|q| i64::from(crate::clock::milliseconds(q.timeout))).collect();
    let margin = i64::from(crate::clock::milliseconds(LEASE_MARGIN));
    let rows = session.query(CLAIM, &[&worker, &endpoints, &lanes, &timeouts, &read_max, &margin, &suspects]).await?;
    Ok(rows.iter().map(|row| claimed(row, read_max)).collect())
}

fn claimed(row: &Row, read_max: i64) -> ClaimedLane {
    let (done_seq, last_seq): (i64, i64) = (row.get("done_seq"), row.get("last_seq"));
    let crashes: i32 = row.get("crashes");
    // After a crash one delivery at a time, so that a poisonous one takes no neighbours with it.
    let read_max = if crashes > 0 { 1 } else { read_max };
    let count = |name: &str| u32::try_from(row.get::<_, i32>(name)).unwrap_or(0);
    ClaimedLane {
        lane_id: row.get("lane_id"),
        endpoint_id: row.get("endpoint_id"),
        epoch: row.get("epoch"),
        done_seq,
        until_seq: last_seq.min(done_seq.saturating_add(read_max)),
        head: Head {
            attempts: count("attempts"),
            strikes: count("strikes"),
            unanswered: count("unanswered"),
            may_have_arrived: row.get("may_have_arrived"),
            age: Duration::from_secs_f64(row.get::<_, f64>("age_s").max(0.0)),
            others_got_through: row.get("others"),
        },
        crashes,
        lease: Duration::from_millis(u64::try_from(row.get::<_, i64>("lease_ms")).unwrap_or(0)),
    }
}

/// What each lane has to deliver, in order; `lanes` pairs a lane with its endpoint's format. Rows created before
/// `not_before` are not looked for.
pub async fn read(
    session: &Session,
    lanes: &[(&ClaimedLane, &str)],
    not_before: Timestamp,
) -> Result<Vec<(i64, Delivery)>, DatabaseError> {
    let ids: Vec<i64> = lanes.iter().map(|(lane, _)| lane.lane_id).collect();
    let done: Vec<i64> = lanes.iter().map(|(lane, _)| lane.done_seq).collect();
    let until: Vec<i64> = lanes.iter().map(|(lane, _)| lane.until_seq).collect();
    let formats: Vec<&str> = lanes.iter().map(|(_, format)| *format).collect();
    let rows = session.query(READ, &[&ids, &done, &until, &not_before, &formats]).await?;
    Ok(rows.iter().map(|row| (row.get("lane_id"), delivery(row))).collect())
}

fn delivery(row: &Row) -> Delivery {
    Delivery {
        seq: row.get("seq"),
        delivery_id: row.get("delivery_id"),
        event_id: row.get("event_id"),
        event_type: row.get("event_type"),
        aggregate_id: row.get("aggregate_id"),
        aggregate_name: row.get("aggregate_name"),
        webhook_name: row.get("webhook_name"),
        replay: row.get("replay"),
        event_created_at: row.get("event_created_at"),
        headers: row.get("headers"),
        body: row.get("body"),
    }
}

fn target(row: &Row) -> Target {
    let milliseconds = |name: &str| Duration::from_millis(u64::try_from(row.get::<_, i32>(name)).unwrap_or(0));
    let count = |name: &str| u32::try_from(row.get::<_, i32>(name)).unwrap_or(0);
    let format: String = row.get("format");
    let conflict = match row.get("conflict") {
        "success" => Conflict::Success,
        "strike" => Conflict::Strike,
        _ if format == "native" => Conflict::Success,
        _ => Conflict::SuccessIfMayHaveArrived,
    };
    let secrets = std::iter::once(row.get::<_, String>("secret")).chain(row.get::<_, Option<String>>("secret_next"));
    Target {
        endpoint_id: row.get("endpoint_id"),
        name: row.get("name"),
        url: row.get("url"),
        secrets: secrets.map(|text| Secret::parse(&text).map_err(|error| error.to_string())).collect(),
        headers: parse_headers(row.get("headers")),
        format,
        allow_private: row.get("allow_private"),
        timeout: milliseconds("timeout_ms"),
        in_flight_max: usize::try_from(row.get::<_, i32>("in_flight_max")).unwrap_or(1),
        block_on_dead: row.get::<_, &str>("on_dead") == "block",
        policy: Policy {
            max_attempts: count("max_attempts"),
            max_unanswered: count("max_unanswered"),
            count_every_silence: row.get("count_every_silence"),
            max_age: Duration::from_secs(u64::from(count("max_age_s"))),
            retry_max_delay: milliseconds("retry_max_delay_ms"),
            conflict,
        },
    }
}

/// Reads a JSON object of names and values; what is no text value is passed over (CHECK and the commands keep it out).
pub fn parse_headers(json: &str) -> Vec<(String, String)> {
    let map: std::collections::BTreeMap<String, serde_json::Value> = serde_json::from_str(json).unwrap_or_default();
    map.into_iter().filter_map(|(name, value)| Some((name, value.as_str()?.to_owned()))).collect()
}
