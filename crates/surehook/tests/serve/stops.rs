//! Stops and kills while everything is under way: many clients push, the receiver hangs.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use surehook_testkit::eventually;
use surehook_testkit::postgres::{self, Client, Cluster, Settings};
use surehook_testkit::receiver::{Answer, Receiver};

use super::world::{SOON, World, payloads, script};

const CLIENTS: usize = 4;

/// What the reflogs of a repository say: every value that a ref ever got.
fn on_disk(world: &World, repository: &str) -> HashSet<String> {
    let logs = world.data().join(format!("repositories/{repository}.git/logs/refs/heads"));
    let mut values = HashSet::new();
    for log in std::fs::read_dir(logs).unwrap() {
        let log = std::fs::read_to_string(log.unwrap().path()).unwrap();
        values.extend(log.lines().map(|line| line.split(' ').nth(1).unwrap().to_owned()));
    }
    values
}

async fn told(sql: &Client) -> Vec<String> {
    let rows = sql.query("SELECT payload FROM outbox_events", &[]).await.unwrap();
    let payload = |row: &tokio_postgres::Row| serde_json::from_slice::<serde_json::Value>(row.get(0)).unwrap();
    rows.iter().map(|row| payload(row)["after"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_stop_amid_pushes_and_deliveries_keeps_every_promise() {
    let world = World::new().await;
    let mut server = world.serve();
    let url = world.repository(&server, "app");
    let receiver = Receiver::start(|_| Answer::Hang).await;
    world.endpoint("ci", "app", &receiver.url("/"), &["--timeout", "100s"]);
    // Each client has a branch of its own and pushes until it is refused.
    let accepted = Mutex::new(Vec::new());
    let client = async |n: usize| {
        let work = world.git.init(&format!("work-{n}")).await;
        for round in 0.. {
            let commit = work.commit("file", &format!("{n}.{round}")).await;
            if !work.run(["push", "--quiet", &url, &format!("HEAD:branch-{n}")]).await.status.success() {
                return;
            }
            accepted.lock().unwrap().push(commit);
        }
    };
    let stop = async {
        receiver.wait_for(1).await;
        eventually(SOON, async || (accepted.lock().unwrap().len() >= 5 * CLIENTS).then_some(())).await;
        let begun = Instant::now();
        server.signal("TERM");
        assert_eq!(server.ended().await, Some(0));
        begun.elapsed()
    };
    let (took, _) = futures_util::join!(stop, futures_util::future::join_all((0..CLIENTS).map(client)));
    assert!(took < Duration::from_secs(10), "a grace of two seconds took {took:?}");
    world.no_session_is_left().await;
    assert_eq!(world.count("SELECT count(*) FROM outbox_attempts").await, 0, "nothing is charged");

    let accepted: HashSet<String> = accepted.into_inner().unwrap().into_iter().collect();
    let events: HashSet<String> = told(&world.sql).await.into_iter().collect();
    assert!(accepted.is_subset(&events), "what git called accepted has its event when the program ends");

    receiver.answer_all(Answer::status(200));
    let already = receiver.requests().len();
    let _server = world.serve();
    let disk = on_disk(&world, "app");
    eventually(SOON, async || (told(&world.sql).await.len() >= disk.len()).then_some(())).await;
    world.drained().await;
    let events = told(&world.sql).await;
    assert_eq!(events.len(), disk.len(), "one event for each value of a ref");
    assert_eq!(events.into_iter().collect::<HashSet<_>>(), disk);
    let arrived: Vec<i64> =
        payloads(&receiver.requests()[already..]).iter().map(|p| p["sequence"].as_i64().unwrap()).collect();
    assert_eq!(arrived, (1..=i64::try_from(disk.len()).unwrap()).collect::<Vec<_>>(), "each once, in order");
}

#[tokio::test]
async fn a_push_that_outlasts_the_grace_is_ended_and_moves_nothing() {
    let world = World::new().await;
    let mut server = world.serve();
    let url = world.repository(&server, "app");
    let bare = world.data().join("repositories/app.git");
    std::fs::create_dir_all(bare.join("hooks")).unwrap();
    // Waits for as long as nobody ends it.
    script(&bare.join("hooks"), "pre-receive", "#!/bin/sh\ntouch asked\nexec tail -f /dev/null\n");
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    let push = work.command(["push", "origin", "HEAD:main"]).output();
    let stop = async {
        eventually(SOON, async || bare.join("asked").exists().then_some(())).await;
        let begun = Instant::now();
        server.signal("TERM");
        // While it waits for the push it takes no other.
        let other = work.run(["push", "origin", "HEAD:other"]).await;
        assert!(!other.status.success());
        assert_eq!(server.ended().await, Some(0));
        begun.elapsed()
    };
    let (output, took) = tokio::join!(push, stop);
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert!(!output.unwrap().status.success(), "git says that it failed, and does not hang");
    world.no_session_is_left().await;
    assert_eq!(world.count("SELECT count(*) FROM outbox_events").await, 0);
    std::fs::remove_file(bare.join("hooks/pre-receive")).unwrap();

    // The same push, to the next server: no lock is in its way.
    let again = world.serve();
    let url = url.replace(&server.address, &again.address);
    work.ok(["push", "--quiet", &url, "HEAD:main"]).await;
    assert_eq!(world.count("SELECT count(*) FROM outbox_events").await, 1);
    let bare = world.git.at(bare);
    // Since git 2.37 a signal leaves the quarantine of the push behind; that is all that may be left.
    assert_eq!(bare.ok(["count-objects", "-v"]).await.lines().last(), Some("size-garbage: 0"));
}

#[tokio::test]
async fn what_a_killed_server_had_in_hand_is_taken_over_long_before_its_lease_ends() {
    let world = World::new().await;
    let mut server = world.serve();
    let receiver = Receiver::start(|_| Answer::Hang).await;
    world.run(&["repo", "create", "first"]);
    let token = world.json(&["token", "create", "--admin"])["token"].as_str().unwrap().to_owned();
    for n in 0..6 {
        world.run(&["repo", "create", &format!("app-{n}")]);
    }
    world.endpoint("ci", "*", &receiver.url("/"), &["--timeout", "100s"]);
    let work = world.git.init("work").await;
    for round in 0..3 {
        work.commit("file", &round.to_string()).await;
        for n in 0..6 {
            let url = format!("http://x:{token}@{}/app-{n}.git", server.address);
            work.ok(["push", "--quiet", &url, "HEAD:main"]).await;
        }
    }
    receiver.wait_for(6).await;
    server.signal("KILL");
    server.ended().await;
    receiver.answer_all(Answer::status(200));
    let already = receiver.requests().len();
    let begun = Instant::now();
    let _server = world.serve();
    world.drained().await;
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    let mut sequences: HashMap<String, Vec<i64>> = HashMap::new();
    for payload in payloads(&receiver.requests()[already..]) {
        let name = payload["repository"]["name"].as_str().unwrap().to_owned();
        sequences.entry(name).or_default().push(payload["sequence"].as_i64().unwrap());
    }
    assert_eq!(sequences.len(), 6);
    assert!(sequences.values().all(|all| *all == [1, 2, 3]), "{sequences:?}");
    assert_eq!(world.count("SELECT count(*) FROM outbox_dlq").await, 0);
}

#[tokio::test]
async fn pushes_while_the_database_comes_and_goes_are_all_told() {
    let mut world = World::new().await;
    // The transactions that this is about are durable ones.
    let cluster = Cluster::start(Settings { durable: true, ..Settings::default() }).await;
    postgres::connect(&cluster.url("postgres")).await.batch_execute("CREATE DATABASE surehook").await.unwrap();
    world.database_url = cluster.url("surehook");
    let server = world.serve();
    let url = world.repository(&server, "app");
    let receiver = Receiver::accepting().await;
    world.endpoint("ci", "app", &receiver.url("/"), &["--retry-max-delay", "200ms"]);
    let (pushed, over) = (Mutex::new(0), AtomicBool::new(false));
    let client = async |n: usize| {
        let work = world.git.init(&format!("work-{n}")).await;
        for round in 0.. {
            work.commit("file", &format!("{n}.{round}")).await;
            let output = work.run(["push", "--quiet", &url, &format!("HEAD:branch-{n}")]).await;
            if output.status.success() {
                *pushed.lock().unwrap() += 1;
            } else {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(said.contains("database"), "a push that fails says why: {said}");
            }
            if over.load(Ordering::SeqCst) {
                return;
            }
        }
    };
    let faults = async {
        for outage in 1..=4 {
            eventually(SOON, async || (*pushed.lock().unwrap() >= outage * 3 * CLIENTS).then_some(())).await;
            cluster.kill().await;
            cluster.resume().await;
        }
        over.store(true, Ordering::SeqCst);
    };
    futures_util::join!(faults, futures_util::future::join_all((0..CLIENTS).map(client)));

    let disk = on_disk(&world, "app");
    let sql = postgres::connect(&world.database_url).await;
    eventually(SOON, async || (told(&sql).await.len() >= disk.len()).then_some(())).await;
    let events = told(&sql).await;
    assert_eq!(events.len(), disk.len(), "one event for each value of a ref");
    assert_eq!(events.into_iter().collect::<HashSet<_>>(), disk);
    let idle = "SELECT count(*) FROM outbox_lanes WHERE ready_at IS NOT NULL";
    eventually(SOON, async || (sql.query_one(idle, &[]).await.unwrap().get::<_, i64>(0) == 0).then_some(())).await;
    let mut first_arrivals: Vec<i64> = Vec::new();
    for payload in payloads(&receiver.requests()) {
        let sequence = payload["sequence"].as_i64().unwrap();
        if !first_arrivals.contains(&sequence) {
            first_arrivals.push(sequence);
        }
    }
    assert_eq!(first_arrivals, (1..=i64::try_from(disk.len()).unwrap()).collect::<Vec<_>>(), "in order");
}
