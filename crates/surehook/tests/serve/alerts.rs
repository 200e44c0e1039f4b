//! Alerts: opened, told to PagerDuty and to a plain webhook, resolved; never about themselves.

use serde_json::Value;
use surehook_testkit::eventually;
use surehook_testkit::receiver::{Answer, Receiver, Request};

use super::pager::{ROUTING_KEY, objections};
use super::world::{SOON, World, payloads};

fn pager(world: &World, receiver: &Receiver) {
    world.run(&[
        "endpoint",
        "add",
        "pager",
        "--alerts",
        "--format",
        "pagerduty",
        "--secret",
        ROUTING_KEY,
        "--url",
        &receiver.url("/v2/enqueue"),
        "--allow-private",
    ]);
}

fn bodies(requests: &[Request]) -> Vec<Value> {
    requests
        .iter()
        .map(|request| {
            assert_eq!(objections(request), Vec::<String>::new());
            serde_json::from_str(request.text()).unwrap()
        })
        .collect()
}

#[tokio::test]
async fn a_dead_letter_pages_and_its_replay_resolves() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    let ci = Receiver::start(|_| Answer::status(400)).await;
    // PagerDuty is busy at first: an alert is retried like everything else.
    let busy = Answer::with_header(429, "retry-after", "1");
    let duty = Receiver::with_answers([busy], Answer::status(202)).await;
    let chat = Receiver::accepting().await;
    world.endpoint("ci", "app", &ci.url("/"), &["--max-attempts", "1"]);
    world.endpoint("everything", "*", &chat.url("/all"), &[]);
    pager(&world, &duty);
    world.run(&["endpoint", "add", "chat", "--alerts", "--url", &chat.url("/alerts"), "--allow-private"]);

    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    let paged = bodies(&duty.wait_for(2).await);
    assert_eq!(paged[0], paged[1], "a retry says the same");
    assert_eq!(paged[0]["routing_key"], ROUTING_KEY);
    assert_eq!(paged[0]["event_action"], "trigger");
    assert_eq!(paged[0]["payload"]["severity"], "error");
    assert!(paged[0]["payload"]["summary"].as_str().unwrap().contains("a dead letter of endpoint ci: max_attempts"));
    let shown = world.json(&["alert", "list"]);
    assert_eq!(shown[0]["kind"], "dead_letters");
    assert_eq!(
        world
            .count("SELECT count(*) FROM outbox_events WHERE encode(payload, 'escape') LIKE '%0123456789abcdef%'")
            .await,
        0
    );

    ci.answer_all(Answer::status(200));
    let dead = world.json(&["dlq", "list"]);
    world.run(&["dlq", "replay", dead[0]["delivery_id"].as_str().unwrap()]);
    let paged = bodies(&duty.wait_for(3).await);
    assert_eq!(paged[2]["event_action"], "resolve");
    assert_eq!(paged[2]["dedup_key"], paged[0]["dedup_key"]);
    assert_eq!(paged[2]["routing_key"], ROUTING_KEY);
    assert_eq!(world.json(&["alert", "list"]), serde_json::json!([]));
    assert_eq!(world.json(&["alert", "list", "--all"]).as_array().unwrap().len(), 1);

    // The plain webhook says the same, and who asked for every push got no alert.
    let told = eventually(SOON, async || {
        let told: Vec<Request> = chat.requests().into_iter().filter(|r| r.path == "/alerts").collect();
        (told.len() >= 2).then_some(told)
    })
    .await;
    let states: Vec<Value> = payloads(&told).iter().map(|body| body["state"].clone()).collect();
    assert_eq!(states, ["open", "resolved"]);
    world.drained().await;
    let pushes: Vec<Request> = chat.requests().into_iter().filter(|r| r.path == "/all").collect();
    assert_eq!(payloads(&pushes).len(), 1);
}

#[tokio::test]
async fn an_alert_never_tells_of_itself() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    let ci = Receiver::start(|_| Answer::status(410)).await;
    let duty = Receiver::start(|_| Answer::status(400)).await;
    world.endpoint("ci", "app", &ci.url("/"), &[]);
    pager(&world, &duty);
    world.run(&["endpoint", "set", "pager", "--max-attempts", "1"]);
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    // The alert itself becomes a dead letter, which opens no further one.
    world.until("the alert is dead", "SELECT count(*) FROM outbox_dlq WHERE event_type = 'surehook.alert'").await;
    let seen = world.count("SELECT count(*) FROM outbox_events").await;
    let looks = world.count("SELECT txid_current()::bigint").await;
    world
        .until("the watch has looked again", &format!("SELECT (txid_current() > {looks} + 20)::integer::bigint"))
        .await;
    assert_eq!(world.count("SELECT count(*) FROM outbox_events").await, seen);
    let open = world.json(&["alert", "list"]);
    assert_eq!(open.as_array().unwrap().len(), 1);
    assert_eq!(open[0]["kind"], "endpoint_gone");
    world.run(&["endpoint", "resume", "ci"]);
}

#[tokio::test]
async fn pagerduty_needs_a_key_and_is_told_of_alerts_alone() {
    let world = World::new().await;
    let _server = world.serve();
    let refused = |arguments: &[&str]| {
        let output = world.command(&world.database_url, arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let pager = ["endpoint", "add", "pager", "--format", "pagerduty"];
    let without_key = refused(&[&pager[..], &["--alerts"]].concat());
    assert!(without_key.contains("routing key"), "{without_key}");
    let pushes =
        refused(&[&pager[..], &["--repo", "*", "--url", "https://example.com/", "--secret", ROUTING_KEY]].concat());
    assert!(pushes.contains("--alerts"), "{pushes}");
    world.run(&[&pager[..], &["--alerts", "--secret", ROUTING_KEY]].concat());
    assert_eq!(world.json(&["endpoint", "show", "pager"])["url"], "https://events.pagerduty.com/v2/enqueue");
}
