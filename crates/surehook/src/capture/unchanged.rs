//! Remembers how the files of a repository looked when there was nothing to tell, only to decide that nothing has changed
//! since. Blocking; reads no file, only what the file system says about them.
//!
//! Every change leaves a trace in size, inode, modification or change time of a ref, a log, packed-refs or a folder, except
//! one in the very moment of the look before: times are coarse. So what changed in the last seconds before a look is looked
//! at again, and now and then everything is.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Coarser than the times of any usual file system.
const RACY: Duration = Duration::from_secs(2);
/// After so many looks that were spared, everything is looked at anyway.
const SPARED_MAX: u32 = 15;

/// How the files of a repository look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Print {
    digest: [u8; 32],
    /// Nothing changed in the last moments before it was taken.
    settled: bool,
}

/// What the database says of a repository; another value there means another look, too.
pub type Row = (i64, Uuid);

#[derive(Clone, Copy, Debug)]
struct Remembered {
    print: Print,
    row: Row,
    spared: u32,
}

/// The repositories that had nothing to tell.
#[derive(Debug, Default)]
pub struct Unchanged(Mutex<HashMap<Uuid, Remembered>>);

impl Unchanged {
    /// Whether nothing has changed since the last full look, so that this one can be spared.
    pub fn spares(&self, repository_id: Uuid, print: &Print, row: Row) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(&repository_id) {
            Some(known) if known.print == *print && known.row == row && known.spared < SPARED_MAX => {
                known.spared += 1;
                true
            }
            _ => false,
        }
    }

    /// A full look that began after `print` was taken has found nothing to tell.
    pub fn remember(&self, repository_id: Uuid, print: Print, row: Row) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if print.settled {
            all.insert(repository_id, Remembered { print, row, spared: 0 });
        } else {
            all.remove(&repository_id);
        }
    }

    /// Something was found, or could not be read.
    pub fn forget(&self, repository_id: Uuid) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&repository_id);
    }
}

/// Takes the print of a repository. Err: something cannot be looked at; then a full look says what.
pub fn print(git_dir: &Path) -> io::Result<Print> {
    let mut taking = Taking { hasher: Sha256::new(), newest: SystemTime::UNIX_EPOCH };
    taking.add(b".", &fs::metadata(git_dir)?);
    // The identity of the repository stands in its config.
    for name in ["config", "HEAD"] {
        taking.add(name.as_bytes(), &fs::symlink_metadata(git_dir.join(name))?);
    }
    match fs::symlink_metadata(git_dir.join("packed-refs")) {
        Ok(found) => taking.add(b"packed-refs", &found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    taking.folder(&git_dir.join("refs"))?;
    match taking.folder(&git_dir.join("logs")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // A clock that runs behind that of the file system gives no age: then it is not settled.
    let settled = taking.newest.elapsed().is_ok_and(|passed| passed > RACY);
    Ok(Print { digest: taking.hasher.finalize().into(), settled })
}

struct Taking {
    hasher: Sha256,
    newest: SystemTime,
}

impl Taking {
    fn folder(&mut self, folder: &Path) -> io::Result<()> {
        // Before its entries: one that comes while they are read changes the folder's time.
        self.add(b"/", &fs::metadata(folder)?);
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let found = entry.metadata()?;
            self.add(entry.file_name().as_bytes(), &found);
            if found.is_symlink() && entry.path().is_dir() {
                return Err(io::Error::other("a folder elsewhere"));
            }
            if found.is_dir() {
                self.folder(&entry.path())?;
            }
        }
        self.hasher.update([0]);
        Ok(())
    }

    fn add(&mut self, name: &[u8], found: &Metadata) {
        self.hasher.update((name.len() as u64).to_le_bytes());
        self.hasher.update(name);
        let mut bytes = [0; 56];
        let fields = [
            found.dev(),
            found.ino(),
            found.len(),
            found.mtime().cast_unsigned(),
            found.mtime_nsec().cast_unsigned(),
            found.ctime().cast_unsigned(),
            found.ctime_nsec().cast_unsigned(),
        ];
        for (chunk, field) in bytes.chunks_exact_mut(8).zip(fields) {
            chunk.copy_from_slice(&field.to_le_bytes());
        }
        self.hasher.update(bytes);
        for (seconds, nanos) in [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())] {
            let since = Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanos).unwrap_or(0));
            self.newest = self.newest.max(SystemTime::UNIX_EPOCH + since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("refs/heads")).unwrap();
        fs::create_dir_all(folder.path().join("logs/refs/heads")).unwrap();
        for name in ["config", "HEAD", "refs/heads/main", "logs/refs/heads/main"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        folder
    }

    #[test]
    fn every_change_changes_the_print() {
        let folder = repository();
        let path = folder.path();
        let mut last = print(path).unwrap();
        assert!(!last.settled, "written just now");
        assert_eq!(print(path).unwrap(), last);
        let changes: [&dyn Fn() -> io::Result<()>; 6] = [
            &|| fs::write(path.join("logs/refs/heads/main"), "xy"),
            &|| fs::write(path.join("refs/heads/new"), "x"),
            &|| fs::write(path.join("packed-refs"), "x"),
            &|| fs::rename(path.join("refs/heads/new"), path.join("refs/heads/main")),
            &|| fs::remove_file(path.join("logs/refs/heads/main")),
            &|| fs::remove_dir_all(path.join("logs")),
        ];
        for (index, change) in changes.iter().enumerate() {
            change().unwrap();
            let now = print(path).unwrap();
            assert_ne!(now.digest, last.digest, "change {index}");
            last = now;
        }
        fs::remove_dir_all(path.join("refs")).unwrap();
        assert!(print(path).is_err());
    }

    #[test]
    fn only_what_was_settled_is_spared_and_not_for_ever() {
        let (unchanged, id, row) = (Unchanged::default(), Uuid::from_u128(1), (7, Uuid::from_u128(2)));
        let print = Print { digest: [1; 32], settled: true };
        assert!(!unchanged.spares(id, &print, row));
        unchanged.remember(id, Print { settled: false, ..print }, row);
        assert!(!unchanged.spares(id, &print, row));
        unchanged.remember(id, print, row);
        assert!(!unchanged.spares(id, &Print { digest: [2; 32], ..print }, row));
        assert!(!unchanged.spares(id, &print, (8, row.1)), "the database was put back, or another has announced");
        assert!((0..SPARED_MAX).all(|_| unchanged.spares(id, &print, row)));
        assert!(!unchanged.spares(id, &print, row), "now everything is looked at");
        unchanged.remember(id, print, row);
        unchanged.forget(id);
        assert!(!unchanged.spares(id, &print, row));
    }
}
