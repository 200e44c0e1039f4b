//! What can go wrong with surehook's own PostgreSQL, each with what to do about it. Pure.

use std::{io, path::PathBuf, time::Duration};

/// Why surehook's own PostgreSQL cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// No PostgreSQL on the machine, or only old ones.
    #[error(
        "PostgreSQL 15 or later is not installed here{}; install it (on Debian and Ubuntu: apt-get install postgresql), or use a server elsewhere with --database-url",
        in_words(.found)
    )]
    NotInstalled {
        /// The versions that were found.
        found: Vec<u32>,
    },
    /// One of PostgreSQL's programs failed.
    #[error("{program}: {message}")]
    Dump {
        /// Which.
        program: &'static str,
        /// What it said.
        message: String,
    },
    /// The cluster needs another version than those on the machine.
    #[error(
        "the data in {} was made by PostgreSQL {wanted}, which is not installed here{}; install it again (on Debian and Ubuntu: apt-get install postgresql-{wanted})",
        .cluster.display(), in_words(.found)
    )]
    OtherVersion {
        /// The cluster.
        cluster: PathBuf,
        /// What made it.
        wanted: u32,
        /// The versions that were found.
        found: Vec<u32>,
    },
    /// `PG_VERSION` says nothing that we know.
    #[error("{} is no PostgreSQL cluster that surehook can run (its PG_VERSION says {version:?}); move it away to begin with an empty one", .cluster.display())]
    NoCluster {
        /// The folder.
        cluster: PathBuf,
        /// What the file says.
        version: String,
    },
    /// We are root, and there is nobody else to run PostgreSQL.
    #[error(
        "PostgreSQL refuses to run as root, and this machine has neither an account postgres nor nobody; make one with: useradd --system postgres"
    )]
    NoAccount,
    /// We are root, and the account that runs PostgreSQL cannot reach the data directory.
    #[error(
        "PostgreSQL refuses to run as root, so it runs as {account}, and {account} may not pass through {}; allow that with: chmod o+x {0}, or choose another --data (the default is /var/lib/surehook)",
        .folder.display()
    )]
    NotPassable {
        /// The first folder that is closed to it.
        folder: PathBuf,
        /// The account.
        account: String,
    },
    /// The data directory belongs to somebody else.
    #[error("{} belongs to another user (uid {owner}) and is closed to us; run surehook as that user or as root, or choose another --data", .path.display())]
    NotOurs {
        /// What belongs to him.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// The cluster belongs to root.
    #[error("{} belongs to root, but PostgreSQL refuses to run as root; give it to the account that shall run it with: chown -R {account} {0}", .cluster.display())]
    ClusterOfRoot {
        /// The cluster.
        cluster: PathBuf,
        /// Who would run it.
        account: String,
    },
    /// A file or folder of ours cannot be used.
    #[error("cannot {action} {}", .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A program of PostgreSQL does not start.
    #[error("cannot run {}", .program.display())]
    Program {
        /// Which.
        program: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// `initdb` failed.
    #[error("PostgreSQL's initdb could not make a cluster beside {}:\n{output}", .cluster.display())]
    Initialise {
        /// Where it should have been.
        cluster: PathBuf,
        /// What it said.
        output: String,
    },
    /// The server ended before it was ready.
    #[error("PostgreSQL does not start on {}; its last words (all are in {}):\n{words}", .cluster.display(), .log.display())]
    Start {
        /// The cluster.
        cluster: PathBuf,
        /// The log.
        log: PathBuf,
        /// The end of the log.
        words: String,
    },
    /// Somebody repairs the cluster by hand.
    #[error("a PostgreSQL in single-user mode (process {pid}) works on {}; end it first", .cluster.display())]
    SingleUser {
        /// The cluster.
        cluster: PathBuf,
        /// The process.
        pid: i32,
    },
    /// What a killed server has left behind does not go away.
    #[error("processes of an earlier PostgreSQL on {} do not end, not even by SIGKILL: {pids:?}; the machine's disk may hang", .cluster.display())]
    Orphans {
        /// The cluster.
        cluster: PathBuf,
        /// The processes.
        pids: Vec<i32>,
    },
    /// The server runs but gives no session.
    #[error("PostgreSQL runs on {} but was not ready within {waited:?}; see {}", .cluster.display(), .log.display())]
    NotReady {
        /// The cluster.
        cluster: PathBuf,
        /// The log.
        log: PathBuf,
        /// How long it had.
        waited: Duration,
    },
    /// Somebody else supervises, but nothing answers.
    #[error("another surehook runs on {}, but its PostgreSQL did not answer within {waited:?}; look at that process, or end it", .data.display())]
    Silent {
        /// The data directory.
        data: PathBuf,
        /// How long it had.
        waited: Duration,
    },
    /// The server would not end.
    #[error("PostgreSQL (process {pid}) on {} does not end", .cluster.display())]
    Stop {
        /// The cluster.
        cluster: PathBuf,
        /// The postmaster.
        pid: i32,
    },
    /// The role's database cannot be made or reached.
    #[error("PostgreSQL runs, but its database {database} cannot be had")]
    Database {
        /// Its name.
        database: String,
        /// Why not.
        #[source]
        source: tokio_postgres::Error,
    },
}

impl EmbeddedError {
    pub(super) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }
}

fn in_words(versions: &[u32]) -> String {
    match versions {
        [] => String::new(),
        _ => format!(" (found: {})", versions.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    }
}
