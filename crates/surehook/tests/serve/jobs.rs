//! Dead letters in bulk, with the program as processes that are killed.

use std::collections::BTreeMap;

use surehook_testkit::receiver::{Answer, Receiver};
use surehook_testkit::try_eventually;

use super::world::{Running, SECRET, SOON, World};

const LETTERS: i64 = 120;

fn worker(world: &World) -> Running {
    world.start_with(&world.database_url, &["worker", "--listen", "127.0.0.1:0"])
}

async fn until_done(world: &World, items: i64) {
    let sql = format!("SELECT count(*) FROM outbox_jobs WHERE items_done >= {items}");
    world.until(&format!("{items} items"), &sql).await;
}

#[tokio::test]
async fn whoever_is_killed_in_the_middle_of_a_job_each_letter_is_replayed_once() {
    let world = World::new().await;
    let receiver = Receiver::start(|_| Answer::status(500)).await;
    let url = receiver.url("/");
    let add = ["endpoint", "add", "ci", "--repo", "*", "--url", &url, "--secret", SECRET, "--allow-private"];
    world.run(&[&add[..], &["--max-attempts", "1"]].concat());
    for n in 0..LETTERS {
        let payload = format!(r#"{{"ref":"refs/heads/{n}"}}"#);
        let sql = "SELECT outbox_enqueue('RepositoryPushed', $1, $2)";
        world.sql.query_one(sql, &[&format!("repo-{}", n % 4), &payload.as_bytes()]).await.unwrap();
    }
    let mut first = worker(&world);
    world.until("the dead", &format!("SELECT (count(*) = {LETTERS})::integer::bigint FROM outbox_dlq")).await;
    first.signal("KILL");
    first.ended().await;
    receiver.answer_all(Answer::status(200));
    let counted = world.json(&["dlq", "replay", "--all", "--dry-run"]);
    assert_eq!((&counted["letters"], &counted["counts"][0]["endpoint_name"]), (&LETTERS.into(), &"ci".into()));

    // No worker runs: the command does the steps itself, until it is killed.
    let mut command =
        world.command(&world.database_url, &["dlq", "replay", "--all", "--rate", "30", "--json"]).spawn().unwrap();
    until_done(&world, 15).await;
    command.kill().unwrap();
    command.wait().unwrap();
    // A worker goes on with it, until it is killed too. Then two of them do.
    let mut second = worker(&world);
    until_done(&world, 60).await;
    second.signal("KILL");
    second.ended().await;
    let nodes = [worker(&world), worker(&world)];
    world.until("the end of the job", "SELECT (state = 'done')::integer::bigint FROM outbox_jobs").await;
    world.drained().await;

    let job = &world.json(&["job", "list"])[0];
    assert_eq!(
        (&job["items_done"], &job["state"], &job["skipped"]),
        (&LETTERS.into(), &"done".into(), &serde_json::json!({}))
    );
    let shown = world.run(&["job", "show", job["job_id"].as_str().unwrap()]);
    assert!(shown.contains("replay") && shown.contains("30 a second"), "{shown}");
    let once = "SELECT count(*) FROM outbox_dlq WHERE state = 'delivered' AND replays = 1";
    assert_eq!(world.count(once).await, LETTERS);
    assert_eq!(world.count("SELECT count(*) FROM outbox_deliveries WHERE replay").await, LETTERS);
    let mut arrived: BTreeMap<String, usize> = BTreeMap::new();
    for request in receiver.requests() {
        *arrived.entry(request.header("x-webhook-id").unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(i64::try_from(arrived.len()), Ok(LETTERS));
    assert!(arrived.values().all(|times| *times >= 2), "each arrived again");

    let (_, metrics) = nodes[0].get("/metrics").await;
    assert!(metrics.contains("surehook_jobs_running 0"), "{metrics}");
    let counted = try_eventually(SOON, async || {
        let mut items = 0;
        for node in &nodes {
            let (_, text) = node.get("/metrics").await;
            let line =
                text.lines().find(|line| line.contains(r#"surehook_job_items_total{ended="done",kind="replay"}"#))?;
            items += line.rsplit_once(' ')?.1.parse::<i64>().ok()?;
        }
        (items > 0 && items <= LETTERS - 60).then_some(())
    })
    .await;
    assert!(counted.is_some(), "the two nodes count the items that they did");
}

#[tokio::test]
async fn a_detached_job_is_watched_cancelled_and_resumed() {
    let world = World::new().await;
    let add = ["endpoint", "add", "ci", "--repo", "*", "--url", "https://ci.example.com/"];
    world.run(&add);
    let made = world.json(&["dlq", "replay", "--all", "--detach"]);
    let id = made["job_id"].as_str().unwrap();
    assert_eq!((&made["state"], &made["items_total"]), (&"running".into(), &0.into()));
    assert!(world.run(&["dlq", "replay", "--all", "--detach"]).contains("No worker is running"));
    assert_eq!(world.json(&["job", "cancel", id])["state"], "cancelled");
    let refused = world.command(&world.database_url, &["job", "cancel", id]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("cancelled"));
    assert_eq!(world.json(&["job", "resume", id])["state"], "running");
    let _server = world.serve();
    world
        .until("the end of the jobs", "SELECT (count(*) = 2)::integer::bigint FROM outbox_jobs WHERE state = 'done'")
        .await;
    assert_eq!(world.json(&["job", "list", "--state", "running"]), serde_json::json!([]));
}

/// What was accepted is told, also when its repository is deleted in between; its history stays readable.
#[tokio::test]
async fn a_deleted_repository_leaves_what_was_accepted_to_be_delivered() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    let receiver = Receiver::start(|_| Answer::status(503)).await;
    world.endpoint("ci", "app", &receiver.url("/"), &["--retry-max-delay", "100ms"]);
    let work = world.checkout(&url).await;
    for n in 0..3 {
        work.commit("file", &n.to_string()).await;
        work.ok(["push", "-q", "origin", "HEAD:main"]).await;
    }
    receiver.wait_for(1).await;
    world.run(&["repo", "delete", "app"]);
    receiver.answer_all(Answer::status(200));
    world.drained().await;
    assert_eq!(world.count("SELECT count(*) FROM outbox_status WHERE status = 'published'").await, 3);
    assert_eq!(world.json(&["event", "list", "--repo", "app"]).as_array().unwrap().len(), 3);
    assert_eq!(world.json(&["endpoint", "remove", "ci"])["cancelled"], 0);
}
