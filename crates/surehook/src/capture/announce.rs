//! Announces what happened to the refs of a repository: reads the cursor, looks at the disk, and writes events and cursor in
//! one transaction. Idempotent: calling it too often is harmless, and a call that is missed only delays.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use surehook_outbox::store::{Database, DatabaseError};
use uuid::Uuid;

use super::prepare::{Doubt, FactsCache, Question, baseline as read_baseline};
use super::run::{Confirmed, Run, blocking, not_as_owner};
use super::turns::Turns;
use super::unchanged::{self, Unchanged};
use crate::owner::Owner;
use crate::payload::facts::Limits;
use crate::store::alerts::{self, AlertKind};
use crate::store::announce as store;
use crate::store::repositories::{self, Repository, RepositoryState};

/// What the caller knows about the push that made it call.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// Who pushed, as shown to people.
    pub pusher: Option<String>,
    /// The options of the push, as bytes.
    pub push_options: Vec<Vec<u8>>,
    /// The refs that the push asked to delete: that these are gone is no reason to doubt the disk.
    pub deletions: Vec<Vec<u8>>,
    /// The refs that the push asked for; empty: any. With it, pushes that are announced together are told apart.
    pub refs: Vec<Vec<u8>>,
}

/// What an announce did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// How many events were committed.
    pub events: usize,
    /// The number of the newest of them.
    pub last_sequence: Option<i64>,
    /// Refs that changed all the time while they were read; the next announce finds them.
    pub unsettled: usize,
    /// Refs that could not be announced and were set aside.
    pub set_aside: usize,
    /// What could not be read, in words.
    pub unknown: Vec<String>,
}

/// Why an announce did nothing, or not all. What was committed before stays; it may be repeated.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AnnounceError {
    /// There is no such repository.
    #[error("there is no repository with the id {0}")]
    Unknown(Uuid),
    /// The repository is being made, removed, or gone.
    #[error("nothing is announced of a repository in the state {}", .0.as_str())]
    NotFollowed(RepositoryState),
    /// Its folder is in doubt.
    #[error("the repository is unavailable: {0}")]
    Unavailable(String),
    /// A mass disappearance of refs waits for an operator.
    #[error("the repository is held until an operator confirms: {0}")]
    Held(String),
    /// The database is away or refused.
    #[error("the database did not take the announcement")]
    Database(#[source] Arc<DatabaseError>),
    /// The reading of the disk broke off.
    #[error("the reading of the repository broke off: {0}")]
    Broken(String),
}

impl From<DatabaseError> for AnnounceError {
    fn from(error: DatabaseError) -> Self {
        Self::Database(Arc::new(error))
    }
}

impl From<tokio_postgres::Error> for AnnounceError {
    fn from(error: tokio_postgres::Error) -> Self {
        DatabaseError::from(error).into()
    }
}

/// How the present refs of an imported repository count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// As announced: only what comes later is told.
    Silent,
    /// The next announce tells each as created.
    Told,
}

/// Announces the repositories of one storage.
pub struct Announcer {
    pub(super) database: Database,
    storage_root: PathBuf,
    pub(super) limits: Limits,
    pub(super) wake: Arc<dyn Fn() + Send + Sync>,
    turns: Turns<Hints, Result<Announced, AnnounceError>>,
    unchanged: Unchanged,
    /// Per repository what its alerts about single refs say, as far as this process knows.
    ref_alerts: Mutex<HashMap<Uuid, RefAlerts>>,
}

/// What the alerts about single refs of a repository say; `None`: none is open.
#[derive(Clone, Default, PartialEq, Eq)]
struct RefAlerts {
    unreadable: Option<String>,
    set_aside: Option<String>,
}

impl Announcer {
    /// For the storage at `storage_root`. `wake` is called after each commit that brought events.
    pub fn new(
        database: Database,
        storage_root: impl Into<PathBuf>,
        wake: Arc<dyn Fn() + Send + Sync>,
        limits: Limits,
    ) -> Self {
        Self {
            database,
            storage_root: storage_root.into(),
            limits,
            wake,
            turns: Turns::default(),
            unchanged: Unchanged::default(),
            ref_alerts: Mutex::default(),
        }
    }

    /// Announces what happened to the refs of this repository. Ok: everything that was on disk when it was called, and could
    /// be read, is committed. One at a time; calls that come meanwhile share the next.
    pub async fn announce(&self, repository_id: Uuid, hints: Hints) -> Result<Announced, AnnounceError> {
        self.turns.take(repository_id, hints, |hints| self.run(repository_id, hints, Confirmed::No)).await
    }

    /// An operator says that the refs that are gone are meant to be gone: announces it, and the repository is active again.
    pub async fn confirm_held(&self, repository_id: Uuid) -> Result<Announced, AnnounceError> {
        self.turns.take(repository_id, Hints::default(), |hints| self.run(repository_id, hints, Confirmed::Yes)).await
    }

    /// Lets the present refs of a repository count as announced (or as to be told whole), and returns how many there are.
    /// Refs that were announced before keep their place. May be repeated.
    pub async fn baseline(&self, repository_id: Uuid, baseline: Baseline) -> Result<u64, AnnounceError> {
        let repository = self.repository(repository_id).await?;
        let git_dir = repository.git_dir(&self.storage_root);
        let object_format = repository.object_format.clone();
        let folder = git_dir.clone();
        let read = move || {
            let cursors = BTreeMap::new();
            let question = Question {
                git_dir: &git_dir,
                repository_id,
                object_format: &object_format,
                cursors: &cursors,
                aside: &[],
                only: None,
                deletions: &[],
                confirmed: false,
            };
            read_baseline(&question)
        };
        // Only what was imported had refs before we knew of it.
        let mut refs = blocking(move || Owner::read(&folder, read)).await?.map_err(not_as_owner)??;
        if baseline == Baseline::Told {
            for (value, _) in refs.values_mut() {
                *value = value.kind().null();
            }
        }
        let session = self.database.session().await?;
        Ok(store::insert_baseline(&session, repository_id, &refs).await?)
    }

    /// Announces every repository of this storage that is followed, as far as it may have changed since the last time. One
    /// that fails does not keep the others back.
    pub async fn scan(&self, storage_id: Uuid) -> Result<Vec<(Uuid, Result<Announced, AnnounceError>)>, AnnounceError> {
        let mut outcomes = Vec::new();
        for repository in repositories::list_of_storage(&self.database, storage_id).await? {
            if repository.state.is_followed() {
                outcomes.push((repository.repository_id, self.announce_changes(&repository).await));
            }
        }
        Ok(outcomes)
    }

    /// Announces, unless the files look as they did when there was nothing to tell.
    async fn announce_changes(&self, repository: &Repository) -> Result<Announced, AnnounceError> {
        let (id, row) = (repository.repository_id, (repository.last_sequence, repository.sequence_epoch));
        let git_dir = repository.git_dir(&self.storage_root);
        // Taken before the look: what changes during it changes the print.
        let print = blocking(move || unchanged::print(&git_dir)).await?.ok();
        if let Some(print) = &print
            && repository.state == RepositoryState::Active
            && self.unchanged.spares(id, print, row)
        {
            return Ok(Announced::default());
        }
        let outcome = self.announce(id, Hints::default()).await;
        match (&outcome, print) {
            (Ok(announced), Some(print)) if *announced == Announced::default() => {
                self.unchanged.remember(id, print, row);
            }
            _ => self.unchanged.forget(id),
        }
        outcome
    }

    async fn repository(&self, repository_id: Uuid) -> Result<Repository, AnnounceError> {
        let found = repositories::find_by_id(&self.database, repository_id).await?;
        found.ok_or(AnnounceError::Unknown(repository_id))
    }

    async fn run(
        &self,
        repository_id: Uuid,
        hints: Vec<Hints>,
        confirmed: Confirmed,
    ) -> Result<Announced, AnnounceError> {
        let repository = self.repository(repository_id).await?;
        if !repository.state.is_followed() {
            return Err(AnnounceError::NotFollowed(repository.state));
        }
        let git_dir = repository.git_dir(&self.storage_root);
        let name = repository.name.clone();
        let run = Run { announcer: self, repository, git_dir, hints, confirmed, cache: FactsCache::default() };
        let outcome = run.all().await;
        if let Ok(announced) = &outcome {
            self.alert_of_refs(repository_id, &name, announced).await?;
        }
        let (state, reason) = match &outcome {
            Ok(_) => (RepositoryState::Active, None),
            Err(AnnounceError::Unavailable(reason)) => (RepositoryState::Unavailable, Some(reason.as_str())),
            Err(AnnounceError::Held(reason)) => (RepositoryState::Held, Some(reason.as_str())),
            Err(_) => return outcome,
        };
        run.set_state(state, reason).await?;
        outcome
    }
}

impl Announcer {
    /// Opens or ends the alerts about single refs, where that differs from what was written last.
    async fn alert_of_refs(&self, repository_id: Uuid, name: &str, announced: &Announced) -> Result<(), AnnounceError> {
        let unreadable = announced.unknown.first().map(|first| match announced.unknown.len() {
            1 => format!("{name}: {first}"),
            many => format!("{name}: {first}, and {} more", many - 1),
        });
        let set_aside = (announced.set_aside > 0).then(|| {
            format!("{name}: {} refs cannot be recorded; repository_refs.set_aside says why", announced.set_aside)
        });
        let now = RefAlerts { unreadable, set_aside };
        let known = self.ref_alerts.lock().unwrap_or_else(PoisonError::into_inner).get(&repository_id).cloned();
        if known.as_ref() == Some(&now) {
            return Ok(());
        }
        let session = self.database.session().await?;
        let subject = repository_id.to_string();
        for (kind, details) in [(AlertKind::RefsUnreadable, &now.unreadable), (AlertKind::RefsSetAside, &now.set_aside)]
        {
            match details {
                Some(details) => alerts::open(&session, kind, &subject, name, details).await?,
                None => alerts::resolve(&session, &[kind], &subject).await?,
            };
        }
        self.ref_alerts.lock().unwrap_or_else(PoisonError::into_inner).insert(repository_id, now);
        Ok(())
    }
}

impl From<Doubt> for AnnounceError {
    fn from(doubt: Doubt) -> Self {
        match doubt {
            Doubt::Unavailable(reason) => Self::Unavailable(reason),
            Doubt::Held(reason) => Self::Held(reason),
        }
    }
}
