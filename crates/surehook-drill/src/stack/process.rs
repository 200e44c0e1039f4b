//! The programs of a run: surehook's own, each started as in use, with its log in the run's folder. Starts and signals
//! processes; what it started ends with it.
#![expect(clippy::disallowed_methods, reason = "here programs are started")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// A program that does not come up within this time will not.
const UP_WITHIN: Duration = Duration::from_secs(60);

/// How programs of the run are started.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program `surehook`.
    pub surehook: PathBuf,
    /// Where data and logs are.
    pub folder: PathBuf,
}

/// A running program. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// The address that it printed first.
    pub address: String,
}

impl Launcher {
    /// `surehook` with these arguments on this database and data directory.
    pub fn command(&self, database_url: &str, data: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.surehook);
        for name in ["SUREHOOK_SECRET", "RUST_BACKTRACE"] {
            command.env_remove(name);
        }
        command.env("SUREHOOK_DATA", data).env("SUREHOOK_DATABASE_URL", database_url);
        command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Runs a command to its end; gives what it printed.
    pub async fn run(&self, database_url: &str, data: &Path, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.command(database_url, data, arguments).output().await;
        let output = output.with_context(|| format!("{} cannot be started", self.surehook.display()))?;
        if !output.status.success() {
            bail!("surehook {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts a command that goes on, and waits until it says that it is up.
    pub async fn start(
        &self,
        database_url: &str,
        data: &Path,
        name: &str,
        arguments: &[&str],
        environment: &[(&str, OsString)],
    ) -> anyhow::Result<Running> {
        let log = self.folder.join(format!("{name}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log).context("a log cannot be opened")?;
        let mut command = self.command(database_url, data, arguments);
        command.envs(environment.iter().map(|(name, value)| (name, value))).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().with_context(|| format!("{} cannot be started", self.surehook.display()))?;
        let mut line = String::new();
        let Some(output) = child.stdout.take() else { bail!("{name} has no output") };
        let mut output = BufReader::new(output);
        tokio::time::timeout(UP_WITHIN, output.read_line(&mut line))
            .await
            .with_context(|| format!("{name} did not come up within {UP_WITHIN:?}"))?
            .context("the output of a program cannot be read")?;
        if line.is_empty() {
            bail!("{name} ended as soon as it was started; its log is {}.log", self.folder.join(name).display());
        }
        let address = line.trim().rsplit("http://").next().unwrap_or_default().to_owned();
        Ok(Running { child, address })
    }
}

impl Running {
    /// The process, as long as nobody has waited for its end.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends a signal; nothing happens if it has ended.
    pub fn signal(&self, signal: Signal) {
        if let Some(id) = self.id() {
            send(id, signal);
        }
    }

    /// Whether it has ended, which nobody but the drill may make it do.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// SIGKILL, and waits for the end.
    pub async fn kill(mut self) {
        // It may have ended by itself.
        let _ = self.child.kill().await;
    }

    /// SIGTERM, and waits for the end, which must come within `grace`. Whether it did.
    pub async fn stop(mut self, grace: Duration) -> bool {
        self.signal(Signal::TERM);
        tokio::time::timeout(grace, self.child.wait()).await.is_ok()
    }
}

/// Sends a signal to a process that may just have ended.
pub fn send(id: u32, signal: Signal) {
    if let Some(id) = Pid::from_raw(id.cast_signed()) {
        let _ = kill_process(id, signal);
    }
}

/// A running process, as the kernel shows it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its id.
    pub id: u32,
    /// Its parent's.
    pub parent: u32,
    /// Its name.
    pub name: String,
    /// Its command line, with spaces between the words.
    pub line: String,
    /// The folder that it works in.
    pub folder: PathBuf,
}

/// All processes of this machine that we may look at.
pub fn processes() -> Vec<Seen> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let path = entry.path();
        let (Ok(stat), Ok(line)) = (std::fs::read_to_string(path.join("stat")), std::fs::read(path.join("cmdline")))
        else {
            continue;
        };
        let Some((head, rest)) = stat.rsplit_once(") ") else { continue };
        let name = head.split_once('(').map_or("", |(_, name)| name).to_owned();
        let parent = rest.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let folder = std::fs::read_link(path.join("cwd")).unwrap_or_default();
        found.push(Seen { id, parent, name, line, folder });
    }
    found
}

/// The processes below this one.
pub fn descendants(root: u32) -> Vec<u32> {
    let processes = processes();
    let mut found = vec![root];
    let mut at = 0;
    while let Some(process) = found.get(at).copied() {
        found.extend(processes.iter().filter(|seen| seen.parent == process).map(|seen| seen.id));
        at += 1;
    }
    found.split_off(1)
}
