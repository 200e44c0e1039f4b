//! Everything through a pgbouncer in transaction mode: a push on its way to its receiver, the nouns, PostgreSQL restarted behind
//! it; and what is said to those who do not name it.

use surehook_testkit::eventually;
use surehook_testkit::postgres::{self, Pgbouncer};
use surehook_testkit::receiver::{Answer, Receiver};

use super::world::{SOON, World, payloads};
use super::yard::{Yard, arrivals, in_order};

/// Server sessions for all programs of a test together; each of them has more than that of its own.
const SERVER_SESSIONS: u32 = 4;

async fn pooled_world() -> Option<(World, Pgbouncer)> {
    let mut world = World::new().await;
    let pgbouncer = Pgbouncer::start(postgres::shared().await, SERVER_SESSIONS).await?;
    world.database_url = pgbouncer.url(world.database.name());
    world.environment.push(("SUREHOOK_POOLER", "transaction".into()));
    Some((world, pgbouncer))
}

#[tokio::test]
async fn a_push_reaches_its_receiver_through_a_pooler_and_every_noun_works() {
    let Some((world, _pgbouncer)) = pooled_world().await else { return };
    let receiver = Receiver::accepting().await;
    let mut server = world.serve();
    let url = world.repository(&server, "team/app");
    world.endpoint("ci", "team/app", &receiver.url("/"), &[]);
    let checkout = world.checkout(&url).await;
    for n in 1..=5 {
        checkout.commit("file", &format!("text {n}")).await;
        checkout.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
    }
    receiver.wait_for(5).await;
    world.drained().await;
    let numbers: Vec<i64> =
        payloads(&receiver.requests()).iter().map(|payload| payload["sequence"].as_i64().unwrap()).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    receiver.answer_all(Answer::status(500));
    checkout.commit("file", "refused").await;
    checkout.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
    receiver.wait_for(6).await;
    // It waits until it is told to be tried, however long the commands take.
    let put_off = "UPDATE outbox_lanes SET ready_at = now() + interval '1 hour' WHERE attempts = 1 AND owner IS NULL";
    eventually(SOON, async || (world.sql.execute(put_off, &[]).await.unwrap() == 1).then_some(())).await;
    receiver.answer_all(Answer::status(200));
    let pending = world.json(&["delivery", "list", "--state", "pending"]);
    let delivery = pending[0]["delivery_id"].as_str().unwrap().to_owned();
    for command in [
        &["repo", "list"][..],
        &["repo", "show", "team/app"],
        &["token", "list"],
        &["endpoint", "list"],
        &["endpoint", "show", "ci"],
        &["event", "list"],
        &["delivery", "show", &delivery],
        &["delivery", "explain", &delivery],
        &["delivery", "retry", &delivery],
        &["dlq", "list"],
        &["alert", "list"],
        &["doctor"],
    ] {
        world.json(command);
    }
    world.drained().await;
    assert_eq!(receiver.requests().len(), 7);
    let (status, metrics) = server.get("/metrics").await;
    assert!(status == 200 && metrics.contains("outbox_pending_count 0"), "{metrics}");
    server.signal("TERM");
    assert_eq!(server.ended().await, Some(0));
}

#[tokio::test]
async fn a_pooler_that_nobody_named_is_refused_with_words_that_help() {
    let Some((mut world, _pgbouncer)) = pooled_world().await else { return };
    let refused = |world: &World, arguments: &[&str]| {
        let output = world.command(&world.database_url, arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let backup = world.data().join("backup");
    let said = refused(&world, &["backup", backup.to_str().unwrap()]);
    assert!(said.contains("--pooler none"), "{said}");
    world.environment.clear();
    for command in [&["serve", "--listen", "127.0.0.1:0"][..], &["worker"], &["repo", "list"], &["receive", "list"]] {
        let said = refused(&world, command);
        assert!(said.contains("a pooler") && said.contains("--pooler transaction"), "{command:?}: {said}");
    }
    world.run(&["--pooler", "transaction", "repo", "list"]);
    let config = world.data().join("pooler.toml");
    std::fs::write(&config, "[database]\npooler = \"transaction\"\n").unwrap();
    let arguments = ["worker", "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
    let mut worker = world.start_with(&world.database_url, &arguments);
    worker.signal("TERM");
    assert_eq!(worker.ended().await, Some(0));
    assert!(refused(&world, &["--pooler", "none", "repo", "list"]).contains("--pooler transaction"));
}

#[tokio::test]
async fn workers_behind_a_pooler_outlive_a_restart_of_the_database() {
    let (mut yard, cluster) = Yard::with_cluster().await;
    let Some(pgbouncer) = Pgbouncer::start(&cluster, SERVER_SESSIONS).await else { return };
    let direct = std::mem::replace(&mut yard.url, pgbouncer.url("surehook"));
    yard.world.environment.push(("SUREHOOK_POOLER", "transaction".into()));
    let receiver = Receiver::start(|_| Answer::status(200).after(std::time::Duration::from_millis(30))).await;
    yard.endpoint(&receiver.url("/"), std::time::Duration::from_secs(30)).await;
    let _workers = [yard.worker(), yard.worker(), yard.worker()];
    yard.alive(3).await;
    yard.backlog(50, 20).await;
    for seen in [200, 400] {
        receiver.wait_for(seen).await;
        cluster.restart().await;
    }
    yard.sql = postgres::connect(&direct).await;
    yard.drained().await;
    yard.all_published(1000).await;
    yard.nobody_was_declared_dead().await;
    let requests = receiver.requests();
    in_order(&requests);
    assert_eq!(arrivals(&requests).len(), 1000);
}
