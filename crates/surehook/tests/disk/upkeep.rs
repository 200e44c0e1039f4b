//! Upkeep of hosted repositories: it packs and throws away what is old, harms nothing when it is killed, and tells nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use surehook::git::command::{Git, GitSettings, GitUpkeep};
use surehook_testkit::{eventually, try_eventually};
use tokio_util::sync::CancellationToken;

use super::locks::{descendants, kill};
use super::world::{Running, SOON, World, script};

fn serve(world: &World, upkeep: &str) -> Running {
    let config = world.data().join("upkeep.toml");
    let text = format!("[stop]\ngrace_s = 2\n[scan]\nevery_s = 1\n[upkeep]\nevery_s = 1\n{upkeep}\n");
    std::fs::write(&config, text).unwrap();
    world.start_with(&world.database_url, &["serve", "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()])
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() { found.extend(files(&entry.path())) } else { found.push(entry.path()) }
    }
    found
}

fn packs(bare: &Path) -> usize {
    files(&bare.join("objects/pack")).iter().filter(|path| path.extension().is_some_and(|end| end == "pack")).count()
}

fn make_old(path: &Path) {
    std::fs::File::open(path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
}

async fn until(what: &str, mut met: impl FnMut() -> bool) {
    assert!(try_eventually(SOON, async || met().then_some(())).await.is_some(), "{what} did not come true");
}

async fn events(world: &World) -> i64 {
    world.count("SELECT count(*) FROM outbox_events").await
}

#[tokio::test]
async fn thresholds_make_it_pack_refs_and_objects() {
    let world = World::new().await;
    let server = serve(&world, "loose_refs_max = 3\npacks_max = 2");
    let url = world.repository(&server, "app");
    let bare = world.data().join("repositories/app.git");
    let work = world.checkout(&url).await;
    world.git.at(&bare).ok(["config", "receive.unpackLimit", "1"]).await;
    for n in 0..12 {
        work.commit("file", &n.to_string()).await;
        work.ok(["push", "--quiet", "origin", &format!("HEAD:refs/heads/b{n}")]).await;
    }
    until("few packs and loose refs", || packs(&bare) <= 2 && files(&bare.join("refs")).len() <= 3).await;
    world.git.at(&bare).ok(["fsck", "--full", "--strict"]).await;
    assert_eq!(world.git.ok(["ls-remote", &url]).await.lines().filter(|line| line.contains("refs/heads")).count(), 12);
    // Pushes go on, a deletion from the packed refs among them, and upkeep has told nothing.
    work.ok(["push", "--quiet", "origin", ":b0", "HEAD:b1"]).await;
    world.until("each push is told once", "SELECT (count(*) = 14)::int::bigint FROM outbox_events").await;
    let text = server.get("/metrics").await.1;
    for task in ["pack_refs", "repack"] {
        let done = format!("surehook_upkeep_total{{ended=\"done\",task=\"{task}\"}} ");
        let count = text.lines().find_map(|line| line.strip_prefix(&done)).unwrap();
        assert_ne!(count, "0", "{text}");
    }
}

#[tokio::test]
async fn old_lines_of_logs_and_what_nothing_reaches_go() {
    let world = World::new().await;
    let server = serve(&world, "");
    let url = world.repository(&server, "app");
    let bare = world.data().join("repositories/app.git");
    let work = world.checkout(&url).await;
    let mut commits = Vec::new();
    for n in 0..5 {
        commits.push(work.commit("file", &n.to_string()).await);
        work.ok(["push", "--quiet", "origin", &format!("HEAD:refs/heads/b{n}")]).await;
    }
    work.ok(["reset", "--quiet", "--hard", &commits[0]]).await;
    let kept = work.commit("file", "kept").await;
    work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/b5"]).await;
    // Long ago somebody moved main through all of them, forced it back to the first, went on, and deleted the rest.
    for commit in commits.iter().chain([&commits[0], &kept]) {
        let mut command = Command::new("git");
        command
            .env("GIT_COMMITTER_DATE", "2020-01-01T00:00:00Z")
            .env("GIT_COMMITTER_NAME", "n")
            .env("GIT_COMMITTER_EMAIL", "e");
        let status = command.arg("--git-dir").arg(&bare).args(["update-ref", "refs/heads/main", commit]).status();
        assert!(status.unwrap().success());
    }
    let gone: Vec<String> = (0..6).map(|n| format!(":b{n}")).collect();
    work.ok([&["push", "--quiet", "origin"][..], &gone.iter().map(String::as_str).collect::<Vec<_>>()].concat()).await;
    world.until("all is told", "SELECT (count(*) = 6 + 7 + 6)::int::bigint FROM outbox_events").await;
    let log = bare.join("logs/refs/heads/main");
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 7);
    // Upkeep notes its first look there.
    until("the first look of upkeep", || bare.join("surehook-upkeep").exists()).await;
    for path in
        files(&bare.join("objects")).iter().chain([&log, &bare.join("logs/HEAD"), &bare.join("surehook-upkeep")])
    {
        make_old(path);
    }
    let whole = "surehook_upkeep_total{ended=\"done\",task=\"repack_all\"} 1";
    eventually(SOON, async || server.get("/metrics").await.1.contains(whole).then_some(())).await;
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 1);
    let bare_git = world.git.at(&bare);
    for commit in [&commits[0], &kept] {
        bare_git.ok(["cat-file", "-e", commit]).await;
    }
    for commit in &commits[1..] {
        assert!(!bare_git.run(["cat-file", "-e", commit]).await.status.success(), "{commit} is still there");
    }
    bare_git.ok(["fsck", "--full"]).await;
    // The shortened log is read on where it was left: nothing is told twice, nothing is lost.
    let next = work.commit("file", "next").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    bare_git.ok(["update-ref", "refs/heads/main", &kept]).await;
    bare_git.ok(["update-ref", "refs/heads/main", &next]).await;
    world.until("all is told", "SELECT (count(*) = 19 + 3)::int::bigint FROM outbox_events").await;
    let reconstructed =
        "SELECT count(*) FROM outbox_events WHERE convert_from(payload, 'UTF8')::json->>'reconstructed' = 'true'";
    assert_eq!(world.count(reconstructed).await, 0);
}

#[tokio::test]
async fn a_kill_amid_upkeep_harms_nothing() {
    let world = World::new().await;
    let mut server = serve(&world, "packs_max = 1\nloose_refs_max = 1");
    let url = world.repository(&server, "app");
    let first_address = server.address.clone();
    let bare = world.data().join("repositories/app.git");
    let work = world.checkout(&url).await;
    world.git.at(&bare).ok(["config", "receive.unpackLimit", "1"]).await;
    let (mut random, mut told) = (String::new(), 0);
    for round in 0..6_i64 {
        for n in 0..2 {
            // Text that does not compress well, so that repacking takes a moment.
            random.extend(
                (0..40_000).map(|i: i64| char::from(b'!' + u8::try_from((i * i * (round + 3) + n * 7) % 91).unwrap())),
            );
            work.commit("file", &random).await;
            work.ok(["push", "--quiet", "--force", "origin", "HEAD:main", &format!("HEAD:r{round}-{n}")]).await;
            told += 2;
        }
        if round % 2 == 1 {
            make_old(&bare.join("surehook-upkeep"));
        }
        let is_upkeep = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("pack-objects") || line.contains("pack-refs") || line.contains("repack")
        };
        // Where it was too fast to be caught, the kill falls after it.
        let _ = try_eventually(std::time::Duration::from_secs(3), async || {
            descendants(server.id()).iter().any(is_upkeep).then_some(())
        })
        .await;
        let all = descendants(server.id());
        if round % 3 != 2 {
            server.signal("KILL");
        }
        kill("KILL", &all);
        if round % 3 != 2 {
            server.ended().await;
            server = serve(&world, "packs_max = 1\nloose_refs_max = 1");
            work.ok(["remote", "set-url", "origin", &url.replace(&first_address, &server.address)]).await;
        }
        work.commit("other", &round.to_string()).await;
        work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
        told += 1;
        world.git.at(&bare).ok(["fsck", "--full"]).await;
    }
    until("the packs are few in the end", || packs(&bare) <= 2).await;
    let head = work.ok(["rev-parse", "HEAD"]).await;
    let clone = world.git.clone(&format!("file://{}", bare.display()), "clone").await;
    assert_eq!(clone.ok(["rev-parse", "HEAD"]).await, head);
    eventually(SOON, async || (events(&world).await == told).then_some(())).await;
    let rest = files(&bare.join("objects/pack"));
    let is_temporary = |path: &PathBuf| {
        path.file_name().is_some_and(|name| {
            name.to_string_lossy().starts_with("tmp_") || name.to_string_lossy().starts_with(".tmp")
        })
    };
    assert!(rest.iter().filter(|path| is_temporary(path)).count() < 3, "temporary files pile up: {rest:?}");
}

#[tokio::test]
async fn upkeep_ends_when_it_is_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let begun = folder.path().join("begun");
    let text = format!("#!/bin/sh\ntouch {}\nexec sleep 600\n", begun.display());
    let program = script(folder.path(), "git", &text);
    let git = Git::new(GitSettings { program, ..GitSettings::default() });
    let asked = CancellationToken::new();
    let (ended, ()) = tokio::join!(git.keep_up(folder.path(), GitUpkeep::Repack, &asked), async {
        eventually(SOON, async || begun.exists().then_some(())).await;
        asked.cancel();
    });
    assert!(!ended.unwrap(), "it gave way");
}
