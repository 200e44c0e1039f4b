//! The watch over the outbox: opens and resolves alerts about it, and enqueues an event for each beginning and end of an
//! alert of any kind, in one transaction.

use jiff::Timestamp;
use surehook_outbox::send::PAGERDUTY;
use surehook_outbox::store::{Database, DatabaseError, Transaction};
use surehook_outbox::{NewEvent, Rendering, enqueue_many};

use super::alerts::{Alert, AlertKind};

/// The type of the events that tell of alerts. Only endpoints that name it receive them.
pub const ALERT_EVENT: &str = "surehook.alert";

/// The kinds that [`watch`] opens and resolves; the others are noticed where they happen.
const WATCHED: [AlertKind; 6] = [
    AlertKind::DeadLetters,
    AlertKind::EndpointGone,
    AlertKind::CircuitOpen,
    AlertKind::OldestPending,
    AlertKind::WorkersAway,
    AlertKind::WorkerStuck,
];

/// When something is an alert, and of which nobody is told.
#[derive(Clone, Debug)]
pub struct WatchSettings {
    /// How long a delivery may wait.
    pub oldest_pending_s: u32,
    /// How long a worker may be lost before somebody is told.
    pub worker_stuck_s: u32,
    /// How long nothing more of a drift must be seen until it counts as over.
    pub drift_quiet_s: u32,
    /// Kinds that are recorded, and told to nobody.
    pub mute: Vec<String>,
}

/// What is wrong with the outbox at this moment. Endpoints for alerts are left out: an alert never tells of itself.
const CONDITIONS: &str = "
    WITH watched AS (
        SELECT endpoint_id, name, state, state_reason FROM endpoints
         WHERE state <> 'removed' AND event_types IS DISTINCT FROM ARRAY['surehook.alert']
    ), waiting AS (
        SELECT l.endpoint_id, min(h.created_at) AS since, sum(l.last_seq - l.done_seq)::bigint AS pending
          FROM outbox_lanes AS l
          LEFT JOIN LATERAL (SELECT d.created_at FROM outbox_deliveries AS d WHERE d.lane_id = l.lane_id AND d.seq = l.done_seq + 1 LIMIT 1) AS h ON true
         WHERE l.ready_at IS NOT NULL GROUP BY l.endpoint_id
    )
    SELECT 'dead_letters' AS kind, w.endpoint_id::text AS subject, w.name AS name,
           format('%s of endpoint %s: %s; the last since %s', CASE count(*) WHEN 1 THEN 'a dead letter' ELSE count(*) || ' dead letters' END, w.name,
                  string_agg(DISTINCT q.reason, ', '), to_char(max(q.failed_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC') AS details
      FROM outbox_dlq AS q JOIN watched AS w ON w.endpoint_id = q.endpoint_id WHERE q.state = 'dead' GROUP BY w.endpoint_id, w.name
    UNION ALL
    SELECT 'endpoint_gone', endpoint_id::text, name, format('endpoint %s is paused: %s', name, state_reason)
      FROM watched WHERE state = 'paused' AND starts_with(state_reason, 'it answered 410')
    UNION ALL
    SELECT 'circuit_open', w.endpoint_id::text, w.name,
           format('endpoint %s does not answer since %s: nothing but probes goes out to it, and what comes for it waits', w.name,
                  to_char(min(o.opened_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC')
      FROM outbox_windows AS o JOIN watched AS w ON w.endpoint_id = o.endpoint_id AND w.state = 'active'
      JOIN outbox_workers AS k ON k.worker_id = o.worker_id
     WHERE o.opened_at < clock_timestamp() - interval '60 seconds' GROUP BY w.endpoint_id, w.name
    UNION ALL
    SELECT 'oldest_pending', w.endpoint_id::text, w.name,
           format('%s for endpoint %s; the oldest since %s', CASE x.pending WHEN 1 THEN 'a delivery waits' ELSE x.pending || ' deliveries wait' END, w.name,
                  to_char(x.since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC')
      FROM watched AS w JOIN waiting AS x ON x.endpoint_id = w.endpoint_id
     WHERE x.since < clock_timestamp() - $1 * interval '1 second'
    UNION ALL
    SELECT 'workers_away', 'outbox', '', 'deliveries are due, and no worker has been alive for 30 seconds'
     WHERE EXISTS (SELECT 1 FROM outbox_lanes AS l JOIN watched AS w ON w.endpoint_id = l.endpoint_id AND w.state = 'active'
                    WHERE l.ready_at < clock_timestamp() - interval '30 seconds')
       AND NOT EXISTS (SELECT 1 FROM outbox_workers WHERE heartbeat_at > clock_timestamp() - interval '30 seconds')
    UNION ALL
    SELECT 'worker_stuck', worker_id::text, node, format('worker %s hangs: its loop %s stands still, although its heartbeat goes on', node, stalled)
      FROM outbox_workers WHERE stalled IS NOT NULL
    UNION ALL
    SELECT 'worker_stuck', l.worker_id::text, l.node,
           format('worker %s hangs or is gone without a word; its heartbeat stands still since %s, and others took over what it held', l.node,
                  to_char(l.heartbeat_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC')
      FROM outbox_workers_lost AS l
     WHERE l.lost_at < clock_timestamp() - $2 * interval '1 second'
       AND NOT EXISTS (SELECT FROM outbox_workers AS w
                        WHERE w.worker_id = l.worker_id
                           OR (split_part(w.node, ' (process ', 1) = split_part(l.node, ' (process ', 1) AND w.started_at >= l.heartbeat_at))";

/// What a turn of the watch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Events that were enqueued.
    pub told: usize,
}

/// One turn: opens and resolves what the outbox shows, and enqueues an event for each beginning and end that was not told,
/// with the bodies that `render` gives. All of it commits together or not at all. One
/// process at a time; a turn that finds another at work does nothing. May be repeated.
pub async fn watch(
    database: &Database,
    settings: &WatchSettings,
    render: impl Fn(&Alert) -> RenderedAlert,
) -> Result<Watched, DatabaseError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let is_mine: bool = transaction
        .query_one("SELECT pg_try_advisory_xact_lock(hashtext('surehook.alerts'))", &[])
        .await?
        .try_get(0)?;
    if !is_mine {
        return Ok(Watched::default());
    }
    let limits = [settings.oldest_pending_s, settings.worker_stuck_s, settings.drift_quiet_s].map(f64::from);
    let conditions = transaction.query(CONDITIONS, &[&limits[0], &limits[1]]).await?;
    let column = |name: &str| conditions.iter().map(|row| row.try_get(name)).collect::<Result<Vec<String>, _>>();
    let (kinds, subjects, details) = (column("kind")?, column("subject")?, column("details")?);
    let names = column("name")?;
    transaction
        .execute(
            "INSERT INTO alerts (kind, subject, details, name) SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
             ON CONFLICT (kind, subject) WHERE resolved_at IS NULL DO UPDATE SET details = excluded.details, name = excluded.name, seen_at = now()
             WHERE alerts.details <> excluded.details",
            &[&kinds, &subjects, &details, &names],
        )
        .await?;
    transaction
        .execute(
            "UPDATE alerts SET resolved_at = greatest(now(), opened_at)
              WHERE resolved_at IS NULL AND kind = ANY ($1)
                AND (kind, subject) NOT IN (SELECT * FROM unnest($2::text[], $3::text[]))",
            &[&WATCHED.map(AlertKind::as_str).as_slice(), &kinds, &subjects],
        )
        .await?;
    // By a statement of its own: one that the scan opens at this moment was seen just now.
    transaction
        .execute(
            "UPDATE alerts SET resolved_at = greatest(now(), opened_at)
              WHERE resolved_at IS NULL AND kind = 'drift' AND seen_at < clock_timestamp() - $1 * interval '1 second'",
            &[&limits[2]],
        )
        .await?;
    let told = tell(&transaction, &settings.mute, render).await?;
    transaction.commit().await?;
    Ok(Watched { told })
}

/// The bodies of an event about an alert.
#[derive(Clone, Debug)]
pub struct RenderedAlert {
    /// For endpoints of the native format.
    pub native: Vec<u8>,
    /// For endpoints of the PagerDuty format, without the routing key.
    pub pagerduty: Vec<u8>,
}

async fn tell(
    transaction: &Transaction<'_>,
    mute: &[String],
    render: impl Fn(&Alert) -> RenderedAlert,
) -> Result<usize, DatabaseError> {
    let rows = transaction
        .query(
            "UPDATE alerts SET told = CASE WHEN told IS NULL THEN 'open' ELSE 'resolved' END
              WHERE told IS NULL OR (told = 'open' AND resolved_at IS NOT NULL)
            RETURNING alert_id, kind, subject, name, details, opened_at, CASE told WHEN 'resolved' THEN resolved_at END AS resolved_at",
            &[],
        )
        .await?;
    let mut untold = rows.iter().map(Alert::read).collect::<Result<Vec<_>, DatabaseError>>()?;
    // They count as told, so that an end of the muting does not bring up what is long past.
    untold.retain(|alert| !mute.contains(&alert.kind));
    if untold.is_empty() {
        return Ok(0);
    }
    let aggregates: Vec<String> =
        untold.iter().map(|alert| format!("surehook.alerts/{}/{}", alert.kind, alert.subject)).collect();
    let bodies: Vec<RenderedAlert> = untold.iter().map(render).collect();
    let (mut events, mut renderings) = (Vec::new(), Vec::new());
    for (event, (aggregate_id, bodies)) in aggregates.iter().zip(&bodies).enumerate() {
        let payload = &bodies.native;
        events.push(NewEvent { event_type: ALERT_EVENT, aggregate_id, payload, ..NewEvent::default() });
        let (webhook_name, body) = (ALERT_EVENT, &bodies.pagerduty);
        renderings.push(Rendering { event, format: PAGERDUTY, webhook_name, headers: "{}", body });
    }
    // One call, so that the lanes of all are locked in their order.
    enqueue_many(transaction, &events, &[PAGERDUTY], &renderings).await?;
    Ok(untold.len())
}

/// What the watchdog looks at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vitals {
    /// Now, by the database's clock.
    pub now: Timestamp,
    /// Deliveries that wait for active endpoints.
    pub pending: i64,
    /// The age of the oldest of them, among the heads of 10,000 lanes, in seconds; 0 if there is none.
    pub oldest_pending_age_s: f64,
    /// Work has been due for half a minute, and no worker was alive in that time.
    pub is_work_without_workers: bool,
}

/// Reads them in one statement. A read: may be repeated.
pub async fn vitals(database: &Database) -> Result<Vitals, DatabaseError> {
    let session = database.session().await?;
    let row = session
        .query_one(
            "WITH waiting AS (
                 SELECT l.lane_id, l.done_seq, l.last_seq, l.ready_at FROM outbox_lanes AS l JOIN endpoints AS e ON e.endpoint_id = l.endpoint_id
                  WHERE l.ready_at IS NOT NULL AND e.state = 'active' LIMIT 10000
             )
             SELECT clock_timestamp() AS now,
                    (SELECT coalesce(sum(last_seq - done_seq), 0)::bigint FROM waiting) AS pending,
                    (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(d.created_at)), 0)::float8 FROM waiting AS w
                       JOIN outbox_deliveries AS d ON d.lane_id = w.lane_id AND d.seq = w.done_seq + 1) AS oldest,
                    EXISTS (SELECT FROM waiting WHERE ready_at < clock_timestamp() - interval '30 seconds')
                      AND NOT EXISTS (SELECT FROM outbox_workers WHERE heartbeat_at > clock_timestamp() - interval '30 seconds') AS unattended",
            &[],
        )
        .await?;
    Ok(Vitals {
        now: row.try_get("now")?,
        pending: row.try_get("pending")?,
        oldest_pending_age_s: row.try_get("oldest")?,
        is_work_without_workers: row.try_get("unattended")?,
    })
}
