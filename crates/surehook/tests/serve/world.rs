//! A server of its own for each test: database, data directory, processes that end with the test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use std::io::{BufRead, BufReader};

use serde_json::Value;
use surehook_outbox::Database;
use surehook_testkit::git::{Checkout, Sandbox};
use surehook_testkit::postgres::{Client, TestDatabase};
use surehook_testkit::{eventually, try_eventually};

/// No test waits longer than this for anything.
pub(crate) const SOON: Duration = Duration::from_secs(60);
pub(crate) const SECRET: &str = "s3cret";
/// Sessions of the program in the test's database.
const OURS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'surehook'";

pub(crate) struct World {
    /// Where the program's database is: `database`, unless a test has a cluster of its own.
    pub(crate) database_url: String,
    pub(crate) database: TestDatabase,
    pub(crate) sql: Client,
    pub(crate) git: Sandbox,
    /// What its programs get to know beside their options.
    pub(crate) environment: Vec<(&'static str, PathBuf)>,
    data: tempfile::TempDir,
}

/// A running program, ended with SIGKILL when dropped.
pub(crate) struct Running {
    child: Child,
    pub(crate) address: String,
}

impl World {
    pub(crate) async fn new() -> Self {
        let database = surehook_testkit::postgres::database("surehook", async |url| {
            let database = Database::connect(url, "test", 2).unwrap();
            surehook::store::prepare(&database).await.unwrap();
            database.close().await;
        })
        .await;
        let sql = database.client().await;
        Self {
            database_url: database.url().to_owned(),
            database,
            sql,
            git: Sandbox::new(),
            environment: Vec::new(),
            data: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn data(&self) -> &Path {
        self.data.path()
    }

    pub(crate) fn command(&self, url: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_surehook"));
        for name in ["SUREHOOK_SECRET", "SUREHOOK_LOG", "RUST_BACKTRACE"] {
            command.env_remove(name);
        }
        command
            .env("SUREHOOK_DATA", self.data())
            .env("SUREHOOK_DATABASE_URL", url)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end; it must succeed.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(&self.database_url, arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Starts a long-running command and reads the address that it prints first.
    pub(crate) fn start_with(&self, url: &str, arguments: &[&str]) -> Running {
        self.start_in(url, arguments, &[])
    }

    /// The same with something added to its environment.
    pub(crate) fn start_in(&self, url: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Running {
        let log = std::fs::File::options().create(true).append(true).open(self.data().join("log")).unwrap();
        let mut command = self.command(url, arguments);
        let mut child = command.envs(environment.iter().copied()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit("http://").next().unwrap_or_default().to_owned();
        let running = Running { child, address };
        assert!(
            !line.is_empty(),
            "{arguments:?} ended:\n{}",
            std::fs::read_to_string(self.data().join("log")).unwrap()
        );
        running
    }

    /// `serve` with a short grace time and frequent scans.
    pub(crate) fn serve(&self) -> Running {
        self.serve_with(&self.database_url)
    }

    pub(crate) fn serve_with(&self, url: &str) -> Running {
        let config = self.data().join("surehook.toml");
        std::fs::write(
            &config,
            "[stop]\ngrace_s = 2\n[scan]\nevery_s = 1\n[upkeep]\nevery_s = 1\n[worker]\npoll_ms = 100\n[alerts]\nevery_s = 1\n",
        )
        .unwrap();
        self.start_with(url, &["serve", "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()])
    }

    /// A repository and a URL that may push to it.
    pub(crate) fn repository(&self, server: &Running, name: &str) -> String {
        self.run(&["repo", "create", name]);
        let token = self.json(&["token", "create", "--push", name]);
        format!("http://ci:{}@{}/{name}.git", token["token"].as_str().unwrap(), server.address)
    }

    pub(crate) fn endpoint(&self, name: &str, repository: &str, url: &str, more: &[&str]) {
        let arguments =
            ["endpoint", "add", name, "--repo", repository, "--url", url, "--secret", SECRET, "--allow-private"];
        self.run(&[&arguments[..], more].concat());
    }

    /// A working copy that can push to `url` as `origin`.
    pub(crate) async fn checkout(&self, url: &str) -> Checkout<'_> {
        let checkout = self.git.init("work").await;
        checkout.ok(["remote", "add", "origin", url]).await;
        checkout
    }

    /// The status and the head, in lower case, of the answer to a GET with this token.
    pub(crate) fn head(&self, server: &Running, path: &str, token: Option<&str>) -> (u16, String) {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--max-time", "20", "--output", "/dev/null", "--dump-header", "-"]);
        if let Some(token) = token {
            curl.args(["--user", &format!("x:{token}")]);
        }
        let output = curl.arg(format!("http://{}{path}", server.address)).output().unwrap();
        let head = String::from_utf8_lossy(&output.stdout).to_lowercase();
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.unwrap_or_default(), head)
    }

    pub(crate) async fn count(&self, sql: &str) -> i64 {
        self.sql.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// The program waits until each of its sessions has signed off, but nobody tells when the process that PostgreSQL keeps
    /// for a session has read that and is gone: that takes it a moment.
    pub(crate) async fn no_session_is_left(&self) {
        let left = try_eventually(Duration::from_secs(3), async || self.count(OURS).await.eq(&0).then_some(())).await;
        assert!(left.is_some(), "sessions of a program that has ended are left");
    }

    pub(crate) async fn until(&self, what: &str, sql: &str) {
        let met = try_eventually(SOON, async || self.count(sql).await.eq(&1).then_some(())).await;
        let log = || std::fs::read_to_string(self.data().join("log")).unwrap_or_default();
        assert!(met.is_some(), "{what} did not come true:\n{}", log());
    }

    /// Waits until nothing is pending.
    pub(crate) async fn drained(&self) {
        self.until(
            "the end of all deliveries",
            "SELECT (count(*) = 0)::integer::bigint FROM outbox_lanes WHERE ready_at IS NOT NULL",
        )
        .await;
    }
}

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for the end and gives the exit code.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        let status = eventually(SOON, async || self.child.try_wait().unwrap()).await;
        status.code()
    }

    /// What a GET answers: status line and body.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let (address, path) = (self.address.clone(), path.to_owned());
        tokio::task::spawn_blocking(move || {
            let output = Command::new("curl")
                .args([
                    "--silent",
                    "--max-time",
                    "20",
                    "--write-out",
                    "\n%{http_code}",
                    &format!("http://{address}{path}"),
                ])
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let (body, code) = text.rsplit_once('\n').unwrap();
            (code.parse().unwrap(), body.to_owned())
        })
        .await
        .unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The field of each payload that a receiver got.
pub(crate) fn payloads(requests: &[surehook_testkit::receiver::Request]) -> Vec<Value> {
    requests.iter().map(|request| serde_json::from_slice(&request.body).unwrap()).collect()
}

/// An executable script.
pub(crate) fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}
