//! Which files a commit changed against its first parent: a comparison of two trees.
//!
//! A root commit adds all its files; a merge is compared with its first parent. A change of content, mode or type, and of the
//! commit of a submodule, is `modified`. There is no rename detection: a renamed file is removed and added.

use gix::ObjectId;

use super::object::TreeEntry;
use super::objects::{Objects, Unreadable};

/// Folders nested deeper than this are not followed.
const DEPTH_MAX: usize = 256;
/// Trees that are read for one commit at most.
const TREES_MAX: usize = 100_000;

/// Paths, as bytes and in the order of the trees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// New files.
    pub added: Vec<Vec<u8>>,
    /// Files that are gone.
    pub removed: Vec<Vec<u8>>,
    /// Changed files.
    pub modified: Vec<Vec<u8>>,
    /// Whether there are more than are listed.
    pub truncated: bool,
}

impl Changes {
    /// How many are listed.
    pub fn count(&self) -> usize {
        self.added.len() + self.removed.len() + self.modified.len()
    }
}

/// Compares two trees (`None`: the empty one) and lists at most `files_max` paths. Err: the tree that could not be read.
pub fn compare(
    objects: &Objects<'_>,
    old: Option<ObjectId>,
    new: Option<ObjectId>,
    files_max: usize,
) -> Result<Changes, (ObjectId, Unreadable)> {
    let mut comparison = Comparison { objects, files_max, trees: 0, changes: Changes::default() };
    comparison.trees(old, new, &mut Vec::new(), 0)?;
    Ok(comparison.changes)
}

struct Comparison<'objects, 'repo> {
    objects: &'objects Objects<'repo>,
    files_max: usize,
    trees: usize,
    changes: Changes,
}

#[derive(Clone, Copy)]
enum Change {
    Added,
    Removed,
    Modified,
}

impl Comparison<'_, '_> {
    fn trees(
        &mut self,
        old: Option<ObjectId>,
        new: Option<ObjectId>,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> Result<(), (ObjectId, Unreadable)> {
        if old == new {
            return Ok(());
        }
        if depth > DEPTH_MAX {
            self.changes.truncated = true;
            return Ok(());
        }
        let (old, new) = (self.entries(old)?, self.entries(new)?);
        let (mut left, mut right) = (old.iter().peekable(), new.iter().peekable());
        loop {
            if self.changes.truncated {
                return Ok(());
            }
            let order = match (left.peek(), right.peek()) {
                (None, None) => return Ok(()),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(old), Some(new)) => old.name.cmp(&new.name),
            };
            let old = if order.is_le() { left.next() } else { None };
            let new = if order.is_ge() { right.next() } else { None };
            self.entry(old, new, path, depth)?;
        }
    }

    fn entry(
        &mut self,
        old: Option<&TreeEntry>,
        new: Option<&TreeEntry>,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> Result<(), (ObjectId, Unreadable)> {
        let Some(name) = old.or(new).map(|entry| entry.name.as_slice()) else { return Ok(()) };
        let parent_length = path.len();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let tree_of = |entry: Option<&TreeEntry>| entry.filter(|entry| entry.is_tree()).map(|entry| entry.id);
        let file_of =
            |entry: Option<&TreeEntry>| entry.filter(|entry| !entry.is_tree()).map(|entry| (entry.mode, entry.id));
        match (file_of(old), file_of(new)) {
            (Some(_), None) => self.tell(Change::Removed, path),
            (None, Some(_)) => self.tell(Change::Added, path),
            (Some(before), Some(after)) if before != after => self.tell(Change::Modified, path),
            _ => {}
        }
        let result = self.trees(tree_of(old), tree_of(new), path, depth + 1);
        path.truncate(parent_length);
        result
    }

    fn entries(&mut self, tree: Option<ObjectId>) -> Result<Vec<TreeEntry>, (ObjectId, Unreadable)> {
        let Some(tree) = tree else { return Ok(Vec::new()) };
        self.trees += 1;
        if self.trees > TREES_MAX {
            self.changes.truncated = true;
            return Ok(Vec::new());
        }
        let mut entries = self.objects.tree(tree).map_err(|reason| (tree, reason))?;
        // Git sorts folders as if their names ended in a slash; a file that became a folder must meet its old self.
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn tell(&mut self, change: Change, path: &[u8]) {
        if self.changes.count() >= self.files_max {
            self.changes.truncated = true;
            return;
        }
        match change {
            Change::Added => self.changes.added.push(path.to_vec()),
            Change::Removed => self.changes.removed.push(path.to_vec()),
            Change::Modified => self.changes.modified.push(path.to_vec()),
        }
    }
}
