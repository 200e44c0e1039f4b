//! What people do in their own repositories, past every hook of ours: the scan finds it, and nothing is invented.

use super::support::{Elsewhere, Steps, zeros};

fn step(name: &str, before: &str, after: &str) -> (String, String, String) {
    (name.to_owned(), before.to_owned(), after.to_owned())
}

/// In the order of their refs: steps of one announce are ordered by the second in which they happened.
fn by_ref(mut steps: Steps) -> Steps {
    steps.sort_by(|one, other| one.0.cmp(&other.0));
    steps
}

#[tokio::test(flavor = "multi_thread")]
async fn plumbing_in_the_folder_itself() {
    let there = Elsewhere::new().await;
    let (bare, work, first) = there.with_a_commit("app.git").await;
    there.import(&bare, &[]);
    let _server = there.world.serve();
    let second = work.commit("a", "2").await;
    // The hook is missing for this one.
    std::fs::remove_file(bare.path().join("hooks/post-receive")).unwrap();
    assert!(there.world.json(&["doctor"]).to_string().contains("no post-receive hook rings for it"));
    work.ok(["push", "--quiet", "origin", "main"]).await;
    let mut expected = vec![step("refs/heads/main", &first, &second)];
    assert_eq!(there.told_in_time("app", 1).await, expected);
    bare.ok(["update-ref", "refs/heads/plumbed", &first]).await;
    expected.push(step("refs/heads/plumbed", &zeros(), &first));
    assert_eq!(there.told_in_time("app", 2).await, expected);
    bare.ok(["branch", "-m", "plumbed", "renamed"]).await;
    let told = there.told_in_time("app", 4).await;
    assert_eq!(told[..2], expected[..]);
    expected.extend([step("refs/heads/plumbed", &first, &zeros()), step("refs/heads/renamed", &zeros(), &first)]);
    assert_eq!(by_ref(told[2..].to_vec()), expected[2..]);
    for quiet in
        [&["pack-refs", "--all"][..], &["gc", "--quiet", "--prune=now"], &["reflog", "expire", "--expire=now", "--all"]]
    {
        bare.ok(quiet).await;
    }
    // Something after it, so that a wrong event before it would have been seen.
    bare.ok(["update-ref", "refs/heads/renamed", &second]).await;
    bare.ok(["update-ref", "-d", "refs/heads/main"]).await;
    let told = there.told_in_time("app", 6).await;
    let last = [step("refs/heads/main", &second, &zeros()), step("refs/heads/renamed", &first, &second)];
    assert_eq!(by_ref(told[4..].to_vec()), last);
    assert_eq!(there.world.json(&["repo", "show", "app"])["state"], "active");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_and_a_repository_that_borrows_its_objects() {
    let there = Elsewhere::new().await;
    let (source, work, first) = there.with_a_commit("source.git").await;
    let from = format!("file://{}", source.path().display());
    for (name, options) in [("mirror.git", &["--mirror"][..]), ("borrower.git", &["--mirror", "--reference"])] {
        let path = there.path(name);
        let reference: &[&str] = if options.len() > 1 { &[source.path().to_str().unwrap()] } else { &[] };
        let end = [from.as_str(), path.to_str().unwrap()];
        there.world.git.ok([&["clone", "--quiet"][..], options, reference, &end].concat()).await;
        there.import(&there.world.git.at(&path), &[]);
    }
    assert!(there.path("borrower.git/objects/info/alternates").exists());
    let _server = there.world.serve();
    let second = work.commit("a", "2").await;
    work.ok(["push", "--quiet", "origin", "main", "main:refs/heads/more"]).await;
    work.ok(["push", "--quiet", "origin", ":more", "main:refs/tags/v1"]).await;
    for name in ["mirror", "borrower"] {
        there.world.git.at(there.path(&format!("{name}.git"))).ok(["remote", "update", "--prune"]).await;
        let told = there.told_in_time(name, 2).await;
        let expected = [step("refs/heads/main", &first, &second), step("refs/tags/v1", &zeros(), &second)];
        assert_eq!(by_ref(told), expected);
        let sql = "SELECT payload FROM outbox_events WHERE aggregate_name = $1";
        for row in there.world.sql.query(sql, &[&name]).await.unwrap() {
            let payload: serde_json::Value = serde_json::from_slice(row.get(0)).unwrap();
            assert_eq!(payload["incomplete"], serde_json::json!([]), "{name}");
            assert_eq!(payload["head_commit"]["id"], second.as_str(), "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_trees_that_are_linked_to_a_bare_repository() {
    let there = Elsewhere::new().await;
    let (bare, _, first) = there.with_a_commit("app.git").await;
    let tree = |name: &str| there.world.git.at(there.path(name));
    bare.ok(["worktree", "add", "--quiet", "-b", "before", there.path("before").to_str().unwrap(), "main"]).await;
    there.import(&bare, &[]);
    let _server = there.world.serve();
    bare.ok(["worktree", "add", "--quiet", "-b", "topic", there.path("topic").to_str().unwrap(), "main"]).await;
    let mut expected = vec![step("refs/heads/topic", &zeros(), &first)];
    assert_eq!(there.told_in_time("app", 1).await, expected);
    // What is private to a work tree is nobody's branch: its HEAD, a bisection, a detour without a branch.
    let second = tree("topic").commit("b", "2").await;
    tree("topic").ok(["bisect", "start", "HEAD", &first]).await;
    tree("topic").ok(["bisect", "reset"]).await;
    tree("topic").ok(["update-ref", "refs/worktree/mine", &first]).await;
    tree("topic").ok(["checkout", "--quiet", "--detach"]).await;
    tree("topic").commit("b", "3").await;
    tree("topic").ok(["checkout", "--quiet", "topic"]).await;
    let third = tree("before").commit("c", "1").await;
    let told = there.told_in_time("app", 3).await;
    expected.extend([step("refs/heads/before", &first, &third), step("refs/heads/topic", &first, &second)]);
    assert_eq!(told[0], expected[0]);
    assert_eq!(by_ref(told[1..].to_vec()), expected[1..]);
    bare.ok(["worktree", "remove", "--force", "topic"]).await;
    bare.ok(["branch", "-D", "topic"]).await;
    expected.push(step("refs/heads/topic", &second, &zeros()));
    let told = there.told_in_time("app", 4).await;
    assert_eq!(told[3], expected[3]);
    assert_eq!(told.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_others_are_named_and_left_alone() {
    let there = Elsewhere::new().await;
    let (bare, work, first) = there.with_a_commit("app.git").await;
    there.import(&bare, &[]);
    let _server = there.world.serve();
    let lock = bare.path().join("refs/heads/other.lock");
    std::fs::File::create(&lock).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let second = work.commit("a", "2").await;
    work.ok(["push", "--quiet", "origin", "main"]).await;
    assert_eq!(there.told_in_time("app", 1).await, [step("refs/heads/main", &first, &second)]);
    let doctor = there.world.json(&["doctor"]).to_string();
    assert!(doctor.contains("other.lock") && doctor.contains("removes nothing in a repository"), "{doctor}");
    assert!(lock.exists());
    // No settings of upkeep either, and no lock of ours.
    assert!(!bare.path().join("surehook.lock").exists());
    assert!(!bare.run(["config", "--local", "gc.auto"]).await.status.success());
    // A setting that is taken away again is named too.
    bare.ok(["config", "core.logAllRefUpdates", "false"]).await;
    assert!(there.world.json(&["doctor"]).to_string().contains("does not log every change"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_gone_is_no_deletion() {
    let there = Elsewhere::new().await;
    let (bare, work, first) = there.with_a_commit("app.git").await;
    there.import(&bare, &[]);
    let _server = there.world.serve();
    let away = there.path("away");
    std::fs::rename(bare.path(), &away).unwrap();
    let unavailable = "SELECT count(*) FROM repositories WHERE state = 'unavailable'";
    there.world.until("the doubt about the folder", unavailable).await;
    std::fs::rename(&away, bare.path()).unwrap();
    there.world.until("the end of the doubt", "SELECT count(*) FROM repositories WHERE state = 'active'").await;
    let second = work.commit("a", "2").await;
    work.ok(["push", "--quiet", "origin", "main"]).await;
    assert_eq!(there.told_in_time("app", 1).await, [step("refs/heads/main", &first, &second)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owners_own_server_serves_it_over_http_too() {
    let there = Elsewhere::new().await;
    let (bare, work, first) = there.with_a_commit("app.git").await;
    there.import(&bare, &[]);
    let server = there.world.serve();
    let token = there.world.json(&["token", "create", "--push", "app"])["token"].as_str().unwrap().to_owned();
    let url = format!("http://ada:{token}@{}/app.git", server.address);
    let second = work.commit("a", "2").await;
    work.ok(["push", "--quiet", &url, "main"]).await;
    // The push was acknowledged, so its event is committed.
    assert_eq!(there.told("app").await, [step("refs/heads/main", &first, &second)]);
    assert_eq!(there.world.git.clone(&url, "clone").await.ok(["rev-parse", "HEAD"]).await, second);
    assert!(!bare.path().join("surehook.lock").exists());
}
