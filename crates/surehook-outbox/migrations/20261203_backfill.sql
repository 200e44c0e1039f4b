-- Back-fill: an endpoint is told of events from before it was there, in their order, by a job.
--
-- Live events must not overtake older ones in a lane. So a lane can be held: then enqueuing adds nothing to it, and whoever
-- holds it takes up from outbox_events what came meanwhile. Enqueuing has the lane's lock anyway, and reads there whether it
-- is held; whoever lets it go has that lock too, and so sees the events of all who found it held. Nothing else waits.
--
-- The lanes that are held are also the list of what the job has still to do: those in which something is missing are held when
-- it is made. Those that are made for its endpoint before it is settled begin held, because a transaction that has not seen the
-- endpoint may leave something older in them. A lane that is held without such a job (it was cancelled, or ended in between) is
-- let go by whoever works on jobs, with what came since it was held.

ALTER TABLE outbox_lanes ADD COLUMN held_since timestamptz;
COMMENT ON COLUMN outbox_lanes.held_since IS 'A back-fill is at this lane, or will be: events from then on are kept back, until it has taken them up. NULL: not so.';
CREATE INDEX outbox_lanes_held ON outbox_lanes (endpoint_id, lane_id) WHERE held_since IS NOT NULL;

-- The events of one call share their time.
ALTER TABLE outbox_events ADD COLUMN position_in_call integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN outbox_events.position_in_call IS 'Its place among the events that were recorded by the same call, which have the same time. 0: recorded before there was this column.';
-- Empty unless producers choose their keys: where key and aggregate are the same, outbox_events_by_aggregate does it.
CREATE INDEX outbox_events_by_key ON outbox_events (ordering_key, created_at) WHERE ordering_key <> aggregate_id;

ALTER TABLE outbox_jobs DROP CONSTRAINT outbox_jobs_kind_check, DROP CONSTRAINT outbox_jobs_cursor;
ALTER TABLE outbox_jobs
    ADD COLUMN items_taken_up bigint NOT NULL DEFAULT 0 CHECK (items_taken_up >= 0),
    ADD COLUMN transactions_before bigint,
    ADD COLUMN settled boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT outbox_jobs_kind_check CHECK (kind IN ('replay', 'backfill')),
    ADD CONSTRAINT outbox_jobs_backfill CHECK (kind <> 'backfill' OR num_nulls(endpoint_id, since, until) = 0),
    ADD CONSTRAINT outbox_jobs_cursor CHECK (CASE kind
        WHEN 'replay' THEN num_nulls(after_event_at, after_lane_id, after_seq, after_delivery_id) IN (0, 4)
        ELSE num_nonnulls(after_seq, after_delivery_id) = 0 AND (after_lane_id IS NULL OR after_event_at IS NOT NULL) END);
-- One at a time for an endpoint. Enqueuing looks here when it makes a lane.
CREATE UNIQUE INDEX outbox_jobs_one_backfill ON outbox_jobs (endpoint_id) WHERE kind = 'backfill' AND state = 'running';
COMMENT ON COLUMN outbox_jobs.kind IS 'replay: dead letters are sent again. backfill: an endpoint is told of events that it was not told of.';
COMMENT ON COLUMN outbox_jobs.since IS 'Only what died then or later; NULL: since ever. Of a back-fill: only events from then on.';
COMMENT ON COLUMN outbox_jobs.until IS 'Only what died before then; never what dies after the job was made. Of a back-fill: when it was made; what happened later is taken up too, and counted apart.';
COMMENT ON COLUMN outbox_jobs.items_taken_up IS 'How many deliveries of newer events it has enqueued, which had come to lanes that were held.';
COMMENT ON COLUMN outbox_jobs.after_event_at IS 'The cursor: event time of the last dead letter that was looked at. Of a back-fill: of the last event enqueued of a lane that is not done.';
COMMENT ON COLUMN outbox_jobs.after_lane_id IS 'The cursor: its lane.';
COMMENT ON COLUMN outbox_jobs.transactions_before IS 'Transactions with lower numbers may not have seen the endpoint of a back-fill.';
COMMENT ON COLUMN outbox_jobs.settled IS 'A back-fill: these have ended, and the lanes in which they left something are held too.';

ALTER TABLE outbox_retention_pins DROP CONSTRAINT outbox_retention_pins_why_check,
    ADD CONSTRAINT outbox_retention_pins_why_check CHECK (why IN ('undelivered', 'dead_letter', 'ended_lately', 'older_week', 'backfill'));
COMMENT ON COLUMN outbox_retention_pins.why IS 'undelivered: something of the week has not arrived. dead_letter: one that nobody settled belongs to it. ended_lately: something of it ended within the retention time. older_week: its attempts tell how deliveries of an older week ended that stays. backfill: a job has still to tell of it.';

-- As before, but for lanes that are held.
CREATE OR REPLACE FUNCTION outbox_enqueue_many(
    event_types text[], aggregate_ids text[], payloads bytea[],
    event_ids uuid[] DEFAULT NULL, aggregate_names text[] DEFAULT NULL,
    ordering_keys text[] DEFAULT NULL, idempotency_keys text[] DEFAULT NULL,
    rendered_formats text[] DEFAULT NULL, body_positions integer[] DEFAULT NULL, body_formats text[] DEFAULT NULL,
    body_webhook_names text[] DEFAULT NULL, body_headers text[] DEFAULT NULL, body_bytes bytea[] DEFAULT NULL
) RETURNS TABLE (event_position integer, event_id uuid, already boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    n integer := cardinality(event_types);
    ids uuid[];
    done boolean[];
    missing text;
    fan_positions integer[];
    fan_endpoints uuid[];
    fan_keys text[];
    fan_webhooks text[];
    lanes_wanted integer;
    lanes_locked bigint[];
    at timestamptz;
BEGIN
    IF n = 0 THEN
        RETURN;
    END IF;
    -- This transaction has its number before it looks for endpoints. So whoever was not seen here, because it is added at the
    -- same time, can wait until all transactions of lower numbers have ended, and then finds what was not told to it.
    PERFORM pg_current_xact_id();
    IF cardinality(aggregate_ids) IS DISTINCT FROM n OR cardinality(payloads) IS DISTINCT FROM n THEN
        RAISE EXCEPTION 'outbox_enqueue_many: event_types, aggregate_ids and payloads differ in length' USING ERRCODE = '22023';
    END IF;
    SELECT array_agg(coalesce(event_ids[i], gen_random_uuid()) ORDER BY i), array_agg(false ORDER BY i)
      INTO ids, done FROM generate_series(1, n) AS i;

    -- A key that is there already stands for the event that it was first used for.
    IF EXISTS (SELECT 1 FROM unnest(idempotency_keys) AS k WHERE k IS NOT NULL) THEN
        WITH first_use AS (
            INSERT INTO outbox_idempotency_keys AS keys (idempotency_key, event_id)
            SELECT DISTINCT ON (k) k, ids[i] FROM unnest(idempotency_keys) WITH ORDINALITY AS u (k, i)
            WHERE k IS NOT NULL ORDER BY k, i
            ON CONFLICT (idempotency_key) DO NOTHING
            RETURNING keys.idempotency_key, keys.event_id
        )
        SELECT array_agg(idempotency_keys[i] IS NOT NULL AND f.event_id IS DISTINCT FROM ids[i] ORDER BY i)
          INTO done
          FROM generate_series(1, n) AS i LEFT JOIN first_use AS f ON f.idempotency_key = idempotency_keys[i];
        -- A statement of its own: it sees what a concurrent first use has committed.
        SELECT array_agg(CASE WHEN done[i] THEN (SELECT s.event_id FROM outbox_idempotency_keys AS s
                                                 WHERE s.idempotency_key = idempotency_keys[i]) ELSE ids[i] END ORDER BY i)
          INTO ids FROM generate_series(1, n) AS i;
    END IF;

    SELECT string_agg(DISTINCT e.format, ', ') INTO missing
      FROM generate_series(1, n) AS i
      CROSS JOIN LATERAL outbox_matching_endpoints(event_types[i], aggregate_ids[i], coalesce(aggregate_names[i], aggregate_ids[i])) AS e
     WHERE rendered_formats IS NOT NULL AND NOT done[i] AND e.format <> 'native' AND e.format <> ALL (rendered_formats);
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION 'an endpoint wants a format that was not rendered: %', missing USING ERRCODE = 'SH001';
    END IF;

    SELECT array_agg(i ORDER BY i, nth), array_agg(endpoint_id ORDER BY i, nth),
           array_agg(lane_key ORDER BY i, nth), array_agg(webhook_name ORDER BY i, nth)
      INTO fan_positions, fan_endpoints, fan_keys, fan_webhooks
      FROM (SELECT i, e.endpoint_id, w.webhook_name, w.nth,
                   CASE WHEN e.ordered THEN coalesce(ordering_keys[i], aggregate_ids[i]) ELSE ids[i]::text END AS lane_key
              FROM generate_series(1, n) AS i
              CROSS JOIN LATERAL outbox_matching_endpoints(event_types[i], aggregate_ids[i], coalesce(aggregate_names[i], aggregate_ids[i])) AS e
              CROSS JOIN LATERAL (
                  SELECT event_types[i] AS webhook_name, 0::bigint AS nth WHERE e.format = 'native'
                  UNION ALL
                  SELECT b.webhook_name, b.nth
                    FROM unnest(body_positions, body_formats, body_webhook_names) WITH ORDINALITY AS b (pos, format, webhook_name, nth)
                   WHERE b.pos = i AND b.format = e.format AND e.format <> 'native'
              ) AS w
             WHERE NOT done[i]) AS fan;

    IF fan_positions IS NOT NULL THEN
        SELECT count(*) INTO lanes_wanted FROM (SELECT DISTINCT e, k FROM unnest(fan_endpoints, fan_keys) AS u (e, k)) AS d;
        LOOP
            -- The lane of one event of an endpoint that wants no order is named by its id, and is never held.
            INSERT INTO outbox_lanes (endpoint_id, ordering_key, held_since)
            SELECT e, k, (SELECT clock_timestamp() FROM outbox_jobs AS j
                           WHERE j.kind = 'backfill' AND j.state = 'running' AND j.endpoint_id = e AND NOT j.settled AND k <> ALL (ids::text[]))
              FROM (SELECT DISTINCT e, k FROM unnest(fan_endpoints, fan_keys) AS u (e, k)) AS w
             WHERE NOT EXISTS (SELECT 1 FROM outbox_lanes AS l WHERE l.endpoint_id = e AND l.ordering_key = k)
             ORDER BY e, k
            ON CONFLICT ON CONSTRAINT outbox_lanes_key DO NOTHING;
            SELECT array_agg(lane_id) INTO lanes_locked FROM (
                SELECT l.lane_id FROM outbox_lanes AS l
                 WHERE (l.endpoint_id, l.ordering_key) IN (SELECT e, k FROM unnest(fan_endpoints, fan_keys) AS u (e, k))
                 ORDER BY l.lane_id FOR UPDATE OF l
            ) AS l;
            -- Fewer than wanted: an idle lane was swept away in between.
            EXIT WHEN cardinality(lanes_locked) = lanes_wanted;
        END LOOP;
    END IF;

    at := clock_timestamp();
    INSERT INTO outbox_events (event_id, event_type, aggregate_id, aggregate_name, ordering_key, payload, position_in_call, created_at)
    SELECT ids[i], event_types[i], aggregate_ids[i], coalesce(aggregate_names[i], aggregate_ids[i]),
           coalesce(ordering_keys[i], aggregate_ids[i]), payloads[i], i, at
      FROM generate_series(1, n) AS i WHERE NOT done[i];
    INSERT INTO outbox_bodies (event_id, format, webhook_name, headers, body, created_at)
    SELECT ids[b.pos], b.format, b.webhook_name, coalesce(b.headers, '{}')::jsonb, b.body, at
      FROM unnest(body_positions, body_formats, body_webhook_names, body_headers, body_bytes) AS b (pos, format, webhook_name, headers, body)
     WHERE NOT done[b.pos];

    -- A lane that is held gets nothing here: whoever holds it takes the event up from outbox_events, in its turn. That is read
    -- under the lock of the lane, so it stays so until this transaction has ended.
    IF fan_positions IS NOT NULL THEN
        INSERT INTO outbox_deliveries (lane_id, seq, delivery_id, event_id, event_created_at, webhook_name, aggregate_id, created_at)
        SELECT l.lane_id, l.last_seq + row_number() OVER (PARTITION BY l.lane_id ORDER BY f.nth),
               outbox_delivery_id(l.endpoint_id, ids[f.pos], f.webhook_name), ids[f.pos], at, f.webhook_name, aggregate_ids[f.pos], at
          FROM unnest(fan_positions, fan_endpoints, fan_keys, fan_webhooks) WITH ORDINALITY AS f (pos, endpoint_id, lane_key, webhook_name, nth)
          JOIN outbox_lanes AS l ON l.endpoint_id = f.endpoint_id AND l.ordering_key = f.lane_key AND l.held_since IS NULL;
        UPDATE outbox_lanes AS l
           SET last_seq = l.last_seq + f.added, ready_at = coalesce(l.ready_at, at)
          FROM (SELECT e, k, count(*) AS added FROM unnest(fan_endpoints, fan_keys) AS u (e, k) GROUP BY e, k) AS f
         WHERE l.endpoint_id = f.e AND l.ordering_key = f.k AND l.held_since IS NULL;
    END IF;

    RETURN QUERY SELECT i, ids[i], done[i] FROM generate_series(1, n) AS i ORDER BY i;
END $$;
