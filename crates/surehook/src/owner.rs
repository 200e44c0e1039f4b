//! Acting as the owner of a folder that is somebody else's. Changes the identity of one thread, which ends afterwards.
//!
//! What root writes in an imported repository, its owner can no longer write: a log of root's makes the owner's next push
//! fail. So whatever is written there is written as the owner, by a thread that gives root's rights away for good.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::{Gid, Uid, geteuid};

/// The account that a folder belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its number.
    pub user: u32,
    /// The group of the folder.
    pub group: u32,
}

/// How this process can write what belongs to an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is the owner.
    Same,
    /// It is root, and becomes the owner for what it writes.
    Root,
    /// It is neither: it must not write there.
    Stranger,
}

impl Owner {
    /// The owner of what lies at `path`; links are followed.
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        Ok(Self { user: metadata.uid(), group: metadata.gid() })
    }

    /// What this process is to the owner.
    pub fn standing(self) -> Standing {
        let us = geteuid();
        if us.as_raw() == self.user {
            Standing::Same
        } else if us.is_root() {
            Standing::Root
        } else {
            Standing::Stranger
        }
    }

    /// The name of the account where the system knows one, else its number.
    pub fn name(self) -> String {
        let known = std::fs::read("/etc/passwd").unwrap_or_default();
        let known = String::from_utf8_lossy(&known);
        let named = known.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(self.user)).then(|| name.to_owned())
        });
        named.unwrap_or_else(|| format!("user {}", self.user))
    }

    /// Does blocking work on files as the owner. Err with `PermissionDenied`: this process may not, and nothing was done.
    pub fn act<T: Send>(self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match self.standing() {
            Standing::Same => work(),
            Standing::Stranger => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("it belongs to {}, and only that account and root may write there", self.name()),
            )),
            Standing::Root => std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    self.become_owner()?;
                    work()
                });
                thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that acted as the owner died")))
            }),
        }
    }

    /// Reads as the owner where we are root: what he may not read, such as another's objects that he names as his own, must not
    /// come out through us. Anybody else reads with his own rights. Err: the owner's could not be taken on, and nothing was read.
    pub fn read<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        match Self::of(path) {
            Ok(owner) if owner.standing() == Standing::Root => owner.act(|| Ok(work())),
            _ => Ok(work()),
        }
    }

    /// Groups first: without the rights of root they could not be changed any more.
    fn become_owner(self) -> io::Result<()> {
        let (user, group) = (Uid::from_raw(self.user), Gid::from_raw(self.group));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_the_owners() {
        let folder = tempfile::tempdir().unwrap();
        let ours = Owner::of(folder.path()).unwrap();
        assert_eq!(ours.standing(), Standing::Same);
        ours.act(|| std::fs::write(folder.path().join("a"), "")).unwrap();
        if geteuid().is_root() {
            let other = Owner { user: 54_321, group: 54_322 };
            std::os::unix::fs::chown(folder.path(), Some(other.user), Some(other.group)).unwrap();
            let owner = Owner::of(folder.path()).unwrap();
            assert_eq!((owner, owner.standing(), owner.name()), (other, Standing::Root, "user 54321".into()));
            owner.act(|| std::fs::write(folder.path().join("b"), "")).unwrap();
            assert_eq!(Owner::of(&folder.path().join("b")).unwrap(), other);
            // This thread has kept its rights, and the owner has only the owner's.
            std::fs::write(folder.path().join("c"), "").unwrap();
            assert_eq!(Owner::of(&folder.path().join("c")).unwrap(), ours);
            let denied = owner.act(|| std::fs::write(folder.path().join("c"), "x")).unwrap_err();
            assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
        }
    }
}
