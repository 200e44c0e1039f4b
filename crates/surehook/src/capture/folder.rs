//! The repository's folder beside its refs: whose it is, the high-water mark, and making what was read lasting. Blocking.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::refs::{open_file, ref_path};
use super::snapshot::log_path;

/// The file that keeps the newest sequence that was announced, so that a restored database is noticed.
pub const HIGH_WATER_FILE: &str = "surehook-highwater";
/// From so many files on, one sync of the whole file system is cheaper than one for each.
const SYNC_EACH_MAX: usize = 64;

/// The newest number that was given to an event of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HighWater {
    /// The number.
    pub sequence: i64,
    /// The epoch that it belongs to.
    pub epoch: Uuid,
}

/// Opens the repository at `git_dir` if it is the one with this id. Err says in words what is there instead.
///
/// Nothing of the user's or the system's git configuration is read, and no replacement objects are followed.
pub fn open(git_dir: &Path, repository_id: Uuid) -> Result<gix::Repository, String> {
    let shown = git_dir.display();
    match std::fs::metadata(git_dir) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(format!("{shown} is not a folder")),
        Err(error) => return Err(format!("{shown} cannot be reached: {error}")),
    }
    // A pipe in the place of one of these would be waited for without end.
    let is_other = |name: &str| std::fs::metadata(git_dir.join(name)).is_ok_and(|found| !found.is_file());
    if let Some(name) = ["HEAD", "config", "packed-refs", HIGH_WATER_FILE].into_iter().find(|name| is_other(name)) {
        return Err(format!("{shown} holds something that is no file under the name {name}"));
    }
    let repository = gix::open::Options::isolated()
        .with_enforced_trust(gix::sec::Trust::Full)
        .open_path_as_is(true)
        .config_overrides(["core.useReplaceRefs=false"])
        .open(git_dir)
        .map_err(|error| format!("{shown} holds no readable repository: {error}"))?;
    if !git_dir.join("refs").is_dir() {
        return Err(format!("{shown} has no refs folder"));
    }
    let id = repository.config_snapshot().string("surehook.repositoryId").map(|id| id.to_string());
    match id.as_deref().map(Uuid::parse_str) {
        Some(Ok(id)) if id == repository_id => Ok(repository),
        Some(_) => Err(format!(
            "{shown} is another repository: its surehook.repositoryId is {}, not {repository_id}",
            id.unwrap_or_default()
        )),
        None => Err(format!("{shown} has no surehook.repositoryId in its config")),
    }
}

/// The branch that HEAD names, as bytes.
pub fn default_branch(git_dir: &Path) -> Option<Vec<u8>> {
    let head = std::fs::read(git_dir.join("HEAD")).ok()?;
    head.strip_prefix(b"ref:")?.trim_ascii().strip_prefix(b"refs/heads/").map(<[u8]>::to_vec)
}

/// Reads the high-water mark; `None` if there is none that can be read.
pub fn read_high_water(git_dir: &Path) -> Option<HighWater> {
    let text = std::fs::read_to_string(git_dir.join(HIGH_WATER_FILE)).ok()?;
    let (sequence, epoch) = text.trim_end().split_once(' ')?;
    Some(HighWater { sequence: sequence.parse().ok()?, epoch: epoch.parse().ok()? })
}

/// Writes the high-water mark: whole and lasting, or not at all. An older one never replaces a newer one of the same epoch.
pub fn write_high_water(git_dir: &Path, mark: HighWater) -> io::Result<()> {
    if read_high_water(git_dir).is_some_and(|there| there.epoch == mark.epoch && there.sequence >= mark.sequence) {
        return Ok(());
    }
    let mut file = tempfile::Builder::new().prefix(HIGH_WATER_FILE).tempfile_in(git_dir)?;
    writeln!(file, "{} {}", mark.sequence, mark.epoch)?;
    file.as_file().sync_all()?;
    file.persist(git_dir.join(HIGH_WATER_FILE)).map_err(|error| error.error)?;
    File::open(git_dir)?.sync_all()
}

/// Makes lasting what was read of these refs: the logs, the refs, and the folders that name them. After a power cut the refs
/// must not be older than what the database says was announced.
pub fn make_lasting<'a>(git_dir: &Path, names: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
    let mut paths: BTreeSet<PathBuf> = BTreeSet::from([git_dir.to_path_buf(), git_dir.join("packed-refs")]);
    for name in names {
        for path in [ref_path(git_dir, name), log_path(git_dir, name)] {
            let folders = path.ancestors().skip(1).take_while(|folder| *folder != git_dir);
            paths.extend(folders.map(Path::to_path_buf));
            paths.insert(path);
        }
    }
    if paths.len() > SYNC_EACH_MAX {
        return rustix::fs::syncfs(File::open(git_dir)?).map_err(io::Error::from);
    }
    for path in paths {
        match open_file(&path) {
            Ok(file) => file.sync_all()?,
            // In a repository of somebody else's there may be folders that we can pass but not open.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_never_falls_within_an_epoch() {
        let folder = tempfile::tempdir().unwrap();
        let epoch = Uuid::from_u128(1);
        assert_eq!(read_high_water(folder.path()), None);
        for (sequence, epoch, expected) in [(7, epoch, 7), (5, epoch, 7), (2, Uuid::from_u128(2), 2)] {
            write_high_water(folder.path(), HighWater { sequence, epoch }).unwrap();
            assert_eq!(read_high_water(folder.path()), Some(HighWater { sequence: expected, epoch }));
        }
        std::fs::write(folder.path().join(HIGH_WATER_FILE), "garbage").unwrap();
        assert_eq!(read_high_water(folder.path()), None);
    }

    #[test]
    fn what_was_read_can_be_made_lasting_even_if_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("refs/heads")).unwrap();
        let few: Vec<Vec<u8>> = (0..3).map(|n| format!("refs/heads/a/{n}").into_bytes()).collect();
        let many: Vec<Vec<u8>> = (0..100).map(|n| format!("refs/heads/{n}").into_bytes()).collect();
        for names in [few, many] {
            make_lasting(folder.path(), names.iter().map(Vec::as_slice)).unwrap();
        }
    }
}
