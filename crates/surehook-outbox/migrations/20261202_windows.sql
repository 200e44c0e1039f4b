-- Windows: how much each worker may have under way at each endpoint, and whether the circuit is open.
--
-- Why a table. The windows themselves live in the workers and decide there; this is what they look like, for people, alerts
-- and metrics. A worker writes a row when it changes, at most about once a second.
--
-- Why the larger in_flight_max. It was the number of requests at once; now it is the bound of a window that begins small
-- and finds its size, so it can be what the largest receivers bear.

ALTER TABLE endpoints ADD COLUMN rate_max_per_s integer CHECK (rate_max_per_s BETWEEN 1 AND 100000);
COMMENT ON COLUMN endpoints.rate_max_per_s IS 'Requests per second from one worker process at most; NULL: no limit.';
COMMENT ON COLUMN endpoints.in_flight_max IS 'Requests at once from one worker process, at most: the bound of its window.';
ALTER TABLE endpoints ALTER COLUMN in_flight_max SET DEFAULT 256;
UPDATE endpoints SET in_flight_max = 256 WHERE in_flight_max = 8;

CREATE TABLE outbox_windows (
    endpoint_id       uuid NOT NULL,
    worker_id         uuid NOT NULL,
    in_flight         integer NOT NULL CHECK (in_flight >= 0),
    in_flight_limit   integer NOT NULL CHECK (in_flight_limit >= 1),
    silences_in_a_row bigint NOT NULL CHECK (silences_in_a_row >= 0),
    circuit           text NOT NULL CHECK (circuit IN ('closed', 'open')),
    opened_at         timestamptz,
    next_probe_at     timestamptz,
    updated_at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (endpoint_id, worker_id),
    CONSTRAINT outbox_windows_circuit CHECK ((circuit = 'open') = (opened_at IS NOT NULL) AND (circuit = 'open') = (next_probe_at IS NOT NULL))
) WITH (fillfactor = 50);
COMMENT ON TABLE outbox_windows IS 'One row per endpoint and worker: what may be under way there. Shown, not obeyed: the worker decides by its own books.';
COMMENT ON COLUMN outbox_windows.endpoint_id IS 'The endpoint.';
COMMENT ON COLUMN outbox_windows.worker_id IS 'The worker.';
COMMENT ON COLUMN outbox_windows.in_flight IS 'Lanes in hand, each of which has one request under way.';
COMMENT ON COLUMN outbox_windows.in_flight_limit IS 'How many there may be now: doubles with each round of prompt answers, halves on silence.';
COMMENT ON COLUMN outbox_windows.silences_in_a_row IS 'Requests without an answer since the last one with an answer.';
COMMENT ON COLUMN outbox_windows.circuit IS 'closed: deliveries go out; open: the endpoint is silent, and only probes go out.';
COMMENT ON COLUMN outbox_windows.opened_at IS 'When the circuit was opened.';
COMMENT ON COLUMN outbox_windows.next_probe_at IS 'When the next probe is due.';
COMMENT ON COLUMN outbox_windows.updated_at IS 'When the worker last wrote this.';
