//! Events, deliveries and dead letters as they are listed and shown.

use uuid::Uuid;

use super::world::*;

#[tokio::test]
async fn events_and_deliveries() {
    let world = world().await;
    let app = world.repository("team/app").await;
    world.text(&["endpoint", "add", "ci", "--repo", "team/app", "--url", "https://ci.example.com/"]);
    let first = world
        .push(app, "team/app", r#"{"ref":"refs/heads/main","after":"1111111111111111111111111111111111111111"}"#)
        .await;
    let second = world
        .push(app, "team/app", r#"{"ref":"refs/heads/main","after":"2222222222222222222222222222222222222222"}"#)
        .await;

    let events = world.json(&["event", "list", "--repo", "team/app"]);
    assert_eq!(events[0]["event_id"], second.to_string());
    assert_eq!((&events[1]["event_id"], &events[1]["deliveries"]), (&first.to_string().into(), &1.into()));
    assert_eq!(world.json(&["event", "list", "--commit", "1111111"])[0]["event_id"], first.to_string());
    assert_eq!(world.json(&["event", "show", &first.to_string()])["payload"]["ref"], "refs/heads/main");
    assert!(world.text(&["event", "show", &first.to_string()]).contains("refs/heads/main"));
    assert!(world.fails(&["event", "list", "--repo", "team/ap"]).1.contains("team/app"));

    let deliveries = world.json(&["delivery", "list", "--state", "pending", "--endpoint", "ci"]);
    let (head, behind) = (text_of(&deliveries[1]["delivery_id"]), text_of(&deliveries[0]["delivery_id"]));
    assert_eq!((&deliveries[1]["is_head"], &deliveries[1]["status"]), (&true.into(), &"pending".into()));
    assert_eq!(world.json(&["delivery", "list", "--commit", "2222222"])[0]["delivery_id"], behind.as_str());
    assert_eq!(world.json(&["delivery", "list", "--event", &first.to_string()])[0]["delivery_id"], head.as_str());
    assert_eq!(world.json(&["delivery", "list", "--commit", "3333333"]), serde_json::json!([]));
    assert_eq!(world.json(&["delivery", "list", "--since", "1h", "--limit", "1"]).as_array().unwrap().len(), 1);

    let explained = world.json(&["delivery", "explain", &behind]);
    assert_eq!((&explained["ahead"], &explained["head_delivery_id"]), (&1.into(), &head.as_str().into()));
    let words = world.text(&["delivery", "explain", &behind]);
    assert!(
        words.contains("1 delivery goes") && words.contains(&format!("surehook delivery explain {head}")),
        "{words}"
    );
    let (problem, advice) = world.fails(&["delivery", "retry", &behind]);
    assert!(problem.contains(&head) && advice.contains(&head), "{problem} {advice}");
    assert_eq!(world.json(&["delivery", "retry", &head])["result"], "due");
    world.text(&["endpoint", "pause", "ci", "--reason", "moving"]);
    let words = world.text(&["delivery", "explain", &head]);
    assert!(
        words.contains("paused") && words.contains("moving") && words.contains("surehook endpoint resume ci"),
        "{words}"
    );

    assert_eq!(world.json(&["delivery", "skip", &head])["result"], "skipped");
    let shown = world.json(&["delivery", "show", &head]);
    assert_eq!((&shown["status"], &shown["attempt_list"][0]["outcome"]), (&"skipped".into(), &"not_sent".into()));
    assert_eq!(world.json(&["delivery", "list", "--state", "skipped"])[0]["delivery_id"], head.as_str());
    assert_eq!(world.json(&["delivery", "list", "--state", "cancelled"]), serde_json::json!([]));
    world.text(&["endpoint", "remove", "ci"]);
    assert_eq!(world.json(&["delivery", "list", "--state", "cancelled"])[0]["delivery_id"], behind.as_str());
    assert!(world.fails(&["delivery", "retry", &head]).0.contains("skipped"));
    assert!(world.fails(&["delivery", "show", &Uuid::new_v4().to_string()]).0.contains("no delivery"));
}

#[tokio::test]
async fn dead_letters() {
    let world = world().await;
    let app = world.repository("app").await;
    world.text(&["endpoint", "add", "ci", "--repo", "app", "--url", "https://ci.example.com/"]);
    let mut dead = Vec::new();
    for _ in 0..3 {
        let event = world.push(app, "app", r#"{"ref":"refs/heads/main"}"#).await;
        let delivery = text_of(&world.json(&["delivery", "list", "--event", &event.to_string()])[0]["delivery_id"]);
        dead.push(delivery);
    }
    world.kill_head(&dead[0]).await;
    let (problem, advice) = world.fails(&["dlq", "replay", &dead[0]]);
    assert!(problem.contains("refs/heads/main") && advice.contains("--anyway"), "{problem} {advice}");
    world.kill_head(&dead[1]).await;
    world.kill_head(&dead[2]).await;

    let listed =
        world.json(&["dlq", "list", "--reason", "max_attempts", "--endpoint", "ci", "--repo", "app", "--since", "1h"]);
    assert_eq!(listed.as_array().unwrap().len(), 3);
    assert_eq!((&listed[0]["state"], &listed[0]["last_status_code"]), (&"dead".into(), &500.into()));
    assert_eq!(world.json(&["dlq", "list", "--reason", "max_age"]), serde_json::json!([]));
    assert_eq!(world.json(&["delivery", "list", "--state", "failed"]).as_array().unwrap().len(), 3);
    let shown = world.json(&["dlq", "show", &dead[0]]);
    assert_eq!(
        (&shown["body"]["ref"], &shown["attempt_list"][0]["response_body"]),
        (&"refs/heads/main".into(), &"oh no".into())
    );
    assert!(world.text(&["delivery", "explain", &dead[0]]).contains("surehook dlq replay"));

    let words = world.text(&["dlq", "replay", &dead[0]]);
    assert!(words.contains("409") && words.contains("same id"), "{words}");
    assert!(world.fails(&["dlq", "replay", &dead[0]]).0.contains("on its way"));
    assert_eq!(world.json(&["dlq", "replay", "--all", "--endpoint", "ci"])["replayed"], 2);
    assert_eq!(world.json(&["dlq", "replay", "--all"])["replayed"], 0);
    let pending = world.json(&["delivery", "list", "--state", "pending"]);
    let order: Vec<String> =
        pending.as_array().unwrap().iter().rev().map(|found| text_of(&found["delivery_id"])).collect();
    assert_eq!(order, dead, "replays keep the order of the events");
    assert!(world.fails(&["dlq", "show", &Uuid::new_v4().to_string()]).0.contains("no dead letter"));
}
