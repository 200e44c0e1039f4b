//! Finds `*.lock` files that a killed git may have left in repositories of this machine. Only reads; `doctor` names them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::git::stale;

/// A lock younger than this may belong to a git that is just working.
const AGE: Duration = Duration::from_secs(60);

/// The lock files in the repository at `git_dir` that block its refs or config and are older than a minute. What cannot be
/// read is passed over.
pub(super) fn stale_locks(git_dir: &Path) -> Vec<PathBuf> {
    let mut locks = stale::ref_locks(git_dir).unwrap_or_default();
    locks.push(git_dir.join("config.lock"));
    locks.retain(|path| stale::is_older(path, AGE));
    locks
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
