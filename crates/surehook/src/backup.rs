//! Copies the repositories of a storage while git works in them, and back. Touches these folders alone.
//!
//! A copy of a repository in use must not have a ref whose objects it lacks. Git writes objects first and refs last, so the
//! copy goes the other way: loose refs, then packed ones (a ref that is just being packed is in one of them), then the logs,
//! then everything else. What comes in meanwhile is more than the refs need. Upkeep, which removes things, is kept out by the
//! lock of the repository.

use std::fs::{self, DirEntry, File};
use std::io::{self, ErrorKind, Seek as _, SeekFrom};
use std::path::Path;
use std::time::Duration;

use crate::git::lock::{self, LOCK_FILE, Locked};

/// In this order, before everything else.
const FIRST: [&str; 3] = ["refs", "packed-refs", "logs"];
/// How long upkeep of a repository is waited for.
const UPKEEP_WAIT_MAX: Duration = Duration::from_secs(600);

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Copied {
    /// Repositories.
    pub repositories: u64,
    /// Their files, and what lies beside them.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// Copies a storage in use to the new folder `to`. Err: the copy is worth nothing.
pub async fn copy_storage(from: &Path, to: &Path) -> io::Result<Copied> {
    let mut copied = Copied::default();
    let mut folders = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = folders.pop() {
        fs::create_dir_all(&to)?;
        for entry in entries(&from)? {
            let (path, target) = (entry.path(), to.join(entry.file_name()));
            if !entry.file_type()?.is_dir() {
                copied.file(&path, &target)?;
            } else if path.join("HEAD").exists() && path.join("objects").is_dir() {
                copied.repository(path, target).await?;
            } else if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                // Folders with a dot hold what is being made or removed.
                folders.push((path, target));
            }
        }
    }
    rustix::fs::syncfs(File::open(to)?)?;
    Ok(copied)
}

impl Copied {
    async fn repository(&mut self, from: std::path::PathBuf, to: std::path::PathBuf) -> io::Result<()> {
        let Locked::Held(lock) = lock::shared(&from, UPKEEP_WAIT_MAX).await? else {
            return Err(io::Error::new(
                ErrorKind::ResourceBusy,
                format!("the upkeep of {} does not end", from.display()),
            ));
        };
        let mut copied = *self;
        *self = tokio::task::spawn_blocking(move || {
            let _lock = lock;
            fs::create_dir_all(&to)?;
            for name in FIRST {
                copied.any(&from.join(name), &to.join(name))?;
            }
            for entry in entries(&from)? {
                let name = entry.file_name();
                if !FIRST.iter().any(|first| name == *first) && name != LOCK_FILE {
                    copied.any(&entry.path(), &to.join(name))?;
                }
            }
            end_lines(&to.join("logs"))?;
            copied.repositories += 1;
            io::Result::Ok(copied)
        })
        .await
        .map_err(io::Error::other)??;
        Ok(())
    }

    /// A file, or a folder with all that is in it; nothing if it is not there.
    fn any(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        match fs::symlink_metadata(from) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return self.file(from, to),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        fs::create_dir_all(to)?;
        for entry in entries(from)? {
            self.any(&entry.path(), &to.join(entry.file_name()))?;
        }
        Ok(())
    }

    fn file(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        // A lock belongs to a git that works there now. In the copy it would block its ref for ever.
        if from.extension().is_some_and(|extension| extension == "lock") {
            return Ok(());
        }
        let bytes = match fs::symlink_metadata(from) {
            Ok(metadata) if metadata.is_symlink() => {
                fs::read_link(from).and_then(|target| std::os::unix::fs::symlink(target, to)).map(|()| 0)
            }
            Ok(_) => fs::copy(from, to),
            Err(error) => Err(error),
        };
        match bytes {
            Ok(bytes) => {
                self.files += 1;
                self.bytes += bytes;
                Ok(())
            }
            // Removed or renamed since it was listed: a temporary file, or a ref that is in the packed ones now.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.collect(),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Cuts off a last line of a log that was copied while it was written: git would go on in the middle of it.
fn end_lines(log: &Path) -> io::Result<()> {
    if log.is_dir() {
        return entries(log)?.iter().try_for_each(|entry| end_lines(&entry.path()));
    }
    let Ok(bytes) = fs::read(log) else { return Ok(()) };
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    if whole < bytes.len() {
        let mut file = File::options().write(true).open(log)?;
        file.set_len(whole as u64)?;
        file.seek(SeekFrom::End(0))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_copy_has_whole_lines_no_locks_and_nothing_half_made() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let repository = from.join("group/app.git");
        for name in ["objects/ab", "refs/heads", "logs/refs/heads"] {
            fs::create_dir_all(repository.join(name)).unwrap();
        }
        fs::create_dir_all(from.join(".new/half.git")).unwrap();
        for (name, text) in [
            ("HEAD", "ref: refs/heads/main\n"),
            ("objects/ab/cd", "object"),
            ("refs/heads/main", "abcd\n"),
            ("refs/heads/main.lock", ""),
            ("logs/refs/heads/main", "a line\nhalf a li"),
            ("surehook.lock", ""),
        ] {
            fs::write(repository.join(name), text).unwrap();
        }
        fs::write(from.join("storage-id"), "id\n").unwrap();
        let copied = copy_storage(&from, &to).await.unwrap();
        assert_eq!((copied.repositories, copied.files), (1, 5));
        let copy = to.join("group/app.git");
        assert_eq!(fs::read_to_string(copy.join("logs/refs/heads/main")).unwrap(), "a line\n");
        assert_eq!(fs::read_to_string(copy.join("refs/heads/main")).unwrap(), "abcd\n");
        assert!(!copy.join("refs/heads/main.lock").exists() && !to.join(".new").exists());
    }
}
