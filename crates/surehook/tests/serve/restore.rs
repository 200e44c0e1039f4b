//! After a restore nothing is missing, whichever half is older; what arrives again has the same id.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use surehook::capture::folder;
use surehook_testkit::git::Checkout;
use surehook_testkit::postgres::{self, Client, TestDatabase};
use surehook_testkit::receiver::Receiver;
use surehook_testkit::try_eventually;

use super::world::{Running, SOON, World};

/// A restored data directory and database.
struct Restored {
    database: TestDatabase,
    data: PathBuf,
    sql: Client,
}

impl World {
    fn backup(&self, name: &str) -> PathBuf {
        let folder = self.data().join(name);
        self.run(&["backup", folder.to_str().unwrap()]);
        folder
    }

    async fn restore(&self, backup: &Path) -> Restored {
        let (database, data) = (postgres::empty_database().await, backup.with_extension("restored"));
        let arguments = ["restore", backup.to_str().unwrap(), "--data", data.to_str().unwrap()];
        let output = self.command(database.url(), &arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let again = self.command(database.url(), &arguments).output().unwrap();
        assert!(!again.status.success(), "what is there already is not overwritten");
        let sql = database.client().await;
        Restored { database, data, sql }
    }

    fn serve_there(&self, url: &str, data: &Path) -> Running {
        let config = self.data().join("surehook.toml");
        let (config, data) = (config.to_str().unwrap(), data.to_str().unwrap());
        self.start_with(url, &["serve", "--listen", "127.0.0.1:0", "--config", config, "--data", data])
    }

    /// Waits until so many events are recorded and all are delivered.
    async fn told_and_delivered(&self, sql: &Client, events: usize) -> Vec<Told> {
        let lanes = "SELECT l::text FROM outbox_lanes AS l WHERE ready_at IS NOT NULL";
        let mut last = (0, Vec::new());
        let done = try_eventually(SOON, async || {
            let told = told(sql).await;
            let pending: Vec<String> = sql.query(lanes, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
            last = (told.len(), pending);
            (last.0 >= events && last.1.is_empty()).then_some(told)
        })
        .await;
        done.unwrap_or_else(|| {
            let log = std::fs::read_to_string(self.data().join("log")).unwrap();
            panic!("{} of {events} events told, lanes with work left: {:#?}\n{log}", last.0, last.1)
        })
    }
}

/// What is told of an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Told {
    id: String,
    name: String,
    before: String,
    after: String,
    sequence: i64,
    epoch: String,
    reconstructed: bool,
}

async fn told(sql: &Client) -> Vec<Told> {
    let rows = sql.query("SELECT payload FROM outbox_events", &[]).await.unwrap();
    let told = |row: &tokio_postgres::Row| {
        let payload: Value = serde_json::from_slice(row.get(0)).unwrap();
        let text = |field: &str| payload[field].as_str().unwrap().to_owned();
        Told {
            id: text("event_id"),
            name: text("ref"),
            before: text("before"),
            after: text("after"),
            sequence: payload["sequence"].as_i64().unwrap(),
            epoch: text("sequence_epoch"),
            reconstructed: payload["reconstructed"].as_bool().unwrap(),
        }
    };
    rows.iter().map(told).collect()
}

fn ids(told: &[Told]) -> BTreeSet<&str> {
    told.iter().map(|told| told.id.as_str()).collect()
}

fn webhook_ids(requests: &[surehook_testkit::receiver::Request]) -> HashSet<String> {
    requests.iter().map(|request| request.header("x-webhook-id").unwrap().to_owned()).collect()
}

async fn push(work: &Checkout<'_>, text: &str, refspec: &str) -> String {
    let commit = work.commit("file", text).await;
    work.ok(["push", "--quiet", "--force", "origin", refspec]).await;
    commit
}

/// How many values the branches of a bare repository have had: the lines of their logs up to the one that led to the value
/// of now. A copy made amid pushes can have a line more: git writes it before it moves the ref.
async fn values_on_disk(bare: &Checkout<'_>) -> usize {
    let branches = bare.ok(["for-each-ref", "--format=%(objectname) %(refname)", "refs/heads"]).await;
    let values = branches.lines().map(|line| {
        let (value, name) = line.split_once(' ').unwrap();
        let log = std::fs::read_to_string(bare.path().join("logs").join(name)).unwrap();
        let led_here = |(line, _): &(&str, usize)| line.split(' ').nth(1) == Some(value);
        log.lines().zip(1..).filter(led_here).last().expect("the log has the value of the ref").1
    });
    values.sum()
}

#[tokio::test]
async fn a_backup_amid_pushes_is_whole_and_the_restored_server_goes_on() {
    const CLIENTS: usize = 3;
    let world = World::new().await;
    let mut server = world.serve();
    let url = world.repository(&server, "app");
    let receiver = Receiver::accepting().await;
    world.endpoint("ci", "app", &receiver.url("/"), &["--retry-max-delay", "200ms"]);
    let over = AtomicBool::new(false);
    let client = async |n: usize| {
        let work = world.git.init(&format!("work-{n}")).await;
        for round in 0.. {
            work.commit("file", &format!("{n}.{round}")).await;
            work.ok(["push", "--quiet", &url, &format!("HEAD:branch-{n}")]).await;
            if over.load(Ordering::SeqCst) {
                return;
            }
        }
    };
    let taken = async {
        receiver.wait_for(5 * CLIENTS).await;
        // In a thread of its own: the clients are to go on.
        let arguments = ["backup", world.data().join("monday").to_str().unwrap()].map(str::to_owned);
        let mut command = world.command(&world.database_url, &arguments.each_ref().map(String::as_str));
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let already = receiver.requests().len();
        receiver.wait_for(already + 2 * CLIENTS).await;
        over.store(true, Ordering::SeqCst);
    };
    futures_util::join!(taken, futures_util::future::join_all((0..CLIENTS).map(client)));
    world.drained().await;
    let original = told(&world.sql).await;
    // The machine is gone.
    server.signal("KILL");
    server.ended().await;

    let restored = world.restore(&world.data().join("monday")).await;
    let known = told(&restored.sql).await;
    let bare = world.git.at(restored.data.join("repositories/app.git"));
    bare.ok(["fsck", "--strict", "--connectivity-only"]).await;
    let given_out = folder::read_high_water(bare.path()).expect("five pushes per client were told before").sequence;
    let numbers_lost = given_out > known.iter().map(|told| told.sequence).max().unwrap();
    let before = receiver.requests();
    let server = world.serve_there(restored.database.url(), &restored.data);
    let disk = values_on_disk(&bare).await;
    let now = world.told_and_delivered(&restored.sql, disk).await;
    assert_eq!(now.len(), disk, "each value of the restored disk is told, and no other");
    assert!(ids(&now).is_subset(&ids(&original)), "under the ids that they had");
    let after = receiver.requests()[before.len()..].to_vec();
    assert!(webhook_ids(&after).is_subset(&webhook_ids(&before)), "so a receiver swallows what it has seen");
    println!("{} of {} events were in the dump, {disk} on the disk", known.len(), original.len());

    let work = world.git.init("afterwards").await;
    let url = url.replace(url.split(['@', '/']).nth(3).unwrap(), &server.address);
    let commit = work.commit("file", "afterwards").await;
    work.ok(["push", "--quiet", &url, "HEAD:afterwards"]).await;
    let now = world.told_and_delivered(&restored.sql, disk + 1).await;
    assert!(now.iter().any(|told| told.after == commit));
    let epochs: HashSet<&str> = now.iter().map(|told| told.epoch.as_str()).collect();
    assert_eq!(epochs.len(), 1 + usize::from(numbers_lost), "a new epoch exactly if numbers were lost");
}

#[tokio::test]
async fn a_database_older_than_the_disk_is_told_all_again_under_the_same_ids_in_a_new_epoch() {
    let world = World::new().await;
    let mut server = world.serve();
    let url = world.repository(&server, "app");
    let receiver = Receiver::accepting().await;
    world.endpoint("ci", "app", &receiver.url("/"), &["--retry-max-delay", "200ms"]);
    let work = world.checkout(&url).await;
    for n in 0..4 {
        push(&work, &n.to_string(), "HEAD:main").await;
    }
    world.drained().await;
    let base = world.backup("base");
    // The replica that takes over has not got what comes now.
    for n in 4..7 {
        push(&work, &n.to_string(), "HEAD:main").await;
    }
    work.ok(["push", "--quiet", "origin", "HEAD:other", "HEAD:refs/tags/v1"]).await;
    work.ok(["reset", "--quiet", "--hard", "HEAD~2"]).await;
    push(&work, "forced", "HEAD:main").await;
    world.drained().await;
    let original = told(&world.sql).await;
    server.signal("KILL");
    server.ended().await;
    let before = receiver.requests();

    let replica = world.restore(&base).await;
    let _server = world.serve_there(replica.database.url(), world.data());
    let now = world.told_and_delivered(&replica.sql, original.len()).await;
    assert_eq!(ids(&now), ids(&original));
    let after = receiver.requests()[before.len()..].to_vec();
    assert!(!after.is_empty() && webhook_ids(&after).is_subset(&webhook_ids(&before)));
    let mut old: Vec<&Told> = now.iter().filter(|told| told.epoch == original[0].epoch).collect();
    let mut new: Vec<&Told> = now.iter().filter(|told| told.epoch != original[0].epoch).collect();
    old.sort_by_key(|told| told.sequence);
    new.sort_by_key(|told| told.sequence);
    assert_eq!(old.iter().map(|told| told.sequence).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(new.iter().map(|told| told.sequence).collect::<Vec<_>>(), (5..5 + new.len() as i64).collect::<Vec<_>>());
    assert!(new.iter().all(|told| told.epoch == new[0].epoch), "one new epoch");
    let values: Vec<&str> =
        new.iter().filter(|told| told.name == "refs/heads/main").map(|t| t.before.as_str()).collect();
    assert_eq!(values.len(), 4, "each step of the branch: {new:?}");
}

#[tokio::test]
async fn a_disk_older_than_the_database_tells_where_its_refs_are_and_nothing_of_the_past() {
    let world = World::new().await;
    let mut server = world.serve();
    let url = world.repository(&server, "app");
    let receiver = Receiver::accepting().await;
    world.endpoint("ci", "app", &receiver.url("/"), &["--retry-max-delay", "200ms"]);
    let work = world.checkout(&url).await;
    let mut commits = Vec::new();
    for n in 0..3 {
        commits.push(push(&work, &n.to_string(), "HEAD:main").await);
    }
    work.ok(["push", "--quiet", "origin", "HEAD:untouched"]).await;
    world.drained().await;
    let base = world.backup("base");
    for n in 3..5 {
        commits.push(push(&work, &n.to_string(), "HEAD:main").await);
    }
    work.ok(["push", "--quiet", "origin", "HEAD:later"]).await;
    world.drained().await;
    let original = told(&world.sql).await;
    assert_eq!(original.len(), 7);
    server.signal("TERM");
    server.ended().await;

    let restored = world.restore(&base).await;
    let server = world.serve_there(&world.database_url, &restored.data);
    let now = world.told_and_delivered(&world.sql, 9).await;
    let fresh: Vec<&Told> = now.iter().filter(|told| !ids(&original).contains(told.id.as_str())).collect();
    let of = |name: &str| {
        let found = fresh.iter().find(|told| told.name == name);
        found.map(|told| (told.before.as_str(), told.after.as_str(), told.reconstructed))
    };
    let zeros = "0".repeat(40);
    assert_eq!(fresh.len(), 2, "{fresh:?}");
    assert_eq!(of("refs/heads/main"), Some((commits[4].as_str(), commits[2].as_str(), true)));
    assert_eq!(of("refs/heads/later"), Some((commits[4].as_str(), zeros.as_str(), false)));

    // What was lost is pushed again, and is told: it happened again.
    let url = url.replace(url.split(['@', '/']).nth(3).unwrap(), &server.address);
    work.ok(["push", "--quiet", &url, &format!("{}:main", commits[3])]).await;
    work.ok(["push", "--quiet", &url, "HEAD:main", "HEAD:later"]).await;
    let now = world.told_and_delivered(&world.sql, 12).await;
    assert_eq!(now.len(), 12);
    let sequences: BTreeSet<i64> = now.iter().map(|told| told.sequence).collect();
    assert_eq!(sequences, (1..=12).collect(), "no number twice, none left out");
    assert!(now.iter().all(|told| told.epoch == original[0].epoch));
    assert_eq!(webhook_ids(&receiver.requests()).len(), 12, "none is taken for a repeat");
    let last = now.iter().filter(|told| told.name == "refs/heads/main").max_by_key(|told| told.sequence).unwrap();
    assert_eq!((last.before.as_str(), last.after.as_str()), (commits[3].as_str(), commits[4].as_str()));
}

#[tokio::test]
async fn what_is_no_backup_is_not_restored_and_what_is_there_is_not_overwritten() {
    let world = World::new().await;
    let half = world.data().join("half");
    std::fs::create_dir(&half).unwrap();
    let fails = |arguments: &[&str], words: &str| {
        let output = world.command(&world.database_url, arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(words), "{arguments:?}: {said}");
    };
    let half = half.to_str().unwrap();
    fails(&["restore", half], "is no backup");
    fails(&["backup", half], "is there already");
    let whole = world.backup("whole");
    let elsewhere = world.data().join("elsewhere");
    fails(&["restore", whole.to_str().unwrap(), "--data", elsewhere.to_str().unwrap()], "The database is not empty");
    assert!(!elsewhere.join("repositories").exists());
}
