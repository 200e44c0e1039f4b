//! A world with a database, a storage, and git clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use surehook::capture::announce::{Announced, Announcer, Hints};
use surehook::capture::storage::read_or_create_id;
use surehook::payload::facts::Limits;
use surehook::store::repositories::{self, NewRepository, Origin, Repository};
use surehook_outbox::store::Database;
use surehook_testkit::git::{Checkout, Sandbox};
use surehook_testkit::postgres::{Client, TestDatabase, database};
use uuid::Uuid;

pub(crate) struct World {
    pub(crate) database: Database,
    pub(crate) client: Client,
    pub(crate) announcer: Arc<Announcer>,
    pub(crate) wakes: Arc<AtomicUsize>,
    pub(crate) git: Sandbox,
    pub(crate) storage: tempfile::TempDir,
    pub(crate) storage_id: Uuid,
    _test_database: TestDatabase,
}

pub(crate) struct Repo {
    pub(crate) id: Uuid,
    pub(crate) path: PathBuf,
}

pub(crate) struct Event {
    pub(crate) id: Uuid,
    pub(crate) bytes: usize,
    pub(crate) body: serde_json::Value,
}

impl Event {
    pub(crate) fn text(&self, field: &str) -> &str {
        self.body[field].as_str().unwrap_or_else(|| panic!("no text {field} in {}", self.body))
    }

    pub(crate) fn commits(&self) -> Vec<&str> {
        self.body["commits"].as_array().unwrap().iter().map(|commit| commit["id"].as_str().unwrap()).collect()
    }

    /// ref, before and after.
    pub(crate) fn step(&self) -> (String, String, String) {
        (self.text("ref").into(), self.text("before").into(), self.text("after").into())
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        let test_database = database("announce", async |url| {
            let database = Database::connect(url, "prepare", 1).unwrap();
            surehook::store::prepare(&database).await.unwrap();
            database.close().await;
        })
        .await;
        let database = Database::connect(test_database.url(), "test", 8).unwrap();
        let storage = tempfile::tempdir().unwrap();
        let storage_id = read_or_create_id(storage.path()).unwrap();
        repositories::register_storage(&database, storage_id, "here", storage.path().as_os_str().as_encoded_bytes())
            .await
            .unwrap();
        let wakes = Arc::new(AtomicUsize::new(0));
        let mut world = Self {
            announcer: Arc::new(Announcer::new(database.clone(), storage.path(), Arc::new(|| ()), Limits::default())),
            client: test_database.client().await,
            database,
            wakes,
            git: Sandbox::new(),
            storage,
            storage_id,
            _test_database: test_database,
        };
        world.announcer = Arc::new(world.another_announcer());
        world
    }

    pub(crate) fn another_announcer(&self) -> Announcer {
        let wakes = Arc::clone(&self.wakes);
        let wake = Arc::new(move || {
            wakes.fetch_add(1, Ordering::SeqCst);
        });
        Announcer::new(self.database.clone(), self.storage.path(), wake, Limits::default())
    }

    pub(crate) async fn repository(&self, name: &str) -> Repo {
        self.repository_of(name, "sha1").await
    }

    pub(crate) async fn repository_of(&self, name: &str, object_format: &str) -> Repo {
        let (id, folder) = (Uuid::new_v4(), format!("{name}.git"));
        let path = self.storage.path().join(&folder);
        let format = format!("--object-format={object_format}");
        self.git.ok(["init", "--quiet", "--bare", &format, "--", path.to_str().unwrap()]).await;
        let bare = self.git.at(&path);
        let settings = [("surehook.repositoryId", id.to_string()), ("core.logAllRefUpdates", "always".into())];
        for (key, value) in settings {
            bare.ok(["config", key, &value]).await;
        }
        let new = NewRepository {
            repository_id: id,
            name,
            storage_id: self.storage_id,
            path: folder.as_bytes(),
            origin: Origin::Hosted,
            object_format,
        };
        assert_eq!(repositories::insert_creating(&self.database, &new).await.unwrap(), repositories::Inserted::Created);
        repositories::mark_active(&self.database, id).await.unwrap();
        Repo { id, path }
    }

    pub(crate) async fn announce(&self, repo: &Repo) -> Announced {
        self.announcer.announce(repo.id, Hints::default()).await.unwrap()
    }

    pub(crate) async fn row(&self, repo: &Repo) -> Repository {
        repositories::find_by_id(&self.database, repo.id).await.unwrap().unwrap()
    }

    /// All events of a repository, in the order of their numbers; the numbers have no gap.
    pub(crate) async fn events(&self, repo: &Repo) -> Vec<Event> {
        let sql = "SELECT event_id, payload FROM outbox_events WHERE aggregate_id = $1";
        let rows = self.client.query(sql, &[&repo.id.to_string()]).await.unwrap();
        let mut events: Vec<Event> = rows
            .iter()
            .map(|row| {
                let payload: &[u8] = row.get(1);
                Event { id: row.get(0), bytes: payload.len(), body: serde_json::from_slice(payload).unwrap() }
            })
            .collect();
        events.sort_by_key(|event| event.body["sequence"].as_i64().unwrap());
        for (index, event) in events.iter().enumerate() {
            assert_eq!(event.body["sequence"], index + 1);
            assert_eq!(event.body["event_id"], event.id.to_string());
            assert_eq!(event.body["repository"]["id"], repo.id.to_string());
        }
        events
    }

    pub(crate) async fn steps(&self, repo: &Repo) -> Vec<(String, String, String)> {
        self.events(repo).await.iter().map(Event::step).collect()
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    /// A clone with one commit, pushed to main; gives the commit too.
    pub(crate) async fn seeded(&self, repo: &Repo) -> (Checkout<'_>, String) {
        let work = self.clone_of(repo, "work").await;
        let commit = work.commit("file", "one").await;
        work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
        (work, commit)
    }

    pub(crate) async fn clone_of(&self, repo: &Repo, name: &str) -> Checkout<'_> {
        let name = format!("{}-{name}", repo.id);
        self.git.clone(&format!("file://{}", repo.path.display()), &name).await
    }

    pub(crate) fn bare<'a>(&'a self, repo: &Repo) -> Checkout<'a> {
        self.git.at(&repo.path)
    }
}

pub(crate) const ZEROS: &str = "0000000000000000000000000000000000000000";

pub(crate) fn step(name: &str, before: &str, after: &str) -> (String, String, String) {
    (name.into(), before.into(), after.into())
}

pub(crate) fn write_hook(repo: &Repo, name: &str, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = repo.path.join("hooks").join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Feeds git's standard input and gives its output.
pub(crate) async fn feed(checkout: &Checkout<'_>, arguments: &[&str], input: &[u8]) -> String {
    use tokio::io::AsyncWriteExt;
    let mut command = checkout.command(arguments);
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input).await.unwrap();
    drop(stdin);
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

pub(crate) fn exists(path: &Path) -> bool {
    path.try_exists().unwrap()
}
