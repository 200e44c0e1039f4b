//! What a repository needs: counts what lies in it, and compares with the thresholds. Only reads. Blocking.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::config::file::UpkeepConfig;

/// Its modification time says when the repository was last gone through as a whole.
pub const STAMP_FILE: &str = "surehook-upkeep";
/// Object ids are spread evenly: one of 256 folders tells for all.
const SAMPLE_FOLDER: &str = "objects/17";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A piece of upkeep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Old, told lines of the logs go.
    TrimLogs,
    /// Loose refs become one file.
    PackRefs,
    /// Small packs and loose objects become fewer, larger packs.
    Repack,
    /// Everything becomes one pack; what nothing reaches any more is set apart, and goes when it is old.
    RepackAll,
}

impl Task {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::TrimLogs, Self::PackRefs, Self::Repack, Self::RepackAll];

    /// Its name in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TrimLogs => "trim_logs",
            Self::PackRefs => "pack_refs",
            Self::Repack => "repack",
            Self::RepackAll => "repack_all",
        }
    }
}

/// What lies in a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// Loose refs.
    pub loose_refs: usize,
    /// Packs.
    pub packs: usize,
    /// Loose objects, estimated from a sample.
    pub loose_objects: usize,
    /// How long ago it was gone through as a whole; `None`: never.
    pub whole_ago: Option<Duration>,
    /// Whether objects came since, or some wait to become old enough to go.
    pub changed_since: bool,
}

/// Counts. A repository that was never gone through counts as having been so now: the first time is after the interval.
pub(super) fn count(git_dir: &Path) -> io::Result<Counts> {
    let stamp = git_dir.join(STAMP_FILE);
    let whole_at = match fs::metadata(&stamp) {
        Ok(found) => Some(found.modified()?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            set_stamp(git_dir)?;
            None
        }
        Err(error) => return Err(error),
    };
    let mut packs = 0;
    let mut has_cruft = false;
    for entry in read_dir(&git_dir.join("objects/pack"))? {
        let name = entry?.file_name();
        let end = Path::new(&name).extension();
        packs += usize::from(end.is_some_and(|end| end == "pack"));
        has_cruft |= end.is_some_and(|end| end == "mtimes");
    }
    let newest = newest_change(&git_dir.join("objects"))?;
    Ok(Counts {
        loose_refs: count_files(&git_dir.join("refs"))?,
        packs,
        loose_objects: read_dir(&git_dir.join(SAMPLE_FOLDER))?.count() * 256,
        whole_ago: whole_at.and_then(|at| at.elapsed().ok()),
        changed_since: has_cruft || whole_at.is_none_or(|at| newest.is_some_and(|newest| newest > at)),
    })
}

/// Says that the repository was gone through as a whole now.
pub(super) fn set_stamp(git_dir: &Path) -> io::Result<()> {
    fs::write(git_dir.join(STAMP_FILE), "")
}

/// Pure: what is to be done, in this order.
pub(super) fn plan(counts: &Counts, config: &UpkeepConfig) -> Vec<Task> {
    let whole_every = DAY * u32::from(config.whole_every_days);
    let whole = counts.changed_since && counts.whole_ago.is_some_and(|ago| ago >= whole_every);
    let many = counts.packs > config.packs_max || counts.loose_objects > config.loose_objects_max;
    let mut tasks = Vec::new();
    if whole {
        tasks.push(Task::TrimLogs);
    }
    if counts.loose_refs > config.loose_refs_max {
        tasks.push(Task::PackRefs);
    }
    if whole {
        tasks.push(Task::RepackAll);
    } else if many {
        tasks.push(Task::Repack);
    }
    tasks
}

/// When something was last put into or taken out of the folders of objects.
fn newest_change(objects: &Path) -> io::Result<Option<SystemTime>> {
    let mut newest = None;
    for entry in read_dir(objects)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && entry.file_name() != "info" {
            newest = newest.max(Some(entry.metadata()?.modified()?));
        }
    }
    Ok(newest)
}

fn count_files(folder: &Path) -> io::Result<usize> {
    let mut count = 0;
    for entry in read_dir(folder)? {
        let entry = entry?;
        count += if entry.file_type()?.is_dir() { count_files(&entry.path())? } else { 1 };
    }
    Ok(count)
}

/// What is in a folder; nothing if it is not there.
fn read_dir(folder: &Path) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
    match fs::read_dir(folder) {
        Ok(entries) => Ok(Some(entries).into_iter().flatten()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None.into_iter().flatten()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds() {
        let config = UpkeepConfig::default();
        let tidy =
            Counts { loose_refs: 1000, packs: 50, loose_objects: 6700, whole_ago: Some(DAY), changed_since: true };
        assert_eq!(plan(&tidy, &config), []);
        assert_eq!(plan(&Counts { loose_refs: 1001, ..tidy }, &config), [Task::PackRefs]);
        assert_eq!(plan(&Counts { packs: 51, ..tidy }, &config), [Task::Repack]);
        assert_eq!(plan(&Counts { loose_objects: 6701, ..tidy }, &config), [Task::Repack]);
        let due = Counts { whole_ago: Some(DAY * 7), packs: 51, ..tidy };
        assert_eq!(plan(&due, &config), [Task::TrimLogs, Task::RepackAll]);
        assert_eq!(plan(&Counts { changed_since: false, packs: 1, ..due }, &config), []);
    }

    #[test]
    fn what_lies_there_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for name in ["refs/heads/team", "objects/pack", "objects/17"] {
            fs::create_dir_all(path.join(name)).unwrap();
        }
        for name in
            ["refs/heads/team/a", "refs/heads/b", "objects/pack/pack-1.pack", "objects/pack/pack-1.idx", "objects/17/x"]
        {
            fs::write(path.join(name), "").unwrap();
        }
        let counts = count(path).unwrap();
        assert_eq!((counts.loose_refs, counts.packs, counts.loose_objects, counts.whole_ago), (2, 1, 256, None));
        fs::File::open(path.join(STAMP_FILE)).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let counts = count(path).unwrap();
        assert!(counts.whole_ago.is_some_and(|ago| ago > DAY * 7) && counts.changed_since);
    }
}
