//! The tables `storages` and `repositories`: which repositories there are, where they lie, and in what state they are.

use jiff::Timestamp;
use surehook_outbox::store::{Database, DatabaseError};
use tokio_postgres::{Row, error::SqlState};
use uuid::Uuid;

use super::alerts::{self, AlertChange, AlertKind};

/// Who made a repository, and so what surehook may do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// surehook created it; its path is relative to the root of the storage.
    Hosted,
    /// It was there before; its path is absolute.
    Imported,
}

impl Origin {
    /// As the database says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hosted => "hosted",
            Self::Imported => "imported",
        }
    }
}

/// What may be done with a repository now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepositoryState {
    /// Its row is there, its folder has not its name yet.
    Creating,
    /// All is well.
    Active,
    /// Its folder is in doubt; nothing is served or announced.
    Unavailable,
    /// So many refs are gone at once that an operator must confirm it; nothing is announced.
    Held,
    /// Its folder is being removed.
    Deleting,
    /// It is gone; the row stays so that history can name it.
    Deleted,
    /// It was imported and let go again.
    Detached,
}

const STATES: [(RepositoryState, &str); 7] = [
    (RepositoryState::Creating, "creating"),
    (RepositoryState::Active, "active"),
    (RepositoryState::Unavailable, "unavailable"),
    (RepositoryState::Held, "held"),
    (RepositoryState::Deleting, "deleting"),
    (RepositoryState::Deleted, "deleted"),
    (RepositoryState::Detached, "detached"),
];

impl RepositoryState {
    /// As the database says it.
    pub fn as_str(self) -> &'static str {
        STATES.iter().find(|(state, _)| *state == self).map_or("", |(_, text)| text)
    }

    /// From what the database says.
    pub fn parse(text: &str) -> Option<Self> {
        STATES.iter().find(|(_, known)| *known == text).map(|(state, _)| *state)
    }

    /// Whether refs of it may be announced once its disk is in order.
    pub fn is_followed(self) -> bool {
        matches!(self, Self::Active | Self::Unavailable | Self::Held)
    }
}

/// A row of `repositories`.
#[derive(Clone, Debug)]
pub struct Repository {
    /// Random id, also in its config on disk.
    pub repository_id: Uuid,
    /// Name without `.git`.
    pub name: String,
    /// Where it lies.
    pub storage_id: Uuid,
    /// Relative to the storage's root if hosted, absolute if imported; bytes.
    pub path: Vec<u8>,
    /// Who made it.
    pub origin: Origin,
    /// What may be done with it.
    pub state: RepositoryState,
    /// Why it is in that state.
    pub state_reason: Option<String>,
    /// `sha1` or `sha256`.
    pub object_format: String,
    /// The number of its newest event.
    pub last_sequence: i64,
    /// What that number may be compared within.
    pub sequence_epoch: Uuid,
    /// The commit of the newest announced step that was no deletion.
    pub last_commit_sha: Option<String>,
    /// When that was announced.
    pub last_pushed_at: Option<Timestamp>,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When the row last changed.
    pub updated_at: Timestamp,
}

impl Repository {
    /// Where it lies on the node that owns its storage.
    pub fn git_dir(&self, storage_root: &std::path::Path) -> std::path::PathBuf {
        use std::os::unix::ffi::OsStrExt;
        // Joining an absolute path gives that path.
        storage_root.join(std::ffi::OsStr::from_bytes(&self.path))
    }
}

/// A repository to register.
#[derive(Clone, Copy, Debug)]
pub struct NewRepository<'a> {
    /// The id that already stands in its config on disk.
    pub repository_id: Uuid,
    /// Name without `.git`.
    pub name: &'a str,
    /// Where it lies.
    pub storage_id: Uuid,
    /// Relative to the storage's root if hosted, absolute if imported.
    pub path: &'a [u8],
    /// Who made it.
    pub origin: Origin,
    /// `sha1` or `sha256`.
    pub object_format: &'a str,
}

/// What [`insert_creating`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The row is there, in the state `creating`.
    Created,
    /// Another repository has that name; nothing was changed.
    NameTaken,
    /// Another registration has that folder; nothing was changed.
    PathTaken,
}

const COLUMNS: &str = "repository_id, name, storage_id, path, origin, state, state_reason, object_format, last_sequence, \
     sequence_epoch, last_commit_sha, last_pushed_at, created_at, updated_at";

/// Says that this node serves this storage. May be repeated.
pub async fn register_storage(
    database: &Database,
    storage_id: Uuid,
    node: &str,
    root: &[u8],
) -> Result<(), DatabaseError> {
    let session = database.session().await?;
    session
        .execute(
            "INSERT INTO storages (storage_id, node, root) VALUES ($1, $2, $3)
             ON CONFLICT (storage_id) DO UPDATE SET node = excluded.node, root = excluded.root, updated_at = now()",
            &[&storage_id, &node, &root],
        )
        .await?;
    Ok(())
}

/// Registers a repository in the state `creating`.
pub async fn insert_creating(database: &Database, new: &NewRepository<'_>) -> Result<Inserted, DatabaseError> {
    let session = database.session().await?;
    let result = session
        .execute(
            "INSERT INTO repositories (repository_id, name, storage_id, path, origin, state, object_format)
             VALUES ($1, $2, $3, $4, $5, 'creating', $6)",
            &[&new.repository_id, &new.name, &new.storage_id, &new.path, &new.origin.as_str(), &new.object_format],
        )
        .await;
    match result {
        Ok(_) => Ok(Inserted::Created),
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => match error.constraint() {
            Some("repositories_name_key") => Ok(Inserted::NameTaken),
            Some("repositories_path_key") => Ok(Inserted::PathTaken),
            _ => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// What a change of state did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateChange {
    /// The state is now the wanted one.
    Changed,
    /// It was that already, or is one that does not lead there; nothing was changed.
    Unchanged,
}

/// `creating` becomes `active`.
pub async fn mark_active(database: &Database, repository_id: Uuid) -> Result<StateChange, DatabaseError> {
    set_state(database, repository_id, &["creating"], RepositoryState::Active, None).await
}

/// Whatever is not gone becomes `deleting`.
pub async fn mark_deleting(database: &Database, repository_id: Uuid) -> Result<StateChange, DatabaseError> {
    let from = ["creating", "active", "unavailable", "held"];
    set_state(database, repository_id, &from, RepositoryState::Deleting, None).await
}

/// `deleting` becomes `deleted`; the name is free again.
pub async fn mark_deleted(database: &Database, repository_id: Uuid) -> Result<StateChange, DatabaseError> {
    set_state(database, repository_id, &["deleting"], RepositoryState::Deleted, None).await
}

/// An imported repository is let go; the name is free again.
pub async fn mark_detached(database: &Database, repository_id: Uuid) -> Result<StateChange, DatabaseError> {
    let from = ["creating", "active", "unavailable", "held", "deleting"];
    set_state(database, repository_id, &from, RepositoryState::Detached, None).await
}

/// Takes back a registration that never came to be: the row and its cursors go. One in another state stays.
pub async fn forget_creating(database: &Database, repository_id: Uuid) -> Result<(), DatabaseError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let creating = "SELECT repository_id FROM repositories WHERE repository_id = $1 AND state = 'creating'";
    let refs = format!("DELETE FROM repository_refs WHERE repository_id IN ({creating} FOR UPDATE)");
    transaction.execute(&refs, &[&repository_id]).await?;
    let row = format!("DELETE FROM repositories WHERE repository_id IN ({creating})");
    transaction.execute(&row, &[&repository_id]).await?;
    transaction.commit().await
}

/// A repository that is followed becomes active, unavailable or held, with the reason in words.
pub async fn set_followed_state(
    database: &Database,
    repository_id: Uuid,
    state: RepositoryState,
    reason: Option<&str>,
) -> Result<StateChange, DatabaseError> {
    set_state(database, repository_id, &["active", "unavailable", "held"], state, reason).await
}

/// What is wrong with it is said by its alerts, which open and end with its state.
async fn set_state(
    database: &Database,
    repository_id: Uuid,
    from: &[&str],
    to: RepositoryState,
    reason: Option<&str>,
) -> Result<StateChange, DatabaseError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let changed = transaction
        .query_opt(
            "UPDATE repositories SET state = $3, state_reason = $4, updated_at = now()
             WHERE repository_id = $1 AND state = ANY ($2) AND (state, state_reason) IS DISTINCT FROM ($3, $4) RETURNING name",
            &[&repository_id, &from, &to.as_str(), &reason],
        )
        .await?;
    let Some(row) = changed else { return Ok(StateChange::Unchanged) };
    let (name, subject): (&str, String) = (row.try_get(0)?, repository_id.to_string());
    let details = format!("{name}: {}", reason.unwrap_or("no reason was noted"));
    let (unavailable, held) = (AlertKind::RepositoryUnavailable, AlertKind::RepositoryHeld);
    match to {
        RepositoryState::Unavailable => {
            alerts::resolve(&transaction, &[held], &subject).await?;
            alerts::open(&transaction, unavailable, &subject, name, &details).await?;
        }
        RepositoryState::Held => {
            alerts::resolve(&transaction, &[unavailable], &subject).await?;
            alerts::open(&transaction, held, &subject, name, &details).await?;
        }
        RepositoryState::Active => drop(alerts::resolve(&transaction, &[unavailable, held], &subject).await?),
        _ => drop(alerts::resolve(&transaction, &alerts::KINDS.map(|(kind, _)| kind), &subject).await?),
    }
    transaction.commit().await?;
    Ok(StateChange::Changed)
}

/// All repositories of a storage that is in doubt become unavailable, and one alert says so for all of them. Those that are
/// held stay so. May be repeated.
pub async fn mark_storage_unavailable(
    database: &Database,
    storage_id: Uuid,
    reason: &str,
) -> Result<AlertChange, DatabaseError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    transaction
        .execute(
            "UPDATE repositories SET state = 'unavailable', state_reason = $2, updated_at = now()
             WHERE storage_id = $1 AND origin = 'hosted' AND state IN ('active', 'unavailable') AND (state, state_reason) IS DISTINCT FROM ('unavailable', $2)",
            &[&storage_id, &reason],
        )
        .await?;
    let change = alerts::open(&transaction, AlertKind::StorageUnavailable, &storage_id.to_string(), "", reason).await?;
    transaction.commit().await?;
    Ok(change)
}

/// The storage is there again: ends its alert. Its repositories become active one by one, as each is found in order.
pub async fn mark_storage_available(database: &Database, storage_id: Uuid) -> Result<AlertChange, DatabaseError> {
    let session = database.session().await?;
    alerts::resolve(&session, &[AlertKind::StorageUnavailable], &storage_id.to_string()).await
}

/// The storage of this node that lay at this root when it was last served and still has repositories.
pub async fn storage_at(database: &Database, node: &str, root: &[u8]) -> Result<Option<Uuid>, DatabaseError> {
    let session = database.session().await?;
    let row = session
        .query_opt(
            "SELECT s.storage_id FROM storages AS s WHERE s.node = $1 AND s.root = $2
                AND EXISTS (SELECT FROM repositories AS r WHERE r.storage_id = s.storage_id AND r.origin = 'hosted' AND r.state NOT IN ('deleted', 'detached'))
              ORDER BY s.updated_at DESC LIMIT 1",
            &[&node, &root],
        )
        .await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// Whether this storage was ever served by any node.
pub async fn knows_storage(database: &Database, storage_id: Uuid) -> Result<bool, DatabaseError> {
    let session = database.session().await?;
    let row = session.query_opt("SELECT FROM storages WHERE storage_id = $1", &[&storage_id]).await?;
    Ok(row.is_some())
}

/// The repository that has this name now.
pub async fn find_by_name(database: &Database, name: &str) -> Result<Option<Repository>, DatabaseError> {
    let session = database.session().await?;
    let sql = format!("SELECT {COLUMNS} FROM repositories WHERE name = $1 AND state NOT IN ('deleted', 'detached')");
    session.query_opt(&sql, &[&name]).await?.as_ref().map(from_row).transpose()
}

/// The repository with this id, in whatever state.
pub async fn find_by_id(database: &Database, repository_id: Uuid) -> Result<Option<Repository>, DatabaseError> {
    let session = database.session().await?;
    let sql = format!("SELECT {COLUMNS} FROM repositories WHERE repository_id = $1");
    session.query_opt(&sql, &[&repository_id]).await?.as_ref().map(from_row).transpose()
}

/// All repositories that are not gone, by name.
pub async fn list(database: &Database) -> Result<Vec<Repository>, DatabaseError> {
    let session = database.session().await?;
    let sql = format!("SELECT {COLUMNS} FROM repositories WHERE state NOT IN ('deleted', 'detached') ORDER BY name");
    session.query(&sql, &[]).await?.iter().map(from_row).collect()
}

/// The repositories of a storage that are not gone, by name.
pub async fn list_of_storage(database: &Database, storage_id: Uuid) -> Result<Vec<Repository>, DatabaseError> {
    let session = database.session().await?;
    let sql = format!(
        "SELECT {COLUMNS} FROM repositories WHERE storage_id = $1 AND state NOT IN ('deleted', 'detached') ORDER BY name"
    );
    session.query(&sql, &[&storage_id]).await?.iter().map(from_row).collect()
}

fn from_row(row: &Row) -> Result<Repository, DatabaseError> {
    let state: &str = row.try_get("state")?;
    let origin: &str = row.try_get("origin")?;
    Ok(Repository {
        repository_id: row.try_get("repository_id")?,
        name: row.try_get("name")?,
        storage_id: row.try_get("storage_id")?,
        path: row.try_get("path")?,
        origin: if origin == "imported" { Origin::Imported } else { Origin::Hosted },
        state: RepositoryState::parse(state)
            .ok_or_else(|| DatabaseError::Unsuitable(format!("unknown state of a repository: {state}")))?,
        state_reason: row.try_get("state_reason")?,
        object_format: row.try_get("object_format")?,
        last_sequence: row.try_get("last_sequence")?,
        sequence_epoch: row.try_get("sequence_epoch")?,
        last_commit_sha: row.try_get("last_commit_sha")?,
        last_pushed_at: row.try_get("last_pushed_at")?,
        created_at: row.try_get("created_at")?,
        updated_at: row.try_get("updated_at")?,
    })
}
