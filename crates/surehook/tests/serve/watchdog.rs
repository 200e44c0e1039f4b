//! The watchdog is heard where the outbox cannot be: PostgreSQL stopped or standing still, the only worker hung, work that
//! waits for far too long.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use surehook_testkit::postgres::{self, Cluster, Settings};
use surehook_testkit::receiver::{Answer, Receiver};
use surehook_webhook::{Secret, Secrets, Verifier};

use super::pager::{Pager, ROUTING_KEY, objections};
use super::world::{Running, SECRET, World, payloads};

const KEY: &str = "surehook:watchdog:";

/// A server with a watchdog that looks each second and pages this pager.
fn serve(world: &World, pager: &Pager, more: &str, environment: &[(&str, &str)]) -> Running {
    let watchdog = format!(
        "url = \"{}\"\nformat = \"pagerduty\"\nsecret = \"{ROUTING_KEY}\"\nallow_private = true\nname = \"node-1\"\n\
         every_s = 1\ndatabase_away_s = 2\n{more}",
        pager.url()
    );
    serve_with(world, &watchdog, environment)
}

fn serve_with(world: &World, watchdog: &str, environment: &[(&str, &str)]) -> Running {
    let config: PathBuf = world.data().join("watchdog.toml");
    let text = format!("[stop]\ngrace_s = 2\n[scan]\nevery_s = 1\n[worker]\npoll_ms = 100\n[watchdog]\n{watchdog}");
    std::fs::write(&config, text).unwrap();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
    world.start_in(&world.database_url, &arguments, environment)
}

async fn with_cluster() -> (World, Cluster) {
    let mut world = World::new().await;
    let cluster = Cluster::start(Settings { durable: true, ..Settings::default() }).await;
    postgres::connect(&cluster.url("postgres")).await.batch_execute("CREATE DATABASE surehook").await.unwrap();
    world.database_url = cluster.url("surehook");
    world.run(&["endpoint", "list"]);
    (world, cluster)
}

#[tokio::test]
async fn a_database_that_goes_pages_within_the_threshold_and_resolves_when_it_is_back() {
    let (world, cluster) = with_cluster().await;
    let pager = Pager::start().await;
    let server = serve(&world, &pager, "", &[]);
    let key = "surehook:watchdog:database_away:node-1";
    // What an earlier process of this name may have left open is ended first.
    for kind in ["database_away", "workers_away", "worker_stuck", "oldest_pending"] {
        pager.until(&world, &format!("{KEY}{kind}:node-1"), 0, 1).await;
    }

    let stopped = Instant::now();
    cluster.stop().await;
    let page = pager.until(&world, key, 1, 1).await;
    let took = stopped.elapsed();
    println!("stopped → paged: {took:?}");
    assert!(took < Duration::from_secs(2 + 1 + 5), "{took:?}");
    assert_eq!(page["payload"]["severity"], "critical");
    assert_eq!(page["payload"]["source"], "node-1");
    assert!(page["payload"]["custom_details"]["what to do"].as_str().unwrap().contains("PostgreSQL"), "{page}");
    let (status, text) = server.get("/metrics").await;
    assert_eq!((status, text.as_str()), (503, "the database is away\n"), "no zeros, and no stale numbers");
    let resumed = Instant::now();
    cluster.resume().await;
    pager.until(&world, key, 1, 2).await;
    println!("started → resolved: {:?}", resumed.elapsed());

    // One that stands still answers nobody, and refuses nobody. PagerDuty is busy at first.
    let mut refusals = 2;
    pager.receiver.set_script(move |request| {
        if refusals > 0 && objections(request).is_empty() {
            refusals -= 1;
            return Answer::status(503);
        }
        Answer::status(202)
    });
    let paused = Instant::now();
    cluster.pause();
    pager.until(&world, key, 4, 2).await;
    println!("standing still → paged, after two refusals: {:?}", paused.elapsed());
    cluster.go_on().await;
    let going = Instant::now();
    pager.until(&world, key, 4, 3).await;
    println!("going on → resolved: {:?}", going.elapsed());
    pager.until(&world, KEY, 4, 6).await;
    // The refused ones and the accepted one are one message.
    let requests = pager.receiver.requests();
    let ids: std::collections::HashSet<_> = requests.iter().filter_map(|r| r.header("x-webhook-id")).collect();
    assert_eq!(ids.len(), requests.len() - 2);
}

#[tokio::test]
async fn a_worker_that_hangs_pages_although_nothing_leaves_the_outbox() {
    let world = World::new().await;
    let pager = Pager::start().await;
    let points = world.data().join("points");
    std::fs::create_dir(&points).unwrap();
    let server = serve(&world, &pager, "worker_stuck_s = 2\n", &[("CRASH_POINTS", points.to_str().unwrap())]);
    let ci = Receiver::accepting().await;
    world.endpoint("ci", "*", &ci.url("/"), &[]);
    let url = world.repository(&server, "app");
    std::fs::write(points.join("claim.chosen"), "").unwrap();
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    let page = pager.until(&world, "surehook:watchdog:worker_stuck:node-1", 1, 1).await;
    let summary = page["payload"]["summary"].as_str().unwrap();
    assert!(summary.contains("claims for "), "{summary}");
    assert!(ci.requests().is_empty());
    std::fs::remove_file(points.join("claim.chosen.reached")).unwrap();
    pager.until(&world, "surehook:watchdog:worker_stuck:node-1", 1, 2).await;
    ci.wait_for(1).await;
}

#[tokio::test]
async fn work_that_no_worker_takes_pages() {
    let world = World::new().await;
    let pager = Pager::start().await;
    let server = serve(&world, &pager, "worker_stuck_s = 5\n", &[]);
    let ci = Receiver::accepting().await;
    world.endpoint("ci", "*", &ci.url("/"), &[]);
    let url = world.repository(&server, "app");
    world.until("a worker", "SELECT count(*) FROM outbox_workers WHERE heartbeat >= 2").await;
    // Its heartbeat waits for a lock that somebody holds, so it may not send.
    let mut lock = world.database.client().await;
    let holder = lock.transaction().await.unwrap();
    holder.execute("SELECT FROM outbox_workers FOR UPDATE", &[]).await.unwrap();
    pager.until(&world, "surehook:watchdog:worker_stuck:node-1", 1, 1).await;
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    let page = pager.until(&world, "surehook:watchdog:workers_away:node-1", 1, 1).await;
    assert_eq!(page["payload"]["severity"], "critical");
    holder.rollback().await.unwrap();
    pager.until(&world, "surehook:watchdog:workers_away:node-1", 1, 2).await;
    pager.until(&world, "surehook:watchdog:worker_stuck:node-1", 1, 2).await;
    ci.wait_for(1).await;
}

#[tokio::test]
async fn what_waits_for_far_too_long_is_told_by_a_signed_webhook() {
    let world = World::new().await;
    let chat = Receiver::accepting().await;
    let secret_file = world.data().join("secret");
    std::fs::write(&secret_file, SECRET).unwrap();
    let watchdog = format!(
        "url = \"{}\"\nsecret_file = \"{}\"\nallow_private = true\nevery_s = 1\noldest_pending_s = 1\n",
        chat.url("/watchdog"),
        secret_file.display()
    );
    let server = serve_with(&world, &watchdog, &[]);
    let ci = Receiver::start(|_| Answer::status(503)).await;
    world.endpoint("ci", "*", &ci.url("/"), &["--retry-max-delay", "100ms"]);
    let url = world.repository(&server, "app");
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    chat.wait_for(1).await;
    ci.answer_all(Answer::status(200));
    let told = chat.wait_for(2).await;
    let bodies = payloads(&told);
    for (body, state) in bodies.iter().zip(["open", "resolved"]) {
        assert_eq!((&body["state"], &body["kind"]), (&state.into(), &"oldest_pending".into()), "{body}");
    }
    assert_eq!(bodies[0]["dedup_key"], bodies[1]["dedup_key"]);
    for request in &told {
        let headers = request.headers.iter().map(|(name, value)| (std::str::from_utf8(name).unwrap(), &value[..]));
        let sent_at: i64 = request.header("webhook-timestamp").unwrap().parse().unwrap();
        let verifier = Verifier::new(Secrets::from(Secret::parse(SECRET).unwrap()));
        verifier.verify(headers, &request.body, sent_at).expect("it is signed like a delivery");
    }
    // A stop ends it, with its session.
    let mut server = server;
    server.signal("TERM");
    assert_eq!(server.ended().await, Some(0));
    world.no_session_is_left().await;
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_said_at_the_start() {
    let world = World::new().await;
    for (watchdog, words) in [
        ("format = \"pagerduty\"\nsecret = \"short\"\n", "routing key"),
        ("url = \"https://example.com/\"\n", "secret"),
        ("url = \"https://example.com/\"\nsecret = \"s\"\nformat = \"github\"\n", "format"),
        ("secret_file = \"/nowhere\"\nurl = \"https://example.com/\"\n", "/nowhere"),
    ] {
        let config = world.data().join("watchdog.toml");
        std::fs::write(&config, format!("[watchdog]\n{watchdog}")).unwrap();
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
        let output = world.command(&world.database_url, &arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("watchdog") && said.contains(words), "{words}: {said}");
    }
}
