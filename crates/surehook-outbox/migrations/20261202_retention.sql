-- Retention: weeks that nobody needs any more are detached and dropped whole. What is decided is noted before it is done,
-- so that whoever comes after a crash finishes it, and never drops a table that an operator has detached.

CREATE TABLE outbox_retention (
    only_row       boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    held_by        uuid,
    held_until     timestamptz,
    published_days integer CHECK (published_days > 0),
    succeeded_at   timestamptz,
    failed_at      timestamptz,
    error          text,
    lanes_after    bigint,
    CONSTRAINT outbox_retention_held CHECK ((held_by IS NULL) = (held_until IS NULL)),
    CONSTRAINT outbox_retention_failed CHECK ((failed_at IS NULL) = (error IS NULL))
);
INSERT INTO outbox_retention DEFAULT VALUES;
COMMENT ON TABLE outbox_retention IS 'One row: who removes old rows at this moment, and how that went.';
COMMENT ON COLUMN outbox_retention.only_row IS 'There is one row.';
COMMENT ON COLUMN outbox_retention.held_by IS 'The turn that is under way, random: one at a time in the whole cluster.';
COMMENT ON COLUMN outbox_retention.held_until IS 'Until then, unless it is renewed; after a crash another may begin.';
COMMENT ON COLUMN outbox_retention.published_days IS 'The setting of the last turn, for those who look from outside. NULL: none yet.';
COMMENT ON COLUMN outbox_retention.succeeded_at IS 'When a turn last came to its end.';
COMMENT ON COLUMN outbox_retention.failed_at IS 'When the last turn failed. NULL: it did not.';
COMMENT ON COLUMN outbox_retention.error IS 'Why it failed, in words.';
COMMENT ON COLUMN outbox_retention.lanes_after IS 'The walk over idle lanes, due after a week was dropped, goes on after this lane. NULL: none is due.';

CREATE TABLE outbox_retention_pins (
    starts_at   timestamptz NOT NULL,
    ends_at     timestamptz NOT NULL CHECK (ends_at > starts_at),
    why         text NOT NULL CHECK (why IN ('undelivered', 'dead_letter', 'ended_lately', 'older_week')),
    endpoint_id uuid NOT NULL,
    found       bigint NOT NULL CHECK (found > 0),
    noted_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (starts_at, why, endpoint_id)
);
COMMENT ON TABLE outbox_retention_pins IS 'Weeks that are old enough and stay, as the last turn found it.';
COMMENT ON COLUMN outbox_retention_pins.starts_at IS 'The week: the lower bound of its partitions.';
COMMENT ON COLUMN outbox_retention_pins.ends_at IS 'The upper bound.';
COMMENT ON COLUMN outbox_retention_pins.why IS 'undelivered: something of the week has not arrived. dead_letter: one that nobody settled belongs to it. ended_lately: something of it ended within the retention time. older_week: its attempts tell how deliveries of an older week ended that stays.';
COMMENT ON COLUMN outbox_retention_pins.endpoint_id IS 'Whose deliveries these are.';
COMMENT ON COLUMN outbox_retention_pins.found IS 'How many lanes or dead letters.';
COMMENT ON COLUMN outbox_retention_pins.noted_at IS 'When it was found.';

CREATE TABLE outbox_partition_notes (
    partition          text PRIMARY KEY,
    ends_at            timestamptz NOT NULL,
    leaving_since      timestamptz,
    answers_removed_at timestamptz
);
COMMENT ON TABLE outbox_partition_notes IS 'What was decided about, or done to, a partition as a whole.';
COMMENT ON COLUMN outbox_partition_notes.partition IS 'Its name, as regclass writes it.';
COMMENT ON COLUMN outbox_partition_notes.ends_at IS 'The upper bound of its time.';
COMMENT ON COLUMN outbox_partition_notes.leaving_since IS 'When it was decided that it is detached and dropped; the row goes when that is done.';
COMMENT ON COLUMN outbox_partition_notes.answers_removed_at IS 'When the answers of receivers were removed from it (partitions of outbox_attempts).';

CREATE VIEW outbox_partitions AS
SELECT parent.relname::text AS parent, c.oid::regclass::text AS partition,
       substring(bound FROM 'FROM \(''([^'']+)''\)')::timestamptz AS starts_at,
       substring(bound FROM 'TO \(''([^'']+)''\)')::timestamptz AS ends_at,
       i.inhdetachpending AS detach_pending
  FROM pg_inherits AS i
  JOIN pg_class AS parent ON parent.oid = i.inhparent
  JOIN pg_class AS c ON c.oid = i.inhrelid
 CROSS JOIN LATERAL pg_get_expr(c.relpartbound, c.oid) AS bound
 WHERE i.inhparent IN ('outbox_events'::regclass, 'outbox_bodies'::regclass, 'outbox_deliveries'::regclass, 'outbox_attempts'::regclass);
COMMENT ON VIEW outbox_partitions IS 'The partitions of the large tables with their bounds; bounds are NULL where they are no two times.';

-- Deliveries of events that are older than they: replays, and what a new endpoint is told of the past. Others are not in it.
CREATE INDEX outbox_deliveries_of_older_events ON outbox_deliveries (event_created_at) WHERE event_created_at < created_at;
-- Few among all attempts, and asked for by people: a list of what was skipped reads these alone.
CREATE INDEX outbox_attempts_skipped ON outbox_attempts (created_at) WHERE ends = 'skipped';
CREATE INDEX outbox_dlq_delivered ON outbox_dlq (updated_at) WHERE state = 'delivered';
CREATE INDEX outbox_idempotency_keys_by_age ON outbox_idempotency_keys (created_at);

-- As before, but a week is made aside and attached: CREATE TABLE … PARTITION OF would lock the parent against everybody,
-- and behind one long reader (a dump) every insert would wait. Gives up after a while; the next turn tries again.
CREATE OR REPLACE FUNCTION outbox_ensure_partitions(weeks_ahead integer DEFAULT 8) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
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
            IF to_regclass(quote_ident(child)) IS NULL THEN
                EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', child, parent);
                EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                               parent, child, week::text || ' 00:00:00+00', (week + 7)::text || ' 00:00:00+00');
                made := made + 1;
            END IF;
        END LOOP;
    END LOOP;
    RETURN made;
END $$;
