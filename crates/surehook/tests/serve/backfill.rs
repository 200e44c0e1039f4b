//! A new endpoint that is told of earlier pushes, with the program as processes that are killed.

use std::collections::BTreeMap;

use surehook_testkit::receiver::{Answer, Receiver};

use super::world::{Running, SECRET, World};

const LANES: i64 = 5;

fn worker(world: &World) -> Running {
    world.start_with(&world.database_url, &["worker", "--listen", "127.0.0.1:0"])
}

/// Events `from` to `to` of each repository.
async fn pushes(world: &World, from: i64, to: i64) {
    for n in from..to {
        for lane in 0..LANES {
            let sql = "SELECT outbox_enqueue('RepositoryPushed', $1, $2)";
            let payload = format!(r#"{{"ref":"refs/heads/main","n":{n}}}"#);
            world.sql.query_one(sql, &[&format!("repo-{lane}"), &payload.as_bytes()]).await.unwrap();
        }
    }
}

async fn until_done(world: &World, items: i64) {
    let sql = format!("SELECT count(*) FROM outbox_jobs WHERE items_done >= {items}");
    world.until(&format!("{items} items"), &sql).await;
}

#[tokio::test]
async fn whoever_is_killed_in_the_middle_each_event_arrives_in_its_order() {
    let world = World::new().await;
    pushes(&world, 0, 80).await;
    let receiver = Receiver::with_answers([], Answer::status(200)).await;
    let url = receiver.url("/");
    let add = ["endpoint", "add", "ci", "--repo", "*", "--url", &url, "--secret", SECRET, "--allow-private"];
    let added = world.json(&[&add[..], &["--backfill", "1h"]].concat());
    let job = &added["backfill"];
    assert_eq!(
        (&job["kind"], &job["items_total"], &added["now"]["lanes_held"]),
        (&"backfill".into(), &400.into(), &LANES.into())
    );

    let mut first = worker(&world);
    until_done(&world, 100).await;
    first.signal("KILL");
    first.ended().await;
    pushes(&world, 80, 84).await;
    let mut second = worker(&world);
    until_done(&world, 200).await;
    second.signal("KILL");
    second.ended().await;
    let nodes = [worker(&world), worker(&world)];
    pushes(&world, 84, 88).await;
    world.until("the end of the job", "SELECT (state = 'done')::integer::bigint FROM outbox_jobs").await;
    pushes(&world, 88, 90).await;
    world.drained().await;

    let job = &world.json(&["job", "list"])[0];
    assert_eq!((&job["items_done"], &job["state"]), (&400.into(), &"done".into()));
    let shown = world.run(&["job", "show", job["job_id"].as_str().unwrap()]);
    assert!(shown.contains("backfill") && shown.contains("newer ones"), "{shown}");
    let mut arrived: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    let mut known = std::collections::BTreeSet::new();
    for request in receiver.requests() {
        // What a killed worker had sent is sent again, under the same id.
        if known.insert(request.header("x-webhook-id").unwrap().to_owned()) {
            let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
            let lane = request.header("x-webhook-id").unwrap().to_owned();
            let sql = "SELECT aggregate_id FROM outbox_deliveries WHERE delivery_id = $1::text::uuid";
            let lane: String = world.sql.query_one(sql, &[&lane]).await.unwrap().get(0);
            arrived.entry(lane).or_default().push(body["n"].as_i64().unwrap());
        }
    }
    assert_eq!(arrived.len(), 5);
    for (lane, numbers) in arrived {
        assert_eq!(numbers, (0..90).collect::<Vec<_>>(), "{lane}");
    }
    assert_eq!(world.json(&["endpoint", "backfill", "ci", "--since", "1h", "--dry-run"])["items"], 0);
    let (_, metrics) = nodes[0].get("/metrics").await;
    assert!(metrics.contains(r#"surehook_job_items_total{ended="done",kind="backfill"}"#), "{metrics}");
}

#[tokio::test]
async fn pushes_from_before_the_endpoint_come_before_those_after_it() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    let receiver = Receiver::with_answers([], Answer::status(200)).await;
    let work = world.checkout(&url).await;
    let mut heads = Vec::new();
    for n in 0..3 {
        work.commit("file", &n.to_string()).await;
        work.ok(["push", "-q", "origin", "HEAD:main"]).await;
        heads.push(work.ok(["rev-parse", "HEAD"]).await.trim().to_owned());
    }
    world.endpoint("ci", "app", &receiver.url("/"), &["--backfill", "1d"]);
    work.commit("file", "later").await;
    work.ok(["push", "-q", "origin", "HEAD:main"]).await;
    heads.push(work.ok(["rev-parse", "HEAD"]).await.trim().to_owned());
    let requests = receiver.wait_for(4).await;
    world.drained().await;
    let told: Vec<String> = requests
        .iter()
        .map(|request| {
            serde_json::from_slice::<serde_json::Value>(&request.body).unwrap()["after"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!((told, receiver.requests().len()), (heads, 4));
}
