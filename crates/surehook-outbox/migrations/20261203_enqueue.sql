-- Enqueuing: events are recorded in the producer's transaction, each with a delivery for every endpoint that it goes to.

-- The only fan-out. Parallel arrays, one place per event; a NULL in event_ids, aggregate_names, ordering_keys or
-- idempotency_keys (or a NULL array) takes the default. The body_* arrays hold renderings in further formats:
-- body_positions says to which event (from 1) each belongs. rendered_formats names the formats that were rendered: an
-- endpoint that wants another one raises SH001, and the caller renders it and calls again; NULL passes such endpoints over.
--
-- Locks: missing lanes are inserted in (endpoint, key) order while nothing else is held, then all lanes of the call are
-- locked in lane_id order, so two calls cannot wait for each other. The numbers and the time are taken under those locks.
-- A lane that is held gets nothing here: whoever holds it takes the event up from outbox_events, in its turn. That is read
-- under the lock of the lane, so it stays so until this transaction has ended.
--
-- Plans: one for all, made once; each finds lanes by their keys. Without these settings every call is planned anew, which
-- costs more than running it, and a plan that was made while a table was empty reads all of it when it no longer is.
CREATE FUNCTION outbox_enqueue_many(
    event_types text[], aggregate_ids text[], payloads bytea[],
    event_ids uuid[] DEFAULT NULL, aggregate_names text[] DEFAULT NULL,
    ordering_keys text[] DEFAULT NULL, idempotency_keys text[] DEFAULT NULL,
    rendered_formats text[] DEFAULT NULL, body_positions integer[] DEFAULT NULL, body_formats text[] DEFAULT NULL,
    body_webhook_names text[] DEFAULT NULL, body_headers text[] DEFAULT NULL, body_bytes bytea[] DEFAULT NULL
) RETURNS TABLE (event_position integer, event_id uuid, already boolean)
LANGUAGE plpgsql SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = off SET jit = off AS $$
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
    fan_lanes bigint[];
    lanes_locked bigint[];
    lanes bigint[];
    lanes_last_seq bigint[];
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
    FOR i IN 1..n LOOP
        ids[i] := coalesce(event_ids[i], gen_random_uuid());
        done[i] := false;
    END LOOP;

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

    -- Where each event goes. A format that was not rendered shows as a webhook without a name.
    SELECT array_agg(i), array_agg(endpoint_id), array_agg(lane_key), array_agg(webhook_name), array_agg(lane_id),
           string_agg(DISTINCT format, ', ') FILTER (WHERE webhook_name IS NULL)
      INTO fan_positions, fan_endpoints, fan_keys, fan_webhooks, fan_lanes, missing
      FROM (SELECT f.*, (SELECT l.lane_id FROM outbox_lanes AS l WHERE l.endpoint_id = f.endpoint_id AND l.ordering_key = f.lane_key) AS lane_id
              FROM (SELECT i, e.endpoint_id, e.format, w.webhook_name, w.nth,
                           CASE WHEN e.ordered THEN coalesce(ordering_keys[i], aggregate_ids[i]) ELSE ids[i]::text END AS lane_key
                      FROM generate_series(1, n) AS i
                      CROSS JOIN LATERAL outbox_matching_endpoints(event_types[i], aggregate_ids[i], coalesce(aggregate_names[i], aggregate_ids[i])) AS e
                      CROSS JOIN LATERAL (
                          SELECT event_types[i] AS webhook_name, 0::bigint AS nth WHERE e.format = 'native'
                          UNION ALL
                          SELECT b.webhook_name, b.nth
                            FROM unnest(body_positions, body_formats, body_webhook_names) WITH ORDINALITY AS b (pos, format, webhook_name, nth)
                           WHERE b.pos = i AND b.format = e.format AND e.format <> 'native'
                          UNION ALL
                          SELECT NULL, 0 WHERE e.format <> 'native' AND e.format <> ALL (rendered_formats)
                      ) AS w
                     WHERE NOT done[i]) AS f
             ORDER BY i, nth) AS fan;
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION 'an endpoint wants a format that was not rendered: %', missing USING ERRCODE = 'SH001';
    END IF;

    WHILE fan_positions IS NOT NULL LOOP
        IF array_position(fan_lanes, NULL) IS NOT NULL THEN
            -- The lane of one event of an endpoint that wants no order is named by its id, and is never held.
            INSERT INTO outbox_lanes (endpoint_id, ordering_key, held_since)
            SELECT e, k, (SELECT clock_timestamp() FROM outbox_jobs AS j
                           WHERE j.kind = 'backfill' AND j.state = 'running' AND j.endpoint_id = e AND NOT j.settled AND k <> ALL (ids::text[]))
              FROM (SELECT DISTINCT e, k FROM unnest(fan_endpoints, fan_keys, fan_lanes) AS u (e, k, lane) WHERE lane IS NULL) AS w
             ORDER BY e, k
            ON CONFLICT ON CONSTRAINT outbox_lanes_key DO NOTHING;
            SELECT array_agg((SELECT l.lane_id FROM outbox_lanes AS l WHERE l.endpoint_id = e AND l.ordering_key = k) ORDER BY nth)
              INTO fan_lanes FROM unnest(fan_endpoints, fan_keys) WITH ORDINALITY AS u (e, k, nth);
        END IF;
        SELECT array_agg(lane_id), array_agg(lane_id) FILTER (WHERE held_since IS NULL), array_agg(last_seq) FILTER (WHERE held_since IS NULL)
          INTO lanes_locked, lanes, lanes_last_seq FROM (
            SELECT l.lane_id, l.held_since, l.last_seq FROM outbox_lanes AS l WHERE l.lane_id = ANY (fan_lanes) ORDER BY l.lane_id FOR UPDATE OF l
        ) AS locked;
        EXIT WHEN fan_lanes <@ lanes_locked;
        -- An idle lane was swept away in between: look again.
        SELECT array_agg(CASE WHEN lane = ANY (lanes_locked) THEN lane END ORDER BY nth) INTO fan_lanes FROM unnest(fan_lanes) WITH ORDINALITY AS u (lane, nth);
    END LOOP;

    at := clock_timestamp();
    INSERT INTO outbox_events (event_id, event_type, aggregate_id, aggregate_name, ordering_key, payload, position_in_call, created_at)
    SELECT ids[i], event_types[i], aggregate_ids[i], coalesce(aggregate_names[i], aggregate_ids[i]),
           coalesce(ordering_keys[i], aggregate_ids[i]), payloads[i], i, at
      FROM generate_series(1, n) AS i WHERE NOT done[i];
    IF cardinality(body_positions) > 0 THEN
        INSERT INTO outbox_bodies (event_id, format, webhook_name, headers, body, created_at)
        SELECT ids[b.pos], b.format, b.webhook_name, coalesce(b.headers, '{}')::jsonb, b.body, at
          FROM unnest(body_positions, body_formats, body_webhook_names, body_headers, body_bytes) AS b (pos, format, webhook_name, headers, body)
         WHERE NOT done[b.pos];
    END IF;

    IF fan_positions IS NOT NULL THEN
        INSERT INTO outbox_deliveries (lane_id, seq, delivery_id, event_id, event_created_at, webhook_name, aggregate_id, created_at)
        SELECT f.lane_id, lanes_last_seq[f.place] + row_number() OVER (PARTITION BY f.lane_id ORDER BY f.nth),
               outbox_uuid_v8(f.h), ids[f.pos], at, f.webhook_name, aggregate_ids[f.pos], at
          FROM (SELECT pos, lane_id, webhook_name, nth, array_position(lanes, lane_id) AS place,
                       outbox_delivery_hash(endpoint_id, ids[pos], webhook_name) AS h
                  FROM unnest(fan_positions, fan_endpoints, fan_lanes, fan_webhooks) WITH ORDINALITY AS u (pos, endpoint_id, lane_id, webhook_name, nth)
                OFFSET 0) AS f
         WHERE f.place IS NOT NULL;
        UPDATE outbox_lanes AS l
           SET last_seq = l.last_seq + cardinality(array_positions(fan_lanes, l.lane_id)), ready_at = coalesce(l.ready_at, at)
         WHERE l.lane_id = ANY (lanes);
    END IF;

    FOR i IN 1..n LOOP
        event_position := i;
        event_id := ids[i];
        already := done[i];
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox_enqueue_many(text[], text[], bytea[], uuid[], text[], text[], text[], text[], integer[], text[], text[], text[], bytea[])
    IS 'Records events and their deliveries in the caller''s transaction; returns one row per event.';

CREATE FUNCTION outbox_enqueue(
    event_type text, aggregate_id text, payload bytea,
    event_id uuid DEFAULT NULL, ordering_key text DEFAULT NULL, idempotency_key text DEFAULT NULL
) RETURNS uuid LANGUAGE sql AS $$
    SELECT m.event_id FROM outbox_enqueue_many(ARRAY[$1], ARRAY[$2], ARRAY[$3], ARRAY[$4], NULL, ARRAY[$5], ARRAY[$6]) AS m
$$;
COMMENT ON FUNCTION outbox_enqueue(text, text, bytea, uuid, text, text)
    IS 'Records one event in the caller''s transaction and returns its id. Endpoints of the native format receive payload byte for byte.';
