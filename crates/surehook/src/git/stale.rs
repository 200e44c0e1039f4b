//! What a killed git leaves in a repository: locks that block a ref for ever, and quarantine folders. Finds them, and
//! removes those that belong to nobody. It touches nothing else.
//!
//! Only in repositories that surehook made, and only under the exclusive lock: then no git of ours is left there. A git of
//! somebody else does not know that lock, so processes are looked for too. A lock that is found before the look and is
//! still the same afterwards belonged to a process that was gone at the look, and nobody can have taken it since.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::lock::{self, Locked};
use super::presence::{self, Presence};

/// Where nobody can say whether somebody is there: a git holds the lock of a ref for moments only.
const LOCK_AGE: Duration = Duration::from_secs(60);
/// The same for a quarantine, in which a slow upload may pause.
const QUARANTINE_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the exclusive lock is tried for where something is there to remove.
const LOCK_WAIT_MAX: Duration = Duration::from_millis(500);
const RETRY_EVERY: Duration = Duration::from_millis(20);
/// Directory entries of refs that are looked at in one repository.
const ENTRIES_MAX: usize = 1_000_000;
/// Folders in which a git keeps the objects of a push until it is accepted; the second name is that of git before 2.35.
const QUARANTINES: [&str; 2] = ["tmp_objdir-incoming-", "incoming-"];

/// What became of what was left.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Removed.
    pub removed: Vec<PathBuf>,
    /// Still there, since it may belong to somebody.
    pub kept: Vec<PathBuf>,
}

/// Something that a git made and should have removed.
#[derive(Debug)]
struct Leftover {
    path: PathBuf,
    found: Metadata,
    age_min: Duration,
}

/// Removes what killed gits left in this repository, which surehook made. Logged.
///
/// # Errors
/// The repository cannot be read or locked; nothing was removed.
pub async fn clean(repository: &Path) -> io::Result<Cleaned> {
    let path = repository.to_path_buf();
    let found = blocking(move || find(&path)).await?;
    if found.is_empty() {
        return Ok(Cleaned::default());
    }
    let give_up = Instant::now() + LOCK_WAIT_MAX;
    loop {
        match lock::exclusive_now(repository)? {
            Locked::Held(alone) => {
                let path = repository.to_path_buf();
                return blocking(move || clean_alone(&path, &alone)).await;
            }
            // A push is under way here: the lock may be its own.
            Locked::Busy if Instant::now() >= give_up => {
                let kept = found.into_iter().map(|leftover| leftover.path).collect();
                return Ok(Cleaned { removed: Vec::new(), kept });
            }
            Locked::Busy => tokio::time::sleep(RETRY_EVERY).await,
        }
    }
}

/// The same for a caller that holds the exclusive lock already. Blocking.
///
/// # Errors
/// As [`clean`].
pub fn clean_alone(repository: &Path, _alone: &OwnedFd) -> io::Result<Cleaned> {
    remove_nobodys(repository, find(repository)?)
}

/// The caller holds the exclusive lock.
fn remove_nobodys(repository: &Path, found: Vec<Leftover>) -> io::Result<Cleaned> {
    let mut cleaned = Cleaned::default();
    if found.is_empty() {
        return Ok(cleaned);
    }
    let presence = presence::look(repository);
    for leftover in found {
        let is_nobodys = match presence {
            Presence::Nobody => true,
            Presence::Unknown | Presence::Somebody => is_older(&leftover.path, leftover.age_min),
            Presence::Git => false,
        };
        if is_nobodys && is_same(&leftover) && remove(&leftover)? {
            tracing::info!(path = %leftover.path.display(), "removed what a killed git had left");
            cleaned.removed.push(leftover.path);
        } else {
            cleaned.kept.push(leftover.path);
        }
    }
    Ok(cleaned)
}

/// Removes half-written packs and objects that killed gits left, and the marks that keep the pack of a killed push from
/// being repacked. For upkeep, which looks at the folders of objects anyway. Blocking.
///
/// # Errors
/// As [`clean`].
pub fn clean_temporary(repository: &Path, _alone: &OwnedFd) -> io::Result<Cleaned> {
    let objects = repository.join("objects");
    let mut found = Vec::new();
    for folder in entries(&objects)?.into_iter().filter(|entry| entry.file_name().len() == 2).map(|entry| entry.path())
    {
        found.extend(entries(&folder)?.into_iter().filter(|entry| is_named(entry, &["tmp_obj_"])));
    }
    let is_mark = |entry: &fs::DirEntry| {
        entry.path().extension().is_some_and(|end| end == "keep")
            && fs::read(entry.path()).is_ok_and(|text| text.starts_with(b"receive-pack "))
    };
    let packs = entries(&objects.join("pack"))?;
    found.extend(packs.into_iter().filter(|entry| is_named(entry, &["tmp_", ".tmp-"]) || is_mark(entry)));
    let left = found.into_iter().map(|entry| entry.path()).filter_map(|path| {
        let found = fs::symlink_metadata(&path).ok()?;
        Some(Leftover { path, found, age_min: QUARANTINE_AGE })
    });
    remove_nobodys(repository, left.collect())
}

/// The locks of refs, of packed-refs and of HEAD. What vanishes meanwhile is passed over.
///
/// # Errors
/// A folder cannot be read.
pub fn ref_locks(repository: &Path) -> io::Result<Vec<PathBuf>> {
    let mut locks: Vec<PathBuf> = ["HEAD.lock", "packed-refs.lock", "packed-refs.new"]
        .iter()
        .map(|name| repository.join(name))
        .filter(|path| path.is_file())
        .collect();
    let mut folders = vec![repository.join("refs")];
    let mut entries_left = ENTRIES_MAX;
    while let Some(folder) = folders.pop() {
        for entry in entries(&folder)? {
            entries_left = entries_left.saturating_sub(1);
            if entries_left == 0 {
                return Ok(locks);
            }
            let kind = entry.file_type()?;
            let path = entry.path();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|end| end == "lock") {
                locks.push(path);
            }
        }
    }
    locks.sort();
    Ok(locks)
}

/// Whether nothing at this path, or below it, has changed for so long.
pub fn is_older(path: &Path, age: Duration) -> bool {
    // A file system whose clock runs ahead gives no age: then it is young.
    let old = |path: &Path| {
        fs::symlink_metadata(path)
            .and_then(|found| found.modified())
            .is_ok_and(|modified| modified.elapsed().is_ok_and(|passed| passed > age))
    };
    old(path) && (!path.is_dir() || entries(path).is_ok_and(|all| all.iter().all(|entry| is_older(&entry.path(), age))))
}

fn find(repository: &Path) -> io::Result<Vec<Leftover>> {
    let locks = ref_locks(repository)?.into_iter().map(|path| (path, LOCK_AGE));
    let objects = entries(&repository.join("objects"))?;
    let quarantines =
        objects.into_iter().filter(|entry| is_named(entry, &QUARANTINES)).map(|entry| (entry.path(), QUARANTINE_AGE));
    let leftover = |(path, age_min): (PathBuf, Duration)| {
        let found = fs::symlink_metadata(&path).ok()?;
        Some(Leftover { path, found, age_min })
    };
    Ok(locks.chain(quarantines).filter_map(leftover).collect())
}

fn is_named(entry: &fs::DirEntry, prefixes: &[&str]) -> bool {
    entry.file_name().to_str().is_some_and(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
}

fn is_same(leftover: &Leftover) -> bool {
    let identity = |found: &Metadata| (found.dev(), found.ino(), found.ctime(), found.ctime_nsec());
    fs::symlink_metadata(&leftover.path).is_ok_and(|now| identity(&now) == identity(&leftover.found))
}

fn remove(leftover: &Leftover) -> io::Result<bool> {
    let removed =
        if leftover.found.is_dir() { fs::remove_dir_all(&leftover.path) } else { fs::remove_file(&leftover.path) };
    match removed {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// What is in a folder; nothing if the folder has just gone, as empty ones below refs/ do.
fn entries(folder: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in ["refs/heads/team", "objects/tmp_objdir-incoming-abc/pack", "objects/incoming-xyz", "objects/pack"]
        {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        for name in [
            "refs/heads/team/main.lock",
            "refs/heads/main",
            "packed-refs.lock",
            "packed-refs.new",
            "HEAD.lock",
            "config.lock",
        ] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        folder
    }

    fn held(repository: &Path) -> OwnedFd {
        match lock::exclusive_now(repository).unwrap() {
            Locked::Held(alone) => alone,
            Locked::Busy => panic!("nobody else is here"),
        }
    }

    #[test]
    fn old_leftovers_go_and_nothing_else() {
        let folder = repository();
        let path = folder.path();
        assert_eq!(find(path).unwrap().len(), 6);
        // As another account than root it may be unknown who is there: then only what is old goes.
        for leftover in find(path).unwrap() {
            fs::File::open(leftover.path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        }
        fs::File::open(path.join("objects/tmp_objdir-incoming-abc/pack"))
            .unwrap()
            .set_modified(std::time::UNIX_EPOCH)
            .unwrap();
        let alone = held(path);
        assert_eq!(clean_alone(path, &alone).unwrap().removed.len(), 6);
        assert!(path.join("refs/heads/main").exists() && path.join("config.lock").exists());
        assert!(find(path).unwrap().is_empty());
    }

    #[tokio::test]
    async fn nothing_goes_while_a_push_is_under_way() {
        let folder = repository();
        let push = lock::shared(folder.path(), Duration::ZERO).await.unwrap();
        let cleaned = clean(folder.path()).await.unwrap();
        assert!(cleaned.removed.is_empty() && cleaned.kept.len() == 6);
        drop(push);
        assert!(clean(&folder.path().join("none")).await.unwrap() == Cleaned::default());
    }
}
