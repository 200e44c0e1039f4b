//! The idempotent receiver: records each delivery once, then runs a command for it, and keeps log and exit code.
//!
//! Over HTTP it answers 202 when a delivery and its build are committed in the table `inbox_builds`, and 409 for one
//! that was seen. The supervisor takes queued builds, bounded in number and one at a time per repository, and runs each
//! under a [`runner`] of its own that outlives the receiver.

mod folder;
mod http;
mod leftovers;
mod push;
pub mod runner;
mod supervisor;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use surehook_outbox::store::migrate::migrate;
use surehook_outbox::store::{Database, DatabaseError};
use surehook_webhook::{Secrets, Verifier};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::folder::{Locking, create_private, lock_file};
use self::runner::RunnerCommand;

/// Bodies over 5 MiB are refused, unless set otherwise.
pub const BODY_BYTES_MAX: usize = 5 * 1024 * 1024;
/// Builds at once, unless set otherwise.
pub const JOBS: usize = 2;
/// A build whose log grows over 1 GiB is ended, unless set otherwise.
pub const LOG_BYTES_MAX: u64 = 1 << 30;
/// Requests whose bodies are held in memory at once.
const REQUESTS_MAX: usize = 64;

/// How a receiver is set up.
#[derive(Debug)]
pub struct ReceiverSettings {
    /// Where deliveries come in.
    pub listener: TcpListener,
    /// The receiver's own database; its schema is brought up to date at start.
    pub database: Database,
    /// Builds lie in `receive/` below it.
    pub data_dir: PathBuf,
    /// A delivery signed by either is believed.
    pub secrets: Secrets,
    /// What `sh -c` runs for each push, in the receiver's working directory.
    pub exec: OsString,
    /// Builds at once, at least 1; those of one repository always run one after another.
    pub jobs: usize,
    /// See [`Verifier::accept_untimed`].
    pub accept_untimed: bool,
    /// Longer bodies are refused.
    pub body_bytes_max: usize,
    /// A build that runs longer is ended.
    pub timeout: Option<Duration>,
    /// A build whose log grows longer is ended.
    pub log_bytes_max: u64,
    /// How a runner is started.
    pub runner: RunnerCommand,
}

/// Why there is no receiver.
#[derive(Debug, thiserror::Error)]
pub enum ReceiverError {
    /// The data directory cannot be used.
    #[error("the receiver cannot use {path}")]
    Folder {
        /// Which file or folder.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Another receiver works there.
    #[error("another receiver works in {0}")]
    AlreadyRunning(PathBuf),
    /// The schema cannot be brought up to date.
    #[error("the receiver's database cannot be used")]
    Database(#[from] DatabaseError),
    /// The listener has no address.
    #[error("the receiver's address cannot be read")]
    Address(#[source] io::Error),
    /// A part of the receiver panicked.
    #[error("a part of the receiver broke down")]
    Broken(#[source] tokio::task::JoinError),
}

/// What the parts of a receiver share.
struct Shared {
    database: Database,
    verifier: Verifier,
    exec: OsString,
    runner: RunnerCommand,
    jobs: usize,
    body_bytes_max: usize,
    timeout: Option<Duration>,
    log_bytes_max: u64,
    /// The folder of the builds' folders, absolute.
    builds: PathBuf,
    receiver_id: Uuid,
    requests: Semaphore,
    queued: Notify,
    shutdown: CancellationToken,
    /// Held as long as anything of the receiver lives.
    _lock: File,
}

/// A running receiver. Dropping it stops it on the spot, as a crash would; builds that run go on, and the next receiver
/// on the same data directory takes them up.
pub struct Receiver {
    address: SocketAddr,
    tasks: JoinSet<()>,
    shutdown: CancellationToken,
}

impl Receiver {
    /// Starts a receiver: when it returns, the schema is there and deliveries are answered. Cancelling `shutdown` stops
    /// it: nothing new is taken, what is in flight is answered, builds that run are left running.
    pub async fn start(settings: ReceiverSettings, shutdown: CancellationToken) -> Result<Self, ReceiverError> {
        let address = settings.listener.local_addr().map_err(ReceiverError::Address)?;
        let (root, lock, receiver_id) = open_folder(&settings.data_dir)?;
        migrate(&settings.database, "inbox", crate::store::INBOX).await?;
        let shared = Arc::new(Shared {
            database: settings.database,
            verifier: Verifier::new(settings.secrets).accept_untimed(settings.accept_untimed),
            exec: settings.exec,
            runner: settings.runner,
            jobs: settings.jobs.max(1),
            body_bytes_max: settings.body_bytes_max,
            timeout: settings.timeout,
            log_bytes_max: settings.log_bytes_max,
            builds: root.join("builds"),
            receiver_id,
            requests: Semaphore::new(REQUESTS_MAX),
            queued: Notify::new(),
            // A child: it is also cancelled here when a part breaks down, which is not the caller's shutdown.
            shutdown: shutdown.child_token(),
            _lock: lock,
        });
        let shutdown = shared.shutdown.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(http::serve(settings.listener, Arc::clone(&shared)));
        tasks.spawn(supervisor::supervise(shared));
        Ok(Self { address, tasks, shutdown })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until it has stopped. Err: a part broke down, and the others were stopped.
    pub async fn join(mut self) -> Result<(), ReceiverError> {
        let mut outcome = Ok(());
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                self.shutdown.cancel();
                outcome = Err(ReceiverError::Broken(error));
            }
        }
        outcome
    }
}

/// Makes `<data>/receive`, takes its lock, and reads the receiver's id there, or makes one.
fn open_folder(data_dir: &Path) -> Result<(PathBuf, File, Uuid), ReceiverError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ReceiverError::Folder { path, source }
    };
    let root = std::path::absolute(data_dir.join("receive")).map_err(failed(data_dir))?;
    create_private(&root.join("builds")).map_err(failed(&root))?;
    let lock_path = root.join("lock");
    let lock = match lock_file(&lock_path).map_err(failed(&lock_path))? {
        Locking::Held(lock) => lock,
        Locking::HeldByOther => return Err(ReceiverError::AlreadyRunning(root)),
    };
    let id_path = root.join("receiver-id");
    let receiver_id = read_or_make_id(&id_path).map_err(failed(&id_path))?;
    Ok((root, lock, receiver_id))
}

fn read_or_make_id(path: &Path) -> io::Result<Uuid> {
    match std::fs::read_to_string(path) {
        Ok(text) => text.trim().parse().map_err(|error| io::Error::new(ErrorKind::InvalidData, error)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let id = Uuid::new_v4();
            let unfinished = path.with_extension("unfinished");
            let mut file = File::create(&unfinished)?;
            writeln!(file, "{id}")?;
            file.sync_all()?;
            std::fs::rename(&unfinished, path)?;
            Ok(id)
        }
        Err(error) => Err(error),
    }
}
