//! Reads refs and their logs so that both belong to the same moment, and derives what is to be told. Blocking; writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::reflog::{self, Log, Place};
use super::refs::{self, RefState, Refs};
use super::transitions::{
    Cursor, Derived, Disappearance, Evidence, Transition, derive, derive_symbolic, judge_disappearance,
};

/// How often a ref that is pushed to while it is read is read again.
const ROUNDS_MAX: usize = 8;

/// What the disk says, compared with the cursors.
#[derive(Debug, Default)]
pub struct Found {
    /// Per ref what is to be told.
    pub chains: BTreeMap<Vec<u8>, Vec<Transition>>,
    /// Refs of which nothing is to be told, but whose line stands elsewhere in a rewritten log.
    pub moved: BTreeMap<Vec<u8>, Place>,
    /// What could not be read, in words; nothing is told of these.
    pub unknown: Vec<String>,
    /// Refs that changed all the time while they were read, or of which two reads disagreed: to be looked at again.
    pub unsettled: usize,
    /// Why the refs as a whole cannot be read, if so; then nothing is told.
    pub unreadable: Option<String>,
    /// Whether so many refs are gone that an operator must confirm it.
    pub disappearance: Option<Disappearance>,
}

/// Where the log of a ref lies.
pub fn log_path(git_dir: &Path, name: &[u8]) -> PathBuf {
    git_dir.join("logs").join(OsStr::from_bytes(name))
}

/// Reads the repository and derives what is to be told of each ref. `deletions` names refs that may be gone: a push asked for
/// it. The caller checks, before and after, that this is the repository that it takes it for.
pub fn look(
    git_dir: &Path,
    kind: gix::hash::Kind,
    cursors: &BTreeMap<Vec<u8>, Cursor>,
    deletions: &[Vec<u8>],
) -> Found {
    let mut found = Found::default();
    let all = Refs::read(git_dir, kind);
    if let Some(reason) = all.doubt_of_all() {
        found.unreadable = Some(reason.to_owned());
        return found;
    }
    found.unknown.extend(all.doubts().map(str::to_owned));
    let mut candidates: Vec<&[u8]> = Vec::new();
    for name in all.names().chain(cursors.keys().map(Vec::as_slice).filter(|name| !all.contains(name))) {
        let cursor = cursors.get(name);
        match all.state(name) {
            RefState::Unknown(reason) => found.unknown.push(reason),
            RefState::Symbolic if cursor.is_none() => {}
            state => {
                let cursor = cursor.copied().unwrap_or_else(|| Cursor::new(kind));
                if !is_quiet(git_dir, name, &cursor, &state) {
                    candidates.push(name);
                }
            }
        }
    }
    for (name, settled) in settle(git_dir, kind, &candidates, cursors, &mut found) {
        let cursor = cursors.get(name).copied().unwrap_or_else(|| Cursor::new(kind));
        let derived = match settled.state {
            RefState::Value(value) => derive(&cursor, value, &settled.log),
            RefState::Absent => derive(&cursor, kind.null(), &settled.log),
            RefState::Symbolic => derive_symbolic(&cursor, &settled.log),
            RefState::Unknown(reason) => {
                found.unknown.push(reason);
                continue;
            }
        };
        keep(&mut found, name, derived);
    }
    confirm(git_dir, kind, &mut found);
    let is_known = |name: &Vec<u8>| cursors.get(name).is_some_and(|cursor| !cursor.value.is_null());
    let known = cursors.keys().filter(|name| is_known(name)).count();
    let ends_gone = |chain: &Vec<Transition>| chain.last().is_some_and(|step| step.after.is_null());
    let asked: BTreeSet<&Vec<u8>> = deletions.iter().collect();
    let vanished = |name: &Vec<u8>| is_known(name) && !asked.contains(name);
    let gone = found.chains.iter().filter(|(name, chain)| ends_gone(chain) && vanished(name)).count();
    found.disappearance = Some(judge_disappearance(known, gone)).filter(|judged| *judged != Disappearance::Ordinary);
    found.unknown.sort();
    found.unknown.dedup();
    found
}

/// The present refs and where the cursor of each stands if they count as announced. Symbolic refs are left out.
pub fn baseline(git_dir: &Path, kind: gix::hash::Kind) -> Result<BTreeMap<Vec<u8>, (gix::ObjectId, Place)>, String> {
    let all = Refs::read(git_dir, kind);
    let mut found = Found::default();
    let names: Vec<&[u8]> = all.names().collect();
    let none = BTreeMap::new();
    let mut baseline = BTreeMap::new();
    for (name, settled) in settle(git_dir, kind, &names, &none, &mut found) {
        match settled.state {
            RefState::Value(value) => {
                let place = super::transitions::baseline_place(value, &settled.log);
                baseline.insert(name.to_vec(), (value, place));
            }
            RefState::Unknown(reason) => return Err(reason),
            RefState::Absent | RefState::Symbolic => {}
        }
    }
    if let Some(reason) = all.doubts().next().map(str::to_owned).or(found.unknown.pop()) {
        return Err(reason);
    }
    match found.unsettled {
        0 => Ok(baseline),
        count => Err(format!("{count} refs change all the time; try again when nobody pushes")),
    }
}

/// Whether neither the value nor the log of a ref has changed since it was told.
fn is_quiet(git_dir: &Path, name: &[u8], cursor: &Cursor, state: &RefState) -> bool {
    let same_value = match state {
        RefState::Value(value) => *value == cursor.value,
        RefState::Absent | RefState::Symbolic => cursor.value.is_null(),
        RefState::Unknown(_) => true,
    };
    let Some(place) = cursor.place.filter(|_| same_value) else { return false };
    match open_log(git_dir, name) {
        Ok(None) => place == Place::START,
        Ok(Some((file, stamp))) => {
            reflog::is_all_told(&file, stamp.bytes, &place, cursor.value.kind()).is_ok_and(|told| told)
        }
        Err(_) => false,
    }
}

struct Settled {
    state: RefState,
    log: Log,
}

/// What tells one state of a log file from another.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
}

/// Reads log, ref, and the state of the log again, until the log did not change around the reading of the ref: only then do
/// the two belong together. (A push back to an older value that has its line but not yet its rename would look finished.)
fn settle<'a>(
    git_dir: &Path,
    kind: gix::hash::Kind,
    names: &[&'a [u8]],
    cursors: &BTreeMap<Vec<u8>, Cursor>,
    found: &mut Found,
) -> BTreeMap<&'a [u8], Settled> {
    let mut settled = BTreeMap::new();
    let mut open: Vec<&[u8]> = names.to_vec();
    for _ in 0..ROUNDS_MAX {
        if open.is_empty() {
            break;
        }
        let mut packed_only: Vec<(&[u8], Log, Option<Stamp>)> = Vec::new();
        let mut again: Vec<&[u8]> = Vec::new();
        for name in open {
            let place = cursors.get(name).map_or(Some(Place::START), |cursor| cursor.place);
            let (log, stamp) = match read_log(git_dir, kind, name, place) {
                Ok(read) => read,
                Err(error) => {
                    found.unknown.push(format!("{}: {error}", log_path(git_dir, name).display()));
                    continue;
                }
            };
            match refs::read_loose(git_dir, kind, name) {
                RefState::Absent => packed_only.push((name, log, stamp)),
                state if log_stamp(git_dir, name) == Ok(stamp) => {
                    settled.insert(name, Settled { state, log });
                }
                _ => again.push(name),
            }
        }
        let states = refs::read_some(git_dir, kind, packed_only.iter().map(|(name, _, _)| *name));
        for (name, log, stamp) in packed_only {
            if log_stamp(git_dir, name) == Ok(stamp) {
                let state = states.get(name).cloned().unwrap_or(RefState::Absent);
                settled.insert(name, Settled { state, log });
            } else {
                again.push(name);
            }
        }
        open = again;
    }
    found.unsettled += open.len();
    settled
}

fn keep(found: &mut Found, name: &[u8], derived: Derived) {
    if !derived.transitions.is_empty() {
        found.chains.insert(name.to_vec(), derived.transitions);
    } else if let Some(place) = derived.moved {
        found.moved.insert(name.to_vec(), place);
    }
}

/// Reads once more the refs with a step that no log explains, and drops those that now say something else.
fn confirm(git_dir: &Path, kind: gix::hash::Kind, found: &mut Found) {
    let doubtful: Vec<Vec<u8>> = found
        .chains
        .iter()
        .filter(|(_, chain)| chain.iter().any(|step| step.evidence == Evidence::Unexplained))
        .map(|(name, _)| name.clone())
        .collect();
    let states = refs::read_some(git_dir, kind, doubtful.iter().map(Vec::as_slice));
    for name in &doubtful {
        let told = found.chains.get(name).and_then(|chain| chain.last()).map(|step| step.after);
        let confirmed = match states.get(name.as_slice()) {
            Some(RefState::Value(value)) => told == Some(*value),
            Some(RefState::Absent | RefState::Symbolic) => told.is_some_and(|value| value.is_null()),
            Some(RefState::Unknown(_)) | None => false,
        };
        if !confirmed {
            found.chains.remove(name);
            found.unsettled += 1;
        }
    }
}

fn read_log(
    git_dir: &Path,
    kind: gix::hash::Kind,
    name: &[u8],
    place: Option<Place>,
) -> io::Result<(Log, Option<Stamp>)> {
    match open_log(git_dir, name)? {
        None => Ok((Log::EMPTY, None)),
        Some((file, stamp)) => Ok((Log::read(&file, place, kind)?, Some(stamp))),
    }
}

fn open_log(git_dir: &Path, name: &[u8]) -> io::Result<Option<(File, Stamp)>> {
    match absent_is_none(refs::open_file(&log_path(git_dir, name)))? {
        None => Ok(None),
        Some(file) => {
            let metadata = file.metadata()?;
            Ok(metadata.is_file().then(|| (file, stamp(&metadata))))
        }
    }
}

fn log_stamp(git_dir: &Path, name: &[u8]) -> Result<Option<Stamp>, io::ErrorKind> {
    let metadata = absent_is_none(std::fs::metadata(log_path(git_dir, name))).map_err(|error| error.kind())?;
    Ok(metadata.filter(std::fs::Metadata::is_file).map(|metadata| stamp(&metadata)))
}

fn stamp(metadata: &std::fs::Metadata) -> Stamp {
    Stamp { device: metadata.dev(), inode: metadata.ino(), bytes: metadata.len() }
}

fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}
