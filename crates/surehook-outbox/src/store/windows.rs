//! What the workers' windows look like, written for people, alerts and metrics.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use super::{DatabaseError, Session, column};

/// One endpoint as one worker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowState {
    /// The endpoint.
    pub endpoint_id: Uuid,
    /// Lanes in hand.
    pub in_flight: usize,
    /// How many there may be.
    pub in_flight_limit: usize,
    /// Requests without an answer since the last one with an answer.
    pub silences_in_a_row: u32,
    /// How long the circuit has been open; None: it is closed.
    pub open_for: Option<Duration>,
    /// When the next probe is due; None: the circuit is closed.
    pub probe_in: Option<Duration>,
}

impl WindowState {
    /// Whether a person would see no difference.
    pub fn looks_like(&self, other: &Self) -> bool {
        let shape =
            |state: &Self| (state.in_flight, state.in_flight_limit, state.silences_in_a_row, state.open_for.is_some());
        shape(self) == shape(other)
    }
}

/// A window as it was last written.
#[derive(Clone, Debug, Serialize)]
pub struct WindowShown {
    /// The worker: host and process.
    pub node: String,
    /// Lanes in hand.
    pub in_flight: i32,
    /// How many there may be.
    pub in_flight_limit: i32,
    /// Requests without an answer since the last one with an answer.
    pub silences_in_a_row: i64,
    /// `closed` or `open`.
    pub circuit: String,
    /// When it was opened.
    pub opened_at: Option<Timestamp>,
    /// When the next probe is due.
    pub next_probe_at: Option<Timestamp>,
    /// When this was written.
    pub updated_at: Timestamp,
}

/// Writes what changed and removes what is forgotten. Ok: committed. May be repeated.
pub async fn write(
    session: &Session,
    worker: Uuid,
    changed: &[WindowState],
    forgotten: &[Uuid],
) -> Result<(), DatabaseError> {
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let ms = |duration: Option<Duration>| duration.map(|d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX));
    if !changed.is_empty() {
        session
            .execute(
                "INSERT INTO outbox_windows AS w (endpoint_id, worker_id, in_flight, in_flight_limit, silences_in_a_row, circuit,
                                                  opened_at, next_probe_at, updated_at)
                 SELECT s.endpoint_id, $1, s.in_flight, s.in_flight_limit, s.silences, CASE WHEN s.open_ms IS NULL THEN 'closed' ELSE 'open' END,
                        now() - s.open_ms * interval '1 millisecond', now() + s.probe_ms * interval '1 millisecond', now()
                   FROM unnest($2::uuid[], $3::integer[], $4::integer[], $5::bigint[], $6::bigint[], $7::bigint[])
                     AS s (endpoint_id, in_flight, in_flight_limit, silences, open_ms, probe_ms)
                 ON CONFLICT (endpoint_id, worker_id) DO UPDATE
                    SET in_flight = excluded.in_flight, in_flight_limit = excluded.in_flight_limit,
                        silences_in_a_row = excluded.silences_in_a_row, circuit = excluded.circuit,
                        opened_at = excluded.opened_at, next_probe_at = excluded.next_probe_at, updated_at = excluded.updated_at",
                &[
                    &worker,
                    &column(changed, |s| s.endpoint_id),
                    &column(changed, |s| count(s.in_flight)),
                    &column(changed, |s| count(s.in_flight_limit)),
                    &column(changed, |s| i64::from(s.silences_in_a_row)),
                    &column(changed, |s| ms(s.open_for)),
                    &column(changed, |s| ms(s.probe_in)),
                ],
            )
            .await?;
    }
    if !forgotten.is_empty() {
        session
            .execute(
                "DELETE FROM outbox_windows WHERE worker_id = $1 AND endpoint_id = ANY ($2)",
                &[&worker, &forgotten],
            )
            .await?;
    }
    Ok(())
}

/// The windows of an endpoint at the workers that are alive.
pub async fn of_endpoint(session: &Session, endpoint_id: Uuid) -> Result<Vec<WindowShown>, DatabaseError> {
    let rows = session
        .query(
            "SELECT k.node, w.in_flight, w.in_flight_limit, w.silences_in_a_row, w.circuit, w.opened_at, w.next_probe_at, w.updated_at
               FROM outbox_windows AS w JOIN outbox_workers AS k ON k.worker_id = w.worker_id
              WHERE w.endpoint_id = $1 ORDER BY k.node, w.worker_id",
            &[&endpoint_id],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| WindowShown {
            node: row.get("node"),
            in_flight: row.get("in_flight"),
            in_flight_limit: row.get("in_flight_limit"),
            silences_in_a_row: row.get("silences_in_a_row"),
            circuit: row.get("circuit"),
            opened_at: row.get("opened_at"),
            next_probe_at: row.get("next_probe_at"),
            updated_at: row.get("updated_at"),
        })
        .collect())
}

/// Removes the windows of workers that are gone.
pub async fn sweep(session: &Session) -> Result<u64, DatabaseError> {
    session
        .execute(
            "DELETE FROM outbox_windows AS w WHERE NOT EXISTS (SELECT FROM outbox_workers AS k WHERE k.worker_id = w.worker_id)
                AND w.updated_at < now() - interval '1 minute'",
            &[],
        )
        .await
}
