//! Takes old, told lines off the beginning of a reflog. The rule is pure; the rest writes one log at a time, under the lock
//! that git takes for that ref. Blocking.
//!
//! What makes this safe is what it leaves: the line at which the cursor stands, so that its place is found again; and a
//! first line that is no creation, so that the log cannot be taken for that of a second life.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::reflog::{Log, Place, is_all_told};
use super::refs::ref_path;
use super::snapshot::log_path;

/// A log that was written to just now is left for another time: lines of the same second can be equal.
const QUIET: Duration = Duration::from_secs(60);
/// The new log before it takes the place of the old one. One at a time, so one name.
const NEW_LOG: &str = "surehook-log";

/// Which lines of a log may go.
#[derive(Clone, Copy, Debug)]
pub enum Told {
    /// All before the one that ends here, if that is the last.
    Before(Place),
    /// All but the last: nothing is announced of this ref itself, as of HEAD.
    All,
}

/// What became of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trimmed {
    /// So many bytes are gone.
    Bytes(u64),
    /// There was nothing old, or not all of it is told.
    Nothing,
    /// Somebody is about to write it, or has just done so.
    Busy,
}

/// Where what must be kept of a log begins; 0: all of it.
pub fn keep_from(log: &[u8], told: Told, older_than_s: i64, kind: gix::hash::Kind) -> io::Result<u64> {
    if let Told::Before(place) = told
        && (place.line_hash.is_none() || !is_all_told(log, log.len() as u64, &place, kind)?)
    {
        return Ok(0);
    }
    let lines = Log::read(log, None, kind)?.lines;
    let is_old = |line: &super::reflog::Line| line.update.as_ref().is_some_and(|update| update.seconds < older_than_s);
    let may_be_first = |line: &super::reflog::Line| line.update.as_ref().is_some_and(|update| !update.old.is_null());
    let old = lines.iter().take_while(|line| is_old(line)).count();
    let first = (1..lines.len()).take_while(|first| *first <= old).filter(|first| may_be_first(&lines[*first])).last();
    Ok(first.map_or(0, |first| lines[first - 1].place.offset))
}

/// Trims the log of one ref. Err: it is as it was.
pub fn trim(git_dir: &Path, name: &[u8], told: Told, older_than_s: i64, kind: gix::hash::Kind) -> io::Result<Trimmed> {
    let path = log_path(git_dir, name);
    if keep_from(&read(&path)?, told, older_than_s, kind)? == 0 {
        return Ok(Trimmed::Nothing);
    }
    let Some(_lock) = RefLock::take(git_dir, name)? else { return Ok(Trimmed::Busy) };
    let metadata = fs::metadata(&path)?;
    if !metadata.modified()?.elapsed().is_ok_and(|passed| passed > QUIET) {
        return Ok(Trimmed::Busy);
    }
    let log = read(&path)?;
    let from = keep_from(&log, told, older_than_s, kind)?;
    let (Ok(keep), true) = (usize::try_from(from), from > 0) else { return Ok(Trimmed::Nothing) };
    let new = git_dir.join(NEW_LOG);
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(&new)?;
    file.write_all(&log[keep..])?;
    file.set_permissions(fs::Permissions::from_mode(metadata.permissions().mode()))?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    File::open(path.parent().unwrap_or(git_dir))?.sync_all()?;
    Ok(Trimmed::Bytes(from))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(Vec::new())
        }
        other => other,
    }
}

/// The lock that git takes before it writes a ref and its log.
struct RefLock(PathBuf);

impl RefLock {
    fn take(git_dir: &Path, name: &[u8]) -> io::Result<Option<Self>> {
        let mut path = ref_path(git_dir, name).into_os_string();
        path.push(".lock");
        let path = PathBuf::from(path);
        // Of a packed ref not even the folder need be there.
        fs::create_dir_all(path.parent().unwrap_or(git_dir))?;
        match OpenOptions::new().create_new(true).write(true).open(&path) {
            Ok(_) => Ok(Some(Self(path))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for RefLock {
    fn drop(&mut self) {
        // Should it stay, it is removed like that of a killed git.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: gix::hash::Kind = gix::hash::Kind::Sha1;

    fn log(entries: &[(char, char, u32)]) -> Vec<u8> {
        let line = |(old, new, seconds): &(char, char, u32)| {
            let id = |digit: &char| digit.to_string().repeat(40);
            format!("{} {} n <e@x> {seconds} +0000\tpush\n", id(old), id(new)).into_bytes()
        };
        entries.iter().flat_map(line).collect()
    }

    fn lines_left(bytes: &[u8], told: Told, older_than_s: i64) -> usize {
        let from = usize::try_from(keep_from(bytes, told, older_than_s, KIND).unwrap()).unwrap();
        bytes[from..].split_inclusive(|byte| *byte == b'\n').count()
    }

    #[test]
    fn only_old_told_lines_before_the_last_go() {
        let bytes = log(&[('0', 'a', 1), ('a', 'b', 2), ('b', 'c', 3), ('c', 'd', 9)]);
        let places: Vec<Place> =
            Log::read(bytes.as_slice(), None, KIND).unwrap().lines.iter().map(|line| line.place).collect();
        let told = Told::Before(places[3]);
        assert_eq!(lines_left(&bytes, told, 1), 4);
        assert_eq!(lines_left(&bytes, told, 3), 2);
        assert_eq!(lines_left(&bytes, told, 100), 1);
        assert_eq!(lines_left(&bytes, Told::Before(places[2]), 100), 4, "something is not told yet");
        assert_eq!(lines_left(&bytes, Told::Before(Place::START), 100), 4);
        assert_eq!(lines_left(&bytes, Told::All, 100), 1);
        let recreated = log(&[('0', 'a', 1), ('a', 'b', 2), ('0', 'c', 3)]);
        assert_eq!(lines_left(&recreated, Told::All, 100), 2, "no creation may come first");
        let garbage = [b"garbage\n".to_vec(), bytes].concat();
        assert_eq!(lines_left(&garbage, Told::All, 100), 5, "what cannot be read stays");
    }

    #[test]
    fn a_log_is_rewritten_under_the_lock_of_its_ref() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logs/refs/heads/main");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let bytes = log(&[('0', 'a', 1), ('a', 'b', 2), ('b', 'c', 3)]);
        fs::write(&path, &bytes).unwrap();
        let trim = || trim(folder.path(), b"refs/heads/main", Told::All, 100, KIND).unwrap();
        assert_eq!(trim(), Trimmed::Busy, "written just now");
        File::open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        let lock = folder.path().join("refs/heads/main.lock");
        File::create(&lock).unwrap();
        assert_eq!(trim(), Trimmed::Busy, "locked");
        fs::remove_file(&lock).unwrap();
        let gone = bytes.len() as u64 / 3 * 2;
        assert_eq!(trim(), Trimmed::Bytes(gone));
        assert_eq!(fs::read(&path).unwrap(), bytes[bytes.len() / 3 * 2..]);
        assert_eq!(trim(), Trimmed::Nothing);
        assert!(!lock.exists());
    }
}
