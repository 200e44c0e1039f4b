-- Jobs: work over many rows that goes on when the command that asked for it, or the node that was at it, is gone.
--
-- A job is worked on in steps. Each step is one transaction that locks the job's row, does one thing, and moves the job's
-- cursor over it. So what a step did and how far the job is cannot differ, two nodes are never at one job at once, and
-- whoever dies in the middle of a step leaves nothing behind: the lock of the row is the lease.

CREATE TABLE outbox_jobs (
    job_id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    kind              text NOT NULL CHECK (kind IN ('replay')),
    state             text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'cancelled', 'failed')),
    endpoint_id       uuid,
    aggregate_id      text,
    reason            text CHECK (reason IN ('max_attempts', 'max_unanswered', 'max_age', 'row_missing', 'crashed_worker')),
    since             timestamptz,
    until             timestamptz,
    anyway            boolean NOT NULL DEFAULT false,
    new_ids           boolean NOT NULL DEFAULT false,
    rate              integer NOT NULL CHECK (rate BETWEEN 1 AND 100000),
    items_total       bigint NOT NULL CHECK (items_total >= 0),
    items_done        bigint NOT NULL DEFAULT 0 CHECK (items_done >= 0),
    skipped           jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(skipped) = 'object'),
    after_event_at    timestamptz,
    after_lane_id     bigint,
    after_seq         bigint,
    after_delivery_id uuid,
    next_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    failures          integer NOT NULL DEFAULT 0 CHECK (failures >= 0),
    last_error        text,
    worked_by         text,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at          timestamptz,
    CONSTRAINT outbox_jobs_ended CHECK ((ended_at IS NULL) = (state = 'running')),
    CONSTRAINT outbox_jobs_cursor CHECK (num_nulls(after_event_at, after_lane_id, after_seq, after_delivery_id) IN (0, 4))
);
CREATE INDEX outbox_jobs_running ON outbox_jobs (next_at) WHERE state = 'running';

COMMENT ON TABLE outbox_jobs IS 'Work over many rows, done in steps by whichever process has time for it; one row per job, kept when it has ended.';
COMMENT ON COLUMN outbox_jobs.job_id IS 'Names the job.';
COMMENT ON COLUMN outbox_jobs.kind IS 'replay: dead letters are sent again.';
COMMENT ON COLUMN outbox_jobs.state IS 'running (also while it waits for its turn); done; cancelled by a person; failed: the same step failed again and again.';
COMMENT ON COLUMN outbox_jobs.endpoint_id IS 'Only for this endpoint; NULL: any.';
COMMENT ON COLUMN outbox_jobs.aggregate_id IS 'Only of this aggregate; NULL: any.';
COMMENT ON COLUMN outbox_jobs.reason IS 'Only dead letters that this limit ended; NULL: any.';
COMMENT ON COLUMN outbox_jobs.since IS 'Only what died then or later; NULL: since ever.';
COMMENT ON COLUMN outbox_jobs.until IS 'Only what died before then; never what dies after the job was made.';
COMMENT ON COLUMN outbox_jobs.anyway IS 'Also where the receiver was told something newer about the same thing.';
COMMENT ON COLUMN outbox_jobs.new_ids IS 'Under a new delivery id each, so that receivers do not take it for a repeat.';
COMMENT ON COLUMN outbox_jobs.rate IS 'At most so many items a second.';
COMMENT ON COLUMN outbox_jobs.items_total IS 'How many items there were when it was made.';
COMMENT ON COLUMN outbox_jobs.items_done IS 'How many were enqueued.';
COMMENT ON COLUMN outbox_jobs.skipped IS 'How many were passed over, by reason.';
COMMENT ON COLUMN outbox_jobs.after_event_at IS 'The cursor: event time of the last dead letter that was looked at.';
COMMENT ON COLUMN outbox_jobs.after_lane_id IS 'The cursor: its lane.';
COMMENT ON COLUMN outbox_jobs.after_seq IS 'The cursor: its place there.';
COMMENT ON COLUMN outbox_jobs.after_delivery_id IS 'The cursor: its id.';
COMMENT ON COLUMN outbox_jobs.next_at IS 'When the next step is due: how the rate is kept, and how long it waits after a failure.';
COMMENT ON COLUMN outbox_jobs.failures IS 'How often the next step has failed in a row.';
COMMENT ON COLUMN outbox_jobs.last_error IS 'Why, the last time.';
COMMENT ON COLUMN outbox_jobs.worked_by IS 'Who did the last step: host and process, for people.';
COMMENT ON COLUMN outbox_jobs.created_at IS 'When it was made.';
COMMENT ON COLUMN outbox_jobs.updated_at IS 'When its last step was done.';
COMMENT ON COLUMN outbox_jobs.ended_at IS 'When it ended.';

-- A walk over dead letters, in the order of their events.
CREATE INDEX outbox_dlq_in_order ON outbox_dlq (event_created_at, lane_id, seq, delivery_id) WHERE state = 'dead';

-- A dead letter can be sent again under a new id: then it is a letter of its own, and the old one says which.
ALTER TABLE outbox_dlq ADD COLUMN replaced_by uuid;
ALTER TABLE outbox_dlq DROP CONSTRAINT outbox_dlq_state_check;
ALTER TABLE outbox_dlq ADD CONSTRAINT outbox_dlq_state_check CHECK (state IN ('dead', 'replaying', 'delivered', 'replaced'));
ALTER TABLE outbox_dlq ADD CONSTRAINT outbox_dlq_replaced CHECK ((replaced_by IS NOT NULL) = (state = 'replaced'));
COMMENT ON COLUMN outbox_dlq.state IS 'dead; replaying; delivered (a replay got through); replaced (it was sent again under a new id).';
COMMENT ON COLUMN outbox_dlq.replaced_by IS 'The new id, where it was replaced.';
