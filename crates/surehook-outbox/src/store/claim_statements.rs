//! The statements of claiming and reading. Text alone: [`super::claim`] says them.

/// The active endpoints that have work, and those that are known (`$1`), with what is due at each. A loose index scan: its
/// cost is the number of endpoints with work.
pub const SCENE: &str = "
    WITH RECURSIVE busy AS (
        (SELECT endpoint_id FROM outbox_lanes WHERE ready_at IS NOT NULL ORDER BY endpoint_id LIMIT 1)
        UNION ALL
        SELECT (SELECT l.endpoint_id FROM outbox_lanes AS l
                 WHERE l.ready_at IS NOT NULL AND l.endpoint_id > busy.endpoint_id ORDER BY l.endpoint_id LIMIT 1)
          FROM busy WHERE busy.endpoint_id IS NOT NULL
    )
    SELECT clock_timestamp() AS now, e.endpoint_id, e.name, e.url, e.secret, e.secret_next, e.headers::text AS headers, e.format,
           e.allow_private, e.timeout_ms, e.in_flight_max, e.rate_max_per_s, e.on_dead, e.conflict, e.max_attempts, e.max_unanswered,
           e.count_every_silence, e.max_age_s, e.retry_max_delay_ms, e.updated_at,
           (SELECT l.ready_at FROM outbox_lanes AS l WHERE l.endpoint_id = e.endpoint_id AND l.ready_at <= statement_timestamp()
             ORDER BY l.ready_at LIMIT 1) AS due_since,
           EXISTS (SELECT 1 FROM outbox_lanes AS l WHERE l.endpoint_id = e.endpoint_id AND l.crashes > 0 AND l.ready_at <= statement_timestamp()
                      AND l.crashes + (l.owner IS NOT NULL)::integer >= 2) AS has_suspect
      FROM (SELECT endpoint_id FROM busy WHERE endpoint_id IS NOT NULL UNION SELECT unnest($1::uuid[])) AS b
      JOIN endpoints AS e ON e.endpoint_id = b.endpoint_id
     WHERE e.state = 'active'";

/// What a delivery brings along, by the place of each column; `c` has lane_id and format. Renderings and dead letters are
/// sub-selects, which are run for those deliveries alone that need them; as joins they would be looked for at each one. Where
/// all formats are native there are no renderings to look for, and their partitions, one per week, need not be made ready.
macro_rules! deliveries {
    (native) => {
        deliveries!("'{}'", "e.payload")
    };
    (any_format) => {
        deliveries!(
            "CASE WHEN c.format <> 'native' THEN
                  (SELECT b.headers::text FROM outbox_bodies AS b WHERE b.event_id = d.event_id AND b.created_at = d.event_created_at
                      AND b.format = c.format AND b.webhook_name = d.webhook_name) END",
            "CASE WHEN c.format = 'native' THEN e.payload ELSE
                  (SELECT b.body FROM outbox_bodies AS b WHERE b.event_id = d.event_id AND b.created_at = d.event_created_at
                      AND b.format = c.format AND b.webhook_name = d.webhook_name) END"
        )
    };
    ($headers:literal, $body:literal) => {
        concat!(
            "SELECT d.seq, d.delivery_id, d.event_id,
                    coalesce(e.event_type, CASE WHEN d.replay THEN (SELECT q.event_type FROM outbox_dlq AS q WHERE q.delivery_id = d.delivery_id) END, '') AS event_type,
                    d.aggregate_id,
                    coalesce(e.aggregate_name, CASE WHEN d.replay THEN (SELECT q.aggregate_name FROM outbox_dlq AS q WHERE q.delivery_id = d.delivery_id) END, '') AS aggregate_name,
                    d.webhook_name, d.replay, d.event_created_at,
                    coalesce(CASE WHEN d.replay THEN (SELECT q.headers::text FROM outbox_dlq AS q WHERE q.delivery_id = d.delivery_id) END, ",
            $headers,
            ", '{}') AS headers,
                    coalesce(CASE WHEN d.replay THEN (SELECT q.body FROM outbox_dlq AS q WHERE q.delivery_id = d.delivery_id) END, ",
            $body,
            ") AS body
               FROM outbox_deliveries AS d
               LEFT JOIN outbox_events AS e ON e.event_id = d.event_id AND e.created_at = d.event_created_at"
        )
    };
}

macro_rules! claim {
    ($formats:ident) => {
        concat!(
            "
    WITH quota AS MATERIALIZED (
        SELECT e.endpoint_id, e.timeout_ms, e.format, e.last_success_at, q.quota, q.after
          FROM unnest($2::uuid[], $3::bigint[], $4::timestamptz[], $5::timestamptz[]) AS q (endpoint_id, quota, after, version)
          JOIN endpoints AS e ON e.endpoint_id = q.endpoint_id AND e.state = 'active' AND e.updated_at = q.version
    ), chosen AS MATERIALIZED (
        SELECT c.lane_id, w.timeout_ms, w.format, w.last_success_at
          FROM quota AS w
         CROSS JOIN LATERAL (SELECT x.lane_id FROM outbox_lanes AS x
                              WHERE x.endpoint_id = w.endpoint_id AND x.ready_at > w.after AND x.ready_at <= statement_timestamp()
                                AND (x.crashes + (x.owner IS NOT NULL)::integer >= 2) = $9
                              ORDER BY x.ready_at LIMIT w.quota FOR UPDATE SKIP LOCKED) AS c
    ), claimed AS (
        UPDATE outbox_lanes AS l
           SET owner = $1, epoch = l.epoch + 1, crashes = l.crashes + (l.owner IS NOT NULL)::integer,
               may_have_arrived = l.may_have_arrived OR l.owner IS NOT NULL,
               leased_until = statement_timestamp() + (least(l.last_seq - l.done_seq, $6) * q.timeout_ms + $7) * interval '1 millisecond',
               ready_at = statement_timestamp() + (least(l.last_seq - l.done_seq, $6) * q.timeout_ms + $7) * interval '1 millisecond'
          FROM chosen AS q
         WHERE l.lane_id = q.lane_id
        RETURNING l.lane_id, l.endpoint_id, l.epoch, l.done_seq, l.last_seq, l.attempts, l.strikes, l.unanswered, l.crashes,
                  l.may_have_arrived, coalesce(extract(epoch FROM clock_timestamp() - l.first_tried_at), 0)::float8 AS age_s,
                  coalesce(q.last_success_at > l.updated_at, false) AS others,
                  (extract(epoch FROM l.leased_until - statement_timestamp()) * 1000)::bigint AS lease_ms, q.format
    )
    SELECT c.lane_id, r.*, c.endpoint_id, c.epoch, c.done_seq, c.last_seq, c.attempts, c.strikes, c.unanswered, c.crashes,
           c.may_have_arrived, c.age_s, c.others, c.lease_ms
      FROM claimed AS c
      LEFT JOIN LATERAL (
          SELECT * FROM (
              SELECT s.*, coalesce(sum(octet_length(s.body)) OVER (ORDER BY s.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
                FROM (",
            deliveries!($formats),
            " WHERE d.lane_id = c.lane_id AND d.seq > c.done_seq AND d.seq <= c.done_seq + CASE WHEN c.crashes > 0 THEN 1 ELSE $6 END
                         AND d.created_at >= $8 AND d.created_at < statement_timestamp() + interval '1 hour') AS s) AS t
           WHERE t.before < $10) AS r ON true
     ORDER BY c.lane_id, r.seq"
        )
    };
}

macro_rules! read {
    ($formats:ident) => {
        concat!(
            "
    SELECT c.lane_id, r.* FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $5::text[]) AS c (lane_id, after_seq, until_seq, format)
     CROSS JOIN LATERAL (
          SELECT * FROM (
              SELECT s.*, coalesce(sum(octet_length(s.body)) OVER (ORDER BY s.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
                FROM (",
            deliveries!($formats),
            " WHERE d.lane_id = c.lane_id AND d.seq > c.after_seq AND d.seq <= c.until_seq
                         AND d.created_at >= $4 AND d.created_at < statement_timestamp() + interval '1 hour') AS s) AS t
           WHERE t.before < $6) AS r
     ORDER BY c.lane_id, r.seq"
        )
    };
}

/// Claims up to a quota of due lanes per endpoint, oldest first, and reads their first deliveries. Only endpoints whose
/// settings are those that the caller knows are claimed from. `after` bounds the search from below: what is behind it was
/// seen to be claimed, and dead entries of the index pile up there while an old snapshot is held.
///
/// Those under suspicion, or the others (`$9`): under suspicion is a lane that two workers vanished with, the one counted
/// that its next claim will charge. A lane that still has an owner was left by one that vanished: that counts as a crash,
/// and its head may have arrived. A materialized CTE is run once; a sub-select in a nested loop may run again per row and take
/// more than the limit.
///
/// The claim takes the newest state of a lane, the read that of the statement's snapshot: it may see less than there is. Who
/// finds the first delivery missing asks again.
pub const CLAIM: &str = claim!(any_format);
/// The same where all endpoints have the native format.
pub const CLAIM_NATIVE: &str = claim!(native);

/// The deliveries of claimed lanes by exact ranges. `$4` bounds the partitions from below; who finds a gap asks again
/// without it.
pub const READ: &str = read!(any_format);
/// The same where all endpoints have the native format.
pub const READ_NATIVE: &str = read!(native);
