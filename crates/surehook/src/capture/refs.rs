//! Reads the refs of a repository on disk: loose files, then packed-refs. Nothing is cached, and nothing is written.
//!
//! Our own small reader, because two things matter here that a general one does not offer: what cannot be read is *unknown*
//! and never taken for deleted, and no answer comes from a cache that goes by modification times.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use gix::ObjectId;
use gix::bstr::ByteSlice;

/// Folders below refs/ that are nested deeper than this are not followed.
const DEPTH_MAX: usize = 128;
/// A loose ref file is never longer than the longest symbolic name.
const FILE_BYTES_MAX: u64 = 8 * 1024;

/// What is on disk under the name of a ref.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefState {
    /// Nothing.
    Absent,
    /// An object id.
    Value(ObjectId),
    /// The name of another ref.
    Symbolic,
    /// Something that could not be read; the text says why.
    Unknown(String),
}

/// The refs of one repository, as far as they could be read.
#[derive(Clone, Debug, Default)]
pub struct Refs {
    found: BTreeMap<Vec<u8>, RefState>,
    /// Prefixes of names below which something could not be read, and why. An empty prefix is packed-refs: every ref.
    doubts: Vec<(Vec<u8>, String)>,
}

impl Refs {
    /// Reads all refs, loose before packed: git writes a packed ref before it removes the loose one, and removes the packed
    /// one before the loose, so a ref that exists all the time is seen.
    pub fn read(git_dir: &Path, kind: gix::hash::Kind) -> Self {
        let mut refs = Self::default();
        refs.read_folder(&git_dir.join("refs"), b"refs".to_vec(), kind, 0);
        match read_packed(git_dir, kind) {
            Ok(packed) => {
                for (name, value) in packed {
                    refs.found.entry(name).or_insert(RefState::Value(value));
                }
            }
            Err(reason) => refs.doubts.push((Vec::new(), reason)),
        }
        refs
    }

    /// What is known of this ref.
    pub fn state(&self, name: &[u8]) -> RefState {
        if let Some(state) = self.found.get(name) {
            return state.clone();
        }
        match self.doubts.iter().find(|(prefix, _)| name.starts_with(prefix)) {
            Some((_, reason)) => RefState::Unknown(reason.clone()),
            None => RefState::Absent,
        }
    }

    /// Whether something was found under this name.
    pub fn contains(&self, name: &[u8]) -> bool {
        self.found.contains_key(name)
    }

    /// The names under which something was found.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.found.keys().map(Vec::as_slice)
    }

    /// What could not be read, in words.
    pub fn doubts(&self) -> impl Iterator<Item = &str> {
        self.doubts.iter().map(|(_, reason)| reason.as_str())
    }

    /// Why nothing can be said of any ref that was not found: packed-refs, or the folder of all refs, cannot be read.
    pub fn doubt_of_all(&self) -> Option<&str> {
        let of_all = |prefix: &[u8]| b"refs/".starts_with(prefix);
        self.doubts.iter().find(|(prefix, _)| of_all(prefix)).map(|(_, reason)| reason.as_str())
    }

    fn read_folder(&mut self, folder: &Path, name: Vec<u8>, kind: gix::hash::Kind, depth: usize) {
        let doubt = |error: io::Error| ([name.as_slice(), b"/"].concat(), format!("{}: {error}", folder.display()));
        if depth > DEPTH_MAX {
            self.doubts.push(doubt(io::Error::other("nested too deep")));
            return;
        }
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            // An empty folder goes when git needs its name.
            Err(error) if error.kind() == io::ErrorKind::NotFound && depth > 0 => return,
            Err(error) => {
                self.doubts.push(doubt(error));
                return;
            }
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.doubts.push(doubt(error));
                    return;
                }
            };
            let mut child = name.clone();
            child.push(b'/');
            child.extend_from_slice(&entry.file_name().into_vec());
            let is_folder =
                entry.file_type().map(|kind| if kind.is_symlink() { entry.path().is_dir() } else { kind.is_dir() });
            match is_folder {
                Ok(true) => self.read_folder(&entry.path(), child, kind, depth + 1),
                // Lock files and what editors leave behind have names that git does not accept.
                _ if !is_ref_name(&child) => {}
                _ => match read_loose_file(&entry.path(), kind) {
                    RefState::Absent => {}
                    state => {
                        self.found.insert(child, state);
                    }
                },
            }
        }
    }
}

/// Reads these refs alone: loose, then packed-refs for those that are not there, then loose again, since a ref that is
/// unpacked in between would be missed.
pub fn read_some<'a>(
    git_dir: &Path,
    kind: gix::hash::Kind,
    names: impl IntoIterator<Item = &'a [u8]>,
) -> BTreeMap<&'a [u8], RefState> {
    let mut states: BTreeMap<&[u8], RefState> =
        names.into_iter().map(|name| (name, read_loose(git_dir, kind, name))).collect();
    if states.values().any(|state| *state == RefState::Absent) {
        let packed = read_packed(git_dir, kind);
        for (name, state) in states.iter_mut().filter(|(_, state)| **state == RefState::Absent) {
            *state = read_loose(git_dir, kind, name);
            if *state == RefState::Absent {
                *state = match &packed {
                    Ok(packed) => packed.get(*name).map_or(RefState::Absent, |value| RefState::Value(*value)),
                    Err(reason) => RefState::Unknown(reason.clone()),
                };
            }
        }
    }
    states
}

/// Reads one loose ref; `Absent` says nothing about packed-refs.
pub fn read_loose(git_dir: &Path, kind: gix::hash::Kind, name: &[u8]) -> RefState {
    read_loose_file(&ref_path(git_dir, name), kind)
}

/// Where the loose file of a ref lies.
pub fn ref_path(git_dir: &Path, name: &[u8]) -> PathBuf {
    git_dir.join(OsStr::from_bytes(name))
}

/// Opens a file to be read. The owner of an imported repository may have put a pipe in its place: nobody waits for a writer.
pub(super) fn open_file(path: &Path) -> io::Result<std::fs::File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Whether git accepts this as the full name of a ref.
pub fn is_ref_name(name: &[u8]) -> bool {
    name.starts_with(b"refs/") && gix::validate::reference::name(name.as_bstr()).is_ok()
}

fn read_loose_file(path: &Path, kind: gix::hash::Kind) -> RefState {
    let unknown = |reason: &dyn std::fmt::Display| RefState::Unknown(format!("{}: {reason}", path.display()));
    // Long ago a symbolic ref was a symbolic link.
    if let Ok(target) = std::fs::read_link(path)
        && target.as_os_str().as_bytes().starts_with(b"refs/")
    {
        return RefState::Symbolic;
    }
    let mut text = Vec::new();
    match open_file(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut text)) {
        Ok(_) => {}
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
                    RefState::Absent
                }
                _ => unknown(&error),
            };
        }
    }
    if text.starts_with(b"ref:") {
        return RefState::Symbolic;
    }
    let digits = kind.len_in_hex();
    if text.len() < digits || text.get(digits).is_some_and(|byte| !byte.is_ascii_whitespace()) {
        return unknown(&"it holds no object id");
    }
    match ObjectId::from_hex(&text[..digits]) {
        Ok(value) if !value.is_null() => RefState::Value(value),
        _ => unknown(&"it holds no object id"),
    }
}

fn read_packed(git_dir: &Path, kind: gix::hash::Kind) -> Result<BTreeMap<Vec<u8>, ObjectId>, String> {
    let path = git_dir.join("packed-refs");
    let mut bytes = Vec::new();
    match open_file(&path).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    parse_packed(&bytes, kind).map_err(|line| format!("{}: line {line} is damaged", path.display()))
}

/// The refs of a packed-refs file; `Err` is the number of the line that is none.
fn parse_packed(bytes: &[u8], kind: gix::hash::Kind) -> Result<BTreeMap<Vec<u8>, ObjectId>, usize> {
    let digits = kind.len_in_hex();
    let mut refs = BTreeMap::new();
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\n").ok_or(index + 1)?;
        if line.starts_with(b"#") || line.starts_with(b"^") || line.is_empty() {
            continue;
        }
        if line.len() < digits + 2 || line[digits] != b' ' {
            return Err(index + 1);
        }
        let value = ObjectId::from_hex(&line[..digits]).map_err(|_| index + 1)?;
        let name = &line[digits + 1..];
        let name = name.strip_suffix(b"\r").unwrap_or(name);
        if is_ref_name(name) {
            refs.insert(name.to_vec(), value);
        }
    }
    Ok(refs)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const KIND: gix::hash::Kind = gix::hash::Kind::Sha1;

    fn id(digit: char) -> String {
        digit.to_string().repeat(40)
    }

    fn value(digit: char) -> RefState {
        RefState::Value(ObjectId::from_hex(id(digit).as_bytes()).unwrap())
    }

    fn put(folder: &Path, name: &[u8], text: &str) {
        let path = ref_path(folder, name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn loose_refs_come_before_packed_ones() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        put(dir, b"refs/heads/both", &format!("{}\n", id('b')));
        put(
            dir,
            b"packed-refs",
            &format!("# pack-refs with: peeled\n{} refs/heads/both\n{} refs/tags/t\n^{}\n", id('a'), id('c'), id('d')),
        );
        let refs = Refs::read(dir, KIND);
        assert_eq!(refs.state(b"refs/heads/both"), value('b'));
        assert_eq!(refs.state(b"refs/tags/t"), value('c'));
        assert_eq!(refs.state(b"refs/heads/none"), RefState::Absent);
        let names: [&[u8]; 3] = [b"refs/heads/both", b"refs/tags/t", b"refs/heads/none"];
        let some = read_some(dir, KIND, names);
        assert_eq!(some.into_values().collect::<Vec<_>>(), [value('b'), RefState::Absent, value('c')]);
    }

    #[test]
    fn what_is_no_ref_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        put(dir, b"refs/heads/caf\xe9", &id('a'));
        put(dir, b"refs/heads/x.lock", &id('a'));
        put(dir, b"refs/heads/x~", &id('a'));
        put(dir, b"worktrees/w/refs/bisect/bad", &id('a'));
        put(dir, b"refs/heads/link", "ref: refs/heads/main\n");
        fs::create_dir_all(dir.join("refs/heads/empty/folder")).unwrap();
        std::os::unix::fs::symlink("refs/heads/main", dir.join("refs/heads/old-link")).unwrap();
        let refs = Refs::read(dir, KIND);
        assert_eq!(
            refs.names().collect::<Vec<_>>(),
            [b"refs/heads/caf\xe9".as_slice(), b"refs/heads/link", b"refs/heads/old-link"]
        );
        assert_eq!(refs.state(b"refs/heads/caf\xe9"), value('a'));
        assert_eq!(refs.state(b"refs/heads/link"), RefState::Symbolic);
        assert_eq!(refs.state(b"refs/heads/old-link"), RefState::Symbolic);
        assert_eq!(refs.state(b"refs/heads/empty"), RefState::Absent);
    }

    #[test]
    fn what_cannot_be_read_is_unknown_and_not_gone() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        put(dir, b"refs/heads/empty", "");
        put(dir, b"refs/heads/zeros", &id('0'));
        put(dir, b"refs/heads/short", "abc");
        put(dir, b"packed-refs", &format!("{} refs/heads/cut", id('a')));
        let refs = Refs::read(dir, KIND);
        for name in
            [b"refs/heads/empty".as_slice(), b"refs/heads/zeros", b"refs/heads/short", b"refs/heads/cut", b"refs/x"]
        {
            assert!(matches!(refs.state(name), RefState::Unknown(_)), "{name:?}");
            assert!(matches!(read_some(dir, KIND, [name])[name], RefState::Unknown(_)), "{name:?}");
        }
        let missing = Refs::read(&dir.join("unmounted"), KIND);
        assert!(matches!(missing.state(b"refs/heads/main"), RefState::Unknown(_)));
    }
}
