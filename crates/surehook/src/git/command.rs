//! The only door to git processes: what they are told, in which environment they run, and how they end.
//!
//! Arguments are constants; what a user can influence goes in after `--` or as the value of a configuration key. The
//! environment is cleared, so that nothing of the server's leaks into hooks and nothing of the user's changes git.
#![expect(clippy::disallowed_methods, reason = "this is the door")]

use command_fds::CommandFdExt as _;
use rustix::process::Signal;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::process::{Dropped, GitProcess};
use crate::owner::{Owner, Standing};

const OUTPUT_BYTES_MAX: u64 = 1024 * 1024;
/// How long git may take to end when it is asked to.
const TERM_TIME_MAX: Duration = Duration::from_secs(3);
const OUTPUT_TIME_MAX: Duration = Duration::from_secs(60);

/// Where git is, and what its processes see of the machine.
#[derive(Clone, Debug)]
pub struct GitSettings {
    /// The program: a name to look for in `search_path`, or a path.
    pub program: PathBuf,
    /// `PATH` of git and its hooks.
    pub search_path: OsString,
    /// `HOME` of git and its hooks: an empty or absent folder, so that nobody's personal settings apply.
    pub home: PathBuf,
    /// The account that git runs as, if not ours; only root can do that.
    pub run_as: Option<Owner>,
}

impl Default for GitSettings {
    fn default() -> Self {
        Self {
            program: "git".into(),
            search_path: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into(),
            home: "/nonexistent".into(),
            run_as: None,
        }
    }
}

/// Starts git processes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Git {
    settings: Arc<GitSettings>,
}

/// Why a git command gave no result.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The process could not be started or talked to.
    #[error("git could not be run")]
    Run(#[source] io::Error),
    /// It ended with an error.
    #[error("git {command} failed ({status}): {stderr}")]
    Failed {
        /// Which command.
        command: &'static str,
        /// How it ended.
        status: ExitStatus,
        /// The beginning of what it said.
        stderr: String,
    },
    /// It was ended because it took too long.
    #[error("git {0} did not end in time")]
    Late(&'static str),
}

/// The two halves of the Git protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Clone and fetch.
    UploadPack,
    /// Push.
    ReceivePack,
}

impl Service {
    /// The name as it stands in URLs and content types.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UploadPack => "git-upload-pack",
            Self::ReceivePack => "git-receive-pack",
        }
    }

    fn command(self) -> &'static str {
        match self {
            Self::UploadPack => "upload-pack",
            Self::ReceivePack => "receive-pack",
        }
    }
}

/// Which half of a request a service process answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// List refs and capabilities; reads nothing.
    Advertise,
    /// Answer one request read from standard input.
    Answer,
}

/// What upkeep has git do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GitUpkeep {
    /// Loose refs become one file.
    PackRefs,
    /// Loose objects and small packs become larger ones; each pack is then at least twice as large as the next.
    Repack,
    /// One pack of what is reachable, by refs and their logs; the rest goes into a pack of its own, and is left out of it
    /// after so many days.
    RepackAll {
        /// How long an object is kept that nothing reaches.
        unreachable_days: u16,
    },
    /// Loose objects go that nothing has reached for so many days.
    Prune {
        /// How long an object is kept that nothing reaches.
        unreachable_days: u16,
    },
}

/// All that a service process is told beside its service and turn.
#[derive(Debug)]
pub(crate) struct ServiceCall<'a> {
    pub(crate) repository: &'a Path,
    /// The checked `Git-Protocol` header.
    pub(crate) protocol: Option<&'a str>,
    pub(crate) pusher: Option<&'a str>,
    pub(crate) config: Vec<(&'static str, String)>,
    /// Passed on, so that it is held until the last descendant is gone.
    pub(crate) lock: Option<OwnedFd>,
}

impl Git {
    /// A door to this git.
    #[must_use]
    pub fn new(settings: GitSettings) -> Self {
        Self { settings: Arc::new(settings) }
    }

    /// The same git, run as the owner of what it works on: what it writes stays his.
    #[must_use]
    pub fn acting_as(&self, owner: Owner) -> Self {
        let run_as = (owner.standing() == Standing::Root).then_some(owner);
        Self { settings: Arc::new(GitSettings { run_as, ..(*self.settings).clone() }) }
    }

    /// What `git --version` says.
    ///
    /// # Errors
    /// git is not there or does not work.
    pub async fn version(&self) -> Result<String, GitError> {
        let output = self.output("--version", &[], None).await?;
        Ok(String::from_utf8_lossy(&output).trim().to_owned())
    }

    /// Makes an empty bare repository at `path`, without templates, HEAD on `main`. Not yet on disk for good.
    ///
    /// # Errors
    /// git refuses; what it made so far is left for the caller to remove.
    pub async fn init_bare(&self, path: &Path, object_format: &str) -> Result<(), GitError> {
        let format = format!("--object-format={object_format}");
        let arguments =
            ["--bare", "--quiet", "--template=", "--initial-branch=main", &format, "--"].map(OsStr::new).to_vec();
        self.output("init", &[&arguments[..], &[path.as_os_str()]].concat(), Some(path)).await.map(drop)
    }

    /// Reads one value of a repository's own config; `None` if it is not set.
    ///
    /// # Errors
    /// The config is not there or cannot be read.
    pub async fn config_value(&self, repository: &Path, key: &'static str) -> Result<Option<String>, GitError> {
        let file = joined("--file=", &repository.join("config"));
        match self.output("config", &[&file, OsStr::new("--get"), OsStr::new(key)], Some(repository)).await {
            Ok(value) => Ok(Some(String::from_utf8_lossy(&value).trim_end_matches('\n').to_owned())),
            Err(GitError::Failed { status, .. }) if status.code() == Some(1) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the value that applies in a repository, with what it includes and without anybody's personal settings.
    ///
    /// # Errors
    /// There is no repository, or its config cannot be read.
    pub async fn effective_value(&self, repository: &Path, key: &'static str) -> Result<Option<String>, GitError> {
        let mut command = self.command(Some(repository), &[]);
        command.env("GIT_DIR", repository).args(["config", "--get", key]).stdin(Stdio::null());
        match Self::finish("config", command).await {
            Ok(value) => Ok(Some(String::from_utf8_lossy(&value).trim_end_matches('\n').to_owned())),
            Err(GitError::Failed { status, .. }) if status.code() == Some(1) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets one value in a repository's own config. May be repeated.
    ///
    /// # Errors
    /// The config is not there, cannot be written, or is locked by another.
    pub async fn set_config_value(&self, repository: &Path, key: &'static str, value: &str) -> Result<(), GitError> {
        let file = joined("--file=", &repository.join("config"));
        self.output("config", &[&file, OsStr::new(key), OsStr::new(value)], Some(repository)).await.map(drop)
    }

    /// Adds a line that sets this value to a repository's own config; the last line of a key counts.
    ///
    /// # Errors
    /// As [`Self::set_config_value`].
    pub async fn add_config_value(&self, repository: &Path, key: &'static str, value: &str) -> Result<(), GitError> {
        let file = joined("--file=", &repository.join("config"));
        let arguments = [&file, OsStr::new("--add"), OsStr::new(key), OsStr::new(value)];
        self.output("config", &arguments, Some(repository)).await.map(drop)
    }

    /// Removes the lines of a key whose value matches a regular expression from a repository's own config, if they are there.
    ///
    /// # Errors
    /// As [`Self::set_config_value`].
    pub async fn remove_config_value(
        &self,
        repository: &Path,
        key: &'static str,
        pattern: &'static str,
    ) -> Result<(), GitError> {
        let file = joined("--file=", &repository.join("config"));
        let arguments = [&file, OsStr::new("--unset-all"), OsStr::new(key), OsStr::new(pattern)];
        match self.output("config", &arguments, Some(repository)).await {
            Err(GitError::Failed { status, .. }) if status.code() == Some(5) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Removes one key from a repository's own config, if it is there.
    ///
    /// # Errors
    /// As [`Self::set_config_value`].
    pub async fn unset_config_value(&self, repository: &Path, key: &'static str) -> Result<(), GitError> {
        let file = joined("--file=", &repository.join("config"));
        match self.output("config", &[&file, OsStr::new("--unset-all"), OsStr::new(key)], Some(repository)).await {
            Err(GitError::Failed { status, .. }) if status.code() == Some(5) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Starts one half of the protocol. A push is not killed when its handle is dropped, a fetch is.
    pub(crate) fn serve(&self, service: Service, turn: Turn, call: ServiceCall<'_>) -> Result<GitProcess, GitError> {
        let mut command = self.command(Some(call.repository), &call.config);
        command.args([service.command(), "--stateless-rpc"]);
        if turn == Turn::Advertise {
            command.arg("--advertise-refs");
        }
        if service == Service::UploadPack {
            command.arg("--strict");
        }
        command.arg("--").arg(call.repository);
        if let Some(protocol) = call.protocol {
            command.env("GIT_PROTOCOL", protocol);
        }
        if service == Service::ReceivePack {
            // git writes this into the reflog, and would otherwise ask the machine for a name.
            let pusher = call.pusher.unwrap_or("surehook").replace(|char: char| char.is_control(), " ");
            command.env("GIT_COMMITTER_NAME", &pusher).env("GIT_COMMITTER_EMAIL", "surehook@localhost");
            command.env("REMOTE_USER", &pusher);
        }
        command.stdin(if turn == Turn::Answer { Stdio::piped() } else { Stdio::null() });
        if let Some(lock) = call.lock {
            command.preserved_fds(vec![lock]);
        }
        let dropping =
            if service == Service::UploadPack || turn == Turn::Advertise { Dropped::Kill } else { Dropped::Leave };
        GitProcess::start(command, dropping).map_err(GitError::Run)
    }

    /// Does a piece of upkeep. Ok(true): it is done. Ok(false): `asked` was cancelled before; git was ended and has left
    /// the repository as usable as before, perhaps with a temporary file.
    ///
    /// # Errors
    /// git failed; the repository is as usable as before. May be repeated.
    pub async fn keep_up(
        &self,
        repository: &Path,
        task: GitUpkeep,
        asked: &CancellationToken,
    ) -> Result<bool, GitError> {
        // One thread: upkeep has time.
        let mut command = self.command(Some(repository), &[("pack.threads", "1".into())]);
        command.arg(joined("--git-dir=", repository)).stdin(Stdio::null());
        let name = match task {
            GitUpkeep::PackRefs => {
                command.args(["pack-refs", "--all"]);
                "pack-refs"
            }
            GitUpkeep::Repack => {
                command.args(["repack", "-d", "-l", "-q", "--geometric=2"]);
                "repack"
            }
            GitUpkeep::Prune { unreachable_days } => {
                command.arg("prune").arg(format!("--expire={unreachable_days}.days.ago"));
                "prune"
            }
            GitUpkeep::RepackAll { unreachable_days } => {
                command.args(["repack", "-d", "-l", "-q", "--cruft"]);
                command.arg(format!("--cruft-expiration={unreachable_days}.days.ago"));
                "repack"
            }
        };
        let mut process = GitProcess::start(command, Dropped::Kill).map_err(GitError::Run)?;
        let group = process.group();
        let mut stderr = process.stderr.take().expect("piped at the start");
        let status = tokio::select! {
            status = process.wait() => Some(status.map_err(GitError::Run)?),
            () = asked.cancelled() => None,
            never = stderr.drain() => match never {},
        };
        let Some(status) = status else {
            // Asked to end, git takes its temporary files away.
            group.signal(Signal::TERM);
            if tokio::time::timeout(TERM_TIME_MAX, process.wait()).await.is_err() {
                group.signal(Signal::KILL);
                process.wait().await.map_err(GitError::Run)?;
            }
            return Ok(false);
        };
        stderr.settle().await;
        if status.success() { Ok(true) } else { Err(GitError::Failed { command: name, status, stderr: stderr.text() }) }
    }

    /// Runs a short command to its end.
    async fn output(
        &self,
        name: &'static str,
        arguments: &[&OsStr],
        repository: Option<&Path>,
    ) -> Result<Vec<u8>, GitError> {
        let mut command = self.command(repository, &[]);
        command.arg(name).args(arguments).stdin(Stdio::null());
        Self::finish(name, command).await
    }

    async fn finish(name: &'static str, command: Command) -> Result<Vec<u8>, GitError> {
        let mut process = GitProcess::start(command, Dropped::Kill).map_err(GitError::Run)?;
        let mut output = Vec::new();
        let mut stdout = process.stdout.take().expect("piped at the start").take(OUTPUT_BYTES_MAX);
        let mut stderr = process.stderr.take().expect("piped at the start");
        let run = async {
            stdout.read_to_end(&mut output).await?;
            // Closed before the wait: a process that says more than that must not wait for us.
            drop(stdout);
            process.wait().await
        };
        let run = async {
            let status = tokio::select! {
                status = run => status,
                never = stderr.drain() => match never {},
            };
            stderr.settle().await;
            status
        };
        let status = tokio::time::timeout(OUTPUT_TIME_MAX, run)
            .await
            .map_err(|_| GitError::Late(name))?
            .map_err(GitError::Run)?;
        if status.success() {
            Ok(output)
        } else {
            Err(GitError::Failed { command: name, status, stderr: stderr.text() })
        }
    }

    fn command(&self, repository: Option<&Path>, config: &[(&'static str, String)]) -> Command {
        let mut command = Command::new(&self.settings.program);
        if let Some(owner) = self.settings.run_as {
            command.uid(owner.user).gid(owner.group);
        }
        command
            .env_clear()
            .env("PATH", &self.settings.search_path)
            .env("HOME", &self.settings.home)
            .env("LC_ALL", "C")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_DEFAULT_REF_FORMAT", "files")
            .current_dir("/");
        let safe = repository.map(|path| ("safe.directory", path.as_os_str().to_owned()));
        let given = config.iter().map(|(key, value)| (*key, OsString::from(value)));
        let mut count = 0;
        for (key, value) in safe.into_iter().chain(given) {
            command.env(format!("GIT_CONFIG_KEY_{count}"), key).env(format!("GIT_CONFIG_VALUE_{count}"), value);
            count += 1;
        }
        command.env("GIT_CONFIG_COUNT", count.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

fn joined(flag: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(flag);
    argument.push(path);
    argument
}
