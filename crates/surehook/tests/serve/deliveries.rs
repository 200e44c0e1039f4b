//! From a push to its receipt, and what an operator does on the way.

use std::collections::HashSet;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use surehook_testkit::eventually;
use surehook_testkit::receiver::{Answer, Receiver};
use surehook_webhook::signature::x_signature;
use surehook_webhook::{Secret, Secrets, envelope};
use tokio::io::AsyncWriteExt as _;

use super::world::{SECRET, SOON, World, payloads, script};

#[tokio::test]
async fn a_push_is_built_once_and_its_repeat_is_answered_409() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "team/app");
    let inbox = surehook_testkit::postgres::empty_database().await;
    let command = script(
        world.data(),
        "build.sh",
        "#!/bin/sh\ncat > \"$SUREHOOK_BUILD_FOLDER/seen.json\"\necho \"built $SUREHOOK_COMMIT\"\n",
    );
    let arguments = ["receive", "--listen", "127.0.0.1:0", "--secret", SECRET, "--exec", command.to_str().unwrap()];
    let receiver = world.start_with(inbox.url(), &arguments);
    let hook = format!("http://{}/", receiver.address);
    world.endpoint("ci", "team/app", &hook, &[]);
    let work = world.checkout(&url).await;
    let commit = work.commit("file", "text").await;
    work.ok(["push", "-q", "origin", "HEAD:main"]).await;
    world.drained().await;

    let builds = async || {
        let output = world.command(inbox.url(), &["receive", "list", "--json"]).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let built = eventually(SOON, async || {
        builds().await.as_array().filter(|all| all.len() == 1 && all[0]["state"] == "finished").cloned()
    })
    .await;
    assert_eq!((&built[0]["exit_code"], &built[0]["commit"]), (&0.into(), &commit.as_str().into()));
    let log = world.command(inbox.url(), &["receive", "log", "1"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&log.stdout).trim(), format!("built {commit}"));

    // The same delivery once more, by somebody who has the secret.
    let event = world.sql.query_one("SELECT payload FROM outbox_events", &[]).await.unwrap();
    let (body, id) = (event.get::<_, &[u8]>(0), built[0]["webhook_id"].as_str().unwrap());
    assert_eq!(by_hand(&hook, id.parse().unwrap(), body).await, 409);
    let answers = "SELECT count(*) FROM outbox_attempts WHERE outcome = 'success' AND status_code = 202";
    assert_eq!((world.count(answers).await, builds().await.as_array().unwrap().len()), (1, 1));

    // The same delivery, put back as if the answer had been lost.
    let delivered = world.json(&["delivery", "list"]);
    let id = delivered[0]["delivery_id"].as_str().unwrap();
    assert_eq!((&delivered[0]["status"], built[0]["webhook_id"].as_str().unwrap()), (&"published".into(), id));
    world
        .sql
        .batch_execute(
            "DELETE FROM outbox_attempts;
             UPDATE outbox_lanes SET done_seq = 0, ready_at = now()",
        )
        .await
        .unwrap();
    world.until("the repeat", "SELECT count(*) FROM outbox_attempts WHERE outcome = 'conflict' AND status_code = 409 AND ends = 'published'").await;
    assert_eq!(builds().await.as_array().unwrap().len(), 1, "one build");
}

/// Signs and posts a body as surehook does; gives the status of the answer.
async fn by_hand(url: &str, id: uuid::Uuid, body: &[u8]) -> u16 {
    let now_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let secrets = Secrets::from(Secret::parse(SECRET).unwrap());
    let headers = envelope::headers(id, i64::try_from(now_s).unwrap(), body, &secrets);
    let mut curl = tokio::process::Command::new("curl");
    curl.args(["--silent", "--max-time", "20", "--output", "/dev/null", "--write-out", "%{http_code}"]);
    for (name, value) in headers {
        curl.arg("--header").arg(format!("{name}: {value}"));
    }
    let mut curl =
        curl.args(["--data-binary", "@-", url]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    curl.stdin.take().unwrap().write_all(body).await.unwrap();
    String::from_utf8(curl.wait_with_output().await.unwrap().stdout).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_dead_letter_is_replayed_with_its_id_and_bytes() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    let receiver = Receiver::start(|_| Answer::status(500)).await;
    world.endpoint("ci", "app", &receiver.url("/"), &["--retry-max-delay", "50ms"]);
    let work = world.checkout(&url).await;
    work.commit("caf\u{e9} \u{1f680}/1.0", "text").await;
    work.ok(["push", "-q", "origin", "HEAD:main"]).await;
    world.until("the dead letter", "SELECT count(*) FROM outbox_dlq WHERE state = 'dead'").await;
    receiver.answer_all(Answer::status(200));
    world.run(&["dlq", "replay", "--all"]);
    world.until("the delivered letter", "SELECT count(*) FROM outbox_dlq WHERE state = 'delivered'").await;
    let requests = receiver.requests();
    assert_eq!(requests.len(), 6);
    let secrets = Secrets::from(Secret::parse(SECRET).unwrap());
    for request in &requests {
        assert_eq!(request.body, requests[0].body);
        assert_eq!(request.header("x-webhook-id"), requests[0].header("x-webhook-id"));
        assert_eq!(request.header("x-signature"), Some(x_signature(&secrets.primary, &request.body).as_str()));
        assert_eq!(request.header("content-type"), Some("application/json"));
    }
    world.drained().await;
    assert_eq!(receiver.requests().len(), 6, "once");
}

#[tokio::test]
async fn five_refusals_are_a_dead_letter_and_its_replay_is_the_same_delivery() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    let receiver = Receiver::start(|_| Answer::status(500)).await;
    world.endpoint("ci", "app", &receiver.url("/"), &["--retry-max-delay", "50ms"]);
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "-q", "origin", "HEAD:main"]).await;
    world.until("the dead letter", "SELECT count(*) FROM outbox_dlq WHERE state = 'dead'").await;
    let refused = receiver.requests();
    assert_eq!(refused.len(), 5);
    let letter = &world.json(&["dlq", "list"])[0];
    assert_eq!((&letter["reason"], &letter["attempts"]), (&"max_attempts".into(), &5.into()));
    assert_eq!(world.json(&["delivery", "list", "--state", "failed"]).as_array().unwrap().len(), 1);

    // A newer push of the same ref gets through: the older one must not build over it by itself.
    receiver.answer_all(Answer::status(200));
    work.commit("file", "2").await;
    work.ok(["push", "-q", "origin", "HEAD:main"]).await;
    world.drained().await;
    let id = letter["delivery_id"].as_str().unwrap();
    let output = world.command(world.database.url(), &["dlq", "replay", id]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "refused: {}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(receiver.requests().len(), 6);
    world.run(&["dlq", "replay", id, "--anyway"]);
    let last = receiver.wait_for(7).await.remove(6);
    assert_eq!((last.header("x-webhook-id"), &last.body), (refused[0].header("x-webhook-id"), &refused[0].body));
    world.until("the delivered letter", "SELECT count(*) FROM outbox_dlq WHERE state = 'delivered'").await;
    assert_eq!(world.json(&["delivery", "show", id])["status"], "published");
}

#[tokio::test]
async fn what_waits_for_a_receiver_that_is_away_arrives_in_order() {
    away_for(Duration::ZERO, &["--retry-max-delay", "200ms"]).await;
}

#[tokio::test]
#[ignore = "takes two minutes; ./test --long runs it"]
async fn what_waits_for_two_minutes_arrives_in_order() {
    away_for(Duration::from_secs(120), &[]).await;
}

/// 50 pushes while the receiver is away, which comes back no sooner than this after the first.
async fn away_for(least: Duration, endpoint: &[&str]) {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    let receiver = Receiver::accepting().await;
    let address = receiver.address();
    world.endpoint("ci", "app", &receiver.url("/"), endpoint);
    drop(receiver);
    let begun = Instant::now();
    let work = world.checkout(&url).await;
    for n in 0..50 {
        work.commit("file", &n.to_string()).await;
        work.ok(["push", "-q", "origin", "HEAD:main"]).await;
    }
    assert_eq!(world.count("SELECT sum(last_seq - done_seq)::bigint FROM outbox_lanes").await, 50);
    eventually(least + SOON, async || (begun.elapsed() >= least).then_some(())).await;
    world.until("a failed attempt", "SELECT (count(*) > 0)::integer::bigint FROM outbox_attempts").await;
    let receiver = Receiver::start_at(address, |_| Answer::status(200)).await;
    world.drained().await;
    let sequences: Vec<i64> = payloads(&receiver.requests()).iter().map(|p| p["sequence"].as_i64().unwrap()).collect();
    assert_eq!(sequences, (1..=50).collect::<Vec<_>>());
    assert_eq!(world.count("SELECT count(*) FROM outbox_dlq").await, 0);
}

/// The value of a metric.
fn value(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[tokio::test]
async fn workers_elsewhere_share_the_work() {
    let world = World::new().await;
    let server = world.serve();
    let mut workers: Vec<_> =
        (0..2).map(|_| world.start_with(world.database.url(), &["worker", "--listen", "127.0.0.1:0"])).collect();
    let url = world.repository(&server, "app");
    let receiver = Receiver::accepting().await;
    world.endpoint("ci", "app", &receiver.url("/"), &["--unordered"]);
    let work = world.checkout(&url).await;
    work.commit("file", "text").await;
    let refs: Vec<String> = (0..200).map(|n| format!("HEAD:refs/heads/branch-{n}")).collect();
    work.ok(["push", "-q", "origin"].into_iter().chain(refs.iter().map(String::as_str))).await;
    world.drained().await;
    let ids: HashSet<String> =
        receiver.requests().iter().map(|r| r.header("x-webhook-id").unwrap().to_owned()).collect();
    assert_eq!((receiver.requests().len(), ids.len()), (200, 200));
    let mut sent = 0.0;
    for process in workers.iter().chain([&server]) {
        let (_, text) = process.get("/metrics").await;
        sent += value(&text, "surehook_attempts_total{outcome=\"success\"}").unwrap();
    }
    assert!((sent - 200.0).abs() < 0.5, "what the three say that they sent: {sent}");
    for worker in &mut workers {
        assert_eq!(worker.get("/healthz").await, (200, "ok\n".into()));
        worker.signal("TERM");
        assert_eq!(worker.ended().await, Some(0));
    }
}

#[tokio::test]
async fn the_commit_can_be_fetched_when_its_webhook_arrives() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    // Looks before it answers: nothing of the push may still be on its way then.
    let fetched = world.git.init_bare("fetched").await;
    let git = |folder: &Path, arguments: &[&str]| {
        let output = std::process::Command::new("git").arg("-C").arg(folder).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let (folder, from) = (fetched.path().to_owned(), url.clone());
    let receiver = Receiver::start(move |request| {
        let payload: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        let (name, after) = (payload["ref"].as_str().unwrap(), payload["after"].as_str().unwrap());
        let shown = git(&folder, &["ls-remote", &from, name]) == format!("{after}\t{name}\n");
        git(&folder, &["fetch", "--quiet", &from, name]);
        let there = git(&folder, &["cat-file", "-t", after]) == "commit\n";
        Answer::status(if shown && there { 200 } else { 500 })
    })
    .await;
    world.endpoint("ci", "app", &receiver.url("/"), &["--timeout", "60s"]);
    let work = world.checkout(&url).await;
    for n in 0..30 {
        work.commit("file", &n.to_string()).await;
        work.ok(["push", "-q", "origin", "HEAD:main"]).await;
        // The next push comes after the look, so that the ref must show this very commit.
        receiver.wait_for(n + 1).await;
    }
    world.drained().await;
    assert_eq!(receiver.requests().len(), 30);
    assert_eq!(world.count("SELECT count(*) FROM outbox_attempts WHERE outcome = 'success'").await, 30);
}

#[tokio::test]
async fn the_metrics_tell_what_waits() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    let receiver = Receiver::accepting().await;
    world.endpoint("ci", "app", &receiver.url("/"), &[]);
    world.run(&["endpoint", "pause", "ci"]);
    let work = world.checkout(&url).await;
    for n in 0..3 {
        work.commit("file", &n.to_string()).await;
        work.ok(["push", "-q", "origin", "HEAD:main"]).await;
    }
    let (code, text) = server.get("/metrics").await;
    assert_eq!(
        (code, value(&text, "outbox_pending_count"), value(&text, "surehook_outbox_pending")),
        (200, Some(3.0), Some(3.0))
    );
    assert!(value(&text, "surehook_outbox_oldest_pending_age_seconds").is_some_and(|age| age > 0.0));
    let mut seen = HashSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, _) = line.rsplit_once(' ').unwrap();
        assert!(seen.insert(name.to_owned()), "{name} stands there twice");
        let base = name.split('{').next().unwrap();
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| base.strip_suffix(suffix).filter(|f| text.contains(&format!("# TYPE {f} histogram"))));
        let family = family.unwrap_or(base);
        assert!(
            text.contains(&format!("# HELP {family} ")) && text.contains(&format!("# TYPE {family} ")),
            "{family} is not explained"
        );
    }
    assert!(!text.contains(&receiver.address().to_string()) && !text.contains("refs/"), "no URL and no ref is a label");
    world.run(&["endpoint", "resume", "ci"]);
    world.drained().await;
    let (_, text) = server.get("/metrics").await;
    assert_eq!(value(&text, "outbox_pending_count"), Some(0.0));
    let mut last = 0.0;
    for line in text.lines().filter(|line| line.starts_with("surehook_attempt_duration_seconds_bucket")) {
        let count: f64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
        assert!(count >= last, "{line}");
        last = count;
    }
    assert_eq!(value(&text, "surehook_attempts_total{outcome=\"success\"}"), Some(3.0));
}
