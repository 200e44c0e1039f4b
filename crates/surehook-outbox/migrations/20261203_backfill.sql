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
