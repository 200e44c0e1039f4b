//! Finds `*.lock` files that a killed git may have left in repositories of this machine. Only reads; `doctor` names them.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// A lock younger than this may belong to a git that is just working.
const AGE: Duration = Duration::from_secs(60);
/// Directory entries that are looked at in one repository.
const ENTRIES_MAX: usize = 100_000;

/// The lock files of refs in the repository at `git_dir` that are older than a minute. What cannot be read is passed over.
pub(super) fn stale_locks(git_dir: &Path) -> Vec<PathBuf> {
    let mut stale: Vec<PathBuf> = ["HEAD.lock", "packed-refs.lock", "config.lock"]
        .iter()
        .map(|name| git_dir.join(name))
        .filter(|path| is_old(path))
        .collect();
    let mut folders = vec![git_dir.join("refs")];
    let mut entries_left = ENTRIES_MAX;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            entries_left = entries_left.saturating_sub(1);
            if entries_left == 0 {
                return stale;
            }
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(path),
                Ok(kind) if kind.is_file() && path.extension().is_some_and(|end| end == "lock") && is_old(&path) => {
                    stale.push(path);
                }
                _ => {}
            }
        }
    }
    stale.sort();
    stale
}

fn is_old(path: &Path) -> bool {
    // A file system whose clock runs ahead gives no age: then it is young.
    std::fs::symlink_metadata(path)
        .and_then(|found| found.modified())
        .is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > AGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_locks_of_refs_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let heads = folder.path().join("refs/heads/team");
        std::fs::create_dir_all(&heads).unwrap();
        let old = std::fs::File::create(heads.join("main.lock")).unwrap();
        std::fs::File::create(heads.join("young.lock")).unwrap();
        std::fs::File::create(heads.join("main")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        let packed = std::fs::File::create(folder.path().join("packed-refs.lock")).unwrap();
        for file in [old, packed] {
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
        }
        let found = stale_locks(folder.path());
        assert_eq!(found, [folder.path().join("packed-refs.lock"), heads.join("main.lock")]);
        assert!(stale_locks(&folder.path().join("none")).is_empty());
    }
}
