//! Each kind of alert over HTTP to a stand-in for PagerDuty: one trigger, no second one while it is open, one resolve.

use std::path::PathBuf;
use std::process::Command;

use surehook::store::watch::{RenderedAlert, WatchSettings, watch};
use surehook_outbox::Database;
use surehook_testkit::eventually;
use surehook_testkit::receiver::{Answer, Receiver};

use super::pager::Pager;
use super::world::{Running, SOON, World};

/// Settings under which alerts come soon. `more` goes on where the section `alerts` ends.
fn config(world: &World, more: &str) -> PathBuf {
    let path = world.data().join("paging.toml");
    let text = format!(
        "[stop]\ngrace_s = 2\n[scan]\nevery_s = 1\n[worker]\npoll_ms = 100\n[alerts]\nevery_s = 1\nworker_stuck_s = 2\n{more}"
    );
    std::fs::write(&path, text).unwrap();
    path
}

fn start(world: &World, command: &str, config: &std::path::Path, environment: &[(&str, &str)]) -> Running {
    let arguments = [command, "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
    world.start_in(&world.database_url, &arguments, environment)
}

/// Waits until the watch has looked several times.
async fn looked_at_again(world: &World) {
    let looks =
        "SELECT sum(seq_scan + coalesce(idx_scan, 0))::bigint FROM pg_stat_user_tables WHERE relname = 'alerts'";
    let before = world.count(looks).await;
    world.until("the watch has looked again", &format!("SELECT (({looks}) >= {before} + 12)::integer::bigint")).await;
}

#[tokio::test]
async fn an_endpoint_that_is_silent_pages_once_and_resolves_when_it_answers() {
    let world = World::new().await;
    let server = start(&world, "serve", &config(&world, ""), &[]);
    let pager = Pager::start().await;
    pager.register(&world);
    let ci = Receiver::start(|_| Answer::Reset).await;
    let url = world.repository(&server, "app");
    world.endpoint("ci", "app", &ci.url("/"), &["--retry-max-delay", "20ms"]);
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    world.until("the circuit opens", "SELECT count(*) FROM outbox_windows WHERE circuit = 'open'").await;
    assert!(world.run(&["endpoint", "show", "ci"]).contains("circuit open"));
    // As if it had been so for long; the worker writes again only when something changes.
    let long_ago = "UPDATE outbox_windows SET opened_at = opened_at - interval '2 minutes' WHERE circuit = 'open'";
    world.database.client().await.execute(long_ago, &[]).await.unwrap();
    let page = pager.until(&world, "surehook:circuit_open:", 1, 0).await;
    assert_eq!(page["payload"]["severity"], "warning");
    ci.answer_all(Answer::status(200));
    pager.until(&world, "surehook:circuit_open:", 1, 1).await;
    world
        .until(
            "what waited is delivered",
            "SELECT (count(*) = 0)::integer::bigint FROM outbox_lanes WHERE ready_at IS NOT NULL",
        )
        .await;
}

#[tokio::test]
async fn what_waits_for_too_long_pages_once_and_resolves_when_it_is_through() {
    let world = World::new().await;
    let config = config(&world, "oldest_pending_s = 1\nrunbook_url = \"https://wiki.example.com/surehook\"\n");
    let server = start(&world, "serve", &config, &[]);
    let pager = Pager::start().await;
    pager.register(&world);
    let ci = Receiver::start(|_| Answer::status(503)).await;
    let url = world.repository(&server, "app");
    world.endpoint("ci", "app", &ci.url("/"), &["--retry-max-delay", "100ms"]);
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    let page = pager.until(&world, "surehook:oldest_pending:", 1, 0).await;
    assert_eq!(page["payload"]["severity"], "warning");
    let details = &page["payload"]["custom_details"];
    assert!(details["what to do"].as_str().unwrap().contains("surehook endpoint show ci"), "{details}");
    assert_eq!(page["links"][0]["href"], "https://wiki.example.com/surehook#oldest_pending");
    looked_at_again(&world).await;
    ci.answer_all(Answer::status(200));
    pager.until(&world, "surehook:oldest_pending:", 1, 1).await;
    pager.until(&world, "surehook:", 1, 1).await;
}

#[tokio::test]
async fn an_endpoint_that_is_gone_pages_until_it_is_resumed() {
    let world = World::new().await;
    let server = start(&world, "serve", &config(&world, ""), &[]);
    let pager = Pager::start().await;
    pager.register(&world);
    let ci = Receiver::start(|_| Answer::status(410)).await;
    let url = world.repository(&server, "app");
    world.endpoint("ci", "app", &ci.url("/"), &[]);
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    let page = pager.until(&world, "surehook:endpoint_gone:", 1, 0).await;
    assert_eq!(page["payload"]["severity"], "error");
    ci.answer_all(Answer::status(200));
    world.run(&["endpoint", "resume", "ci"]);
    pager.until(&world, "surehook:endpoint_gone:", 1, 1).await;
}

#[tokio::test]
async fn a_storage_that_is_away_pages_until_it_is_back() {
    let world = World::new().await;
    let server = start(&world, "serve", &config(&world, ""), &[]);
    let pager = Pager::start().await;
    pager.register(&world);
    world.repository(&server, "app");
    let (there, away) = (world.data().join("repositories"), world.data().join("away"));
    std::fs::rename(&there, &away).unwrap();
    let page = pager.until(&world, "surehook:storage_unavailable:", 1, 0).await;
    assert_eq!(page["payload"]["severity"], "critical");
    looked_at_again(&world).await;
    std::fs::rename(&away, &there).unwrap();
    pager.until(&world, "surehook:storage_unavailable:", 1, 1).await;
}

#[tokio::test]
async fn a_ref_that_moves_past_the_server_pages_and_a_push_does_not() {
    let world = World::new().await;
    let server = start(&world, "serve", &config(&world, "drift_quiet_s = 3\n"), &[]);
    let pager = Pager::start().await;
    pager.register(&world);
    let url = world.repository(&server, "app");
    let work = world.checkout(&url).await;
    // The scan runs each second, so that some of these pushes meet it.
    for n in 0..20 {
        work.commit("file", &n.to_string()).await;
        work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    }
    world.until("all are told", "SELECT (count(*) = 20)::integer::bigint FROM outbox_events").await;
    let bare = world.data().join("repositories/app.git");
    let moved = Command::new("git")
        .args(["-C", bare.to_str().unwrap(), "update-ref", "refs/heads/past", "refs/heads/main"])
        .status()
        .unwrap();
    assert!(moved.success());
    let page = pager.until(&world, "surehook:drift:", 1, 0).await;
    assert_eq!(page["payload"]["severity"], "warning");
    let summary = page["payload"]["summary"].as_str().unwrap();
    assert!(summary.starts_with("app: the scan found a change of refs"), "{summary}");
    assert_eq!(world.count("SELECT count(*) FROM outbox_events WHERE event_type <> 'surehook.alert'").await, 21);
    pager.until(&world, "surehook:drift:", 1, 1).await;
}

#[tokio::test]
async fn a_worker_that_hangs_pages_until_it_moves_again() {
    let world = World::new().await;
    let config = config(&world, "");
    let server = start(&world, "serve", &config, &[]);
    let pager = Pager::start().await;
    pager.register(&world);
    let points = world.data().join("points");
    std::fs::create_dir(&points).unwrap();
    let environment = [("CRASH_POINTS", points.to_str().unwrap())];
    let hangs = start(&world, "worker", &config, &environment);
    let stopped = start(&world, "worker", &config, &[]);
    world
        .until("three workers", "SELECT (count(*) = 3)::integer::bigint FROM outbox_workers WHERE heartbeat >= 2")
        .await;

    // One loop of one worker hangs: its heartbeat goes on.
    let ci = Receiver::accepting().await;
    world.endpoint("ci", "*", &ci.url("/"), &[]);
    std::fs::write(points.join("claim.chosen"), "").unwrap();
    let reached = points.join("claim.chosen.reached");
    let url = world.repository(&server, "app");
    let work = world.checkout(&url).await;
    let mut n = 0;
    while !reached.exists() {
        n += 1;
        work.commit("file", &n.to_string()).await;
        work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    }
    let page = pager.until(&world, "surehook:worker_stuck:", 1, 0).await;
    let summary = page["payload"]["summary"].as_str().unwrap();
    assert!(summary.contains("its loop claims stands still"), "{summary}");
    assert!(summary.contains(&format!("(process {})", hangs.id())), "{summary}");
    looked_at_again(&world).await;
    std::fs::remove_file(&reached).unwrap();
    pager.until(&world, "surehook:worker_stuck:", 1, 1).await;

    // All of another stands still: the others take over, and somebody is told.
    stopped.signal("STOP");
    let page = pager.until(&world, "surehook:worker_stuck:", 2, 1).await;
    let summary = page["payload"]["summary"].as_str().unwrap();
    assert!(summary.contains(&format!("(process {})", stopped.id())), "{summary}");
    let shown = eventually(SOON, async || {
        let (status, text) = server.get("/metrics").await;
        (status == 200 && text.contains("surehook_workers_stuck 1\n")).then_some(text)
    })
    .await;
    assert!(shown.contains("surehook_workers_alive 2\n"), "{shown}");
    stopped.signal("CONT");
    pager.until(&world, "surehook:worker_stuck:", 2, 2).await;
}

#[tokio::test]
async fn work_without_a_worker_is_an_alert_which_the_next_worker_tells() {
    let world = World::new().await;
    let pager = Pager::start().await;
    pager.register(&world);
    let ci = Receiver::accepting().await;
    world.endpoint("ci", "*", &ci.url("/"), &[]);
    world.sql.batch_execute("SELECT outbox_enqueue('Happened', 'key', convert_to('{}', 'UTF8'))").await.unwrap();
    world.sql.batch_execute("UPDATE outbox_lanes SET ready_at = now() - interval '1 minute'").await.unwrap();
    let database = Database::connect(&world.database_url, "test", 1).unwrap();
    let settings = WatchSettings { oldest_pending_s: 900, worker_stuck_s: 60, drift_quiet_s: 60, mute: Vec::new() };
    let nothing = |_: &_| RenderedAlert { native: b"{}".to_vec(), pagerduty: b"{}".to_vec() };
    let told = watch(&database, &settings, nothing).await.unwrap().told;
    assert_eq!(told, 1);
    let open = world.json(&["alert", "list"]);
    assert_eq!(open[0]["kind"], "workers_away", "{open}");
    database.close().await;
    // That one said nothing; here it is told anew, as a process would that has hung and goes on.
    world.sql.batch_execute("DELETE FROM outbox_lanes WHERE ordering_key LIKE 'surehook.alerts%'").await.unwrap();
    world.sql.batch_execute("UPDATE alerts SET told = NULL").await.unwrap();
    let _server = start(&world, "serve", &config(&world, ""), &[]);
    let page = pager.until(&world, "surehook:workers_away:outbox", 1, 1).await;
    assert_eq!(page["payload"]["severity"], "critical");
    world.drained().await;
    assert_eq!(ci.requests().len(), 1);
}

#[tokio::test]
async fn kinds_that_are_muted_are_shown_and_told_to_nobody() {
    let world = World::new().await;
    let server = start(&world, "serve", &config(&world, "mute = [\"endpoint_gone\"]\n"), &[]);
    let pager = Pager::start().await;
    pager.register(&world);
    let ci = Receiver::start(|_| Answer::status(410)).await;
    let url = world.repository(&server, "app");
    world.endpoint("ci", "app", &ci.url("/"), &[]);
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    world
        .until(
            "it is told of by no event",
            "SELECT count(*) FROM alerts WHERE kind = 'endpoint_gone' AND told = 'open'",
        )
        .await;
    assert_eq!(
        world.json(&["alert", "list"])[0]["what_to_do"][1].as_str().unwrap().split(':').next(),
        Some("Let it go on")
    );
    assert_eq!(world.count("SELECT count(*) FROM outbox_events WHERE event_type = 'surehook.alert'").await, 0);
    assert!(pager.receiver.requests().is_empty());
}
