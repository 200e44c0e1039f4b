//! Claiming lanes and reading what they have to deliver.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use surehook_webhook::secret::Secret;
use tokio_postgres::Row;
use uuid::Uuid;

pub use super::claim_statements::{CLAIM, CLAIM_NATIVE, READ, READ_NATIVE, SCENE};
use super::{DatabaseError, Session, column};
use crate::clock::milliseconds;
use crate::retry::{Conflict, Head, Policy};
use crate::target::{NATIVE, Prepared, Target};

/// What a lease adds to the time that its deliveries may take, for recording them.
pub const LEASE_MARGIN: Duration = Duration::from_secs(10);

/// One read of one lane ends with the delivery that brings it to this many bytes, so that large bodies do not pile up.
pub const READ_BYTES_MAX: i64 = 256 * 1024;

/// How long a lane is held from a claim or a renewal on, if it may make `deliveries` requests meanwhile.
pub fn lease(timeout: Duration, deliveries: usize) -> Duration {
    timeout * u32::try_from(deliveries).unwrap_or(u32::MAX) + LEASE_MARGIN
}

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
    /// The newest delivery at the time of the claim.
    pub last_seq: i64,
    /// What the head went through.
    pub head: Head,
    /// Workers that vanished with this head.
    pub crashes: i32,
    /// How long the lane is held, from the claim on.
    pub lease: Duration,
    /// The first deliveries, in order, as far as the claim saw them.
    pub deliveries: Vec<Delivery>,
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
    pub body: Option<Bytes>,
}

/// What there is to do.
#[derive(Debug)]
pub struct Scene {
    /// The database's time; None if there is no endpoint.
    pub now: Option<Timestamp>,
    /// The endpoints.
    pub endpoints: Vec<EndpointSeen>,
}

/// One endpoint in a [`Scene`].
#[derive(Debug)]
pub struct EndpointSeen {
    /// Where to send.
    pub target: Target,
    /// When its settings last changed: claims name it.
    pub version: Timestamp,
    /// Since when its oldest due lane is due; None: nothing is.
    pub due_since: Option<Timestamp>,
    /// It has a due lane under suspicion.
    pub has_suspect: bool,
}

/// The endpoints that have work or are among `known`, those that are paused or removed left out.
pub async fn scene(session: &Session, known: &[Uuid]) -> Result<Scene, DatabaseError> {
    let rows = session.query(SCENE, &[&known]).await?;
    let endpoints = rows.iter().map(|row| EndpointSeen {
        target: target(row),
        version: row.get("updated_at"),
        due_since: row.get("due_since"),
        has_suspect: row.get("has_suspect"),
    });
    Ok(Scene { now: rows.first().map(|row| row.get("now")), endpoints: endpoints.collect() })
}

/// How many lanes to take from an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// The endpoint.
    pub endpoint_id: Uuid,
    /// When its settings last changed, as far as the caller knows.
    pub version: Timestamp,
    /// At most this many lanes.
    pub lanes: usize,
    /// Only lanes that became due after this.
    pub after: Timestamp,
}

/// How a claim reads.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Deliveries of one lane at most.
    pub deliveries_max: usize,
    /// Rows created before this are not looked for.
    pub not_before: Timestamp,
    /// All endpoints have the native format.
    pub only_native: bool,
}

/// Claims due lanes for `worker`, but for those under suspicion. Ok: committed; the lanes are this worker's until their lease
/// ends. Err: perhaps committed all the same; [`give_back_unknown`](super::workers::give_back_unknown) undoes that.
pub async fn claim(
    session: &Session,
    worker: Uuid,
    quotas: &[Quota],
    reading: Reading,
) -> Result<Vec<ClaimedLane>, DatabaseError> {
    claim_of(session, worker, quotas, reading, false).await
}

/// Claims one lane under suspicion. Whoever calls this holds no other, so that none is charged for what this one may do.
pub async fn claim_suspect(
    session: &Session,
    worker: Uuid,
    endpoint_id: Uuid,
    version: Timestamp,
    not_before: Timestamp,
) -> Result<Option<ClaimedLane>, DatabaseError> {
    let quota = Quota { endpoint_id, version, lanes: 1, after: Timestamp::UNIX_EPOCH };
    Ok(claim_of(session, worker, &[quota], Reading { deliveries_max: 1, not_before, only_native: false }, true)
        .await?
        .pop())
}

async fn claim_of(
    session: &Session,
    worker: Uuid,
    quotas: &[Quota],
    reading: Reading,
    suspects: bool,
) -> Result<Vec<ClaimedLane>, DatabaseError> {
    let rows = session
        .query(
            if reading.only_native { CLAIM_NATIVE } else { CLAIM },
            &[
                &worker,
                &column(quotas, |q| q.endpoint_id),
                &column(quotas, |q| i64::try_from(q.lanes).unwrap_or(i64::MAX)),
                &column(quotas, |q| q.after),
                &column(quotas, |q| q.version),
                &i64::try_from(reading.deliveries_max).unwrap_or(i64::MAX),
                &i64::from(milliseconds(LEASE_MARGIN)),
                &reading.not_before,
                &suspects,
                &READ_BYTES_MAX,
            ],
        )
        .await?;
    let mut lanes: Vec<ClaimedLane> = Vec::new();
    for row in &rows {
        let lane_id: i64 = row.get(0);
        if lanes.last().is_none_or(|lane| lane.lane_id != lane_id) {
            lanes.push(claimed(lane_id, row));
        }
        if let (Some(lane), Some(delivery)) = (lanes.last_mut(), delivery(row)) {
            lane.deliveries.push(delivery);
        }
    }
    Ok(lanes)
}

fn claimed(lane_id: i64, row: &Row) -> ClaimedLane {
    let count = |name: &str| u32::try_from(row.get::<_, i32>(name)).unwrap_or(0);
    ClaimedLane {
        lane_id,
        endpoint_id: row.get("endpoint_id"),
        epoch: row.get("epoch"),
        done_seq: row.get("done_seq"),
        last_seq: row.get("last_seq"),
        head: Head {
            attempts: count("attempts"),
            strikes: count("strikes"),
            unanswered: count("unanswered"),
            may_have_arrived: row.get("may_have_arrived"),
            age: Duration::from_secs_f64(row.get::<_, f64>("age_s").max(0.0)),
            others_got_through: row.get("others"),
        },
        crashes: row.get("crashes"),
        lease: Duration::from_millis(u64::try_from(row.get::<_, i64>("lease_ms")).unwrap_or(0)),
        deliveries: Vec::new(),
    }
}

/// A range of a lane to be read.
#[derive(Clone, Debug)]
pub struct Range {
    /// The lane.
    pub lane_id: i64,
    /// The deliveries after this one, …
    pub after_seq: i64,
    /// … up to this one.
    pub until_seq: i64,
    /// The endpoint's format.
    pub format: String,
}

/// What lanes have to deliver, in order, and of each range as much as [`READ_BYTES_MAX`] allows, but one at least. Rows
/// created before `not_before` are not looked for.
pub async fn read(
    session: &Session,
    ranges: &[Range],
    not_before: Timestamp,
) -> Result<HashMap<i64, Vec<Delivery>>, DatabaseError> {
    let rows = session
        .query(
            if ranges.iter().all(|range| range.format == NATIVE) { READ_NATIVE } else { READ },
            &[
                &column(ranges, |r| r.lane_id),
                &column(ranges, |r| r.after_seq),
                &column(ranges, |r| r.until_seq),
                &not_before,
                &column(ranges, |r| r.format.as_str()),
                &READ_BYTES_MAX,
            ],
        )
        .await?;
    let mut lanes: HashMap<i64, Vec<Delivery>> = HashMap::new();
    for row in &rows {
        lanes.entry(row.get(0)).or_default().extend(delivery(row));
    }
    Ok(lanes)
}

/// Columns 1 to 11 as `deliveries!` names them; looking them up by name costs more than reading them. None: the lane
/// has no delivery that the claim could see.
fn delivery(row: &Row) -> Option<Delivery> {
    Some(Delivery {
        seq: row.get::<_, Option<i64>>(1)?,
        delivery_id: row.get(2),
        event_id: row.get(3),
        event_type: row.get(4),
        aggregate_id: row.get(5),
        aggregate_name: row.get(6),
        webhook_name: row.get(7),
        replay: row.get(8),
        event_created_at: row.get(9),
        headers: row.get(10),
        body: row.get::<_, Option<Vec<u8>>>(11).map(Bytes::from),
    })
}

fn target(row: &Row) -> Target {
    let milliseconds = |name: &str| Duration::from_millis(u64::try_from(row.get::<_, i32>(name)).unwrap_or(0));
    let count = |name: &str| u32::try_from(row.get::<_, i32>(name)).unwrap_or(0);
    let format: String = row.get("format");
    let conflict = match row.get("conflict") {
        "success" => Conflict::Success,
        "strike" => Conflict::Strike,
        _ if format == NATIVE => Conflict::Success,
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
        rate_max_per_s: row.get::<_, Option<i32>>("rate_max_per_s").and_then(|rate| u32::try_from(rate).ok()),
        block_on_dead: row.get::<_, &str>("on_dead") == "block",
        policy: Policy {
            max_attempts: count("max_attempts"),
            max_unanswered: count("max_unanswered"),
            count_every_silence: row.get("count_every_silence"),
            max_age: Duration::from_secs(u64::from(count("max_age_s"))),
            retry_max_delay: milliseconds("retry_max_delay_ms"),
            conflict,
        },
        route: Prepared::default(),
    }
}

/// Reads a JSON object of names and values; what is no text value is passed over (CHECK and the commands keep it out).
pub fn parse_headers(json: &str) -> Vec<(String, String)> {
    let map: std::collections::BTreeMap<String, serde_json::Value> = serde_json::from_str(json).unwrap_or_default();
    map.into_iter().filter_map(|(name, value)| Some((name, value.as_str()?.to_owned()))).collect()
}
