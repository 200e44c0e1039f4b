//! What the Git server asks: may this token do that, and what became of the push? Joins tokens, repositories and capture.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use secrecy::ExposeSecret;
use surehook_outbox::{Database, DatabaseError};
use uuid::Uuid;

use super::drift::Drift;
use crate::capture::announce::{AnnounceError, Announcer, Hints};
use crate::capture::folder;
use crate::git::backend::{
    Access, Credentials, GitBackend, Granted, ObjectFormat, Origin, PushHints, PushOutcome, Refusal, RepositoryOnDisk,
};
use crate::git::name::RepoName;
use crate::git::stale;
use crate::hosting::Storage;
use crate::owner::{Owner, Standing};
use crate::store::repositories::{self, Repository, RepositoryState};
use crate::store::tokens::{self, Verdict};
use crate::upkeep::GiveWay;

/// The side of the Git server that knows the database.
pub(super) struct Backend {
    database: Database,
    storage_id: Uuid,
    storage_root: PathBuf,
    announcer: Arc<Announcer>,
    give_way: GiveWay,
    drift: Drift,
    /// Announced whole since this process started.
    caught_up: Mutex<HashSet<Uuid>>,
}

impl Backend {
    pub(super) fn new(
        database: Database,
        storage: &Storage,
        announcer: Arc<Announcer>,
        give_way: GiveWay,
        drift: Drift,
    ) -> Self {
        let (storage_id, storage_root) = (storage.storage_id, storage.root.clone());
        Self { database, storage_id, storage_root, announcer, give_way, drift, caught_up: Mutex::default() }
    }

    async fn decide(
        &self,
        name: &RepoName,
        access: Access,
        credentials: Option<Credentials>,
    ) -> Result<Granted, Refusal> {
        let wanted = match access {
            Access::Read => tokens::Access::Read,
            Access::Push => tokens::Access::Push,
        };
        let credentials = credentials.ok_or(Refusal::Unauthenticated)?;
        let token = credentials.password.expose_secret();
        let verdict = tokens::authorize(&self.database, token, name.as_str(), wanted).await.map_err(away)?;
        let pusher = match verdict {
            Verdict::Granted { token_id, note, .. } => note.unwrap_or_else(|| format!("token {token_id}")),
            Verdict::Unknown => return Err(Refusal::Unauthenticated),
            Verdict::Forbidden => return Err(Refusal::Forbidden),
        };
        let found = repositories::find_by_name(&self.database, name.as_str()).await.map_err(away)?;
        let repository = self.on_disk(found.ok_or(Refusal::NotFound)?, name, access)?;
        self.is_itself(&repository).await?;
        Ok(Granted { repository, pusher: Some(pusher) })
    }

    fn on_disk(&self, found: Repository, name: &RepoName, access: Access) -> Result<RepositoryOnDisk, Refusal> {
        if found.storage_id != self.storage_id {
            return Err(Refusal::Unavailable("this repository is served by another machine".into()));
        }
        let why = || found.state_reason.clone().unwrap_or_else(|| "no reason is recorded".into());
        match found.state {
            RepositoryState::Active => {}
            RepositoryState::Held if access == Access::Read => {}
            RepositoryState::Held => {
                return Err(Refusal::Unavailable(format!(
                    "this repository is held until its operator confirms: {}",
                    why()
                )));
            }
            RepositoryState::Unavailable => {
                return Err(Refusal::Unavailable(format!("this repository is unavailable: {}", why())));
            }
            _ => return Err(Refusal::NotFound),
        }
        let origin = match found.origin {
            repositories::Origin::Hosted => Origin::Hosted,
            repositories::Origin::Imported => Origin::Imported,
        };
        let object_format = if found.object_format == "sha256" { ObjectFormat::Sha256 } else { ObjectFormat::Sha1 };
        let path = found.git_dir(&self.storage_root);
        if origin == Origin::Imported {
            let owner = Owner::of(&path).map_err(|error| Refusal::Unavailable(format!("its folder: {error}")))?;
            // git run as another account would leave files that the owner cannot write, and obey a stranger's hooks.
            if owner.standing() != Standing::Same {
                return Err(Refusal::Unavailable(
                    "this repository lives elsewhere and belongs to another account: push and fetch where it lives; its \
                     webhooks come all the same"
                        .into(),
                ));
            }
        }
        Ok(RepositoryOnDisk { id: found.repository_id, name: name.clone(), path, object_format, origin })
    }

    /// A volume that was unmounted or swapped since the last look must not take a push. Announcing records what is wrong.
    async fn is_itself(&self, repository: &RepositoryOnDisk) -> Result<(), Refusal> {
        let (path, id) = (repository.path.clone(), repository.id);
        let opened = tokio::task::spawn_blocking(move || folder::open(&path, id).map(drop)).await;
        let Ok(Err(reason)) = opened else { return Ok(()) };
        let Err(error) = self.announcer.announce(id, Hints::default()).await else { return Ok(()) };
        tracing::debug!(repository = %repository.name, %error, "refused: its folder is in doubt");
        Err(Refusal::Unavailable(format!("this repository is unavailable: {reason}")))
    }

    async fn announce_earlier(&self, granted: &Granted) -> Result<(), Refusal> {
        match self.announcer.announce(granted.repository.id, Hints::default()).await {
            Ok(_) => Ok(()),
            Err(error) => Err(Refusal::Unavailable(format!("earlier changes could not be recorded yet: {error}"))),
        }
    }

    fn caught_up(&self) -> std::sync::MutexGuard<'_, HashSet<Uuid>> {
        self.caught_up.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GitBackend for Backend {
    fn authorize<'a>(
        &'a self,
        name: &'a RepoName,
        access: Access,
        credentials: Option<Credentials>,
    ) -> BoxFuture<'a, Result<Granted, Refusal>> {
        Box::pin(self.decide(name, access, credentials))
    }

    fn prepare_push<'a>(&'a self, granted: &'a Granted) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move {
            let id = granted.repository.id;
            if granted.repository.origin == Origin::Hosted {
                self.give_way.ask(id);
                remove_leftovers(granted).await;
            }
            if self.caught_up().contains(&id) {
                return Ok(());
            }
            self.announce_earlier(granted).await?;
            self.caught_up().insert(id);
            Ok(())
        })
    }

    fn prepare_deletion<'a>(&'a self, granted: &'a Granted) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move { self.announce_earlier(granted).await })
    }

    fn pushed<'a>(&'a self, granted: &'a Granted, hints: PushHints) -> BoxFuture<'a, PushOutcome> {
        Box::pin(async move {
            let repository_id = granted.repository.id;
            let repository = granted.repository.name.as_str();
            let PushHints { pusher, push_options, deletions, remote: _ } = hints;
            let hints = Hints { pusher, push_options, deletions, refs: Vec::new() };
            let announcing = self.drift.announcing(repository_id);
            match self.announcer.announce(repository_id, hints).await {
                Ok(announced) => {
                    announcing.done();
                    PushOutcome::Announced(announced.events)
                }
                Err(error) => {
                    // The next push waits until this one is recorded.
                    self.caught_up().remove(&repository_id);
                    let told = words(&error).to_owned();
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(repository, %repository_id, error, "the push is on disk, its events follow");
                    PushOutcome::Later(told)
                }
            }
        })
    }
}

/// Locks that a killed git left would refuse the push. Where they cannot be removed, git says so itself.
async fn remove_leftovers(granted: &Granted) {
    let (repository, path) = (&granted.repository.name, &granted.repository.path);
    match stale::clean(path).await {
        Ok(cleaned) if !cleaned.kept.is_empty() => {
            tracing::debug!(%repository, kept = ?cleaned.kept, "locks or quarantines stay: they may belong to somebody");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%repository, %error, "what killed gits left could not be removed"),
    }
}

/// What the person at the client is told; the details stand in the log.
fn words(error: &AnnounceError) -> &'static str {
    match error {
        AnnounceError::Held(_) => "many refs vanished at once, and they are held until the operator confirms",
        AnnounceError::Unavailable(_) => "the storage is in doubt",
        AnnounceError::Database(_) => "the database is away or did not take them",
        _ => "they could not be recorded yet",
    }
}

fn away(error: DatabaseError) -> Refusal {
    tracing::warn!(error = &error as &dyn std::error::Error, "nobody can be let in: the database does not answer");
    Refusal::Unavailable("surehook's database is away; nothing was pushed, try again in a moment".into())
}
