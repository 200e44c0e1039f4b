-- Repositories, and what of their refs has been announced. The refs on disk are the truth; these tables follow them.

CREATE TABLE storages (
    storage_id  uuid PRIMARY KEY,
    node        text NOT NULL,
    root        bytea NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE storages IS 'Folders that hold repositories; each belongs to one node, and only that node serves, scans and announces what lies there.';
COMMENT ON COLUMN storages.storage_id IS 'Written in the folder too, so that a swapped volume is noticed.';
COMMENT ON COLUMN storages.node IS 'Host name of the node that serves it, for people.';
COMMENT ON COLUMN storages.root IS 'Absolute path on that node, as bytes.';
COMMENT ON COLUMN storages.created_at IS 'When it was first served.';
COMMENT ON COLUMN storages.updated_at IS 'When it was last served.';

CREATE TABLE repositories (
    repository_id   uuid PRIMARY KEY,
    name            text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    storage_id      uuid NOT NULL REFERENCES storages,
    path            bytea NOT NULL,
    origin          text NOT NULL CHECK (origin IN ('hosted', 'imported')),
    state           text NOT NULL CHECK (state IN ('creating', 'active', 'unavailable', 'held', 'deleting', 'deleted', 'detached')),
    state_reason    text,
    object_format   text NOT NULL DEFAULT 'sha1' CHECK (object_format IN ('sha1', 'sha256')),
    last_sequence   bigint NOT NULL DEFAULT 0 CHECK (last_sequence >= 0),
    sequence_epoch  uuid NOT NULL DEFAULT gen_random_uuid(),
    last_commit_sha text CHECK (last_commit_sha ~ '^([0-9a-f]{40}|[0-9a-f]{64})$'),
    last_pushed_at  timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX repositories_name_key ON repositories (name) WHERE state NOT IN ('deleted', 'detached');
CREATE UNIQUE INDEX repositories_path_key ON repositories (storage_id, path) WHERE state NOT IN ('deleted', 'detached');

COMMENT ON TABLE repositories IS 'One row per repository, kept after deletion so that history can name it.';
COMMENT ON COLUMN repositories.repository_id IS 'Random; also written in the config of the repository on disk. The aggregate_id of its events.';
COMMENT ON COLUMN repositories.name IS 'How people and URLs call it, without .git; groups are separated by slashes.';
COMMENT ON COLUMN repositories.storage_id IS 'Where it lies, and so which node may touch it.';
COMMENT ON COLUMN repositories.path IS 'hosted: relative to the root of the storage; imported: absolute. Bytes, as paths are.';
COMMENT ON COLUMN repositories.origin IS 'hosted: surehook created it; imported: somebody else writes there, surehook follows.';
COMMENT ON COLUMN repositories.state IS 'creating, active, unavailable (its storage is in doubt), held (a mass disappearance of refs waits for an operator), deleting, deleted, detached.';
COMMENT ON COLUMN repositories.state_reason IS 'Why it is in that state, in words.';
COMMENT ON COLUMN repositories.object_format IS 'The hash of its object ids.';
COMMENT ON COLUMN repositories.last_sequence IS 'The number of its newest event; gap-free within an epoch.';
COMMENT ON COLUMN repositories.sequence_epoch IS 'New after a restore that put the number back; receivers compare sequences within an epoch only.';
COMMENT ON COLUMN repositories.last_commit_sha IS 'The peeled commit of the newest announced transition that was no deletion.';
COMMENT ON COLUMN repositories.last_pushed_at IS 'When that was announced.';
COMMENT ON COLUMN repositories.created_at IS 'When it was registered.';
COMMENT ON COLUMN repositories.updated_at IS 'When the row last changed.';

CREATE TABLE repository_refs (
    repository_id  uuid NOT NULL REFERENCES repositories,
    ref            bytea NOT NULL CHECK (octet_length(ref) BETWEEN 1 AND 4096),
    value          bytea NOT NULL CHECK (octet_length(value) IN (20, 32)),
    seq            bigint NOT NULL DEFAULT 0 CHECK (seq >= 0),
    log_offset     bigint CHECK (log_offset >= 0),
    log_line_hash  bytea CHECK (octet_length(log_line_hash) = 32),
    log_birth_hash bytea CHECK (octet_length(log_birth_hash) = 32),
    set_aside      text,
    updated_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (repository_id, ref),
    CONSTRAINT repository_refs_place CHECK ((log_line_hash IS NULL) OR (log_offset IS NOT NULL))
);
COMMENT ON TABLE repository_refs IS 'The cursor: per ref the last value that was announced. Rows stay when a ref is deleted, so that its numbering goes on.';
COMMENT ON COLUMN repository_refs.repository_id IS 'The repository.';
COMMENT ON COLUMN repository_refs.ref IS 'Full ref name, as bytes: git accepts names that are not UTF-8.';
COMMENT ON COLUMN repository_refs.value IS 'The object id that was last announced; zeros for a ref that is gone.';
COMMENT ON COLUMN repository_refs.seq IS 'How many transitions of this ref have been announced; part of the event id.';
COMMENT ON COLUMN repository_refs.log_offset IS 'Place in the reflog: where the line ends that produced value. NULL: no place is known.';
COMMENT ON COLUMN repository_refs.log_line_hash IS 'SHA-256 of that line without its end. NULL with offset 0: the log was empty or absent.';
COMMENT ON COLUMN repository_refs.log_birth_hash IS 'SHA-256 of the line that the reflog began with: it tells a log that gc thinned out from that of a ref that was deleted and made again.';
COMMENT ON COLUMN repository_refs.set_aside IS 'Why this ref could not be announced, when the rest of the repository could.';
COMMENT ON COLUMN repository_refs.updated_at IS 'When it last moved.';

CREATE TABLE tokens (
    token_id     uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    token_hash   bytea NOT NULL UNIQUE CHECK (octet_length(token_hash) = 32),
    note         text,
    is_admin     boolean NOT NULL DEFAULT false,
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_used_at timestamptz,
    revoked_at   timestamptz
);
COMMENT ON TABLE tokens IS 'Passwords of machines and people: 256 random bits, of which only the hash is kept.';
COMMENT ON COLUMN tokens.token_id IS 'Names the token in lists and logs.';
COMMENT ON COLUMN tokens.token_hash IS 'SHA-256 of the token.';
COMMENT ON COLUMN tokens.note IS 'What it is for, in words; shown as the pusher.';
COMMENT ON COLUMN tokens.is_admin IS 'May do everything.';
COMMENT ON COLUMN tokens.created_at IS 'When it was made.';
COMMENT ON COLUMN tokens.last_used_at IS 'When it last opened a door; written at most once a minute.';
COMMENT ON COLUMN tokens.revoked_at IS 'Set: it opens nothing any more.';

CREATE TABLE token_grants (
    token_id   uuid NOT NULL REFERENCES tokens ON DELETE CASCADE,
    access     text NOT NULL CHECK (access IN ('read', 'push')),
    repository text NOT NULL CHECK (repository <> ''),
    PRIMARY KEY (token_id, access, repository)
);
COMMENT ON TABLE token_grants IS 'What a token that is not admin may do.';
COMMENT ON COLUMN token_grants.token_id IS 'The token.';
COMMENT ON COLUMN token_grants.access IS 'read, or push (which includes read).';
COMMENT ON COLUMN token_grants.repository IS 'A repository name, GROUP/* or *.';

CREATE TABLE alerts (
    alert_id    uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    kind        text NOT NULL CHECK (kind IN ('storage_unavailable', 'repository_unavailable', 'repository_held', 'refs_unreadable', 'refs_set_aside',
                                               'dead_letters', 'endpoint_gone', 'oldest_pending', 'workers_away')),
    subject     text NOT NULL CHECK (subject <> ''),
    details     text NOT NULL,
    opened_at   timestamptz NOT NULL DEFAULT now(),
    resolved_at timestamptz CHECK (resolved_at >= opened_at),
    told        text CHECK (told IN ('open', 'resolved'))
);
CREATE INDEX alerts_untold ON alerts (opened_at) WHERE told IS NULL OR (told = 'open' AND resolved_at IS NOT NULL);
CREATE UNIQUE INDEX alerts_open_key ON alerts (kind, subject) WHERE resolved_at IS NULL;
COMMENT ON TABLE alerts IS 'What an operator must know of or act on, from its beginning to its end. Rows of what has ended stay as history.';
COMMENT ON COLUMN alerts.alert_id IS 'Names this occurrence.';
COMMENT ON COLUMN alerts.kind IS 'What is wrong. At most one alert of a kind is open for a subject.';
COMMENT ON COLUMN alerts.subject IS 'The id of the storage, repository or endpoint that it is about.';
COMMENT ON COLUMN alerts.details IS 'The subject by its name, and what is wrong, in words; the newest wording.';
COMMENT ON COLUMN alerts.opened_at IS 'When it was noticed.';
COMMENT ON COLUMN alerts.told IS 'What the endpoints for alerts were told of it last, by an event in the same transaction. NULL: nothing yet.';
COMMENT ON COLUMN alerts.resolved_at IS 'When it was noticed that it had ended. NULL: it is open.';
