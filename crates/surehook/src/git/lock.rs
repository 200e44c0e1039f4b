//! The lock file of a hosted repository. It touches that one file.
//!
//! Every push of ours to a hosted repository runs under a shared lock on it, held by git and whatever it starts. Who gets
//! the exclusive lock therefore knows that none of them is left, and that a ref lock lying there belongs to nobody of ours.
//! Fetches change nothing and run without.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// The name of the lock file inside of a hosted repository.
pub const LOCK_FILE: &str = "surehook.lock";

const RETRY_EVERY: Duration = Duration::from_millis(20);

/// Whether the lock was had.
#[derive(Debug)]
pub enum Locked {
    /// Held until the last copy of this descriptor is closed, in whatever process.
    Held(OwnedFd),
    /// Somebody else holds it in a way that excludes us.
    Busy,
}

/// Takes the shared lock, waiting up to `wait_max` for an exclusive holder to end.
///
/// # Errors
/// The lock file cannot be opened: the repository is not there, or not ours to write.
pub async fn shared(repository: &Path, wait_max: Duration) -> io::Result<Locked> {
    let give_up = Instant::now() + wait_max;
    loop {
        // A waiting flock would hold a thread; the exclusive holder is upkeep, which is rare and short.
        match take(repository, FlockOperation::NonBlockingLockShared)? {
            Locked::Held(lock) => return Ok(Locked::Held(lock)),
            Locked::Busy if Instant::now() >= give_up => return Ok(Locked::Busy),
            Locked::Busy => tokio::time::sleep(RETRY_EVERY).await,
        }
    }
}

/// Takes the exclusive lock if no git process of ours is in the repository.
///
/// # Errors
/// As [`shared`].
pub fn exclusive_now(repository: &Path) -> io::Result<Locked> {
    take(repository, FlockOperation::NonBlockingLockExclusive)
}

fn take(repository: &Path, operation: FlockOperation) -> io::Result<Locked> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(repository.join(LOCK_FILE))?;
    match flock(&file, operation) {
        Ok(()) => Ok(Locked::Held(file.into())),
        Err(Errno::WOULDBLOCK) => Ok(Locked::Busy),
        Err(error) => Err(error.into()),
    }
}
