//! `surehook endpoint backfill`, and `endpoint add --backfill`.

use serde_json::json;
use uuid::Uuid;

use super::world::*;

const URL: &str = "https://ci.example.com/";

async fn pushed() -> (World, Uuid) {
    let world = world().await;
    let app = world.repository("team/app").await;
    for n in 0..3 {
        world.push(app, "team/app", &format!(r#"{{"ref":"refs/heads/{n}"}}"#)).await;
    }
    (world, app)
}

#[tokio::test]
async fn it_is_counted_done_and_found_done() {
    let (world, app) = pushed().await;
    world.text(&["endpoint", "add", "ci", "--repo", "team/app", "--url", URL]);
    world.push(app, "team/app", r#"{"ref":"refs/heads/live"}"#).await;
    let counted = world.json(&["endpoint", "backfill", "ci", "--since", "7d", "--dry-run"]);
    assert_eq!((&counted["dry_run"], &counted["items"], &counted["late"]), (&true.into(), &3.into(), &3.into()));
    assert_eq!(counted["counts"][0]["event_type"], "RepositoryPushed");
    let words = world.text(&["endpoint", "backfill", "ci", "--since", "7d", "--dry-run"]);
    assert!(words.contains("3 deliveries") && words.contains("Nothing was changed"), "{words}");
    assert!(words.contains("after something newer"), "{words}");
    assert_eq!(world.json(&["job", "list"]), json!([]), "a dry run makes no job");

    let done = world.json(&["endpoint", "backfill", "ci", "--since", "7d", "--rate", "50"]);
    assert_eq!(
        (&done["kind"], &done["state"], &done["items_done"], &done["rate"]),
        (&"backfill".into(), &"done".into(), &3.into(), &50.into())
    );
    let pending = world.json(&["delivery", "list", "--state", "pending"]);
    assert_eq!(pending.as_array().unwrap().len(), 4);
    assert!(world.text(&["endpoint", "backfill", "ci", "--since", "7d"]).contains("0 deliveries were enqueued"));
    assert!(world.text(&["endpoint", "backfill", "ci", "--since", "7d", "--dry-run"]).contains("nothing since then"));
}

#[tokio::test]
async fn what_cannot_be_done_is_told() {
    let (world, _) = pushed().await;
    let added = world.json(&["endpoint", "add", "ci", "--repo", "team/*", "--url", URL, "--backfill", "7d"]);
    let job = text_of(&added["backfill"]["job_id"]);
    assert_eq!((&added["backfill"]["items_total"], &added["now"]["lanes_held"]), (&3.into(), &1.into()));
    let shown = world.text(&["endpoint", "show", "ci"]);
    assert!(shown.contains("1 lane waits for older events"), "{shown}");
    let (problem, advice) = world.fails(&["endpoint", "backfill", "ci", "--since", "1d"]);
    assert!(
        problem.contains("already") && problem.contains(&job) && advice.contains("job cancel"),
        "{problem} {advice}"
    );
    let (problem, advice) = world.fails(&["endpoint", "backfill", "cj", "--since", "1d"]);
    assert!(problem.contains("no endpoint named cj") && advice.contains("ci"), "{problem} {advice}");
    let (problem, _) = world.fails(&["endpoint", "backfill", "ci", "--since", "2999-01-01T00:00:00Z", "--dry-run"]);
    assert!(problem.contains("in the future"), "{problem}");
    let (problem, _) =
        world.fails(&["endpoint", "add", "x", "--repo", "*", "--url", URL, "--backfill", "2999-01-01T00:00:00Z"]);
    assert!(problem.contains("in the future"), "{problem}");
    assert_eq!(world.json(&["endpoint", "list"]).as_array().unwrap().len(), 1, "and no endpoint was added");

    assert_eq!(world.json(&["job", "cancel", &job])["state"], "cancelled");
    assert_eq!(world.json(&["job", "resume", &job])["state"], "running");
    world.json(&["job", "cancel", &job]);
    let id = text_of(&added["endpoint_id"]);
    world.text(&["endpoint", "remove", "ci"]);
    let (problem, advice) = world.fails(&["endpoint", "backfill", &id, "--since", "1d"]);
    assert!(problem.contains("ci was removed") && advice.contains("--backfill"), "{problem} {advice}");
    let (problem, _) = world.fails(&["job", "resume", &job]);
    assert!(problem.contains("ci was removed"), "{problem}");
}

#[tokio::test]
async fn a_new_endpoint_shows_its_secret_and_its_job() {
    let (world, _) = pushed().await;
    let words = world.text(&["endpoint", "add", "ci", "--repo", "*", "--url", URL, "--backfill", "7d"]);
    for part in ["only time that the secret is shown", "with 3 items", "No worker is running", "surehook job show"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    let paused = world.json(&["endpoint", "add", "second", "--repo", "*", "--url", URL]);
    assert!(paused.get("backfill").is_none());
    world.text(&["endpoint", "pause", "second"]);
    let words = world.text(&["endpoint", "backfill", "second", "--since", "1h"]);
    assert!(words.contains("3 deliveries were enqueued") && words.contains("endpoint resume second"), "{words}");
}
