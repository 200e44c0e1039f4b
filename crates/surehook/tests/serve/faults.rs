//! Stops, kills, a database that is away, and people who may not.

use std::collections::HashSet;
use std::process::Command;
use std::time::{Duration, Instant};

use surehook_testkit::eventually;
use surehook_testkit::postgres::{self, Cluster, Settings};
use surehook_testkit::receiver::{Answer, Receiver};

use super::world::{SOON, World, payloads};

#[tokio::test]
async fn a_stop_in_the_middle_charges_nothing_and_the_restart_goes_on() {
    let world = World::new().await;
    let mut server = world.serve();
    let url = world.repository(&server, "app");
    let receiver = Receiver::start(|_| Answer::Hang).await;
    world.endpoint("ci", "app", &receiver.url("/"), &["--timeout", "60s", "--unordered"]);
    let work = world.checkout(&url).await;
    for n in 0..5 {
        work.commit("file", &n.to_string()).await;
        work.ok(["push", "-q", "origin", "HEAD:main"]).await;
    }
    receiver.wait_for(5).await;
    server.signal("TERM");
    assert_eq!(server.ended().await, Some(0));
    world.no_session_is_left().await;
    assert_eq!(world.count("SELECT count(*) FROM outbox_attempts").await, 0, "nothing is charged");
    assert_eq!(
        world
            .count("SELECT count(*) FROM outbox_lanes WHERE owner IS NULL AND ready_at <= now() AND attempts = 0")
            .await,
        5
    );
    receiver.answer_all(Answer::status(200));
    let _server = world.serve();
    world.drained().await;
    let told: HashSet<i64> = payloads(&receiver.requests()).iter().map(|p| p["sequence"].as_i64().unwrap()).collect();
    assert_eq!(told, (1..=5).collect());
    assert_eq!(world.count("SELECT count(*) FROM outbox_events").await, 5);
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let world = World::new().await;
    let config = world.data().join("slow.toml");
    std::fs::write(&config, "[stop]\ngrace_s = 600\n").unwrap();
    let mut server = world
        .start_with(world.database.url(), &["serve", "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()]);
    let url = world.repository(&server, "app");
    let receiver = Receiver::start(|_| Answer::Hang).await;
    world.endpoint("ci", "app", &receiver.url("/"), &["--timeout", "110s"]);
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "-q", "origin", "HEAD:main"]).await;
    receiver.wait_for(1).await;
    server.signal("TERM");
    eventually(SOON, async || (server.get("/readyz").await.0 != 200).then_some(())).await;
    let begun = Instant::now();
    server.signal("INT");
    assert_eq!(server.ended().await, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    world.no_session_is_left().await;
    assert_eq!(world.count("SELECT count(*) FROM outbox_attempts").await, 0);
}

#[tokio::test]
async fn sigkill_between_pushes_loses_and_invents_nothing() {
    let world = World::new().await;
    let mut server = world.serve();
    let url = world.repository(&server, "app");
    let first_address = server.address.clone();
    let receiver = Receiver::accepting().await;
    world.endpoint("ci", "app", &receiver.url("/"), &["--retry-max-delay", "100ms"]);
    let work = world.checkout(&url).await;
    let bare = world.data().join("repositories/app.git");
    let log_path = bare.join("logs/refs/heads/main");
    let mut accepted = Vec::new();
    for round in 0..6usize {
        for n in 0..4 {
            let commit = work.commit("file", &format!("{round}.{n}")).await;
            let url = url.replace(&first_address, &server.address);
            work.ok(["remote", "set-url", "origin", &url]).await;
            if n == 3 {
                // The push is under way when the server dies; whatever git says, disk and events must agree.
                // Killed as soon as the log line is there, or the ref has moved: where a plain hook loses the push.
                let watched = [log_path.clone(), bare.join("refs/heads/main")][round % 2].clone();
                let before = std::fs::read(&watched).unwrap_or_default();
                let mut push = work.command(["push", "-q", "origin", "HEAD:main"]).spawn().unwrap();
                while push.try_wait().unwrap().is_none() && std::fs::read(&watched).unwrap_or_default() == before {
                    tokio::task::yield_now().await;
                }
                server.signal("KILL");
                let status = push.wait().await.unwrap();
                if status.success() {
                    accepted.push(commit);
                }
            } else {
                work.ok(["push", "-q", "origin", "HEAD:main"]).await;
                accepted.push(commit);
            }
        }
        server.ended().await;
        server = world.serve();
    }
    let log = std::fs::read_to_string(&log_path).unwrap();
    let on_disk: Vec<String> = log.lines().map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect();
    eventually(SOON, async || {
        let rows = world.sql.query("SELECT payload FROM outbox_events ORDER BY created_at", &[]).await.unwrap();
        let mut told: Vec<(i64, String)> = rows
            .iter()
            .map(|row| serde_json::from_slice::<serde_json::Value>(row.get(0)).unwrap())
            .map(|p| (p["sequence"].as_i64().unwrap(), p["after"].as_str().unwrap().to_owned()))
            .collect();
        told.sort();
        let told: Vec<String> = told.into_iter().map(|(_, after)| after).collect();
        (told == on_disk).then_some(())
    })
    .await;
    assert!(accepted.iter().all(|commit| on_disk.contains(commit)), "what git called accepted is on disk");
    world.drained().await;
    let arrived: HashSet<String> =
        payloads(&receiver.requests()).iter().map(|p| p["after"].as_str().unwrap().to_owned()).collect();
    assert_eq!(arrived, on_disk.into_iter().collect());
}

#[tokio::test]
async fn while_the_database_is_away_pushes_are_refused_and_all_goes_on_afterwards() {
    let world = World::new().await;
    let cluster = Cluster::start(Settings::default()).await;
    postgres::connect(&cluster.url("postgres")).await.batch_execute("CREATE DATABASE surehook").await.unwrap();
    let database_url = cluster.url("surehook");
    let server = world.serve_with(&database_url);
    let run = |arguments: &[&str]| {
        let output = world.command(&database_url, arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["repo", "create", "app"]);
    let token: serde_json::Value = serde_json::from_str(&run(&["token", "create", "--push", "app", "--json"])).unwrap();
    let url = format!("http://ci:{}@{}/app.git", token["token"].as_str().unwrap(), server.address);
    let receiver = Receiver::accepting().await;
    run(&["endpoint", "add", "ci", "--repo", "app", "--url", &receiver.url("/"), "--allow-private"]);
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "-q", "origin", "HEAD:main"]).await;
    receiver.wait_for(1).await;

    // Something waits when the database goes away.
    receiver.answer_all(Answer::status(503));
    work.commit("file", "2").await;
    work.ok(["push", "-q", "origin", "HEAD:main"]).await;
    receiver.wait_for(2).await;

    cluster.kill().await;
    receiver.answer_all(Answer::status(200));
    let pushed = work.ok(["rev-parse", "HEAD"]).await;
    work.commit("file", "3").await;
    let output = work.run(["push", "origin", "HEAD:main"]).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("database is away"), "{said}");
    let bare = world.git.at(world.data().join("repositories/app.git"));
    assert_eq!(bare.ok(["rev-parse", "main"]).await.trim(), pushed, "the ref did not move");
    assert_eq!(server.get("/readyz").await.0, 503);
    let (code, text) = server.get("/metrics").await;
    assert!(code == 503 && !text.contains("outbox_pending_count"), "{code} {text}");
    assert_eq!(server.get("/healthz").await.0, 200);

    cluster.resume().await;
    eventually(SOON, async || (server.get("/readyz").await.0 == 200).then_some(())).await;
    work.ok(["push", "-q", "origin", "HEAD:main"]).await;
    let arrived = eventually(SOON, async || {
        // What arrived while the answer could not be written down is sent again: that is allowed, another order is not.
        let mut arrived: Vec<_> = payloads(&receiver.requests()).iter().map(|p| p["sequence"].as_i64()).collect();
        arrived.dedup();
        arrived.ends_with(&[Some(3)]).then_some(arrived)
    })
    .await;
    assert_eq!(arrived, [Some(1), Some(2), Some(3)]);
    let sql = postgres::connect(&database_url).await;
    let published = "SELECT count(*) FROM outbox_attempts WHERE ends = 'published'";
    eventually(SOON, async || (sql.query_one(published, &[]).await.unwrap().get::<_, i64>(0) == 3).then_some(())).await;
}

#[tokio::test]
async fn only_the_right_token_opens_the_right_door() {
    let world = World::new().await;
    let server = world.serve();
    let good = world.repository(&server, "app");
    world.repository(&server, "other");
    let token = |arguments: &[&str]| world.json(&[&["token", "create"], arguments].concat());
    let with = |token: &str| format!("http://x:{token}@{}/app.git", server.address);
    let reader = token(&["--read", "app"]);
    let stranger = token(&["--push", "other"]);
    let revoked = token(&["--push", "app"]);
    world.run(&["token", "revoke", revoked["token_id"].as_str().unwrap()]);
    let admin = token(&["--admin"]);
    let work = world.checkout(&good).await;
    work.commit("file", "1").await;
    work.ok(["push", "-q", "origin", "HEAD:main"]).await;
    let text = |value: &serde_json::Value| value["token"].as_str().unwrap().to_owned();
    for (what, url, may_read, may_push) in [
        ("nobody", format!("http://{}/app.git", server.address), false, false),
        ("a guess", with("guess"), false, false),
        ("a reader", with(&text(&reader)), true, false),
        ("a stranger", with(&text(&stranger)), false, false),
        ("a revoked token", with(&text(&revoked)), false, false),
        ("an administrator", with(&text(&admin)), true, true),
        ("x without .git", good.replace(".git", ""), true, true),
    ] {
        let read = work.run(["ls-remote", &url]).await.status.success();
        let push =
            work.run(["push", &url, &format!("HEAD:refs/heads/{}", what.replace(' ', "-"))]).await.status.success();
        assert_eq!((read, push), (may_read, may_push), "{what}");
    }
    let head = Command::new("curl")
        .args([
            "--silent",
            "--head",
            "--request",
            "GET",
            &format!("http://{}/app.git/info/refs?service=git-upload-pack", server.address),
        ])
        .output()
        .unwrap();
    let head = String::from_utf8_lossy(&head.stdout).to_lowercase();
    assert!(head.starts_with("http/1.1 401") && head.contains("www-authenticate: basic realm=\"surehook\""), "{head}");
}
