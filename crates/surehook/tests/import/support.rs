//! A place for repositories that are not surehook's, and what is said of them.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::Value;
use surehook_testkit::git::Checkout;

use super::world::{Running, World};

/// A scan so rare that only a ring can be the reason of an event.
const NO_SCAN: &str = "[stop]\ngrace_s = 2\n[scan]\nevery_s = 3600\n[worker]\npoll_ms = 100\n";

/// A world with a folder of somebody else's repositories beside it.
pub(crate) struct Elsewhere {
    pub(crate) world: World,
    folder: tempfile::TempDir,
}

/// What was told: ref, before, after.
pub(crate) type Steps = Vec<(String, String, String)>;

pub(crate) fn zeros() -> String {
    "0".repeat(40)
}

impl Elsewhere {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("surehook-import-").tempdir().unwrap();
        // Other accounts may pass, as they may in /srv.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { world: World::new().await, folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// An empty bare repository in that folder.
    pub(crate) async fn bare(&self, name: &str) -> Checkout<'_> {
        let path = self.path(name);
        self.world.git.ok(["init", "--quiet", "--bare", "--", path.to_str().unwrap()]).await;
        self.world.git.at(path)
    }

    /// A bare repository with one commit on `main`, and a working copy that can push to it.
    pub(crate) async fn with_a_commit(&self, name: &str) -> (Checkout<'_>, Checkout<'_>, String) {
        let bare = self.bare(name).await;
        let work = self.world.checkout(&format!("file://{}", bare.path().display())).await;
        let first = work.commit("a", "1").await;
        work.ok(["push", "--quiet", "origin", "main"]).await;
        (bare, work, first)
    }

    pub(crate) fn import(&self, bare: &Checkout<'_>, more: &[&str]) -> Value {
        self.world.json(&[&["repo", "import", bare.path().to_str().unwrap()], more].concat())
    }

    /// Runs a command that must fail with exit code 1, and gives its two lines: what went wrong, and what to do.
    pub(crate) fn fails(&self, arguments: &[&str]) -> (String, String) {
        let output = self.world.command(&self.world.database_url, arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        (lines[0].strip_prefix("error: ").unwrap().to_owned(), lines[1].to_owned())
    }

    /// A server that looks at nothing without a ring, but once at its start.
    pub(crate) fn serve_without_scan(&self) -> Running {
        let config = self.world.data().join("no-scan.toml");
        std::fs::write(&config, NO_SCAN).unwrap();
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
        self.world.start_with(&self.world.database_url, &arguments)
    }

    /// What was told of the repository of this name, in order.
    pub(crate) async fn told(&self, name: &str) -> Steps {
        let sql = "SELECT payload FROM outbox_events WHERE aggregate_name = $1";
        let rows = self.world.sql.query(sql, &[&name]).await.unwrap();
        let mut payloads: Vec<Value> = rows.iter().map(|row| serde_json::from_slice(row.get(0)).unwrap()).collect();
        payloads.sort_by_key(|payload| payload["sequence"].as_i64().unwrap());
        for (index, payload) in payloads.iter().enumerate() {
            assert_eq!(payload["sequence"], index + 1, "{name}");
        }
        let text = |payload: &Value, field: &str| payload[field].as_str().unwrap().to_owned();
        payloads.iter().map(|told| (text(told, "ref"), text(told, "before"), text(told, "after"))).collect()
    }

    /// Waits until so many steps were told of a repository, and gives them.
    pub(crate) async fn told_in_time(&self, name: &str, count: usize) -> Steps {
        let sql =
            format!("SELECT (count(*) >= {count})::integer::bigint FROM outbox_events WHERE aggregate_name = '{name}'");
        self.world.until(&format!("event {count} of {name}"), &sql).await;
        self.told(name).await
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        // A server that was ended by SIGKILL leaves its doorbell.
        let id = std::fs::read_to_string(self.world.data().join("repositories/storage-id")).unwrap_or_default();
        if !id.is_empty() {
            let _ = std::fs::remove_file(format!("/run/surehook/{}.bell", id.trim().replace('-', "")));
        }
    }
}

/// Everything in a repository but its objects, refs and logs: what following might change. Path to owner, mode and bytes.
pub(crate) fn settings_of(bare: &Path) -> BTreeMap<PathBuf, (u32, u32, Vec<u8>)> {
    let mut files = everything(bare);
    files.retain(|path, _| !["objects", "refs", "logs"].iter().any(|folder| path.starts_with(bare.join(folder))));
    files
}

/// The same of everything in it.
pub(crate) fn everything(folder: &Path) -> BTreeMap<PathBuf, (u32, u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            let bytes = if metadata.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
            if metadata.is_dir() {
                folders.push(path.clone());
            }
            found.insert(path, (metadata.uid(), metadata.mode(), bytes));
        }
    }
    found
}
