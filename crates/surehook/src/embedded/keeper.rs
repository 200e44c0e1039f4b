//! Keeps the server running for as long as somebody uses it, and hands it on. Started once per share; ends with its token.
#![expect(clippy::disallowed_methods, reason = "the keeper's task is started here and joined by the share's stop")]

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::{sync::Mutex, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{
    EmbeddedError,
    folders::Folders,
    locks::{Locks, Take},
    server::{self, Server},
};

/// How often the supervisor looks after the server, and the others after the supervisor.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The longest pause between two tries to start a server that does not start.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// What a share does for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Starts it, watches it, ends it.
    Supervisor,
    /// Uses it, and watches for the supervisor to go.
    Joined,
}

/// One share's part in the server.
#[derive(Debug)]
pub(super) struct Keeper {
    folders: Folders,
    locks: Locks,
    part: Part,
    server: Option<Server>,
}

impl Keeper {
    pub(super) fn new(folders: Folders, locks: Locks) -> Self {
        Self { folders, locks, part: Part::Joined, server: None }
    }

    pub(super) fn folders(&self) -> &Folders {
        &self.folders
    }

    pub(super) fn locks(&self) -> &Locks {
        &self.locks
    }

    /// Becomes the supervisor if there is none.
    pub(super) fn take_part(&mut self) -> Result<Part, EmbeddedError> {
        if self.part == Part::Joined && self.locks.supervise()? == Take::Taken {
            self.part = Part::Supervisor;
        }
        Ok(self.part)
    }

    /// As the supervisor: the server runs when this returns Ok, with the socket's folder.
    pub(super) async fn bring_up(&mut self) -> Result<PathBuf, EmbeddedError> {
        while self.locks.use_it()? == Take::HeldByOther {
            // Only a supervisor ends the server, and that is us: whoever shuts us out is just looking, and lets go.
            super::between_looks().await;
        }
        server::bring_up(&self.folders, &mut self.server).await
    }

    /// One look: the supervisor starts the server again if it has ended; one who joined takes over if the supervisor is gone.
    async fn look(&mut self) -> Result<(), EmbeddedError> {
        match self.part {
            Part::Supervisor => {
                if self.server.as_mut().is_some_and(|server| server.lives(&self.folders.cluster())) {
                    return Ok(());
                }
                tracing::warn!(data = %self.folders.data().display(), "PostgreSQL has ended; it is started again");
                self.server = None;
            }
            Part::Joined => {
                if self.take_part()? == Part::Joined {
                    return Ok(());
                }
                tracing::info!(data = %self.folders.data().display(), "PostgreSQL's supervisor has gone; this process supervises it now");
            }
        }
        self.bring_up().await?;
        tracing::info!(data = %self.folders.data().display(), "PostgreSQL runs");
        Ok(())
    }

    /// Gives up the share; the last one out ends the server.
    ///
    /// Everyone gives up his share before he looks whether somebody supervises, and looks again after he has stopped
    /// supervising. So of any number who leave at once, the last to give up his share either finds nobody supervising and
    /// ends the server, or finds one who is just leaving and has yet to look again.
    pub(super) async fn leave(&mut self) -> Result<(), EmbeddedError> {
        self.locks.stop_using()?;
        while self.locks.supervise()? == Take::Taken {
            self.part = Part::Joined;
            if self.locks.shut_out()? == Take::Taken {
                let ended = server::end(&self.folders, &mut self.server).await;
                if ended.is_ok() {
                    self.folders.remove_socket();
                }
                self.locks.stop_using()?;
                self.locks.stop_supervising()?;
                return ended;
            }
            self.locks.stop_supervising()?;
            if self.locks.shut_out()? == Take::HeldByOther {
                break;
            }
            self.locks.stop_using()?;
        }
        self.server = None;
        Ok(())
    }

    /// [`Keeper::leave`] without waiting for the server's end: best effort, for those who drop their share.
    pub(super) fn leave_at_once(&self) {
        let last = || {
            self.locks.stop_using()?;
            let last = self.locks.supervise()? == Take::Taken && self.locks.shut_out()? == Take::Taken;
            if last {
                server::ask_to_end(&self.folders);
            }
            self.locks.stop_using()?;
            self.locks.stop_supervising()
        };
        if let Err(error) = last() {
            tracing::warn!(error = &error as &dyn std::error::Error, "PostgreSQL could not be asked to end");
        }
    }
}

/// Starts the task that looks again and again until `stop` is cancelled.
pub(super) fn start(keeper: Arc<Mutex<Keeper>>, stop: CancellationToken) -> JoinHandle<()> {
    tokio::spawn(async move {
        stop.run_until_cancelled(keep(keeper)).await;
    })
}

async fn keep(keeper: Arc<Mutex<Keeper>>) {
    let mut pause = LOOK_EVERY;
    loop {
        tokio::time::sleep(pause).await;
        pause = match keeper.lock().await.look().await {
            Ok(()) => LOOK_EVERY,
            Err(error) => {
                let again_in = (pause * 2).min(PAUSE_MAX);
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    ?again_in,
                    "PostgreSQL cannot be kept running"
                );
                again_in
            }
        };
    }
}
