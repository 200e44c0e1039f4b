//! A PostgreSQL cluster of our own in a temporary folder: no TCP, one unix socket, gone with the test process.
//! May start PostgreSQL's programs; as root it starts them as an unprivileged user, because they refuse to run as root.
#![expect(clippy::disallowed_methods, reason = "it starts PostgreSQL's programs")]

use std::{
    fs::{File, OpenOptions},
    io::{BufRead as _, BufReader},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{connect, try_connect};
use crate::{eventually, try_eventually, wait::be_slow};

const READY_WITHIN: Duration = Duration::from_secs(60);

/// Between two sessions that go on after a pause.
const BETWEEN_SESSIONS: Duration = Duration::from_millis(100);

/// A folder in memory is used if that much is free there.
const ROOM_BYTES_MIN: u64 = 1 << 30;

/// Makes the cluster, empty or as a replica of another, says how that went, waits for the end of the test process (which alone holds the other end of its
/// input), then removes everything. An initdb that is cut short leaves shared memory behind, so it is always let finish.
const GUARDIAN: &str = r#"
    trap '' INT TERM HUP PIPE
    if [ -z "$3" ]; then
        "$1/initdb" --no-sync --encoding=UTF8 --locale=C --auth=trust --username=postgres data >initdb.log 2>&1
    else
        "$1/pg_basebackup" --no-sync --pgdata=data --checkpoint=fast --write-recovery-conf --dbname="$3" >initdb.log 2>&1
    fi
    echo $?
    exec >/dev/null 2>&1
    cat
    "$1/pg_ctl" stop -D "$2/data" -m immediate -t 30
    rm -rf "$2" || { sleep 1; rm -rf "$2"; }
"#;

/// How a [`Cluster`] is set up.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Whether the server lies on a disk and waits for it (default durability), or not (quick, the default here).
    pub durable: bool,
    /// Where its folder is made, instead of where there is room.
    pub place: Option<PathBuf>,
    /// More settings, as `name=value`.
    pub more: Vec<String>,
}

/// A running cluster, started by [`Cluster::start`]. It ends, and its files are removed, when it is dropped and when the
/// test process ends in any way.
#[derive(Debug)]
pub struct Cluster {
    binaries: PathBuf,
    folder: PathBuf,
    settings: Settings,
    account: Option<Account>,
    server: Mutex<Option<Child>>,
    guardian: Child,
}

/// Who runs the server if we are root.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    pub(super) user: u32,
    pub(super) group: u32,
}

impl Cluster {
    /// Makes a cluster and starts it. On return it takes connections.
    pub async fn start(settings: Settings) -> Self {
        let cluster =
            tokio::task::spawn_blocking(move || Self::create(settings, "")).await.expect("the cluster is made");
        cluster.resume().await;
        cluster
    }

    fn create(settings: Settings, origin: &str) -> Self {
        let binaries = find_binaries();
        let account = unprivileged();
        let folder = tempfile::Builder::new()
            .prefix("shpg-")
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir_in(match &settings.place {
                Some(place) => place.clone(),
                None if settings.durable => PathBuf::from(ON_DISK),
                None => roomy_folder(),
            })
            .expect("a temporary folder for PostgreSQL")
            .keep();
        if let Some(Account { user, group }) = account {
            std::os::unix::fs::chown(&folder, Some(user), Some(group)).expect("the folder is given away");
        }
        let mut guardian = command(Path::new("/bin/sh"), &folder, account);
        guardian.args(["-c", GUARDIAN, "guardian"]).args([&binaries, &folder]).arg(origin);
        // A group of its own, so that Ctrl-C does not reach it before its work is done.
        guardian.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut guardian = guardian.spawn().expect("the guardian starts");
        let mut made = String::new();
        let answers = guardian.stdout.take().expect("the guardian's output");
        BufReader::new(answers).read_line(&mut made).expect("the guardian answers");
        if made.trim() != "0" {
            panic!("initdb: {}", std::fs::read_to_string(folder.join("initdb.log")).unwrap_or_default());
        }
        Self { binaries, folder, settings, account, server: Mutex::new(None), guardian }
    }

    /// Starts a replica that follows this one, and lets every commit here wait for it. On return it does.
    pub async fn replica(&self) -> Self {
        let origin = format!("host={} user=postgres application_name=replica", self.folder.display());
        let settings = self.settings.clone();
        let copied = tokio::task::spawn_blocking(move || Self::create(settings, &origin)).await;
        let replica = copied.expect("the cluster is copied");
        replica.resume().await;
        let admin = connect(&self.url("postgres")).await;
        for statement in ["ALTER SYSTEM SET synchronous_standby_names = 'replica'", "SELECT pg_reload_conf()"] {
            admin.batch_execute(statement).await.expect("commits wait for the replica");
        }
        eventually(READY_WITHIN, async || {
            let follows = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            let replicas: i64 = admin.query_one(follows, &[]).await.expect("who follows").get(0);
            (replicas == 1).then_some(())
        })
        .await;
        admin.close().await;
        replica
    }

    /// Makes a replica a server of its own, which takes changes.
    pub async fn promote(&self) {
        let admin = connect(&self.url("postgres")).await;
        let promoted = admin.query_one("SELECT pg_promote()", &[]).await.expect("the replica is promoted");
        assert!(promoted.get::<_, bool>(0), "the replica was not promoted in time; its log:\n{}", self.log());
        admin.close().await;
    }

    /// How to connect to one of its databases as its superuser: `host=… user=… dbname=…`.
    pub fn url(&self, database: &str) -> String {
        format!("host={} user=postgres dbname={database}", self.folder.display())
    }

    /// The folder of its socket.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of the cluster's data.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// The postmaster's process id, if it was started and not stopped.
    pub fn pid(&self) -> Option<u32> {
        self.server().as_ref().map(Child::id)
    }

    /// Starts the server again after [`Cluster::stop`] or [`Cluster::kill`]. On return it takes connections.
    pub async fn resume(&self) {
        let ready = try_eventually(READY_WITHIN, async || {
            // After a kill the last processes of the old server may still have to go: it then refuses to start at first.
            {
                let mut server = self.server();
                let ended = match server.as_mut() {
                    None => true,
                    Some(child) => child.try_wait().expect("the server can be waited for").is_some(),
                };
                if ended {
                    *server = Some(self.spawn());
                }
            }
            try_connect(&self.url("postgres")).await.ok()
        })
        .await;
        match ready {
            Some(client) => client.close().await,
            None => panic!("PostgreSQL did not start; its log:\n{}", self.log()),
        }
    }

    /// Ends the server; sessions are cut, committed work is kept (a "fast" shutdown). Nothing happens if it is not running.
    pub async fn stop(&self) {
        self.end(rustix::process::Signal::INT).await;
    }

    /// Ends the postmaster by SIGKILL, as the kernel does when memory runs out. Nothing happens if it is not running.
    pub async fn kill(&self) {
        self.end(rustix::process::Signal::KILL).await;
    }

    /// [`Cluster::stop`], then [`Cluster::resume`].
    pub async fn restart(&self) {
        self.stop().await;
        self.resume().await;
    }

    /// Makes the server and all its sessions stand still, as a machine does that is frozen: connections stay open and answer
    /// nothing. [`Cluster::go_on`] ends that.
    pub fn pause(&self) {
        let postmaster = self.pid().expect("the server runs");
        // The postmaster first: from then on it starts no other process.
        self.signal_one(postmaster, rustix::process::Signal::STOP);
        self.children().into_iter().for_each(|child| self.signal_one(child, rustix::process::Signal::STOP));
    }

    /// Lets what [`Cluster::pause`] stopped go on, one process a moment after another.
    pub async fn go_on(&self) {
        for process in self.children().into_iter().chain(self.pid()) {
            self.signal_one(process, rustix::process::Signal::CONT);
            be_slow(BETWEEN_SESSIONS).await;
        }
    }

    fn children(&self) -> Vec<u32> {
        let postmaster = self.pid().expect("the server runs");
        let children = std::fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children"));
        let children = children.expect("the server's processes");
        children.split_whitespace().map(|child| child.parse().expect("a process id")).collect()
    }

    fn signal_one(&self, id: u32, signal: rustix::process::Signal) {
        let id = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw).expect("a process id");
        // A session may just have ended.
        let _ = rustix::process::kill_process(id, signal);
    }

    /// Ends every session with `database`, as an administrator would.
    pub async fn cut_sessions(&self, database: &str) {
        let admin = connect(&self.url("postgres")).await;
        admin
            .execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", &[&database])
            .await
            .expect("sessions are ended");
    }

    async fn end(&self, signal: rustix::process::Signal) {
        let Some(mut child) = self.server().take() else { return };
        tokio::task::spawn_blocking(move || {
            if child.try_wait().expect("the server can be waited for").is_none() {
                rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).expect("a signal");
                child.wait().expect("the server ends");
            }
        })
        .await
        .expect("the server is ended");
    }

    fn spawn(&self) -> Child {
        let log = OpenOptions::new().create(true).append(true).open(self.folder.join("log")).expect("the log opens");
        let errors: File = log.try_clone().expect("the log is shared");
        let mut server = command(&self.binaries.join("postgres"), &self.folder, self.account);
        server.args(["-D", "data", "-k"]).arg(&self.folder);
        // Shared memory in the cluster's own folder is removed with it; segments elsewhere would outlive a kill.
        server.args(["-c", "dynamic_shared_memory_type=mmap"]);
        server.args(["-c", "listen_addresses=", "-c", "max_connections=300", "-c", "log_min_messages=fatal"]);
        if !self.settings.durable {
            server.args(["-c", "fsync=off", "-c", "full_page_writes=off"]);
        }
        for setting in &self.settings.more {
            server.args(["-c", setting]);
        }
        server.process_group(0).stdin(Stdio::null()).stdout(log).stderr(errors);
        server.spawn().expect("postgres starts")
    }

    fn server(&self) -> MutexGuard<'_, Option<Child>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.guardian.stdin.take());
        if let Some(mut server) = self.server().take() {
            let _ = server.wait();
        }
        let _ = self.guardian.wait();
    }
}

pub(super) fn command(program: &Path, folder: &Path, account: Option<Account>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("LC_ALL", "C").current_dir(folder);
    if let Some(Account { user, group }) = account {
        // The standard library also drops root's further groups.
        command.uid(user).gid(group);
    }
    command
}

/// The account that runs PostgreSQL if we are root: `postgres` if the machine has it, else `nobody`.
pub(super) fn unprivileged() -> Option<Account> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let accounts = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd");
    let find = |name: &str| {
        accounts.lines().find_map(|line| match line.split(':').collect::<Vec<_>>()[..] {
            [found, _, user, group, ..] if found == name => {
                Some(Account { user: user.parse().ok()?, group: group.parse().ok()? })
            }
            _ => None,
        })
    };
    Some(find("postgres").or_else(|| find("nobody")).expect("an account to run PostgreSQL with: postgres or nobody"))
}

/// Names the folder of the programs of another PostgreSQL to test with.
const OTHER_BINARIES: &str = "TEST_POSTGRES_BIN";

/// The one that was named, else the newest installed PostgreSQL, from 15 on.
fn find_binaries() -> PathBuf {
    if let Some(folder) = std::env::var_os(OTHER_BINARIES) {
        return folder.into();
    }
    let packaged = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        (version >= 15 && entry.path().join("bin/initdb").exists()).then(|| (version, entry.path().join("bin")))
    });
    if let Some((_, folder)) = packaged.max() {
        return folder;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .find(|folder| folder.join("initdb").exists() && folder.join("postgres").exists())
        .expect("PostgreSQL 15 or later is needed for the tests: install the package postgresql")
}

/// Where files outlive a restart of the machine, so on a disk: waiting for memory would be no durability.
const ON_DISK: &str = "/var/tmp";

/// Memory if there is plenty of it, else the usual place. Short, because a socket's path has at most 107 bytes.
pub(super) fn roomy_folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    match rustix::fs::statvfs(memory) {
        Ok(room) if room.f_bavail * room.f_frsize >= ROOM_BYTES_MIN && writable(memory) => memory.to_owned(),
        _ => PathBuf::from("/tmp"),
    }
}

fn writable(folder: &Path) -> bool {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok()
}
