-- The outbox: events that commit with your data, and the lanes in which they are delivered.
--
-- Why lanes. A lane is one (endpoint, ordering key). Its deliveries are append-only and numbered without a gap;
-- `done_seq` moves over them like a consumer offset over a log partition. Workers lock and update lanes only, so the
-- cost of a claim does not depend on how long the backlog or the history is, and order per key follows by construction.
--
-- Why no foreign keys between the large tables. They are partitioned by week so that old weeks can be dropped whole;
-- a foreign key would check each row again and forbid the drop.

CREATE TABLE endpoints (
    endpoint_id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name                text NOT NULL CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$'),
    url                 text NOT NULL CHECK (url ~ '^https?://' AND octet_length(url) <= 2048),
    aggregate_id        text,
    aggregate_group     text CHECK (aggregate_group <> ''),
    event_types         text[] CHECK (cardinality(event_types) > 0),
    format              text NOT NULL DEFAULT 'native' CHECK (format ~ '^[a-z][a-z0-9_-]{0,31}$'),
    headers             jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(headers) = 'object'),
    secret              text NOT NULL CHECK (octet_length(secret) BETWEEN 1 AND 512),
    secret_next         text CHECK (octet_length(secret_next) BETWEEN 1 AND 512),
    state               text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'removed')),
    state_reason        text,
    ordered             boolean NOT NULL DEFAULT true,
    on_dead             text NOT NULL DEFAULT 'skip' CHECK (on_dead IN ('skip', 'block')),
    conflict            text NOT NULL DEFAULT 'auto' CHECK (conflict IN ('auto', 'success', 'strike')),
    allow_private       boolean NOT NULL DEFAULT false,
    timeout_ms          integer NOT NULL DEFAULT 10000 CHECK (timeout_ms BETWEEN 100 AND 120000),
    retry_max_delay_ms  integer NOT NULL DEFAULT 300000 CHECK (retry_max_delay_ms BETWEEN 10 AND 86400000),
    max_attempts        integer NOT NULL DEFAULT 5 CHECK (max_attempts BETWEEN 1 AND 1000),
    max_unanswered      integer NOT NULL DEFAULT 20 CHECK (max_unanswered BETWEEN 1 AND 100000),
    count_every_silence boolean NOT NULL DEFAULT false,
    max_age_s           integer NOT NULL DEFAULT 259200 CHECK (max_age_s BETWEEN 1 AND 31536000),
    in_flight_max       integer NOT NULL DEFAULT 8 CHECK (in_flight_max BETWEEN 1 AND 2048),
    last_success_at     timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT endpoints_one_scope CHECK (aggregate_id IS NULL OR aggregate_group IS NULL)
);
CREATE UNIQUE INDEX endpoints_name_key ON endpoints (name) WHERE state <> 'removed';

COMMENT ON TABLE endpoints IS 'Who is told: one row per URL that receives webhooks. Rows stay after removal, so that history can name them.';
COMMENT ON COLUMN endpoints.endpoint_id IS 'Random, so that an id is never given twice, not even after a restore.';
COMMENT ON COLUMN endpoints.name IS 'What people call it; unique among the endpoints that are not removed.';
COMMENT ON COLUMN endpoints.url IS 'Where webhooks are POSTed; absolute, http or https.';
COMMENT ON COLUMN endpoints.aggregate_id IS 'Set: only events of this aggregate.';
COMMENT ON COLUMN endpoints.aggregate_group IS 'Set: only events whose aggregate_name lies below this group (team matches team/app). Both scope columns NULL: every event.';
COMMENT ON COLUMN endpoints.event_types IS 'Only these event types; NULL: every type but those about the outbox itself (surehook.…).';
COMMENT ON COLUMN endpoints.format IS 'Which rendering of an event is sent; native is the payload of the event itself.';
COMMENT ON COLUMN endpoints.headers IS 'Further request headers, name to value; checked when saved, never overriding those of the webhook itself.';
COMMENT ON COLUMN endpoints.secret IS 'The primary secret: X-Signature and webhook-signature are made with it.';
COMMENT ON COLUMN endpoints.secret_next IS 'During a rotation: a second secret, whose webhook-signature is sent too.';
COMMENT ON COLUMN endpoints.state IS 'active; paused (deliveries are kept and held); removed (nothing more is sent).';
COMMENT ON COLUMN endpoints.state_reason IS 'Why it is paused, in words for a person.';
COMMENT ON COLUMN endpoints.ordered IS 'false: each event is a lane of its own, and no order is kept.';
COMMENT ON COLUMN endpoints.on_dead IS 'When the head of a lane dies: skip goes on with the next, block stops the lane until an operator acts.';
COMMENT ON COLUMN endpoints.conflict IS 'What an answer of 409 means. success: the receiver has seen this id. strike: a refusal. auto: success for the native format, elsewhere only if an earlier try may have arrived.';
COMMENT ON COLUMN endpoints.allow_private IS 'The administrator wants this endpoint to lead to a loopback or private address.';
COMMENT ON COLUMN endpoints.timeout_ms IS 'Deadline of one attempt, from connect to the last byte of the answer, in milliseconds.';
COMMENT ON COLUMN endpoints.retry_max_delay_ms IS 'The longest wait between two attempts, in milliseconds.';
COMMENT ON COLUMN endpoints.max_attempts IS 'Answers that refuse a delivery (strikes) until it is dead.';
COMMENT ON COLUMN endpoints.max_unanswered IS 'Attempts without an answer until a delivery is dead; counted only while other deliveries get through.';
COMMENT ON COLUMN endpoints.count_every_silence IS 'true: each attempt without an answer counts towards max_unanswered, whether others get through or not (the plain textbook rule).';
COMMENT ON COLUMN endpoints.max_age_s IS 'A delivery whose first attempt is older than this dies at its next failure, in seconds.';
COMMENT ON COLUMN endpoints.in_flight_max IS 'Requests at once from one worker process.';
COMMENT ON COLUMN endpoints.last_success_at IS 'When a delivery last got through; written at most about once a second.';
COMMENT ON COLUMN endpoints.created_at IS 'When it was added.';
COMMENT ON COLUMN endpoints.updated_at IS 'When a setting last changed.';

CREATE TABLE outbox_events (
    event_id        uuid NOT NULL,
    event_type      text NOT NULL CHECK (event_type <> '' AND octet_length(event_type) <= 200),
    aggregate_id    text NOT NULL CHECK (aggregate_id <> '' AND octet_length(aggregate_id) <= 500),
    aggregate_name  text NOT NULL,
    ordering_key    text NOT NULL CHECK (octet_length(ordering_key) <= 500),
    payload         bytea NOT NULL,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (event_id, created_at)
) PARTITION BY RANGE (created_at);
CREATE INDEX outbox_events_by_aggregate ON outbox_events (aggregate_id, created_at);

COMMENT ON TABLE outbox_events IS 'What happened; immutable, written in the transaction of the change that it tells of. Partitioned by week for storage only.';
COMMENT ON COLUMN outbox_events.event_id IS 'Identifies the event for ever; the same happening announced again has the same id.';
COMMENT ON COLUMN outbox_events.event_type IS 'What kind of thing happened, for example RepositoryPushed.';
COMMENT ON COLUMN outbox_events.aggregate_id IS 'The PARTITION KEY: order is kept among the events of one aggregate, and data could be spread by it. For RepositoryPushed it is the id of the repository.';
COMMENT ON COLUMN outbox_events.aggregate_name IS 'The name of the aggregate as people know it; endpoints of a group match it by its leading path.';
COMMENT ON COLUMN outbox_events.ordering_key IS 'What the lanes are made of; the aggregate_id unless the producer asked for a finer key.';
COMMENT ON COLUMN outbox_events.payload IS 'The exact bytes of the native body.';
COMMENT ON COLUMN outbox_events.created_at IS 'Database time under the lane locks, so that within a lane it does not run against the order.';

CREATE TABLE outbox_bodies (
    event_id      uuid NOT NULL,
    format        text NOT NULL CHECK (format <> 'native'),
    webhook_name  text NOT NULL,
    headers       jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(headers) = 'object'),
    body          bytea NOT NULL,
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (event_id, format, webhook_name, created_at)
) PARTITION BY RANGE (created_at);

COMMENT ON TABLE outbox_bodies IS 'An event rendered for receivers of another format: the same bytes for ever. The native body is the payload of the event.';
COMMENT ON COLUMN outbox_bodies.event_id IS 'The event.';
COMMENT ON COLUMN outbox_bodies.format IS 'The format of the endpoints that get this body.';
COMMENT ON COLUMN outbox_bodies.webhook_name IS 'One event can be several webhooks in a format (create and push); this tells them apart.';
COMMENT ON COLUMN outbox_bodies.headers IS 'Request headers of that format, name to value.';
COMMENT ON COLUMN outbox_bodies.body IS 'The exact bytes that are signed and sent.';
COMMENT ON COLUMN outbox_bodies.created_at IS 'The same instant as that of the event; the storage partition.';

CREATE TABLE outbox_lanes (
    lane_id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    endpoint_id    uuid NOT NULL,
    ordering_key   text NOT NULL,
    last_seq       bigint NOT NULL DEFAULT 0,
    done_seq       bigint NOT NULL DEFAULT 0,
    ready_at       timestamptz,
    leased_until   timestamptz,
    owner          uuid,
    epoch          bigint NOT NULL DEFAULT 0,
    attempts       integer NOT NULL DEFAULT 0,
    strikes        integer NOT NULL DEFAULT 0,
    unanswered     integer NOT NULL DEFAULT 0,
    crashes        integer NOT NULL DEFAULT 0,
    may_have_arrived boolean NOT NULL DEFAULT false,
    first_tried_at timestamptz,
    last_error     text,
    updated_at     timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT outbox_lanes_key UNIQUE (endpoint_id, ordering_key),
    CONSTRAINT outbox_lanes_seq CHECK (0 <= done_seq AND done_seq <= last_seq),
    CONSTRAINT outbox_lanes_ready CHECK ((ready_at IS NOT NULL) = (last_seq > done_seq)),
    CONSTRAINT outbox_lanes_lease CHECK ((owner IS NULL) = (leased_until IS NULL)),
    CONSTRAINT outbox_lanes_idle CHECK (last_seq > done_seq OR (owner IS NULL AND attempts = 0 AND crashes = 0 AND first_tried_at IS NULL)),
    CONSTRAINT outbox_lanes_counts CHECK (strikes >= 0 AND unanswered >= 0 AND crashes >= 0 AND attempts >= strikes)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX outbox_lanes_ready ON outbox_lanes (endpoint_id, ready_at) WHERE ready_at IS NOT NULL;
-- Nearly always empty: finds the lanes under suspicion without reading those that are not.
CREATE INDEX outbox_lanes_crashed ON outbox_lanes (endpoint_id, ready_at) WHERE crashes > 0;

COMMENT ON TABLE outbox_lanes IS 'One row per endpoint and ordering key: how far it is delivered, and what its head went through. The only rows that workers update.';
COMMENT ON COLUMN outbox_lanes.lane_id IS 'Names the lane; locks over several lanes are taken in its order.';
COMMENT ON COLUMN outbox_lanes.endpoint_id IS 'The receiver.';
COMMENT ON COLUMN outbox_lanes.ordering_key IS 'Deliveries of one key go out one after another; the event id where the endpoint does not want order.';
COMMENT ON COLUMN outbox_lanes.last_seq IS 'Number of the newest delivery, given under the lock of this row: no gap, not even after a rollback.';
COMMENT ON COLUMN outbox_lanes.done_seq IS 'Every delivery up to this number has ended. The head is done_seq + 1.';
COMMENT ON COLUMN outbox_lanes.ready_at IS 'When the lane may be claimed: NULL idle, a time, or infinity (blocked). While leased it is the end of the lease.';
COMMENT ON COLUMN outbox_lanes.leased_until IS 'A worker holds the lane until then.';
COMMENT ON COLUMN outbox_lanes.owner IS 'That worker: random per process start.';
COMMENT ON COLUMN outbox_lanes.epoch IS 'One more at each claim or operator action; what a worker says for an older epoch is discarded.';
COMMENT ON COLUMN outbox_lanes.attempts IS 'Requests made so far for the head.';
COMMENT ON COLUMN outbox_lanes.strikes IS 'Answers that refused the head.';
COMMENT ON COLUMN outbox_lanes.unanswered IS 'Attempts at the head without an answer that count towards max_unanswered.';
COMMENT ON COLUMN outbox_lanes.crashes IS 'Workers that vanished while they held the lane, since its head last moved.';
COMMENT ON COLUMN outbox_lanes.may_have_arrived IS 'An earlier try at the head may have reached the receiver although no answer came back.';
COMMENT ON COLUMN outbox_lanes.first_tried_at IS 'When the head was first tried.';
COMMENT ON COLUMN outbox_lanes.last_error IS 'What last went wrong with the head, in words.';
COMMENT ON COLUMN outbox_lanes.updated_at IS 'When a worker last recorded, or an operator last changed, something here; enqueuing does not move it.';

CREATE TABLE outbox_deliveries (
    lane_id          bigint NOT NULL,
    seq              bigint NOT NULL CHECK (seq > 0),
    delivery_id      uuid NOT NULL,
    event_id         uuid NOT NULL,
    event_created_at timestamptz NOT NULL,
    webhook_name     text NOT NULL,
    aggregate_id     text NOT NULL,
    replay           boolean NOT NULL DEFAULT false,
    created_at       timestamptz NOT NULL,
    PRIMARY KEY (lane_id, seq, created_at)
) PARTITION BY RANGE (created_at);
CREATE INDEX outbox_deliveries_by_id ON outbox_deliveries (delivery_id);
CREATE INDEX outbox_deliveries_by_event ON outbox_deliveries (event_id);

COMMENT ON TABLE outbox_deliveries IS 'What each lane has to deliver; append-only, numbered without a gap. A replay is appended like a new one, under the same delivery id.';
COMMENT ON COLUMN outbox_deliveries.lane_id IS 'The lane.';
COMMENT ON COLUMN outbox_deliveries.seq IS 'The place in the lane.';
COMMENT ON COLUMN outbox_deliveries.delivery_id IS 'Sent as X-Webhook-Id and webhook-id: made from endpoint, event and webhook name, the same at every retry and replay.';
COMMENT ON COLUMN outbox_deliveries.event_id IS 'The event that is told.';
COMMENT ON COLUMN outbox_deliveries.event_created_at IS 'Where the event lies: its storage partition.';
COMMENT ON COLUMN outbox_deliveries.webhook_name IS 'Which webhook of the event; the event type in the native format.';
COMMENT ON COLUMN outbox_deliveries.aggregate_id IS 'The partition key of the event.';
COMMENT ON COLUMN outbox_deliveries.replay IS 'A dead letter sent again: its bytes are those kept in outbox_dlq.';
COMMENT ON COLUMN outbox_deliveries.created_at IS 'When it was enqueued; the storage partition.';

CREATE TABLE outbox_attempts (
    lane_id       bigint NOT NULL,
    seq           bigint NOT NULL,
    attempt       integer NOT NULL CHECK (attempt >= 0),
    delivery_id   uuid NOT NULL,
    outcome       text NOT NULL CHECK (outcome IN ('success', 'conflict', 'strike', 'unanswered', 'busy', 'gone', 'not_sent')),
    ends          text CHECK (ends IN ('published', 'failed', 'skipped')),
    status_code   integer CHECK (status_code BETWEEN 100 AND 999),
    error         text,
    response_body bytea,
    started_at    timestamptz NOT NULL,
    duration_ms   integer NOT NULL CHECK (duration_ms >= 0),
    worker        uuid,
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (lane_id, seq, attempt, created_at),
    CONSTRAINT outbox_attempts_ends CHECK (ends IS DISTINCT FROM 'published' OR outcome IN ('success', 'conflict')),
    CONSTRAINT outbox_attempts_success CHECK (outcome NOT IN ('success', 'conflict') OR ends IS NOT DISTINCT FROM 'published')
) PARTITION BY RANGE (created_at);
CREATE INDEX outbox_attempts_by_delivery ON outbox_attempts (delivery_id);

COMMENT ON TABLE outbox_attempts IS 'Each request that was made and how it ended; append-only. The row that ends a delivery carries ends.';
COMMENT ON COLUMN outbox_attempts.lane_id IS 'The lane.';
COMMENT ON COLUMN outbox_attempts.seq IS 'The delivery in the lane.';
COMMENT ON COLUMN outbox_attempts.attempt IS 'How many requests had been made for this place in the lane, this one included.';
COMMENT ON COLUMN outbox_attempts.delivery_id IS 'The id that was sent.';
COMMENT ON COLUMN outbox_attempts.outcome IS 'success 2xx; conflict a 409 that means seen; strike an answer that refuses; unanswered none; busy 429, 502, 503, 504; gone 410; not_sent no request was made (skipped, row missing, crashed workers).';
COMMENT ON COLUMN outbox_attempts.ends IS 'Set on the row that ends the delivery: published, failed or skipped.';
COMMENT ON COLUMN outbox_attempts.status_code IS 'The HTTP status, if an answer came.';
COMMENT ON COLUMN outbox_attempts.error IS 'What went wrong, in words; NULL on success.';
COMMENT ON COLUMN outbox_attempts.response_body IS 'The first bytes of the answer.';
COMMENT ON COLUMN outbox_attempts.started_at IS 'When the request began, by the database clock.';
COMMENT ON COLUMN outbox_attempts.duration_ms IS 'How long it took, in milliseconds.';
COMMENT ON COLUMN outbox_attempts.worker IS 'The worker that made it.';
COMMENT ON COLUMN outbox_attempts.created_at IS 'When it was recorded; the storage partition.';

CREATE TABLE outbox_dlq (
    delivery_id      uuid PRIMARY KEY,
    endpoint_id      uuid NOT NULL,
    endpoint_name    text NOT NULL,
    url              text NOT NULL,
    ordering_key     text NOT NULL,
    event_id         uuid NOT NULL,
    event_type       text NOT NULL,
    aggregate_id     text NOT NULL,
    aggregate_name   text NOT NULL,
    webhook_name     text NOT NULL,
    format           text NOT NULL,
    headers          jsonb NOT NULL CHECK (jsonb_typeof(headers) = 'object'),
    body             bytea,
    reason           text NOT NULL CHECK (reason IN ('max_attempts', 'max_unanswered', 'max_age', 'row_missing', 'crashed_worker')),
    attempts         integer NOT NULL CHECK (attempts >= 0),
    last_status_code integer,
    last_error       text,
    lane_id          bigint NOT NULL,
    seq              bigint NOT NULL,
    event_created_at timestamptz NOT NULL,
    failed_at        timestamptz NOT NULL,
    state            text NOT NULL DEFAULT 'dead' CHECK (state IN ('dead', 'replaying', 'delivered')),
    replays          integer NOT NULL DEFAULT 0 CHECK (replays >= 0),
    updated_at       timestamptz NOT NULL,
    CONSTRAINT outbox_dlq_body CHECK (body IS NOT NULL OR reason = 'row_missing')
);
CREATE INDEX outbox_dlq_dead ON outbox_dlq (failed_at) WHERE state = 'dead';

COMMENT ON TABLE outbox_dlq IS 'Dead letters, each with its own copy of bytes and headers, so that it can be looked at and sent again when everything else is gone.';
COMMENT ON COLUMN outbox_dlq.delivery_id IS 'The delivery that died; a replay keeps it.';
COMMENT ON COLUMN outbox_dlq.endpoint_id IS 'The endpoint.';
COMMENT ON COLUMN outbox_dlq.endpoint_name IS 'Its name when the delivery died.';
COMMENT ON COLUMN outbox_dlq.url IS 'Its URL when the delivery died.';
COMMENT ON COLUMN outbox_dlq.ordering_key IS 'The lane it was in and will be replayed in.';
COMMENT ON COLUMN outbox_dlq.event_id IS 'The event.';
COMMENT ON COLUMN outbox_dlq.event_type IS 'Its type.';
COMMENT ON COLUMN outbox_dlq.aggregate_id IS 'Its partition key.';
COMMENT ON COLUMN outbox_dlq.aggregate_name IS 'The name of the aggregate.';
COMMENT ON COLUMN outbox_dlq.webhook_name IS 'Which webhook of the event.';
COMMENT ON COLUMN outbox_dlq.format IS 'The format of the body.';
COMMENT ON COLUMN outbox_dlq.headers IS 'Headers of the format.';
COMMENT ON COLUMN outbox_dlq.body IS 'The exact bytes; NULL only where they were lost (row_missing).';
COMMENT ON COLUMN outbox_dlq.reason IS 'Which limit ended it.';
COMMENT ON COLUMN outbox_dlq.attempts IS 'Requests made, all replays included.';
COMMENT ON COLUMN outbox_dlq.last_status_code IS 'The last HTTP status, if an answer came.';
COMMENT ON COLUMN outbox_dlq.last_error IS 'What last went wrong.';
COMMENT ON COLUMN outbox_dlq.lane_id IS 'Where it died: the lane.';
COMMENT ON COLUMN outbox_dlq.seq IS 'Where it died: the place in the lane.';
COMMENT ON COLUMN outbox_dlq.event_created_at IS 'When the event was created.';
COMMENT ON COLUMN outbox_dlq.failed_at IS 'When it died (last).';
COMMENT ON COLUMN outbox_dlq.state IS 'dead; replaying; delivered (a replay got through).';
COMMENT ON COLUMN outbox_dlq.replays IS 'How often it was replayed.';
COMMENT ON COLUMN outbox_dlq.updated_at IS 'When the row last changed.';

CREATE TABLE outbox_idempotency_keys (
    idempotency_key text PRIMARY KEY CHECK (idempotency_key <> '' AND octet_length(idempotency_key) <= 500),
    event_id        uuid NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE outbox_idempotency_keys IS 'A second enqueue with the same key is the first one: it returns that event and adds nothing. A table of its own, since a unique key over partitions by time cannot hold across weeks.';
COMMENT ON COLUMN outbox_idempotency_keys.idempotency_key IS 'Chosen by the producer.';
COMMENT ON COLUMN outbox_idempotency_keys.event_id IS 'The event that the key stands for.';
COMMENT ON COLUMN outbox_idempotency_keys.created_at IS 'When it was first used; keys go with the retention time.';

CREATE TABLE outbox_workers (
    worker_id    uuid PRIMARY KEY,
    node         text NOT NULL,
    heartbeat    bigint NOT NULL DEFAULT 0,
    started_at   timestamptz NOT NULL DEFAULT now(),
    heartbeat_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE outbox_workers IS 'Worker processes that are, or recently were, alive.';
COMMENT ON COLUMN outbox_workers.worker_id IS 'Random per process start; the owner of lanes.';
COMMENT ON COLUMN outbox_workers.node IS 'Host name and process id, for people.';
COMMENT ON COLUMN outbox_workers.heartbeat IS 'A counter that the worker moves. Others compare two of their own reads of it, so no clocks are compared.';
COMMENT ON COLUMN outbox_workers.started_at IS 'When the process started.';
COMMENT ON COLUMN outbox_workers.heartbeat_at IS 'When the counter last moved; shown to people, decides nothing.';

-- Week partitions, from the week before this one to `weeks_ahead` weeks from now. There is no DEFAULT partition:
-- attaching a week would have to scan it under a lock. Safe to call at any time and from several places.
CREATE FUNCTION outbox_ensure_partitions(weeks_ahead integer DEFAULT 8) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    week date;
    this_week date := date_trunc('week', now() AT TIME ZONE 'UTC')::date;
    parent text;
    child text;
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('outbox_ensure_partitions', 0));
    FOR week IN SELECT this_week + 7 * i FROM generate_series(-1, weeks_ahead) AS i LOOP
        FOREACH parent IN ARRAY ARRAY['outbox_events', 'outbox_bodies', 'outbox_deliveries', 'outbox_attempts'] LOOP
            child := parent || to_char(week, '_IYYY"w"IW');
            IF to_regclass(child) IS NULL THEN
                EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)',
                               child, parent, week::text || ' 00:00:00+00', (week + 7)::text || ' 00:00:00+00');
                made := made + 1;
            END IF;
        END LOOP;
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION outbox_ensure_partitions(integer) IS 'Creates the missing week partitions and returns how many it made.';

-- lz4 where the server has it; bytes are stored the same either way.
DO $$
BEGIN
    ALTER TABLE outbox_events ALTER COLUMN payload SET COMPRESSION lz4;
    ALTER TABLE outbox_bodies ALTER COLUMN body SET COMPRESSION lz4;
    ALTER TABLE outbox_dlq ALTER COLUMN body SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END $$;
SELECT outbox_ensure_partitions();

-- A UUID from a name, as RFC 9562 appendix B.2 does it (version 8 over SHA-256): it needs no extension. Two functions, each of
-- which uses what it is given once or as it is, so that PostgreSQL puts their text in the place of a call.
CREATE FUNCTION outbox_uuid_v8(h bytea) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURNS NULL ON NULL INPUT AS $$
    SELECT encode(set_byte(set_byte(h, 6, (get_byte(h, 6) & 15) | 128), 8, (get_byte(h, 8) & 63) | 128), 'hex')::uuid
$$;
COMMENT ON FUNCTION outbox_uuid_v8(bytea) IS 'The UUID of version 8 over 16 bytes.';
CREATE FUNCTION outbox_delivery_hash(endpoint_id uuid, event_id uuid, webhook_name text) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE RETURNS NULL ON NULL INPUT AS $$ -- convert_to is, and only then its text takes its place
    SELECT substr(sha256(uuid_send(endpoint_id) || uuid_send(event_id) || convert_to(webhook_name, 'UTF8')), 1, 16)
$$;
COMMENT ON FUNCTION outbox_delivery_hash(uuid, uuid, text) IS 'What the delivery id is made from.';
CREATE FUNCTION outbox_delivery_id(endpoint_id uuid, event_id uuid, webhook_name text) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURNS NULL ON NULL INPUT AS $$
    SELECT outbox_uuid_v8(h) FROM outbox_delivery_hash(endpoint_id, event_id, webhook_name) AS h
$$;
COMMENT ON FUNCTION outbox_delivery_id(uuid, uuid, text) IS 'The delivery id of one webhook of one event at one endpoint.';

-- Which endpoints an event goes to: by type and by scope (one aggregate, a group, or all).
CREATE INDEX endpoints_by_scope ON endpoints (aggregate_id) WHERE state <> 'removed';
CREATE FUNCTION outbox_matching_endpoints(event_type text, aggregate_id text, aggregate_name text)
RETURNS TABLE (endpoint_id uuid, format text, ordered boolean) LANGUAGE sql STABLE AS $$
    SELECT e.endpoint_id, e.format, e.ordered FROM endpoints AS e
    WHERE e.state <> 'removed' AND e.aggregate_id = $2
      AND CASE WHEN e.event_types IS NULL THEN NOT starts_with($1, 'surehook.') ELSE $1 = ANY (e.event_types) END
    UNION ALL
    SELECT e.endpoint_id, e.format, e.ordered FROM endpoints AS e
    WHERE e.state <> 'removed' AND e.aggregate_id IS NULL
      AND CASE WHEN e.event_types IS NULL THEN NOT starts_with($1, 'surehook.') ELSE $1 = ANY (e.event_types) END
      AND (e.aggregate_group IS NULL OR starts_with($3, e.aggregate_group || '/'))
$$;
COMMENT ON FUNCTION outbox_matching_endpoints(text, text, text) IS 'The endpoints that an event of this type and aggregate goes to. Types that begin with surehook. are about the outbox itself: only who names them receives them.';

-- What a person asks: where is each delivery? A delivery that was replayed is shown at its newest place.
CREATE VIEW outbox_status AS
SELECT d.event_id, d.aggregate_id, e.event_type, ep.url AS webhook_url,
       CASE WHEN d.seq > l.done_seq AND l.ready_at < 'infinity' THEN 'pending' -- also a dead head that was started afresh
            WHEN ended.ends IS NOT NULL THEN ended.ends
            WHEN d.seq <= l.done_seq THEN 'cancelled'
            ELSE 'pending' END AS status,
       (SELECT count(*) FROM outbox_attempts AS a WHERE a.delivery_id = d.delivery_id AND a.outcome <> 'not_sent')::integer AS attempts,
       (SELECT a.error FROM outbox_attempts AS a WHERE a.delivery_id = d.delivery_id AND a.error IS NOT NULL
         ORDER BY a.created_at DESC LIMIT 1) AS last_error,
       d.created_at,
       CASE WHEN ended.ends = 'published' THEN ended.created_at END AS published_at,
       d.delivery_id, d.webhook_name, ep.endpoint_id, ep.name AS endpoint_name, e.aggregate_name,
       d.lane_id, d.seq, d.replay,
       (d.seq = l.done_seq + 1) AS is_head,
       CASE WHEN d.seq = l.done_seq + 1 AND l.owner IS NULL THEN l.ready_at END AS next_attempt_at
  FROM outbox_deliveries AS d
  JOIN outbox_lanes AS l ON l.lane_id = d.lane_id
  JOIN endpoints AS ep ON ep.endpoint_id = l.endpoint_id
  LEFT JOIN outbox_events AS e ON e.event_id = d.event_id AND e.created_at = d.event_created_at
  LEFT JOIN LATERAL (SELECT a.ends, a.created_at FROM outbox_attempts AS a
                      WHERE a.lane_id = d.lane_id AND a.seq = d.seq AND a.ends IS NOT NULL AND a.created_at >= d.created_at
                      ORDER BY a.created_at DESC LIMIT 1) AS ended ON true
 WHERE NOT EXISTS (SELECT 1 FROM outbox_deliveries AS newer
                    WHERE newer.delivery_id = d.delivery_id AND newer.lane_id = d.lane_id AND newer.seq > d.seq);
COMMENT ON VIEW outbox_status IS 'One row per delivery: status is pending, published, failed, skipped or cancelled (its endpoint was removed).';
