//! The table `alerts`: what an operator must know of or act on. [`super::watch`] tells of it.

use jiff::Timestamp;
use serde::Serialize;
use surehook_outbox::store::{Database, DatabaseError, Sql};
use uuid::Uuid;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertKind {
    /// The folder of all repositories of a node is missing or another one.
    StorageUnavailable,
    /// The folder of one repository is missing, unreadable, or another one.
    RepositoryUnavailable,
    /// So many refs are gone at once that an operator must confirm it.
    RepositoryHeld,
    /// Some refs cannot be read; the others are told.
    RefsUnreadable,
    /// Some refs cannot be recorded; the others are told.
    RefsSetAside,
    /// An endpoint has dead letters that nobody has replayed.
    DeadLetters,
    /// An endpoint answered 410 and is paused.
    EndpointGone,
    /// An endpoint does not answer: nothing but probes goes out to it.
    CircuitOpen,
    /// What waits for an endpoint has waited for too long.
    OldestPending,
    /// Work is due, and no worker is alive.
    WorkersAway,
    /// A worker hangs: its heartbeat stands still, or one of its loops does.
    WorkerStuck,
    /// Refs of a hosted repository changed, and no push told of it.
    Drift,
}

/// All kinds, with their names in the database.
pub const KINDS: [(AlertKind, &str); 12] = [
    (AlertKind::StorageUnavailable, "storage_unavailable"),
    (AlertKind::RepositoryUnavailable, "repository_unavailable"),
    (AlertKind::RepositoryHeld, "repository_held"),
    (AlertKind::RefsUnreadable, "refs_unreadable"),
    (AlertKind::RefsSetAside, "refs_set_aside"),
    (AlertKind::DeadLetters, "dead_letters"),
    (AlertKind::EndpointGone, "endpoint_gone"),
    (AlertKind::CircuitOpen, "circuit_open"),
    (AlertKind::OldestPending, "oldest_pending"),
    (AlertKind::WorkersAway, "workers_away"),
    (AlertKind::WorkerStuck, "worker_stuck"),
    (AlertKind::Drift, "drift"),
];

impl AlertKind {
    /// As the database says it.
    pub fn as_str(self) -> &'static str {
        KINDS.iter().find(|(kind, _)| *kind == self).map_or("", |(_, text)| text)
    }

    /// What the database says. None: a newer program opened it.
    pub fn parse(text: &str) -> Option<Self> {
        KINDS.iter().find(|(_, known)| *known == text).map(|(kind, _)| *kind)
    }
}

/// What a call changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertChange {
    /// An alert is open that was not before.
    Opened,
    /// Alerts that were open are resolved.
    Resolved,
    /// It stands as it stood; the wording may be newer.
    Unchanged,
}

/// An occurrence of something that is wrong. Serialised with the names of the columns.
#[derive(Clone, Debug, Serialize)]
pub struct Alert {
    /// Names this occurrence.
    pub alert_id: Uuid,
    /// Its kind, as the database says it.
    pub kind: String,
    /// The id of what it is about.
    pub subject: String,
    /// How people and commands call that; empty where it has no name.
    pub name: String,
    /// In words.
    pub details: String,
    /// Since when.
    pub opened_at: Timestamp,
    /// Until when; None: it is open.
    pub resolved_at: Option<Timestamp>,
}

impl Alert {
    pub(super) fn read(row: &tokio_postgres::Row) -> Result<Self, DatabaseError> {
        Ok(Self {
            alert_id: row.try_get("alert_id")?,
            kind: row.try_get("kind")?,
            subject: row.try_get("subject")?,
            name: row.try_get("name")?,
            details: row.try_get("details")?,
            opened_at: row.try_get("opened_at")?,
            resolved_at: row.try_get("resolved_at")?,
        })
    }
}

/// Opens an alert, or brings the wording of the open one up to date. May be repeated.
pub async fn open(
    client: &impl Sql,
    kind: AlertKind,
    subject: &str,
    name: &str,
    details: &str,
) -> Result<AlertChange, DatabaseError> {
    let row = client
        .query_one(
            "INSERT INTO alerts (kind, subject, name, details) VALUES ($1, $2, $3, $4)
             ON CONFLICT (kind, subject) WHERE resolved_at IS NULL
             DO UPDATE SET name = excluded.name, details = excluded.details, seen_at = now()
             RETURNING xmax = 0",
            &[&kind.as_str(), &subject, &name, &details],
        )
        .await?;
    Ok(if row.try_get(0)? { AlertChange::Opened } else { AlertChange::Unchanged })
}

/// Resolves the open alerts of these kinds about this subject. May be repeated.
pub async fn resolve(client: &impl Sql, kinds: &[AlertKind], subject: &str) -> Result<AlertChange, DatabaseError> {
    let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    let resolved = client
        .execute(
            "UPDATE alerts SET resolved_at = greatest(now(), opened_at) WHERE kind = ANY ($1) AND subject = $2 AND resolved_at IS NULL",
            &[&kinds, &subject],
        )
        .await?;
    Ok(if resolved == 0 { AlertChange::Unchanged } else { AlertChange::Resolved })
}

/// The open alerts, oldest first.
pub async fn list_open(database: &Database) -> Result<Vec<Alert>, DatabaseError> {
    list(database, "resolved_at IS NULL ORDER BY opened_at, kind, subject").await
}

/// Alerts with those that are resolved, newest first.
pub async fn list_all(database: &Database) -> Result<Vec<Alert>, DatabaseError> {
    list(database, "true ORDER BY opened_at DESC, kind, subject").await
}

async fn list(database: &Database, which: &str) -> Result<Vec<Alert>, DatabaseError> {
    let session = database.session().await?;
    let sql = format!(
        "SELECT alert_id, kind, subject, name, details, opened_at, resolved_at FROM alerts WHERE {which} LIMIT 1000"
    );
    session.query(&sql, &[]).await?.iter().map(Alert::read).collect()
}

/// How many alerts of each kind are open, each kind named.
pub async fn count_open(client: &impl Sql) -> Result<Vec<(&'static str, i64)>, DatabaseError> {
    let rows = client.query("SELECT kind, count(*) FROM alerts WHERE resolved_at IS NULL GROUP BY kind", &[]).await?;
    let mut counts: Vec<(&'static str, i64)> = KINDS.iter().map(|(_, name)| (*name, 0)).collect();
    for row in rows {
        let kind: &str = row.try_get(0)?;
        if let Some((_, count)) = counts.iter_mut().find(|(name, _)| *name == kind) {
            *count = row.try_get(1)?;
        }
    }
    Ok(counts)
}
