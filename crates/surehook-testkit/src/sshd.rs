//! An SSH server for one test: OpenSSH with keys and settings of its own, on a port from the system. Each connection gets an
//! `sshd -i`, which ends with it; when this is dropped no further one is accepted.
#![expect(clippy::disallowed_methods, reason = "it starts OpenSSH's programs")]

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::geteuid;

const SSHD: &str = "/usr/sbin/sshd";

/// A running server.
#[derive(Debug)]
pub struct SshServer {
    folder: PathBuf,
    port: u16,
    user: String,
    over: Arc<AtomicBool>,
    accepting: Option<std::thread::JoinHandle<()>>,
}

/// Whether these programs are there; a test that lacks one says so and passes.
pub fn are_installed(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| {
        let found = Command::new("sh")
            .args(["-c", "command -v \"$1\" > /dev/null", "sh", program])
            .status()
            .expect("OpenSSH is set up");
        !found.success() && !Path::new(program).exists()
    });
    if let Some(program) = missing {
        eprintln!("{program} is not installed (openssh-server, openssh-client, gitolite3): this test was not run");
    }
    missing.is_none()
}

/// Whether OpenSSH's server and client and git-shell are there.
pub fn is_installed() -> bool {
    are_installed(&[SSHD, "ssh", "ssh-keygen", "git-shell"])
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().expect("OpenSSH is set up");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl SshServer {
    /// `folder` is the home of the account on the other side, and holds the keys.
    pub fn start(folder: &Path) -> Self {
        let home = folder.join("home");
        std::fs::create_dir_all(home.join(".ssh")).expect("OpenSSH is set up");
        for key in ["host", "client"] {
            let file = folder.join(key);
            run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", key, "-f"]).arg(file));
        }
        let config = folder.join("sshd_config");
        let text = format!(
            "HostKey {0}/host\nAuthorizedKeysFile {0}/home/.ssh/authorized_keys\nPidFile none\nUsePAM no\nStrictModes no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nLogLevel ERROR\n\
             SetEnv HOME={0}/home\n",
            folder.display()
        );
        std::fs::write(&config, text).expect("OpenSSH is set up");
        if geteuid().is_root() {
            // Where sshd separates privileges; the system makes it when its own server starts.
            std::fs::create_dir_all("/run/sshd").expect("OpenSSH is set up");
        }
        let name = Command::new("id").arg("-un").output().expect("OpenSSH is set up");
        let listener = TcpListener::bind("127.0.0.1:0").expect("OpenSSH is set up");
        let port = listener.local_addr().expect("OpenSSH is set up").port();
        let over = Arc::new(AtomicBool::new(false));
        let (ends, log) = (Arc::clone(&over), folder.join("sshd.log"));
        let accepting = std::thread::spawn(move || {
            for connection in listener.incoming() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                let socket = OwnedFd::from(connection.expect("OpenSSH is set up"));
                let log = std::fs::File::options().create(true).append(true).open(&log).expect("OpenSSH is set up");
                let mut sshd = Command::new(SSHD);
                sshd.args(["-i", "-e", "-f"])
                    .arg(&config)
                    .stdin(socket.try_clone().expect("OpenSSH is set up"))
                    .stdout(socket)
                    .stderr(log);
                let mut child = sshd.spawn().expect("OpenSSH is set up");
                drop(sshd);
                std::thread::spawn(move || child.wait());
            }
        });
        let user = String::from_utf8(name.stdout).expect("OpenSSH is set up").trim().to_owned();
        Self { folder: folder.to_owned(), port, user, over, accepting: Some(accepting) }
    }

    /// The home of the account.
    pub fn home(&self) -> PathBuf {
        self.folder.join("home")
    }

    /// The client's public key.
    pub fn public_key(&self) -> PathBuf {
        self.folder.join("client.pub")
    }

    /// Lets the client in for git alone, as an administrator does who gives out accounts with git-shell.
    pub fn allow_git_shell(&self) {
        let key = std::fs::read_to_string(self.public_key()).expect("OpenSSH is set up");
        let line = format!("restrict,command=\"git-shell -c \\\"$SSH_ORIGINAL_COMMAND\\\"\" {key}");
        std::fs::write(self.home().join(".ssh/authorized_keys"), line).expect("OpenSSH is set up");
    }

    /// The URL of a path on the other side.
    pub fn url(&self, path: &str) -> String {
        format!("ssh://{}@127.0.0.1:{}/{}", self.user, self.port, path.trim_start_matches('/'))
    }

    /// The setting with which git uses this server's client key.
    pub fn client_setting(&self) -> String {
        format!(
            "core.sshCommand=ssh -F none -i {0}/client -o IdentitiesOnly=yes -o UserKnownHostsFile={0}/known_hosts \
             -o StrictHostKeyChecking=no -o LogLevel=ERROR -o BatchMode=yes",
            self.folder.display()
        )
    }

    /// What the servers have logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("sshd.log")).unwrap_or_default()
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = std::net::TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}
