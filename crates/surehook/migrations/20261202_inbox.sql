-- The receiver's inbox: each delivery that was believed, and the build that it starts. A delivery is recorded before it
-- is answered, and built afterwards, so an answer of 202 means that the build cannot get lost.

CREATE TABLE inbox_builds (
    build_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    webhook_id     text NOT NULL UNIQUE CHECK (octet_length(webhook_id) BETWEEN 1 AND 200),
    body_hash      bytea NOT NULL CHECK (octet_length(body_hash) = 32),
    payload        bytea NOT NULL,
    event_id       text CHECK (octet_length(event_id) <= 200),
    repository_key text NOT NULL,
    repository     text,
    ref            text NOT NULL,
    before_sha     text NOT NULL CHECK (before_sha ~ '^([0-9a-f]{40}|[0-9a-f]{64})$'),
    after_sha      text NOT NULL CHECK (after_sha ~ '^([0-9a-f]{40}|[0-9a-f]{64})$'),
    commit_sha     text CHECK (commit_sha ~ '^([0-9a-f]{40}|[0-9a-f]{64})$'),
    received_at    timestamptz NOT NULL DEFAULT now(),
    state          text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'finished', 'lost')),
    run_key        uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    attempt        integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    receiver_id    uuid,
    folder         bytea,
    started_at     timestamptz,
    finished_at    timestamptz CHECK (finished_at >= started_at),
    duration_ms    bigint CHECK (duration_ms >= 0),
    exit_code      integer,
    exit_signal    integer CHECK (exit_signal > 0),
    timed_out      boolean NOT NULL DEFAULT false,
    note           text,
    CONSTRAINT inbox_builds_started CHECK (
        CASE WHEN state = 'queued' THEN attempt = 0 AND num_nonnulls(receiver_id, folder, started_at) = 0
             ELSE attempt >= 1 AND num_nulls(receiver_id, folder, started_at) = 0 END),
    CONSTRAINT inbox_builds_ended CHECK ((finished_at IS NOT NULL) = (state IN ('finished', 'lost'))),
    CONSTRAINT inbox_builds_outcome CHECK (
        CASE WHEN state = 'finished' THEN num_nonnulls(exit_code, exit_signal) = 1 AND duration_ms IS NOT NULL
             ELSE num_nonnulls(exit_code, exit_signal, duration_ms) = 0 AND NOT timed_out END),
    CONSTRAINT inbox_builds_lost CHECK (state <> 'lost' OR note IS NOT NULL)
);
-- Where each repository stands: the claim walks over its heads only.
CREATE INDEX inbox_builds_open ON inbox_builds (repository_key, build_id) INCLUDE (state) WHERE state IN ('queued', 'running');
CREATE INDEX inbox_builds_running ON inbox_builds (receiver_id, build_id) WHERE state = 'running';

COMMENT ON TABLE inbox_builds IS 'One row per delivery that was believed: what came, and the build that it starts. Builds of one repository run one after another, in order of arrival.';
COMMENT ON COLUMN inbox_builds.build_id IS 'The number by which people call the build.';
COMMENT ON COLUMN inbox_builds.webhook_id IS 'X-Webhook-Id, the idempotency key: UNIQUE, so a repeated delivery starts nothing.';
COMMENT ON COLUMN inbox_builds.body_hash IS 'SHA-256 of the body, to tell whether a repeated delivery carries the same bytes.';
COMMENT ON COLUMN inbox_builds.payload IS 'The body as it came; the command gets it as its standard input.';
COMMENT ON COLUMN inbox_builds.event_id IS 'The event that the delivery tells of, if the body names one.';
COMMENT ON COLUMN inbox_builds.repository_key IS 'Builds with the same key run one after another: the id of the repository, else its name, else empty.';
COMMENT ON COLUMN inbox_builds.repository IS 'The name of the repository, for people.';
COMMENT ON COLUMN inbox_builds.ref IS 'The ref that moved, as the body renders it.';
COMMENT ON COLUMN inbox_builds.before_sha IS 'Object id before the push; zeros if the ref is new.';
COMMENT ON COLUMN inbox_builds.after_sha IS 'Object id after the push; zeros if the ref was deleted.';
COMMENT ON COLUMN inbox_builds.commit_sha IS 'The head commit, if the body names one.';
COMMENT ON COLUMN inbox_builds.received_at IS 'When the delivery was recorded.';
COMMENT ON COLUMN inbox_builds.state IS 'queued, running, finished (it ran to an end, good or bad), lost (its runner vanished each time that it was started; not run again).';
COMMENT ON COLUMN inbox_builds.run_key IS 'Random; the processes of the build carry it in their environment and its result on disk repeats it, so neither is taken for that of another build.';
COMMENT ON COLUMN inbox_builds.attempt IS 'How often it was started; more than 1 if its runner vanished without a result.';
COMMENT ON COLUMN inbox_builds.receiver_id IS 'The receiver that runs it; the id lies in that receiver''s data directory.';
COMMENT ON COLUMN inbox_builds.folder IS 'Absolute path of its folder on that receiver''s machine (log, result, lock), as bytes.';
COMMENT ON COLUMN inbox_builds.started_at IS 'When the newest attempt began.';
COMMENT ON COLUMN inbox_builds.finished_at IS 'When it ended.';
COMMENT ON COLUMN inbox_builds.duration_ms IS 'How long the command ran, by the monotonic clock of its machine, in milliseconds.';
COMMENT ON COLUMN inbox_builds.exit_code IS 'Exit code of the command; 0 is success.';
COMMENT ON COLUMN inbox_builds.exit_signal IS 'The signal that ended the command, if one did.';
COMMENT ON COLUMN inbox_builds.timed_out IS 'The command was ended because it ran longer than allowed.';
COMMENT ON COLUMN inbox_builds.note IS 'What a person should know of the outcome.';
