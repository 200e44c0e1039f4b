//! Hosted repositories on disk: made under a temporary name and then moved into place, moved away and then removed.
//!
//! Between the two steps stands the caller's row in the database; [`HostedRepositories::leftovers`] shows at the next
//! start which halves were left, so that they can be finished. It touches only what is below the storage root.

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use uuid::Uuid;

use super::backend::ObjectFormat;
use super::command::{Git, GitError};
use super::lock::LOCK_FILE;
use super::name::RepoName;

/// The config key that carries a repository's id.
pub const ID_KEY: &str = "surehook.repositoryId";

// No name of a repository begins with a dot, so these can be nobody's group.
const NEW_FOLDER: &str = ".new";
const GONE_FOLDER: &str = ".gone";

/// The repositories below one storage root.
#[derive(Clone, Debug)]
pub struct HostedRepositories {
    root: PathBuf,
    git: Git,
}

/// Why a repository could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum HostedError {
    /// Something lies at its place already.
    #[error("there is already something at {0:?}")]
    Occupied(PathBuf),
    /// What lies there is another repository, or none.
    #[error("{path:?} does not carry the id {expected}")]
    Foreign {
        /// The place.
        path: PathBuf,
        /// The id that should be there.
        expected: Uuid,
    },
    /// git failed.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The file system failed.
    #[error("{action} {path:?}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// A repository that is complete and on disk for good, but not yet at its place.
#[derive(Debug)]
#[must_use = "it becomes a repository only by publish"]
pub struct NewRepository {
    id: Uuid,
    path: PathBuf,
}

/// A repository that was moved away, but is not yet removed.
#[derive(Debug)]
#[must_use = "it is removed only by erase"]
pub struct GoneRepository {
    id: Uuid,
    path: PathBuf,
}

/// The halves that an interrupted process left.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Made but not published; possibly incomplete: publish those whose row exists, discard the others.
    pub new: Vec<NewRepository>,
    /// Moved away but not erased.
    pub gone: Vec<GoneRepository>,
}

impl NewRepository {
    /// The id that it carries.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.id
    }
}

impl GoneRepository {
    /// The id that it carried.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.id
    }
}

impl HostedRepositories {
    /// The repositories below `root`, which must exist.
    #[must_use]
    pub fn new(root: PathBuf, git: Git) -> Self {
        Self { root, git }
    }

    /// Where the repository of this name lies, or would lie.
    #[must_use]
    pub fn path(&self, name: &RepoName) -> PathBuf {
        name.path_below(&self.root)
    }

    /// First step of a creation: an empty repository with this id, fsynced, under a temporary name.
    ///
    /// # Errors
    /// Nothing is left but possibly a leftover; may be repeated.
    pub async fn create(&self, id: Uuid, object_format: ObjectFormat) -> Result<NewRepository, HostedError> {
        let folder = self.root.join(NEW_FOLDER);
        let path = folder.join(format!("{id}.git"));
        blocking({
            let path = path.clone();
            move || {
                make_folders(&folder)?;
                remove_all(&path)
            }
        })
        .await?;
        self.git.init_bare(&path, object_format.as_str()).await?;
        blocking({
            let path = path.clone();
            move || {
                write_settings(&path, id)?;
                sync_all(&path)
            }
        })
        .await?;
        Ok(NewRepository { id, path })
    }

    /// Second step of a creation: moves it to the place of `name`, for good. Repeating it after success is fine.
    ///
    /// # Errors
    /// `Occupied` if something else lies there; the new repository stays where it was.
    pub async fn publish(&self, new: &NewRepository, name: &RepoName) -> Result<PathBuf, HostedError> {
        let target = self.path(name);
        if !new.path.exists() && self.read_id(&target).await.ok().flatten() == Some(new.id) {
            return Ok(target);
        }
        let (from, to) = (new.path.clone(), target.clone());
        blocking(move || {
            make_folders(parent(&to))?;
            move_to(&from, &to)
        })
        .await?;
        Ok(target)
    }

    /// Takes a creation back before [`Self::publish`].
    ///
    /// # Errors
    /// The file system fails; may be repeated.
    pub async fn discard(&self, new: NewRepository) -> Result<(), HostedError> {
        blocking(move || remove_all(&new.path)).await
    }

    /// First step of a deletion: moves the repository away, so that no request finds it any more.
    ///
    /// # Errors
    /// `Foreign` if what lies there does not carry this id. Nothing is touched then.
    pub async fn withdraw(&self, name: &RepoName, id: Uuid) -> Result<GoneRepository, HostedError> {
        let (source, folder) = (self.path(name), self.root.join(GONE_FOLDER));
        let path = folder.join(format!("{id}.git"));
        if !source.exists() && path.exists() {
            return Ok(GoneRepository { id, path });
        }
        if self.read_id(&source).await.ok().flatten() != Some(id) {
            return Err(HostedError::Foreign { path: source, expected: id });
        }
        let to = path.clone();
        blocking(move || {
            make_folders(&folder)?;
            move_to(&source, &to)
        })
        .await?;
        Ok(GoneRepository { id, path })
    }

    /// Second step of a deletion. Empty groups stay: a creation beside it may be about to use them.
    ///
    /// # Errors
    /// The file system fails; may be repeated.
    pub async fn erase(&self, gone: &GoneRepository) -> Result<(), HostedError> {
        let path = gone.path.clone();
        blocking(move || remove_all(&path)).await
    }

    /// What interrupted creations and deletions left. To be called when nothing else works below this root.
    ///
    /// # Errors
    /// The storage root cannot be read.
    pub async fn leftovers(&self) -> Result<Leftovers, HostedError> {
        let (new, gone) = (self.root.join(NEW_FOLDER), self.root.join(GONE_FOLDER));
        blocking(move || {
            Ok(Leftovers {
                new: list(&new)?.into_iter().map(|(id, path)| NewRepository { id, path }).collect(),
                gone: list(&gone)?.into_iter().map(|(id, path)| GoneRepository { id, path }).collect(),
            })
        })
        .await
    }

    /// The id that the repository at `path` carries; `None` if it carries none that is one.
    ///
    /// # Errors
    /// There is no repository, or its config cannot be read.
    pub async fn read_id(&self, path: &Path) -> Result<Option<Uuid>, GitError> {
        let value = self.git.config_value(path, ID_KEY).await?;
        Ok(value.and_then(|text| Uuid::parse_str(&text).ok()))
    }
}

/// Reflogs are the memory of what refs were, so they are always written and never expired by git; upkeep is ours,
/// since a detached gc would hold the lock; and what git has acknowledged must survive a power cut.
fn write_settings(repository: &Path, id: Uuid) -> Result<(), HostedError> {
    let settings = format!(
        "[core]\n\tlogAllRefUpdates = always\n\tfsync = all\n\
         [gc]\n\tauto = 0\n\treflogExpire = never\n\treflogExpireUnreachable = never\n\
         [receive]\n\tautogc = false\n\tadvertisePushOptions = true\n\
         [http]\n\treceivepack = true\n\
         [uploadpack]\n\tallowFilter = true\n\
         [surehook]\n\trepositoryId = {id}\n"
    );
    let config = repository.join("config");
    OpenOptions::new()
        .append(true)
        .open(&config)
        .and_then(|mut file| file.write_all(settings.as_bytes()))
        .map_err(failed("writing", &config))?;
    let lock = repository.join(LOCK_FILE);
    File::create(&lock).map(drop).map_err(failed("creating", &lock))
}

/// Makes a folder and those above it, each recorded in its parent for good.
fn make_folders(folder: &Path) -> Result<(), HostedError> {
    if folder.is_dir() {
        return Ok(());
    }
    make_folders(parent(folder))?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed("creating", folder)(error)),
        _ => sync(parent(folder)),
    }
}

fn move_to(from: &Path, to: &Path) -> Result<(), HostedError> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(Errno::EXIST | Errno::NOTEMPTY) => return Err(HostedError::Occupied(to.to_owned())),
        Err(error) => return Err(failed("moving", from)(error.into())),
    }
    sync(parent(to))?;
    sync(parent(from))
}

fn remove_all(path: &Path) -> Result<(), HostedError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(failed("removing", path)),
    }
}

fn sync_all(path: &Path) -> Result<(), HostedError> {
    if path.is_dir() {
        for entry in fs::read_dir(path).map_err(failed("reading", path))? {
            sync_all(&entry.map_err(failed("reading", path))?.path())?;
        }
    }
    sync(path)
}

fn sync(path: &Path) -> Result<(), HostedError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(failed("syncing", path))
}

fn list(folder: &Path) -> Result<Vec<(Uuid, PathBuf)>, HostedError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed("reading", folder))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed("reading", folder))?.path();
        if let Some(id) = path.file_stem().and_then(|stem| Uuid::parse_str(stem.to_str()?).ok()) {
            found.push((id, path));
        }
    }
    Ok(found)
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HostedError {
    let path = path.to_owned();
    move |source| HostedError::Io { action, path, source }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, HostedError> + Send + 'static,
) -> Result<T, HostedError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(failed("working on", Path::new("the storage"))(io::Error::other(error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(folder: &Path) -> HostedRepositories {
        HostedRepositories::new(folder.to_owned(), Git::new(super::super::command::GitSettings::default()))
    }

    #[tokio::test]
    async fn a_life() {
        let folder = tempfile::tempdir().unwrap();
        let (store, id, name) = (store(folder.path()), Uuid::new_v4(), RepoName::parse("group/sub/x").unwrap());
        let new = store.create(id, ObjectFormat::Sha1).await.unwrap();
        assert!(!store.path(&name).exists());
        assert_eq!(store.leftovers().await.unwrap().new[0].id(), id);
        let path = store.publish(&new, &name).await.unwrap();
        assert_eq!(path, folder.path().join("group/sub/x.git"));
        assert_eq!(store.publish(&new, &name).await.unwrap(), path);
        assert_eq!(store.read_id(&path).await.unwrap(), Some(id));
        assert_eq!(store.git.config_value(&path, "core.logAllRefUpdates").await.unwrap().as_deref(), Some("always"));
        assert_eq!(fs::read_to_string(path.join("HEAD")).unwrap(), "ref: refs/heads/main\n");

        let other = store.create(Uuid::new_v4(), ObjectFormat::Sha256).await.unwrap();
        assert!(matches!(store.publish(&other, &name).await, Err(HostedError::Occupied(_))));
        assert!(matches!(store.withdraw(&name, other.id()).await, Err(HostedError::Foreign { .. })));
        store.discard(other).await.unwrap();

        let gone = store.withdraw(&name, id).await.unwrap();
        assert!(!path.exists());
        assert_eq!(store.leftovers().await.unwrap().gone[0].id(), id);
        let again = store.withdraw(&name, id).await.unwrap();
        store.erase(&gone).await.unwrap();
        store.erase(&again).await.unwrap();
        let left = store.leftovers().await.unwrap();
        assert!(left.new.is_empty() && left.gone.is_empty());
    }

    #[tokio::test]
    async fn config_values_come_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let new = store.create(Uuid::new_v4(), ObjectFormat::Sha1).await.unwrap();
        assert_eq!(store.git.config_value(&new.path, "surehook.test").await.unwrap(), None);
        store.git.set_config_value(&new.path, "surehook.test", "-x y").await.unwrap();
        assert_eq!(store.git.config_value(&new.path, "surehook.test").await.unwrap().as_deref(), Some("-x y"));
        store.git.unset_config_value(&new.path, "surehook.test").await.unwrap();
        store.git.unset_config_value(&new.path, "surehook.test").await.unwrap();
        assert_eq!(store.git.config_value(&new.path, "surehook.test").await.unwrap(), None);
    }
}
