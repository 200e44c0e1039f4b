//! The postmaster: making its cluster, starting, adopting and ending it. May start PostgreSQL's programs and signal the
//! processes of its own cluster. The caller holds the supervisor's lock.
#![expect(clippy::disallowed_methods, reason = "the embedded server's door for processes")]

use std::{
    io::{Read as _, Seek as _, SeekFrom},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};

use super::{
    EmbeddedError, between_looks,
    binaries::Binaries,
    database::{self, Look, USER},
    folders::Folders,
    processes::{self, Running},
};

/// How long what is left of a killed server may stand in the way.
const LEFTOVERS_WITHIN: Duration = Duration::from_secs(30);
/// Orphans end by themselves or when asked; after this they are not asked any more.
const ORPHANS_ASKED_FOR: Duration = Duration::from_secs(3);
/// Recovery after a crash takes as long as the log since the last checkpoint; PostgreSQL keeps that to about 1 GB.
const READY_WITHIN: Duration = Duration::from_secs(300);
/// How long a fast shutdown may take before it becomes an immediate one.
const FAST_WITHIN: Duration = Duration::from_secs(30);
const IMMEDIATE_WITHIN: Duration = Duration::from_secs(10);

/// Words of a start that failed only because the last processes of an earlier server were not gone yet.
const IN_THE_WAY: [&str; 2] = ["lock file \"", "pre-existing shared memory block"];
const LAST_WORDS_BYTES_MAX: u64 = 4000;

/// Written at the end of the configuration of a new cluster, where an operator may change it.
const CONFIGURATION: &str = "
# Set by surehook when it made this cluster; yours to change. What it needs for itself (no TCP, the socket's folder) it
# gives on the command line.
max_connections = 200
log_checkpoints = off
";

/// A postmaster that runs our cluster.
#[derive(Debug)]
pub(super) struct Server {
    pid: Pid,
    /// `None`: adopted, somebody else's child.
    child: Option<Child>,
}

impl Server {
    /// Whether it still runs.
    pub(super) fn lives(&mut self, cluster: &Path) -> bool {
        match &mut self.child {
            Some(child) => matches!(child.try_wait(), Ok(None)),
            None => processes::belongs(self.pid, cluster),
        }
    }
}

/// Makes the cluster if there is none, then brings its server up or adopts the one that runs. Ok gives the socket's folder;
/// the server is in `slot`, and there already while it starts, so that whoever gives up waiting can end it.
pub(super) async fn bring_up(folders: &Folders, slot: &mut Option<Server>) -> Result<PathBuf, EmbeddedError> {
    let cluster = folders.cluster();
    let binaries = if cluster.exists() { Binaries::of_cluster(&cluster)? } else { create(folders).await? };
    let begun = Instant::now();
    loop {
        match processes::running(&cluster) {
            Running::SingleUser(pid) => {
                return Err(EmbeddedError::SingleUser { cluster, pid: pid.as_raw_nonzero().get() });
            }
            Running::Postmaster(pid) => {
                if slot.as_ref().is_none_or(|server| server.pid != pid) {
                    tracing::info!(pid = pid.as_raw_nonzero().get(), "PostgreSQL runs already; it is adopted");
                    *slot = Some(Server { pid, child: None });
                }
                // A postmaster that is just starting has not written it yet.
                if let Some(socket) = processes::socket_of_running(&cluster)
                    && until_ready(folders, slot, &socket).await? == Started::Ready
                {
                    folders.record_socket(&socket)?;
                    return Ok(socket);
                }
            }
            Running::Nobody if end_orphans(&cluster, begun.elapsed())? == Orphans::None => {
                let socket = folders.socket()?;
                folders.remove_traces(&socket);
                let (log, before) = folders.open_log()?;
                *slot = Some(spawn(folders, &binaries, &socket, log)?);
                if until_ready(folders, slot, &socket).await? == Started::Ready {
                    return Ok(socket);
                }
                let words = last_words(&folders.log(), before);
                if begun.elapsed() > LEFTOVERS_WITHIN || !IN_THE_WAY.iter().any(|known| words.contains(known)) {
                    return Err(EmbeddedError::Start { cluster, log: folders.log(), words });
                }
            }
            Running::Nobody => {}
        }
        if begun.elapsed() > LEFTOVERS_WITHIN + READY_WITHIN {
            return Err(EmbeddedError::NotReady { cluster, log: folders.log(), waited: begun.elapsed() });
        }
        between_looks().await;
    }
}

async fn create(folders: &Folders) -> Result<Binaries, EmbeddedError> {
    let binaries = Binaries::newest()?;
    let made = folders.new_cluster()?;
    tracing::info!(data = %folders.data().display(), "a PostgreSQL cluster is made");
    let program = binaries.program("initdb");
    let mut initdb = command(folders, &program);
    initdb
        .args(["--encoding=UTF8", "--locale=C", "--auth=trust"])
        .arg(format!("--username={USER}"))
        .arg("-D")
        .arg(&made);
    let output = tokio::process::Command::from(initdb).kill_on_drop(true).output().await;
    let output = output.map_err(|source| EmbeddedError::Program { program, source })?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(EmbeddedError::Initialise { cluster: folders.cluster(), output });
    }
    folders.append(&made.join("postgresql.conf"), CONFIGURATION)?;
    folders.keep_cluster(&made)?;
    Ok(binaries)
}

fn spawn(folders: &Folders, binaries: &Binaries, socket: &Path, log: std::fs::File) -> Result<Server, EmbeddedError> {
    let program = binaries.program("postgres");
    let mut postgres = command(folders, &program);
    postgres.arg("-D").arg(folders.cluster()).arg("-k").arg(socket);
    postgres.args(["-c", "listen_addresses=", "-c", "port=5432", "-c", "unix_socket_permissions=0700"]);
    // Its words go to our log and are read by us.
    postgres.args(["-c", "logging_collector=off", "-c", "log_destination=stderr", "-c", "lc_messages=C"]);
    postgres.args(["-c", "cluster_name=surehook"]);
    // A group of its own: Ctrl-C in the terminal is for surehook, which ends the server when its own work is done.
    postgres.process_group(0);
    let errors = log.try_clone().map_err(EmbeddedError::file("share", folders.log()))?;
    let child = postgres.stdout(log).stderr(errors).spawn();
    let child = child.map_err(|source| EmbeddedError::Program { program, source })?;
    Ok(Server { pid: Pid::from_child(&child), child: Some(child) })
}

fn command(folders: &Folders, program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("LC_ALL", "C");
    command.current_dir("/").stdin(Stdio::null());
    if let Some(account) = folders.account() {
        // The standard library also gives up root's further groups.
        command.uid(account.user).gid(account.group);
    }
    command
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Started {
    Ready,
    Ended,
}

async fn until_ready(folders: &Folders, slot: &mut Option<Server>, socket: &Path) -> Result<Started, EmbeddedError> {
    let (cluster, begun, mut hurried) = (folders.cluster(), Instant::now(), false);
    while let Some(server) = slot {
        let look = database::look(socket).await;
        if !server.lives(&cluster) {
            *slot = None;
            break;
        }
        match look {
            Look::Ready => return Ok(Started::Ready),
            // Left by somebody who asked it to end and to wait for sessions that may never end.
            Look::Ending if !hurried => {
                processes::signal(server.pid, Signal::INT);
                hurried = true;
            }
            Look::Ending | Look::NotYet => {}
        }
        if begun.elapsed() > READY_WITHIN {
            return Err(EmbeddedError::NotReady { cluster, log: folders.log(), waited: READY_WITHIN });
        }
        between_looks().await;
    }
    Ok(Started::Ended)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Orphans {
    None,
    Some,
}

/// Ends what a killed postmaster has left behind. Their shared memory is lost with it, so they can do nothing useful any
/// more, and the next server recovers from the log whatever they were doing.
fn end_orphans(cluster: &Path, since: Duration) -> Result<Orphans, EmbeddedError> {
    let orphans = processes::of_cluster(cluster);
    if orphans.is_empty() {
        return Ok(Orphans::None);
    }
    if since > LEFTOVERS_WITHIN {
        // To start beside them would be to share the files with them.
        let pids = orphans.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
        return Err(EmbeddedError::Orphans { cluster: cluster.to_owned(), pids });
    }
    let kind = if since < ORPHANS_ASKED_FOR { Signal::QUIT } else { Signal::KILL };
    for orphan in orphans {
        processes::signal(orphan, kind);
    }
    Ok(Orphans::Some)
}

/// Ends the server of the cluster, whoever started it. Ok: it does not run any more (perhaps it did not before).
pub(super) async fn end(folders: &Folders, slot: &mut Option<Server>) -> Result<(), EmbeddedError> {
    let cluster = folders.cluster();
    let mut server = match (slot.take(), processes::running(&cluster)) {
        (Some(server), _) => server,
        (None, Running::Postmaster(pid)) => Server { pid, child: None },
        (None, _) => return Ok(()),
    };
    for (signal, patience) in [(Signal::INT, FAST_WITHIN), (Signal::QUIT, IMMEDIATE_WITHIN)] {
        if server.lives(&cluster) {
            processes::signal(server.pid, signal);
        }
        let begun = Instant::now();
        while begun.elapsed() < patience {
            if !server.lives(&cluster) {
                return Ok(());
            }
            between_looks().await;
        }
        tracing::warn!(pid = server.pid.as_raw_nonzero().get(), ?signal, "PostgreSQL takes long to end");
    }
    let pid = server.pid.as_raw_nonzero().get();
    *slot = Some(server);
    Err(EmbeddedError::Stop { cluster, pid })
}

/// Asks the server to end, and does not wait for it.
pub(super) fn ask_to_end(folders: &Folders) {
    if let Running::Postmaster(pid) = processes::running(&folders.cluster()) {
        processes::signal(pid, Signal::INT);
    }
}

/// What the log says beyond `before`, at most its end.
fn last_words(log: &Path, before: u64) -> String {
    let read = || {
        let mut file = std::fs::File::open(log)?;
        let from = before.max(file.metadata()?.len().saturating_sub(LAST_WORDS_BYTES_MAX));
        file.seek(SeekFrom::Start(from))?;
        let mut words = Vec::new();
        file.read_to_end(&mut words)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&words).trim().to_owned())
    };
    read().unwrap_or_else(|error| format!("(the log cannot be read: {error})"))
}
