//! A running git process: its pipes, its group, its end. It starts nothing; [`super::command`] does.

use rustix::process::{Pid, Signal, kill_process_group};
use std::convert::Infallible;
use std::io;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

/// Most bytes of a process's standard error that are kept; what comes first says most.
pub(super) const STDERR_BYTES_MAX: usize = 16 * 1024;
const STDERR_SETTLE: Duration = Duration::from_millis(200);

/// What happens to a process whose handle is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    Kill,
    Leave,
}

/// A running git with its pipes, leader of a process group of its own.
#[derive(Debug)]
pub(crate) struct GitProcess {
    child: Child,
    group: ProcessGroup,
    dropped: Dropped,
    pub(crate) stdin: Option<ChildStdin>,
    pub(crate) stdout: Option<ChildStdout>,
    pub(crate) stderr: Option<StderrHead>,
}

impl GitProcess {
    pub(super) fn start(mut command: Command, dropped: Dropped) -> io::Result<Self> {
        let mut child = command.process_group(0).kill_on_drop(dropped == Dropped::Kill).spawn()?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(Self {
            group: ProcessGroup(Arc::new(Mutex::new(pid))),
            dropped,
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            stderr: child.stderr.take().map(|pipe| StderrHead { pipe: Some(pipe), head: Vec::new() }),
            child,
        })
    }

    /// Waits for the leader's end. May be cancelled and called again.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await;
        self.group.forget();
        status
    }

    /// A handle for signals that works while the process itself is borrowed.
    pub(crate) fn group(&self) -> ProcessGroup {
        self.group.clone()
    }
}

impl Drop for GitProcess {
    fn drop(&mut self) {
        if self.dropped == Dropped::Kill {
            self.group.signal(Signal::KILL);
        }
    }
}

/// Sends signals to git and what it started, as long as its number cannot have been given to another.
#[derive(Clone, Debug)]
pub(crate) struct ProcessGroup(Arc<Mutex<Option<Pid>>>);

impl ProcessGroup {
    /// A process that is gone already is no error.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = kill_process_group(pid, signal);
        }
    }

    fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The beginning of what a process says on its standard error.
#[derive(Debug)]
pub(crate) struct StderrHead {
    pipe: Option<ChildStderr>,
    head: Vec<u8>,
}

impl StderrHead {
    /// Reads for ever, so that the process never waits for us; to be polled beside the real work and then dropped.
    pub(crate) async fn drain(&mut self) -> Infallible {
        self.read_to_end().await;
        std::future::pending().await
    }

    /// Reads what is left after the process ended, but does not wait for a descendant that keeps the pipe open.
    pub(crate) async fn settle(&mut self) {
        let _ = tokio::time::timeout(STDERR_SETTLE, self.read_to_end()).await;
    }

    async fn read_to_end(&mut self) {
        while let Some(pipe) = &mut self.pipe {
            let mut buffer = [0; 4096];
            match read_some(pipe, &mut buffer).await {
                Some(read) => {
                    let room = STDERR_BYTES_MAX.saturating_sub(self.head.len());
                    self.head.extend_from_slice(&buffer[..read.min(room)]);
                }
                None => self.pipe = None,
            }
        }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.head).trim().to_owned()
    }
}

async fn read_some(pipe: &mut (impl AsyncRead + Unpin), buffer: &mut [u8]) -> Option<usize> {
    pipe.read(buffer).await.ok().filter(|read| *read > 0)
}
