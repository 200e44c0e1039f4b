//! The two locks by which surehook processes agree on one server. Touches the lock files only; never blocks.

use std::{fs::File, path::PathBuf};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::{EmbeddedError, folders::Folders};

/// What came of asking for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Take {
    /// It is ours (perhaps it was already).
    Taken,
    /// Somebody else holds it.
    HeldByOther,
}

/// The locks of one share. They are free again when this is dropped or its process ends.
#[derive(Debug)]
pub(super) struct Locks {
    supervisor: File,
    users: File,
    folder: PathBuf,
}

impl Locks {
    pub(super) fn open(folders: &Folders) -> Result<Self, EmbeddedError> {
        let [supervisor, users] = folders.lock_files();
        Ok(Self {
            supervisor: folders.open(&supervisor)?,
            users: folders.open(&users)?,
            folder: folders.data().to_owned(),
        })
    }

    /// Asks to be the one who starts and ends the server.
    pub(super) fn supervise(&self) -> Result<Take, EmbeddedError> {
        self.take(&self.supervisor, FlockOperation::NonBlockingLockExclusive)
    }

    /// Lets somebody else supervise.
    pub(super) fn stop_supervising(&self) -> Result<(), EmbeddedError> {
        self.take(&self.supervisor, FlockOperation::Unlock).map(|_| ())
    }

    /// Asks for a share in using the server; held by another while he ends it.
    pub(super) fn use_it(&self) -> Result<Take, EmbeddedError> {
        self.take(&self.users, FlockOperation::NonBlockingLockShared)
    }

    /// Asks to be the only one left, so that nobody can come while the server is being ended.
    pub(super) fn shut_out(&self) -> Result<Take, EmbeddedError> {
        self.take(&self.users, FlockOperation::NonBlockingLockExclusive)
    }

    /// Gives the share (or the shutting out) back.
    pub(super) fn stop_using(&self) -> Result<(), EmbeddedError> {
        self.take(&self.users, FlockOperation::Unlock).map(|_| ())
    }

    fn take(&self, file: &File, operation: FlockOperation) -> Result<Take, EmbeddedError> {
        loop {
            return match flock(file, operation) {
                Ok(()) => Ok(Take::Taken),
                Err(Errno::WOULDBLOCK) => Ok(Take::HeldByOther),
                Err(Errno::INTR) => continue,
                Err(error) => Err(EmbeddedError::file("lock files in", &self.folder)(error.into())),
            };
        }
    }
}
