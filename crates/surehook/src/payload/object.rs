//! Reads commits, tags and trees from their bytes: pure, and content with whatever git itself stores without complaint.

use gix::ObjectId;

/// Who wrote or recorded a commit, as bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature<'a> {
    /// Name.
    pub name: &'a [u8],
    /// E-mail address.
    pub email: &'a [u8],
    /// Seconds since 1970.
    pub seconds: i64,
    /// Offset of the zone to UTC in minutes.
    pub zone_minutes: i32,
}

/// A commit, as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit<'a> {
    /// Its tree.
    pub tree: ObjectId,
    /// Its parents, in order.
    pub parents: Vec<ObjectId>,
    /// Who wrote it.
    pub author: Signature<'a>,
    /// Who recorded it.
    pub committer: Signature<'a>,
    /// The value of its `encoding` header.
    pub encoding: Option<&'a [u8]>,
    /// The message.
    pub message: &'a [u8],
}

/// One entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    /// File mode.
    pub mode: u32,
    /// Name, as bytes.
    pub name: Vec<u8>,
    /// What it names.
    pub id: ObjectId,
}

impl TreeEntry {
    /// Whether it names another tree.
    pub fn is_tree(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }
}

/// Reads a commit; `None` if it has no tree or a parent that is no id.
pub fn commit(bytes: &[u8]) -> Option<Commit<'_>> {
    let mut commit = Commit {
        tree: ObjectId::null(gix::hash::Kind::Sha1),
        parents: Vec::new(),
        author: Signature::default(),
        committer: Signature::default(),
        encoding: None,
        message: b"",
    };
    let mut has_tree = false;
    let mut rest = bytes;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = &rest[..end];
        rest = &rest[end + 1..];
        if line.is_empty() {
            commit.message = rest;
            break;
        }
        let Some(space) = line.iter().position(|byte| *byte == b' ') else { continue };
        let value = &line[space + 1..];
        match &line[..space] {
            b"tree" if !has_tree => {
                commit.tree = ObjectId::from_hex(value).ok()?;
                has_tree = true;
            }
            b"parent" => commit.parents.push(ObjectId::from_hex(value).ok()?),
            b"author" => commit.author = signature(value),
            b"committer" => commit.committer = signature(value),
            b"encoding" => commit.encoding = Some(value),
            _ => {}
        }
    }
    has_tree.then_some(commit)
}

/// The object that a tag names.
pub fn tag_target(bytes: &[u8]) -> Option<ObjectId> {
    let line = bytes.split(|byte| *byte == b'\n').next()?;
    ObjectId::from_hex(line.strip_prefix(b"object ")?).ok()
}

/// The entries of a tree; `None` if it is damaged.
pub fn tree(mut bytes: &[u8], kind: gix::hash::Kind) -> Option<Vec<TreeEntry>> {
    let id_bytes = kind.len_in_bytes();
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|byte| *byte == b' ')?;
        let mode = u32::from_str_radix(std::str::from_utf8(&bytes[..space]).ok()?, 8).ok()?;
        let rest = &bytes[space + 1..];
        let nul = rest.iter().position(|byte| *byte == 0)?;
        let id = rest.get(nul + 1..nul + 1 + id_bytes)?;
        entries.push(TreeEntry { mode, name: rest[..nul].to_vec(), id: ObjectId::try_from(id).ok()? });
        bytes = &rest[nul + 1 + id_bytes..];
    }
    Some(entries)
}

/// `Name <email> seconds zone`; what is missing stays empty or zero.
fn signature(value: &[u8]) -> Signature<'_> {
    let close = value.iter().rposition(|byte| *byte == b'>');
    let open = value.iter().position(|byte| *byte == b'<');
    let (Some(open), Some(close)) = (open, close) else {
        return Signature { name: value.trim_ascii(), ..Signature::default() };
    };
    let email = if open < close { value[open + 1..close].trim_ascii() } else { b"" };
    let tail = String::from_utf8_lossy(&value[close + 1..]).into_owned();
    let mut words = tail.split_ascii_whitespace();
    let seconds = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let zone = words.next().and_then(|word| word.parse::<i32>().ok()).unwrap_or(0);
    Signature { name: value[..open].trim_ascii(), email, seconds, zone_minutes: zone / 100 * 60 + zone % 100 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_commits_are_read() {
        let id = "a".repeat(40);
        let text = format!(
            "tree {id}\nparent {id}\nauthor  <> 5 -0330\ncommitter C <c> 9 +0100\ngpgsig x\n parent nonsense\nencoding latin1\n\nm\0sg\n\nbody"
        );
        let read = commit(text.as_bytes()).unwrap();
        assert_eq!(
            (read.parents.len(), read.message, read.encoding),
            (1, b"m\0sg\n\nbody".as_slice(), Some(b"latin1".as_slice()))
        );
        assert_eq!((read.author.name, read.author.seconds, read.author.zone_minutes), (b"".as_slice(), 5, -210));
        assert_eq!((read.committer.name, read.committer.zone_minutes), (b"C".as_slice(), 60));
        assert_eq!(commit(format!("tree {id}\n").as_bytes()).unwrap().message, b"");
        assert_eq!(commit(b"author x\n\nm"), None);
        assert_eq!(signature(b"nobody").name, b"nobody");
        assert_eq!(signature(b"> x <").email, b"");
    }

    #[test]
    fn damaged_trees_are_told_from_whole_ones() {
        let mut bytes = b"100644 f\xff\0".to_vec();
        bytes.extend_from_slice(&[7; 20]);
        let entries = tree(&bytes, gix::hash::Kind::Sha1).unwrap();
        assert_eq!((entries[0].name.as_slice(), entries[0].mode), (b"f\xff".as_slice(), 0o100_644));
        bytes.pop();
        assert_eq!(tree(&bytes, gix::hash::Kind::Sha1), None);
        assert_eq!(tree(b"", gix::hash::Kind::Sha1), Some(Vec::new()));
    }
}
