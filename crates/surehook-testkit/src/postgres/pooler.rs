//! A pgbouncer in transaction mode before a cluster: on a unix socket in a temporary folder, gone with the test process.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use super::cluster::{Account, command, roomy_folder, unprivileged};
use super::{Cluster, try_connect};
use crate::try_eventually;

/// Where Debian has it, and others.
const PROGRAMS: [&str; 3] = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"];

const READY_WITHIN: Duration = Duration::from_secs(20);

/// Starts it, waits for the end of the test process (which alone holds the other end of its input), then ends it.
const GUARDIAN: &str = r#"
    trap '' INT TERM HUP PIPE
    "$1" -q pgbouncer.ini >output 2>&1 &
    echo $!
    exec >/dev/null 2>&1
    cat
    kill $!
    wait
    rm -rf "$2"
"#;

/// A running pgbouncer. It ends when it is dropped and when the test process ends in any way.
#[derive(Debug)]
pub struct Pgbouncer {
    folder: PathBuf,
    guardian: Child,
}

impl Pgbouncer {
    /// Starts one that gives each transaction any of `servers` sessions with a database of this cluster, and takes turns with them, so
    /// that nothing stays with the same one by luck. None, and a line says so, where pgbouncer is not installed.
    pub async fn start(cluster: &Cluster, servers: u32) -> Option<Self> {
        let Some(program) = PROGRAMS.iter().map(Path::new).find(|program| program.exists()) else {
            eprintln!("pgbouncer is not installed: what this test says about poolers was not tried");
            return None;
        };
        let pooler = Self::create(program, cluster, servers);
        if try_eventually(READY_WITHIN, async || try_connect(&pooler.url("postgres")).await.ok()).await.is_none() {
            let said = std::fs::read_to_string(pooler.folder.join("output")).unwrap_or_default();
            panic!("pgbouncer did not start; it said:\n{said}");
        }
        Some(pooler)
    }

    fn create(program: &Path, cluster: &Cluster, servers: u32) -> Self {
        let account = unprivileged();
        let folder = tempfile::Builder::new()
            .prefix("shpb-")
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir_in(roomy_folder())
            .expect("a temporary folder for pgbouncer")
            .keep();
        let settings = format!(
            "[databases]\n* = host={} user=postgres\n\
             [pgbouncer]\nlisten_addr =\nlisten_port = 5432\nunix_socket_dir = {}\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = {servers}\nmax_client_conn = 1000\nserver_round_robin = 1\nserver_login_retry = 1\n",
            cluster.folder().display(),
            folder.display()
        );
        std::fs::write(folder.join("pgbouncer.ini"), settings).expect("pgbouncer's settings are written");
        if let Some(Account { user, group }) = account {
            std::os::unix::fs::chown(&folder, Some(user), Some(group)).expect("the folder is given away");
        }
        let mut guardian = command(Path::new("/bin/sh"), &folder, account);
        guardian.args(["-c", GUARDIAN, "guardian"]).args([program, &folder]);
        // A group of its own, so that Ctrl-C does not reach it before its work is done.
        guardian.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut guardian = guardian.spawn().expect("the guardian starts");
        let answers = guardian.stdout.take().expect("the guardian's output");
        BufReader::new(answers).read_line(&mut String::new()).expect("the guardian answers");
        Self { folder, guardian }
    }

    /// How to connect through it to a database of its cluster: `host=… user=… dbname=…`.
    pub fn url(&self, database: &str) -> String {
        format!("host={} user=postgres dbname={database}", self.folder.display())
    }
}

impl Drop for Pgbouncer {
    fn drop(&mut self) {
        drop(self.guardian.stdin.take());
        let _ = self.guardian.wait();
    }
}
