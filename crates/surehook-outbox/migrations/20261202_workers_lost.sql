-- Workers that hang must be visible. A worker whose heartbeat stands still loses its row, so that the tables of the living stay
-- small and its lanes free: what is left of it is noted here, for people. And a worker whose heartbeat goes on can hang all
-- the same: then its row says which loop of it does.

ALTER TABLE outbox_workers ADD COLUMN stalled text CHECK (stalled <> '');
COMMENT ON COLUMN outbox_workers.stalled IS 'The loop of it (claims, recorder) that has not come round for a while, although the heartbeat goes on. NULL: all do.';

CREATE TABLE outbox_workers_lost (
    worker_id    uuid PRIMARY KEY,
    node         text NOT NULL,
    heartbeat_at timestamptz NOT NULL,
    lost_at      timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE outbox_workers_lost IS 'Workers that were declared dead because their heartbeat stood still, for a day. One that comes back has its row in outbox_workers again.';
COMMENT ON COLUMN outbox_workers_lost.worker_id IS 'The worker.';
COMMENT ON COLUMN outbox_workers_lost.node IS 'Host name and process id, for people.';
COMMENT ON COLUMN outbox_workers_lost.heartbeat_at IS 'When its heartbeat had last moved.';
COMMENT ON COLUMN outbox_workers_lost.lost_at IS 'When another worker took over what it held (last).';
