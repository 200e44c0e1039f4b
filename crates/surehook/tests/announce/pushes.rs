//! What happens to refs is told, each step once and in order; what was refused is not.

use std::sync::atomic::Ordering;

use surehook::capture::announce::{Baseline, Hints};

use crate::support::{Event, World, ZEROS, exists, step, write_hook};

#[tokio::test]
async fn a_push_is_one_event_and_a_repeated_announce_none() {
    let world = World::new().await;
    let repo = world.repository("team/app").await;
    let (_, commit) = world.seeded(&repo).await;
    let hints = Hints { pusher: Some("ada".into()), push_options: vec![b"ci.skip".to_vec()], ..Hints::default() };
    let announced = world.announcer.announce(repo.id, hints).await.unwrap();
    assert_eq!((announced.events, announced.last_sequence), (1, Some(1)));
    assert_eq!(world.announce(&repo).await.events, 0);
    let events = world.events(&repo).await;
    let body = &events[0].body;
    assert_eq!(events[0].step(), step("refs/heads/main", ZEROS, &commit));
    assert_eq!(body["created"], true);
    assert_eq!(body["reconstructed"], false);
    assert_eq!(body["pusher"]["name"], "ada");
    assert_eq!(body["push_options"][0], "ci.skip");
    assert_eq!(body["repository"]["name"], "team/app");
    assert_eq!(body["repository"]["default_branch"], "main");
    assert_eq!(events[0].commits(), [&commit]);
    let row = world.row(&repo).await;
    assert_eq!(row.last_commit_sha.as_deref(), Some(commit.as_str()));
    assert_eq!(row.last_sequence, 1);
    assert!(row.last_pushed_at.is_some());
    assert_eq!(world.wakes.load(Ordering::SeqCst), 1);
    assert!(exists(&repo.path.join("surehook-highwater")));
}

#[tokio::test]
async fn without_a_hint_the_log_says_who_pushed() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    world.seeded(&repo).await;
    world.announce(&repo).await;
    assert_eq!(world.events(&repo).await[0].body["pusher"]["name"], "Ada Example");
}

#[tokio::test]
async fn refused_refs_are_not_told() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, first) = world.seeded(&repo).await;
    world.announce(&repo).await;
    write_hook(&repo, "update", r#"case "$1" in *bad*) exit 1;; esac"#);
    let second = work.commit("file", "two").await;
    assert!(!work.run(["push", "origin", "HEAD:refs/heads/good", "HEAD:refs/heads/bad"]).await.status.success());
    assert!(
        !work
            .run(["push", "--atomic", "origin", "HEAD:refs/heads/good2", "HEAD:refs/heads/bad"])
            .await
            .status
            .success()
    );
    // Stale: another clone has moved main meanwhile.
    let other = world.clone_of(&repo, "other").await;
    let theirs = other.commit("other", "x").await;
    other.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
    assert!(!work.run(["push", "origin", "HEAD:refs/heads/main"]).await.status.success());
    world.announce(&repo).await;
    let mut steps = world.steps(&repo).await;
    steps.sort();
    assert_eq!(
        steps,
        [
            step("refs/heads/good", ZEROS, &second),
            step("refs/heads/main", ZEROS, &first),
            step("refs/heads/main", &first, &theirs),
        ]
    );
}

#[tokio::test]
async fn two_that_race_for_a_ref_give_one_event() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (one, first) = world.seeded(&repo).await;
    let two = world.clone_of(&repo, "two").await;
    let (mine, theirs) = (one.commit("a", "a").await, two.commit("b", "b").await);
    let push = ["push", "--quiet", "origin", "HEAD:refs/heads/main"];
    let (a, b) = tokio::join!(one.run(push), two.run(push));
    assert!(a.status.success() != b.status.success());
    world.announce(&repo).await;
    let winner = if a.status.success() { mine } else { theirs };
    assert_eq!(
        world.steps(&repo).await,
        [step("refs/heads/main", ZEROS, &first), step("refs/heads/main", &first, &winner)]
    );
}

#[tokio::test]
async fn each_step_is_told_though_nobody_announced_in_between() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, a) = world.seeded(&repo).await;
    world.announce(&repo).await;
    let b = work.commit("file", "two").await;
    work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
    let bare = world.bare(&repo);
    // There and back: the value is the announced one again.
    bare.ok(["update-ref", "refs/heads/main", &a]).await;
    assert_eq!(world.announce(&repo).await.events, 2);
    // Deleted and made again: git has thrown the log of the first life away.
    bare.ok(["update-ref", "-d", "refs/heads/main"]).await;
    bare.ok(["update-ref", "refs/heads/main", &b]).await;
    bare.ok(["update-ref", "refs/heads/main", &a]).await;
    assert_eq!(world.announce(&repo).await.events, 3);
    assert_eq!(world.announce(&repo).await.events, 0);
    let main = "refs/heads/main";
    let expected = [(ZEROS, &a), (&a, &b), (&b, &a), (&a, &ZEROS.to_owned()), (ZEROS, &b), (&b, &a)];
    let expected = expected.map(|(before, after)| step(main, before, after));
    assert_eq!(world.steps(&repo).await, expected);
    let marks: Vec<_> = world.events(&repo).await.iter().map(|event| event.body["reconstructed"] == true).collect();
    assert_eq!(marks, [false, false, false, true, false, false]);
}

#[tokio::test]
async fn upkeep_between_steps_changes_nothing() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, a) = world.seeded(&repo).await;
    let bare = world.bare(&repo);
    world.announce(&repo).await;
    bare.ok(["pack-refs", "--all", "--prune"]).await;
    assert_eq!(world.announce(&repo).await.events, 0);
    let b = work.commit("file", "two").await;
    work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
    // The oldest line goes, and with it the place of the announced one.
    bare.ok(["reflog", "delete", "refs/heads/main@{1}"]).await;
    bare.ok(["gc", "--quiet", "--prune=now"]).await;
    assert_eq!(world.announce(&repo).await.events, 1);
    let c = work.commit("file", "three").await;
    work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
    bare.ok(["reflog", "expire", "--expire=all", "--all"]).await;
    bare.ok(["pack-refs", "--all"]).await;
    assert_eq!(world.announce(&repo).await.events, 1);
    for _ in 0..2 {
        assert_eq!(world.announce(&repo).await.events, 0);
    }
    let main = "refs/heads/main";
    assert_eq!(world.steps(&repo).await, [step(main, ZEROS, &a), step(main, &a, &b), step(main, &b, &c)]);
}

#[tokio::test]
async fn a_log_that_gc_thinned_out_is_not_told_again() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, a) = world.seeded(&repo).await;
    let b = work.commit("file", "two").await;
    work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
    world.announce(&repo).await;
    let bare = world.bare(&repo);
    // The line of the announced value leads to a commit that no ref reaches any more, so it goes; the creation stays.
    bare.ok(["update-ref", "refs/heads/main", &a]).await;
    bare.ok(["reflog", "expire", "--expire-unreachable=now", "--expire=never", "--all"]).await;
    assert_eq!(world.announce(&repo).await.events, 1);
    let last = world.events(&repo).await.pop().unwrap();
    assert_eq!(last.step(), step("refs/heads/main", &b, &a));
    assert_eq!((last.body["forced"].as_bool(), last.body["reconstructed"].as_bool()), (Some(true), Some(true)));
    assert_eq!(world.announce(&repo).await.events, 0);
}

#[tokio::test]
async fn renamed_copied_and_symbolic_branches() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, a) = world.seeded(&repo).await;
    let bare = world.bare(&repo);
    bare.ok(["branch", "old", "main"]).await;
    world.announce(&repo).await;
    let before = world.steps(&repo).await.len();
    bare.ok(["branch", "-m", "old", "new"]).await;
    world.announce(&repo).await;
    assert_eq!(
        world.steps(&repo).await[before..],
        [step("refs/heads/new", ZEROS, &a), step("refs/heads/old", &a, ZEROS)]
    );
    let events = world.events(&repo).await;
    assert_eq!(events[before].commits(), Vec::<&str>::new(), "a renamed branch brings no commits");
    bare.ok(["symbolic-ref", "refs/heads/new", "refs/heads/main"]).await;
    let b = work.commit("file", "two").await;
    work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/new"]).await;
    world.announce(&repo).await;
    let mut told = world.steps(&repo).await.split_off(before + 2);
    told.sort();
    assert_eq!(told, [step("refs/heads/main", &a, &b), step("refs/heads/new", &a, ZEROS)]);
    bare.ok(["symbolic-ref", "--delete", "refs/heads/new"]).await;
    bare.ok(["update-ref", "refs/heads/new", &a]).await;
    world.announce(&repo).await;
    let told = world.steps(&repo).await.split_off(before + 4);
    assert_eq!(told.last().unwrap().2, a);
    assert_eq!(world.announce(&repo).await.events, 0);
}

#[tokio::test]
async fn names_are_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, a) = world.seeded(&repo).await;
    let name = std::ffi::OsStr::from_bytes(b"HEAD:refs/heads/caf\xe9");
    work.ok(["push".as_ref(), "--quiet".as_ref(), "origin".as_ref(), name]).await;
    assert_eq!(world.announce(&repo).await.events, 2);
    let events = world.events(&repo).await;
    let event = events.iter().find(|event| event.body.get("ref_base64").is_some()).unwrap();
    assert_eq!(event.step(), step("refs/heads/caf\u{fffd}", ZEROS, &a));
    assert_eq!(event.body["ref_base64"], "cmVmcy9oZWFkcy9jYWbp");
}

#[tokio::test]
async fn deletions_of_any_branch_are_told_with_zeros() {
    for format in ["sha1", "sha256"] {
        let world = World::new().await;
        let repo = world.repository_of("app", format).await;
        let work = world.git.init(&format!("work-{format}")).await;
        std::fs::remove_dir_all(work.path().join(".git")).unwrap();
        work.ok(["init", "--quiet", &format!("--object-format={format}")]).await;
        let a = work.commit("file", "one").await;
        let url = format!("file://{}", repo.path.display());
        work.ok(["push", "--quiet", &url, "HEAD:refs/heads/main", "HEAD:refs/heads/side"]).await;
        world.announce(&repo).await;
        let bare = world.bare(&repo);
        bare.ok(["config", "receive.denyDeleteCurrent", "ignore"]).await;
        work.ok(["push", "--quiet", &url, ":refs/heads/side", ":refs/heads/main"]).await;
        assert_eq!(world.announce(&repo).await.events, 2);
        let events = world.events(&repo).await;
        let zeros = "0".repeat(a.len());
        for event in &events[2..] {
            assert_eq!((event.text("before"), event.text("after")), (a.as_str(), zeros.as_str()));
            assert_eq!(event.body["deleted"], true);
            assert_eq!(event.body["reconstructed"], false);
            assert_eq!(event.body["head_commit"], serde_json::Value::Null);
            assert_eq!(event.commits(), Vec::<&str>::new());
            assert_eq!(event.body["incomplete"], serde_json::json!([]));
        }
        assert_eq!(world.row(&repo).await.last_commit_sha, Some(a));
    }
}

#[tokio::test]
async fn a_hundred_branches_at_once_in_one_strict_order() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, _) = world.seeded(&repo).await;
    let refs: Vec<String> = (0..100).map(|number| format!("HEAD:refs/heads/b{number}")).collect();
    let arguments = ["push", "--quiet", "origin"].into_iter().chain(refs.iter().map(String::as_str));
    work.ok(arguments).await;
    assert_eq!(world.announce(&repo).await.events, 101);
    assert_eq!(world.events(&repo).await.len(), 101);
}

#[tokio::test]
async fn a_baseline_is_not_told_unless_it_shall_be() {
    let world = World::new().await;
    for (name, baseline, expected) in [("silent", Baseline::Silent, 0), ("told", Baseline::Told, 1)] {
        let repo = world.repository(name).await;
        let (work, a) = world.seeded(&repo).await;
        world.bare(&repo).ok(["update-ref", "-d", "refs/heads/main"]).await;
        work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
        assert_eq!(world.announcer.baseline(repo.id, baseline).await.unwrap(), 1);
        assert_eq!(world.announcer.baseline(repo.id, baseline).await.unwrap(), 0);
        assert_eq!(world.announce(&repo).await.events, expected);
        let b = work.commit("file", "two").await;
        work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
        assert_eq!(world.announce(&repo).await.events, 1);
        let steps = world.steps(&repo).await;
        assert_eq!(*steps.last().unwrap(), step("refs/heads/main", &a, &b));
    }
}

#[tokio::test]
async fn every_matching_endpoint_gets_a_delivery() {
    let world = World::new().await;
    let repo = world.repository("team/app").await;
    world.seeded(&repo).await;
    world.announce(&repo).await;
    let count = "SELECT count(*) FROM outbox_deliveries";
    assert_eq!(world.client.query_one(count, &[]).await.unwrap().get::<_, i64>(0), 0);
    world
        .execute(
            "INSERT INTO endpoints (name, url, secret, aggregate_group) VALUES ('one', 'http://x/', 's', 'team'), ('other', 'http://x/', 's', 'ops');
             INSERT INTO endpoints (name, url, secret) VALUES ('all', 'http://x/', 's')",
        )
        .await;
    world.bare(&repo).ok(["branch", "side", "main"]).await;
    world.announce(&repo).await;
    assert_eq!(world.client.query_one(count, &[]).await.unwrap().get::<_, i64>(0), 2);
    let scanned = world.announcer.scan(world.storage_id).await.unwrap();
    assert_eq!(scanned.len(), 1);
    assert_eq!(scanned[0].1.as_ref().unwrap().events, 0);
    let events: Vec<Event> = world.events(&repo).await;
    assert_eq!(events.len(), 2);
}
