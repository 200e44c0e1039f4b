//! The folder of a build on disk: its lock, its log, its input and its result. May touch files below the receiver's
//! data directory only.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// How a run ended, as the runner leaves it in the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunResult {
    /// That of the build, so that a result of another build in a folder of the same number is not taken for it.
    pub(super) run_key: Uuid,
    /// Which start it was.
    pub(super) attempt: i32,
    /// The command's exit code.
    pub(super) exit_code: Option<i32>,
    /// The signal that ended it.
    pub(super) exit_signal: Option<i32>,
    /// It was ended because it ran too long.
    pub(super) timed_out: bool,
    /// How long it ran, in milliseconds.
    pub(super) duration_ms: u64,
    /// What a person should know.
    pub(super) note: Option<String>,
}

/// What became of [`BuildFolder::lock`] and [`lock_file`].
#[derive(Debug)]
pub(super) enum Locking {
    /// Ours, as long as this file, or a copy of it in a child process, is open.
    Held(File),
    /// Another process has it.
    HeldByOther,
}

/// The folder of one build.
#[derive(Clone, Debug)]
pub(super) struct BuildFolder {
    path: PathBuf,
}

impl BuildFolder {
    /// The folder at `path`, which need not exist yet.
    pub(super) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Standard output and error of the command.
    pub(super) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// The body of the delivery: the command's standard input.
    pub(super) fn payload(&self) -> PathBuf {
        self.path.join("payload.json")
    }

    /// The lock that lives as long as the runner.
    pub(super) fn lock_path(&self) -> PathBuf {
        self.path.join("lock")
    }

    fn result(&self) -> PathBuf {
        self.path.join("result")
    }

    /// Takes the lock if it is free; makes the folder if it is missing.
    pub(super) fn lock(&self) -> io::Result<Locking> {
        create_private(&self.path)?;
        lock_file(&self.lock_path())
    }

    /// Makes the folder ready for a run. A first run finds nothing of an earlier build of the same number, which a
    /// database that was made anew can lead to; a further run goes on in the same log. Call with the lock held.
    pub(super) fn prepare(&self, attempt: i32, payload: &[u8]) -> io::Result<File> {
        if attempt == 1 {
            for stale in [self.result(), self.log()] {
                match std::fs::remove_file(stale) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        let mut input = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(self.payload())?;
        input.write_all(payload)?;
        OpenOptions::new().append(true).create(true).mode(0o600).open(self.log())
    }

    /// Leaves the result. Ok: it is on disk, whole, and stays there if the machine stops now.
    pub(super) fn write_result(&self, result: &RunResult) -> io::Result<()> {
        let unfinished = self.path.join("result.unfinished");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        serde_json::to_writer(&mut file, result)?;
        file.sync_all()?;
        std::fs::rename(&unfinished, self.result())?;
        File::open(&self.path)?.sync_all()
    }

    /// The result of the build `run_key` and how long ago it was written, by this machine's clock. Ok(None): there is
    /// none, or it is another build's.
    pub(super) fn read_result(&self, run_key: Uuid) -> io::Result<Option<(RunResult, Duration)>> {
        let file = match File::open(self.result()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let age = file.metadata()?.modified()?.elapsed().unwrap_or_default();
        match serde_json::from_reader::<_, RunResult>(io::BufReader::new(file)) {
            Ok(result) if result.run_key == run_key && result.exit_code.is_some() != result.exit_signal.is_some() => {
                Ok(Some((result, age)))
            }
            Ok(_) => Ok(None),
            Err(error) => {
                tracing::warn!(folder = %self.path.display(), %error, "the result of a build cannot be read; it will run again");
                Ok(None)
            }
        }
    }
}

/// Takes the lock on a file, made if it is missing, unless another process has it.
pub(super) fn lock_file(path: &Path) -> io::Result<Locking> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    Ok(match rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Locking::Held(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Locking::HeldByOther,
        Err(error) => return Err(error.into()),
    })
}

/// Makes a folder, and those above it, that only its owner may look into: payloads and logs are nobody else's business.
pub(super) fn create_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}
