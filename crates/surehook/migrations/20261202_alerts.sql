-- More that an operator must know of: a worker that hangs, an endpoint that is silent, and refs of hosted repositories that changed past surehook. An
-- alert of the latter kind has no condition that can be looked at again, so it ends when nothing more of it was seen for a while.

ALTER TABLE alerts
    DROP CONSTRAINT alerts_kind_check,
    ADD CONSTRAINT alerts_kind_check CHECK (kind IN (
        'storage_unavailable', 'repository_unavailable', 'repository_held', 'refs_unreadable', 'refs_set_aside', 'dead_letters',
        'endpoint_gone', 'circuit_open', 'oldest_pending', 'workers_away', 'worker_stuck', 'drift')),
    ADD COLUMN name text NOT NULL DEFAULT '',
    ADD COLUMN seen_at timestamptz NOT NULL DEFAULT now();
COMMENT ON COLUMN alerts.subject IS 'The id of the storage, repository, endpoint or worker that it is about.';
COMMENT ON COLUMN alerts.name IS 'How people and commands call the subject; empty where it has no name.';
COMMENT ON COLUMN alerts.seen_at IS 'When it was last noticed by whoever opens alerts of its kind.';
