//! surehook's own PostgreSQL: a cluster in the data directory, run from the programs that are installed on the machine.
//! May start and end PostgreSQL's processes and touch what it keeps in the data directory (`folders` lists it); takes no
//! TCP port, asks nothing of a cluster that it did not make.
//!
//! **Who may use it at once.** Any number of processes on the same machine: the first one *supervises* (it holds an
//! exclusive `flock`, starts the server and starts it again when it dies), later ones *join*. Everyone holds a shared
//! `flock` as a user. Locks go with their process, so nothing that is killed has to be cleaned up after.
//!
//! **Who ends it: the last one out.** Whoever leaves gives up his share first and then looks: nobody supervises and
//! nobody uses it → he ends the server. Somebody uses it → he leaves it running, and one of those who joined takes the
//! free lock within a moment and supervises from then on. So a short command may find the server off, start it, and go
//! again while a long-lived process has joined in the meantime: no session of that one breaks, and the URL stays.
//!
//! **After a kill.** Supervisor killed: the server lives on, and is adopted by one who joined or by the next who opens.
//! Postmaster killed: orphans of this cluster are ended (their shared memory is lost, recovery will run), then it is
//! started again in the same socket folder.
//!
//! **Who may connect.** The socket lies in a folder with mode 0700 that belongs to the account that runs the server, so
//! only that account and root reach it; both can read the cluster's files anyway, therefore no password is asked.
//! PostgreSQL refuses to run as root: `account` says whose account is taken then.

mod account;
mod binaries;
mod database;
pub mod dump;
mod error;
mod folders;
mod keeper;
mod locks;
mod processes;
mod server;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{sync::Mutex, task::JoinHandle};
use tokio_util::sync::CancellationToken;

pub use error::EmbeddedError;

use folders::Folders;
use keeper::{Keeper, Part};
use locks::{Locks, Take};

/// How long [`open`] waits for a server that somebody else is just starting or ending.
const OPEN_WITHIN: Duration = Duration::from_secs(90);

/// Which database of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Repositories and their outbox: `surehook`.
    Surehook,
    /// The receiver's inbox: `surehook_receive`.
    Receive,
}

impl Role {
    /// The database's name.
    pub fn database(self) -> &'static str {
        match self {
            Self::Surehook => "surehook",
            Self::Receive => "surehook_receive",
        }
    }
}

/// A share in the running server. End it with [`Embedded::stop`].
#[derive(Debug)]
pub struct Embedded {
    url: String,
    keeper: Arc<Mutex<Keeper>>,
    folders: Folders,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
    stopped: AtomicBool,
}

/// Opens the PostgreSQL of the data directory `data` for `role`: joins the server that runs there, else makes the cluster
/// if there is none yet, and starts it. The directory is made if it is missing.
///
/// Ok: the server takes connections at [`Embedded::url`], and the role's database is there (empty if it is new). It is
/// kept running until [`Embedded::stop`]. Err: says what to do; a server that nobody else uses is not left running.
/// May be called at the same time from several processes, and several times in one.
pub async fn open(data: &Path, role: Role) -> Result<Embedded, EmbeddedError> {
    let folders = Folders::prepare(data)?;
    let mut keeper = Keeper::new(folders.clone(), Locks::open(&folders)?);
    let opened = bring_up_or_join(&mut keeper, role).await;
    let url = match opened {
        Ok(url) => url,
        Err(error) => {
            if let Err(left) = keeper.leave().await {
                tracing::warn!(error = &left as &dyn std::error::Error, "PostgreSQL could not be ended again");
            }
            return Err(error);
        }
    };
    let (keeper, stop) = (Arc::new(Mutex::new(keeper)), CancellationToken::new());
    let task = keeper::start(Arc::clone(&keeper), stop.clone());
    Ok(Embedded { url, keeper, folders, stop, task: Mutex::new(Some(task)), stopped: AtomicBool::new(false) })
}

async fn bring_up_or_join(keeper: &mut Keeper, role: Role) -> Result<String, EmbeddedError> {
    let deadline = Instant::now() + OPEN_WITHIN;
    let socket = loop {
        if keeper.take_part()? == Part::Supervisor {
            break keeper.bring_up().await?;
        }
        // Only who holds a share may rely on the server: it is not ended under him.
        if keeper.locks().use_it()? == Take::Taken {
            if let Some(socket) = keeper.folders().recorded_socket()
                && database::answers(&socket).await
            {
                break socket;
            }
            keeper.locks().stop_using()?;
        }
        if Instant::now() > deadline {
            return Err(EmbeddedError::Silent { data: keeper.folders().data().to_owned(), waited: OPEN_WITHIN });
        }
        between_looks().await;
    };
    database::ensure(&socket, role.database()).await?;
    Ok(database::url(&socket, role.database()))
}

impl Embedded {
    /// How to connect, in the form that tokio-postgres reads: `host='…' user='surehook' dbname='…'`. It stays the same when
    /// the server is started again and when somebody else supervises it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Gives up the share; ends the server (a fast shutdown: sessions are cut, committed work is kept) if nobody else uses
    /// it. Close the pools first. Ok and nothing happens when called again. Err: the server still runs, and the next one
    /// who opens the data directory adopts it.
    pub async fn stop(&self) -> Result<(), EmbeddedError> {
        if self.stopped.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.stop.cancel();
        if let Some(task) = self.task.lock().await.take() {
            // The task is ours alone and ends with the token; a panic in it was logged where it happened.
            let _ = task.await;
        }
        self.keeper.lock().await.leave().await
    }
}

impl Drop for Embedded {
    /// Best effort for those who did not call [`Embedded::stop`]: asks the server to end if nobody else uses it, and does
    /// not wait for that.
    fn drop(&mut self) {
        if self.stopped.swap(true, Ordering::SeqCst) {
            return;
        }
        self.stop.cancel();
        if let Ok(keeper) = self.keeper.try_lock() {
            keeper.leave_at_once();
        } else {
            tracing::warn!(
                data = %self.folders.data().display(),
                "PostgreSQL is left running, because it was being started; the next surehook adopts it"
            );
        }
    }
}

/// The pause between two looks at something that tells nobody when it changes: a lock, a process, a starting server.
async fn between_looks() {
    tokio::time::sleep(Duration::from_millis(25)).await;
}
