//! A real git client for tests, away from the settings of whoever runs them: a home of its own, a cleared environment, an
//! identity, no prompts. May start git; touches nothing outside its own temporary folder and the URLs it is given.
#![expect(clippy::disallowed_methods, reason = "it starts git")]

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use tokio::process::Command;

const SETTINGS: &str = "\
[user]
	name = Ada Example
	email = ada@example.org
[init]
	defaultBranch = main
[advice]
	detachedHead = false
[gc]
	auto = 0
[maintenance]
	auto = false
";

/// A home for git clients. Removed when dropped.
#[derive(Debug)]
pub struct Sandbox {
    folder: tempfile::TempDir,
    environment: Vec<(OsString, OsString)>,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Sandbox {
    /// A fresh, empty home.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("surehook-git-").tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join(".gitconfig"), SETTINGS).expect("git's settings");
        Self { folder, environment: Vec::new() }
    }

    /// One more variable in the environment of every git that this sandbox starts.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// The sandbox's folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A new repository with a work tree, in the folder `name`, on the branch `main`.
    pub async fn init(&self, name: &str) -> Checkout<'_> {
        self.ok(["init", "--quiet", "--", name]).await;
        self.at(self.path().join(name))
    }

    /// A new bare repository in the folder `name`.
    pub async fn init_bare(&self, name: &str) -> Checkout<'_> {
        self.ok(["init", "--quiet", "--bare", "--", name]).await;
        self.at(self.path().join(name))
    }

    /// A clone of `url` in the folder `name`.
    pub async fn clone(&self, url: &str, name: &str) -> Checkout<'_> {
        self.ok(["clone", "--quiet", "--", url, name]).await;
        self.at(self.path().join(name))
    }

    /// A repository that is there already.
    pub fn at(&self, folder: impl Into<PathBuf>) -> Checkout<'_> {
        Checkout { sandbox: self, folder: folder.into() }
    }

    /// Runs git in the sandbox's folder.
    pub async fn run(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Output {
        self.at(self.path()).run(arguments).await
    }

    /// Runs git in the sandbox's folder; gives its output without the last line end. Panics if git fails.
    pub async fn ok(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
        self.at(self.path()).ok(arguments).await
    }
}

/// A repository of a [`Sandbox`], and git in its folder.
#[derive(Clone, Debug)]
pub struct Checkout<'a> {
    sandbox: &'a Sandbox,
    folder: PathBuf,
}

impl Checkout<'_> {
    /// The folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// git with these arguments, not yet started: for tests that feed it, watch it or kill it. Killed when dropped.
    pub fn command(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new("git");
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()))
            .env("HOME", self.sandbox.path())
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", self.sandbox.path().join(".gitconfig"))
            .env("GIT_TERMINAL_PROMPT", "0")
            .envs(self.sandbox.environment.iter().map(|(name, value)| (name, value)))
            .args(arguments)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs git; gives its exit code, output and messages.
    pub async fn run(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Output {
        self.command(arguments).output().await.expect("git starts")
    }

    /// Runs git; gives its output without the last line end. Panics with git's messages if git fails.
    pub async fn ok(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
        let arguments: Vec<OsString> = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        let output = self.run(&arguments).await;
        let messages = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "git {arguments:?} in {}: {}\n{messages}",
            self.folder.display(),
            output.status
        );
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Writes `text` to `file` and commits it; gives the commit's id.
    pub async fn commit(&self, file: &str, text: &str) -> String {
        let path = self.folder.join(file);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).expect("the file's folder");
        }
        std::fs::write(path, text).expect("the file is written");
        self.ok(["add", "--", file]).await;
        self.ok(["commit", "--quiet", "--allow-empty", "--message", &format!("Change {file}")]).await;
        self.ok(["rev-parse", "HEAD"]).await
    }
}
