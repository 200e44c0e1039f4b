//! `repo import` and `repo detach`, and what they leave in a repository.

use surehook_testkit::eventually;

use super::support::{Elsewhere, settings_of, zeros};
use super::world::{SOON, script};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_there_is_the_state_that_nothing_is_told_of() {
    let there = Elsewhere::new().await;
    let (bare, work, first) = there.with_a_commit("app.git").await;
    work.ok(["push", "--quiet", "origin", "main:refs/heads/old", "main:refs/tags/v1"]).await;
    let _server = there.world.serve();
    let imported = there.import(&bare, &["--name", "team/app"]);
    assert_eq!((&imported["name"], &imported["refs"], &imported["events"]), (&"team/app".into(), &3.into(), &0.into()));
    assert_eq!(imported["hook"], "installed");
    let second = work.commit("a", "2").await;
    work.ok(["push", "--quiet", "origin", "main", ":old"]).await;
    let mut told = there.told_in_time("team/app", 2).await;
    told.sort();
    assert_eq!(told, [("refs/heads/main".into(), first.clone(), second), ("refs/heads/old".into(), first, zeros())]);
    let shown = there.world.json(&["repo", "show", "team/app"]);
    assert_eq!((&shown["origin"], &shown["state"]), (&"imported".into(), &"active".into()));
    assert_eq!(shown["path"], bare.path().canonicalize().unwrap().to_str().unwrap());
    there.world.run(&["repo", "create", "ours"]);
    let listed = there.world.json(&["repo", "list"]);
    let origins: Vec<_> = listed.as_array().unwrap().iter().map(|row| row["origin"].as_str().unwrap()).collect();
    assert_eq!(origins, ["hosted", "imported"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn asked_for_it_what_was_there_is_told_as_created() {
    let there = Elsewhere::new().await;
    let (bare, work, first) = there.with_a_commit("app.git").await;
    work.ok(["push", "--quiet", "origin", "main:refs/tags/v1"]).await;
    let imported = there.import(&bare, &["--announce"]);
    assert_eq!((&imported["refs"], &imported["events"]), (&2.into(), &2.into()));
    let expected = ["refs/heads/main", "refs/tags/v1"].map(|name| (name.into(), zeros(), first.clone()));
    let mut told = there.told("app").await;
    told.sort();
    assert_eq!(told, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn detached_it_is_as_it_was() {
    let there = Elsewhere::new().await;
    for (name, settings) in [
        ("plain.git", &[][..]),
        ("logged.git", &[["core.logAllRefUpdates", "true"]]),
        ("always.git", &[["core.logAllRefUpdates", "always"], ["surehook.note", "of mine"]]),
    ] {
        let (bare, work, first) = there.with_a_commit(name).await;
        for [key, value] in settings {
            bare.ok(["config", key, value]).await;
        }
        if name == "plain.git" {
            std::fs::remove_dir_all(bare.path().join("hooks")).unwrap();
        }
        let before = settings_of(bare.path());
        there.import(&bare, &[]);
        assert_eq!(bare.ok(["config", "core.logAllRefUpdates"]).await, "always");
        assert!(bare.path().join("hooks/post-receive").exists());
        let second = work.commit("a", "2").await;
        work.ok(["push", "--quiet", "origin", "main"]).await;
        let name = name.trim_end_matches(".git");
        let server = there.world.serve();
        assert_eq!(there.told_in_time(name, 1).await, [("refs/heads/main".into(), first, second)]);
        let mark = bare.path().join("surehook-highwater");
        eventually(SOON, async || mark.exists().then_some(())).await;
        there.world.run(&["repo", "detach", name]);
        drop(server);
        assert_eq!(settings_of(bare.path()), before, "{name}");
        let (problem, _) = there.fails(&["repo", "detach", name]);
        assert!(problem.contains(&format!("no repository named {name}")), "{problem}");
        // Its history can be read, and it can be imported again, as another one.
        let events = there.world.json(&["event", "list", "--repo", name]);
        assert_eq!(events.as_array().unwrap().len(), 1);
        assert_eq!(there.import(&bare, &[])["events"], 0);
        std::fs::remove_dir_all(work.path()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_is_there_stays_and_one_more_line_makes_it_ring() {
    let there = Elsewhere::new().await;
    let (bare, work, first) = there.with_a_commit("app.git").await;
    let hooks = bare.path().join("hooks");
    let text = "#!/bin/sh\ncat > seen\n";
    let hook = script(&hooks, "post-receive", text);
    let imported = there.import(&bare, &[]);
    assert_eq!(imported["hook"], "foreign");
    assert_eq!(std::fs::read_to_string(&hook).unwrap(), text);
    assert_eq!(imported["hook_path"], hook.canonicalize().unwrap().to_str().unwrap());
    let doctor = || there.world.json(&["doctor"]).to_string();
    assert!(doctor().contains("no post-receive hook rings for it"));
    script(&hooks, "post-receive", &format!("{text}{}\n", imported["hook_line"].as_str().unwrap()));
    assert!(!doctor().contains("no post-receive hook rings for it"));
    let _server = there.serve_without_scan();
    let second = work.commit("a", "2").await;
    work.ok(["push", "--quiet", "origin", "main"]).await;
    assert_eq!(there.told_in_time("app", 1).await, [("refs/heads/main".into(), first, second)]);
    assert!(bare.path().join("seen").exists());
    there.world.run(&["repo", "detach", "app"]);
    assert!(std::fs::read_to_string(&hook).unwrap().starts_with(text));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_hooks_elsewhere_is_not_written_to() {
    let there = Elsewhere::new().await;
    let (bare, _, _) = there.with_a_commit("app.git").await;
    let shared = there.path("hooks");
    std::fs::create_dir(&shared).unwrap();
    bare.ok(["config", "core.hooksPath", shared.to_str().unwrap()]).await;
    let imported = there.import(&bare, &[]);
    assert_eq!(imported["hook_path"], shared.join("post-receive").to_str().unwrap());
    assert_eq!(std::fs::read_dir(&shared).unwrap().count(), 0);
    assert!(!bare.path().join("hooks/post-receive").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn sha256_is_fine() {
    let there = Elsewhere::new().await;
    let path = there.path("new.git");
    there.world.git.ok(["init", "--quiet", "--bare", "--object-format=sha256", "--", path.to_str().unwrap()]).await;
    there.world.git.ok(["init", "--quiet", "--object-format=sha256", "--", "work"]).await;
    let work = there.world.git.at(there.world.git.path().join("work"));
    work.ok(["remote", "add", "origin", path.to_str().unwrap()]).await;
    let _server = there.world.serve();
    there.import(&there.world.git.at(&path), &[]);
    assert_eq!(there.world.json(&["repo", "show", "new"])["object_format"], "sha256");
    let first = work.commit("a", "1").await;
    work.ok(["push", "--quiet", "origin", "main"]).await;
    assert_eq!(there.told_in_time("new", 1).await, [("refs/heads/main".into(), "0".repeat(64), first)]);
}
