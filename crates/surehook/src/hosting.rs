//! The hosted repositories of this machine: made and removed on disk and in the database together, so that whatever
//! interrupts it, the next start finds which half is missing and finishes it.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use surehook_outbox::store::{Database, DatabaseError};
use uuid::Uuid;

use crate::capture::storage::{self, read_or_create_id};
use crate::git::backend::ObjectFormat;
use crate::git::command::{Git, GitSettings};
use crate::git::hosted::{HostedError, HostedRepositories};
use crate::git::lock::{self, Locked};
use crate::git::name::RepoName;
use crate::store::repositories::{self, Inserted, NewRepository, Origin, Repository, RepositoryState};

/// Why a repository could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum HostingError {
    /// The folder of the repositories cannot be used.
    #[error("the folder of the repositories, {path}, cannot be used: {source}")]
    Folder {
        /// Which folder.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It is not the folder that it should be.
    #[error("the folder of the repositories is in doubt: {0}")]
    InDoubt(String),
    /// There is one of that name.
    #[error("there is a repository {0} already")]
    NameTaken(RepoName),
    /// It was not made by surehook.
    #[error("{0} was imported; surehook does not delete what it has not made")]
    Imported(String),
    /// It lies elsewhere.
    #[error("{name} does not lie in {root}")]
    Elsewhere {
        /// The repository.
        name: String,
        /// The storage of this machine.
        root: PathBuf,
    },
    /// The disk or git failed.
    #[error("the repository on disk could not be changed")]
    Disk(#[from] HostedError),
    /// The database failed.
    #[error("the database failed")]
    Database(#[from] DatabaseError),
}

/// The storage below the data directory of this machine.
#[derive(Clone, Debug)]
pub struct Storage {
    /// Its id, also written in the folder.
    pub storage_id: Uuid,
    /// The absolute path.
    pub root: PathBuf,
    hosted: HostedRepositories,
    database: Database,
}

/// How long a creation waits for a start-up that has the storage to itself.
const STARTUP_WAIT_MAX: Duration = Duration::from_secs(30);

/// What start-up finished of what had been interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// Creations.
    pub created: usize,
    /// Deletions.
    pub deleted: usize,
}

impl Storage {
    /// Opens the storage in the data directory, making the folder at the first time, and registers it as this node's.
    ///
    /// Where repositories of this node should lie and the folder is not there, empty or another one, nothing is made or
    /// registered: so an unmounted volume looks. The storage is then the one that should be there, and [`Self::check`]
    /// fails until it is.
    pub async fn open(data: &Path, database: &Database) -> Result<Self, HostingError> {
        let root = data.join("repositories");
        let unusable = |source: std::io::Error| HostingError::Folder { path: root.clone(), source };
        let node = crate::config::node_name();
        let expected_at = root.canonicalize().or_else(|_| {
            let parent = data.canonicalize().or_else(|_| std::path::absolute(data));
            parent.map(|parent| parent.join("repositories"))
        });
        let expected_at = expected_at.map_err(unusable)?;
        let expected = repositories::storage_at(database, &node, expected_at.as_os_str().as_bytes()).await?;
        if let Some(storage_id) = expected
            && storage::check(&expected_at, storage_id).is_err()
        {
            let there = storage::read_id(&expected_at).ok().flatten();
            let is_moved_here = match there {
                Some(id) => repositories::knows_storage(database, id).await?,
                None => false,
            };
            if !is_moved_here {
                return Ok(Self::at(storage_id, expected_at, database));
            }
        }
        std::fs::create_dir_all(&root).map_err(unusable)?;
        let absolute = root.canonicalize().map_err(unusable)?;
        let storage_id = read_or_create_id(&absolute).map_err(unusable)?;
        repositories::register_storage(database, storage_id, &node, absolute.as_os_str().as_bytes()).await?;
        Ok(Self::at(storage_id, absolute, database))
    }

    fn at(storage_id: Uuid, root: PathBuf, database: &Database) -> Self {
        let hosted = HostedRepositories::new(root.clone(), Git::new(GitSettings::default()));
        Self { storage_id, root, hosted, database: database.clone() }
    }

    /// Whether the folder is the storage that it should be. Err says in words what is there instead.
    pub fn check(&self) -> Result<(), String> {
        storage::check(&self.root, self.storage_id)
    }

    /// Makes an empty repository: on disk under a temporary name, then the row, then its place.
    pub async fn create(&self, name: &RepoName, object_format: ObjectFormat) -> Result<Uuid, HostingError> {
        let _working = self.working().await?;
        let id = Uuid::new_v4();
        let made = self.hosted.create(id, object_format).await?;
        let path = name.relative_path();
        let new = NewRepository {
            repository_id: id,
            name: name.as_str(),
            storage_id: self.storage_id,
            path: path.as_os_str().as_bytes(),
            origin: Origin::Hosted,
            object_format: object_format.as_str(),
        };
        match repositories::insert_creating(&self.database, &new).await {
            Ok(Inserted::Created) => {}
            refused => {
                // Should this fail too, start-up discards what no row tells of.
                let _ = self.hosted.discard(made).await;
                return Err(match refused {
                    Err(error) => error.into(),
                    Ok(_) => HostingError::NameTaken(name.clone()),
                });
            }
        }
        if let Err(error) = self.hosted.publish(&made, name).await {
            repositories::mark_deleting(&self.database, id).await?;
            let _ = self.hosted.discard(made).await;
            repositories::mark_deleted(&self.database, id).await?;
            return Err(error.into());
        }
        repositories::mark_active(&self.database, id).await?;
        Ok(id)
    }

    /// Removes a repository: the row first, so that nobody is let in any more; then away from its place; then erased.
    /// May be repeated.
    pub async fn delete(&self, repository: &Repository) -> Result<(), HostingError> {
        if repository.origin == Origin::Imported {
            return Err(HostingError::Imported(repository.name.clone()));
        }
        if self.storage_id != repository.storage_id {
            return Err(HostingError::Elsewhere { name: repository.name.clone(), root: self.root.clone() });
        }
        let _working = self.working().await?;
        self.remove(repository).await
    }

    /// Held while something is half done on purpose, so that a start-up does not take it for left over.
    async fn working(&self) -> Result<Locked, HostingError> {
        self.check().map_err(HostingError::InDoubt)?;
        let failed = |source| HostingError::Folder { path: self.root.clone(), source };
        lock::shared(&self.root, STARTUP_WAIT_MAX).await.map_err(failed)
    }

    async fn remove(&self, repository: &Repository) -> Result<(), HostingError> {
        let id = repository.repository_id;
        repositories::mark_deleting(&self.database, id).await?;
        if let Ok(name) = RepoName::parse(&repository.name) {
            match self.hosted.withdraw(&name, id).await {
                Ok(gone) => self.hosted.erase(&gone).await?,
                // It never got to its place, or is gone already: then there is nothing to remove.
                Err(HostedError::Foreign { path, .. }) if !path.exists() => {}
                Err(error) => return Err(error.into()),
            }
        }
        repositories::mark_deleted(&self.database, id).await?;
        Ok(())
    }

    /// Finishes what an interrupted process left half done, unless a creation or deletion is under way: then what is
    /// half done may be its work, and waits for the next start.
    pub async fn finish_leftovers(&self) -> Result<Finished, HostingError> {
        let mut finished = Finished::default();
        if self.check().is_err() {
            return Ok(finished);
        }
        let failed = |source| HostingError::Folder { path: self.root.clone(), source };
        let Locked::Held(_alone) = lock::exclusive_now(&self.root).map_err(failed)? else { return Ok(finished) };
        let leftovers = self.hosted.leftovers().await?;
        for new in leftovers.new {
            let row = repositories::find_by_id(&self.database, new.id()).await?;
            match row.filter(|row| row.state == RepositoryState::Creating) {
                Some(row) => {
                    if let Ok(name) = RepoName::parse(&row.name) {
                        self.hosted.publish(&new, &name).await?;
                        repositories::mark_active(&self.database, row.repository_id).await?;
                        finished.created += 1;
                    }
                }
                None => self.hosted.discard(new).await?,
            }
        }
        for gone in &leftovers.gone {
            self.hosted.erase(gone).await?;
            repositories::mark_deleted(&self.database, gone.id()).await?;
            finished.deleted += 1;
        }
        for row in repositories::list_of_storage(&self.database, self.storage_id).await? {
            match row.state {
                // What lies elsewhere is not ours to move or remove; whoever began repeats the command.
                _ if row.origin == Origin::Imported => {}
                // The folder is at its place already: only the last word was missing.
                RepositoryState::Creating => {
                    let path = row.git_dir(&self.root);
                    if self.hosted.read_id(&path).await.ok().flatten() == Some(row.repository_id) {
                        repositories::mark_active(&self.database, row.repository_id).await?;
                        finished.created += 1;
                    }
                }
                RepositoryState::Deleting => {
                    self.remove(&row).await?;
                    finished.deleted += 1;
                }
                _ => {}
            }
        }
        Ok(finished)
    }
}
