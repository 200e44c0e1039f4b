//! Repositories that live elsewhere: registered and let go again, on disk and in the database together. What is interrupted
//! can be repeated; what is refused leaves nothing behind.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use surehook_outbox::store::{Database, DatabaseError};
use uuid::Uuid;

use crate::capture::announce::{AnnounceError, Announcer, Baseline, Hints};
use crate::capture::folder::HIGH_WATER_FILE;
use crate::git::backend::ObjectFormat;
use crate::git::command::{Git, GitSettings};
use crate::git::imported::{Hook, ImportedError, ImportedRepository, Ringer};
use crate::git::name::{NameError, RepoName};
use crate::hosting::Storage;
use crate::owner::Owner;
use crate::payload::facts::Limits;
use crate::store::repositories::{self, Inserted, NewRepository, Origin, Repository, RepositoryState};

/// Why a repository was not imported, or not let go.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// What is on disk cannot be followed.
    #[error(transparent)]
    Disk(#[from] ImportedError),
    /// Its file name is no name for a repository.
    #[error("{name:?} is no name for a repository: {reason}")]
    Name {
        /// What was tried as its name.
        name: String,
        /// Why it is none.
        reason: NameError,
    },
    /// Another repository has that name.
    #[error("there is a repository {0} already")]
    NameTaken(String),
    /// It is followed already.
    #[error("{path} is imported already, as {name}")]
    Already {
        /// Where it lies.
        path: PathBuf,
        /// Its name.
        name: String,
    },
    /// It carries the id of another one: it is a copy, or was moved.
    #[error("{path} carries the id of {name}, which lies at {elsewhere}")]
    Copy {
        /// Where it lies.
        path: PathBuf,
        /// The repository that has the id.
        name: String,
        /// Where that one lies.
        elsewhere: String,
    },
    /// It carries an id that this database does not know.
    #[error("{path} carries the id {id} of another surehook, which may be following it")]
    Foreign {
        /// Where it lies.
        path: PathBuf,
        /// The id.
        id: Uuid,
    },
    /// An import or a detachment of it was interrupted.
    #[error("{name} is half imported or half detached")]
    HalfDone {
        /// Its name.
        name: String,
    },
    /// It lies in the storage of the hosted ones.
    #[error("{0} lies among the repositories that surehook hosts itself")]
    Hosted(PathBuf),
    /// It was not imported.
    #[error("{0} was not imported; surehook hosts it itself")]
    NotImported(String),
    /// It is followed by another machine, or from another data directory.
    #[error("{0} is not followed from this data directory")]
    Elsewhere(String),
    /// This program cannot say where it is.
    #[error("the path of this program cannot be found out")]
    Program(#[source] std::io::Error),
    /// The refs could not be read or told.
    #[error("the refs could not be taken over")]
    Refs(#[from] AnnounceError),
    /// The database failed.
    #[error("the database failed")]
    Database(#[from] DatabaseError),
}

/// What an import did.
#[derive(Clone, Debug)]
pub struct Imported {
    /// Its id from now on.
    pub repository_id: Uuid,
    /// Its name.
    pub name: String,
    /// Where it lies, without links.
    pub path: PathBuf,
    /// Whose it is.
    pub owner: Owner,
    /// The refs that it had.
    pub refs: u64,
    /// How many events tell of them.
    pub events: usize,
    /// What became of the hook.
    pub hook: Hook,
}

/// Imports into one storage and detaches from it.
#[derive(Debug)]
pub struct Importer<'a> {
    /// The storage whose `serve` follows what is imported.
    pub storage: &'a Storage,
    /// The database.
    pub database: &'a Database,
}

impl Importer<'_> {
    /// Registers the bare repository at `path`, under its file name if no name is given. With [`Baseline::Told`] its present
    /// refs are told as created. Err: nothing has changed, unless the error says that it is half done.
    pub async fn import(&self, path: &Path, name: Option<&str>, baseline: Baseline) -> Result<Imported, ImportError> {
        let git = Git::new(GitSettings::default());
        let found = ImportedRepository::inspect(&git, path).await?;
        let name = name_of(&found.path, name)?;
        let ringer = self.ringer()?;
        let id = match self.registered(&found, &name).await? {
            Some(begun) => begun,
            None => self.register(&found, &name).await?,
        };
        match self.take_over(&found, id, &ringer, baseline).await {
            Ok((refs, events, hook)) => Ok(Imported {
                repository_id: id,
                name: name.as_str().to_owned(),
                path: found.path,
                owner: found.owner,
                refs,
                events,
                hook,
            }),
            Err(error) => {
                let released = found.release(&[HIGH_WATER_FILE]).await;
                let forgotten = repositories::forget_creating(self.database, id).await;
                match (released, forgotten) {
                    (Ok(()), Ok(())) => {}
                    (disk, database) => {
                        tracing::warn!(repository = %name, ?disk, ?database, "a failed import could not be undone whole");
                    }
                }
                Err(error)
            }
        }
    }

    /// Lets an imported repository go: everything that was changed in it is undone, and its history stays. May be repeated.
    pub async fn detach(&self, repository: &Repository) -> Result<(), ImportError> {
        let name = || repository.name.clone();
        if repository.origin != Origin::Imported {
            return Err(ImportError::NotImported(name()));
        }
        if repository.storage_id != self.storage.storage_id {
            return Err(ImportError::Elsewhere(name()));
        }
        let id = repository.repository_id;
        let path = repository.git_dir(&self.storage.root);
        let git = Git::new(GitSettings::default());
        // Whatever lies there now under another id is not ours to change; if nothing does, there is nothing to undo.
        let carried = match git.config_value(&path, crate::git::hosted::ID_KEY).await {
            Ok(carried) => carried.and_then(|carried| Uuid::parse_str(&carried).ok()),
            Err(_) if !path.join("config").exists() => None,
            Err(error) => return Err(ImportedError::from(error).into()),
        };
        let format = if repository.object_format == "sha256" { ObjectFormat::Sha256 } else { ObjectFormat::Sha1 };
        let ours = match carried {
            Some(carried) if carried == id => Some(ImportedRepository::known(&git, path, format)?),
            _ => None,
        };
        // From here on nothing is announced, so that no mark is written after it was removed.
        repositories::mark_deleting(self.database, id).await?;
        if let Some(ours) = ours {
            ours.release(&[HIGH_WATER_FILE]).await?;
        }
        repositories::mark_detached(self.database, id).await?;
        Ok(())
    }

    fn ringer(&self) -> Result<Ringer, ImportError> {
        let program = std::env::current_exe().map_err(ImportError::Program)?;
        let socket = crate::doorbell::socket_path(&self.storage.root, self.storage.storage_id);
        Ok(Ringer { program, socket })
    }

    /// The id under which an interrupted import of the same began; an error if it is registered, or must not be.
    async fn registered(&self, found: &ImportedRepository, name: &RepoName) -> Result<Option<Uuid>, ImportError> {
        let path = || found.path.clone();
        if found.path.starts_with(&self.storage.root) {
            return Err(ImportError::Hosted(path()));
        }
        let here = repositories::list_of_storage(self.database, self.storage.storage_id).await?;
        if let Some(row) = here.into_iter().find(|row| row.path == found.path.as_os_str().as_bytes()) {
            return match row.state {
                RepositoryState::Creating if row.name == name.as_str() => Ok(Some(row.repository_id)),
                RepositoryState::Creating | RepositoryState::Deleting => Err(ImportError::HalfDone { name: row.name }),
                _ => Err(ImportError::Already { path: path(), name: row.name }),
            };
        }
        let Some(id) = found.id else { return Ok(None) };
        match repositories::find_by_id(self.database, id).await? {
            None => Err(ImportError::Foreign { path: path(), id }),
            Some(row) if matches!(row.state, RepositoryState::Detached | RepositoryState::Deleted) => Ok(None),
            Some(row) if row.path == found.path.as_os_str().as_bytes() => {
                Err(ImportError::Already { path: path(), name: row.name })
            }
            Some(row) => Err(ImportError::Copy {
                path: path(),
                name: row.name.clone(),
                elsewhere: String::from_utf8_lossy(&row.path).into_owned(),
            }),
        }
    }

    async fn register(&self, found: &ImportedRepository, name: &RepoName) -> Result<Uuid, ImportError> {
        let id = Uuid::new_v4();
        let new = NewRepository {
            repository_id: id,
            name: name.as_str(),
            storage_id: self.storage.storage_id,
            path: found.path.as_os_str().as_bytes(),
            origin: Origin::Imported,
            object_format: found.object_format.as_str(),
        };
        match repositories::insert_creating(self.database, &new).await? {
            Inserted::Created => Ok(id),
            Inserted::NameTaken => Err(ImportError::NameTaken(name.as_str().to_owned())),
            Inserted::PathTaken => Err(ImportError::HalfDone { name: name.as_str().to_owned() }),
        }
    }

    /// Logs are switched on before the refs are read: what moves in between has its line.
    async fn take_over(
        &self,
        found: &ImportedRepository,
        id: Uuid,
        ringer: &Ringer,
        baseline: Baseline,
    ) -> Result<(u64, usize, Hook), ImportError> {
        found.adopt(id).await?;
        let nobody = std::sync::Arc::new(|| ());
        let announcer = Announcer::new(self.database.clone(), &self.storage.root, nobody, Limits::default());
        let refs = announcer.baseline(id, baseline).await?;
        let hook = found.install_hook(id, ringer).await?;
        repositories::mark_active(self.database, id).await?;
        let events = match baseline {
            Baseline::Silent => 0,
            // Its `serve` would do the same within a minute; who asked for it wants to see it.
            Baseline::Told => announcer.announce(id, Hints::default()).await.map_or_else(
                |error| {
                    tracing::warn!(%error, "the refs are told by the next scan");
                    0
                },
                |announced| announced.events,
            ),
        };
        Ok((refs, events, hook))
    }
}

fn name_of(path: &Path, given: Option<&str>) -> Result<RepoName, ImportError> {
    let name = match given {
        Some(given) => given.to_owned(),
        None => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
    };
    RepoName::parse(&name).map_err(|reason| ImportError::Name { name, reason })
}
