//! Reads objects of one repository, with small caches. Blocking; the only place of the payload that touches the disk.

use std::collections::HashMap;
use std::rc::Rc;

use gix::ObjectId;
use gix::objs::Kind;

use super::object;

/// Links between commits that are kept at most; beyond, the cache starts again.
const LINKS_MAX: usize = 500_000;
/// Tags that are peeled one after the other at most.
const TAG_DEPTH_MAX: usize = 64;

/// What a walk needs of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// When it was recorded, by its committer's clock.
    pub seconds: i64,
    /// Its parents.
    pub parents: Vec<ObjectId>,
}

/// Why an object could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It is not there.
    Missing,
    /// It is there, but damaged or of another kind than expected.
    Damaged,
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Missing => "is missing",
            Self::Damaged => "cannot be read",
        })
    }
}

/// The objects of a repository.
pub struct Objects<'repo> {
    repository: &'repo gix::Repository,
    links: HashMap<ObjectId, Rc<Link>>,
    peeled: HashMap<ObjectId, Option<ObjectId>>,
}

impl<'repo> Objects<'repo> {
    /// The objects of this repository.
    pub fn new(repository: &'repo gix::Repository) -> Self {
        Self { repository, links: HashMap::new(), peeled: HashMap::new() }
    }

    /// The hash of its object ids.
    pub fn kind(&self) -> gix::hash::Kind {
        self.repository.object_hash()
    }

    /// The bytes of an object and what it is. Zeros are never looked up.
    pub fn read(&self, id: ObjectId) -> Result<(Kind, Vec<u8>), Unreadable> {
        if id.is_null() {
            return Err(Unreadable::Missing);
        }
        match self.repository.try_find_object(id) {
            Ok(Some(mut object)) => Ok((object.kind, std::mem::take(&mut object.data))),
            Ok(None) => Err(Unreadable::Missing),
            Err(_) => Err(Unreadable::Damaged),
        }
    }

    /// The bytes of a commit.
    pub fn commit(&self, id: ObjectId) -> Result<Vec<u8>, Unreadable> {
        match self.read(id)? {
            (Kind::Commit, bytes) => Ok(bytes),
            _ => Err(Unreadable::Damaged),
        }
    }

    /// The entries of a tree.
    pub fn tree(&self, id: ObjectId) -> Result<Vec<object::TreeEntry>, Unreadable> {
        if id == ObjectId::empty_tree(self.kind()) {
            return Ok(Vec::new());
        }
        match self.read(id)? {
            (Kind::Tree, bytes) => object::tree(&bytes, self.kind()).ok_or(Unreadable::Damaged),
            _ => Err(Unreadable::Damaged),
        }
    }

    /// Date and parents of a commit.
    pub fn link(&mut self, id: ObjectId) -> Result<Rc<Link>, Unreadable> {
        if let Some(link) = self.links.get(&id) {
            return Ok(Rc::clone(link));
        }
        let bytes = self.commit(id)?;
        let commit = object::commit(&bytes).ok_or(Unreadable::Damaged)?;
        let link = Rc::new(Link { seconds: commit.committer.seconds, parents: commit.parents });
        if self.links.len() >= LINKS_MAX {
            self.links.clear();
        }
        self.links.insert(id, Rc::clone(&link));
        Ok(link)
    }

    /// The commit that an object is or leads to through tags; `None` if it leads to something else.
    pub fn peel(&mut self, id: ObjectId) -> Result<Option<ObjectId>, Unreadable> {
        if let Some(commit) = self.peeled.get(&id) {
            return Ok(*commit);
        }
        let mut at = id;
        let mut commit = None;
        for _ in 0..TAG_DEPTH_MAX {
            match self.read(at)? {
                (Kind::Commit, _) => {
                    commit = Some(at);
                    break;
                }
                (Kind::Tag, bytes) => at = object::tag_target(&bytes).ok_or(Unreadable::Damaged)?,
                (Kind::Tree | Kind::Blob, _) => break,
            }
        }
        self.peeled.insert(id, commit);
        Ok(commit)
    }
}
