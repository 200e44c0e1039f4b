//! Locks and quarantines of killed gits go, unaided; those of gits that are alive stay.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use surehook_testkit::git::Checkout;
use surehook_testkit::{eventually, try_eventually};

use super::world::{Running, SOON, World};

/// Refs that one push moves: enough for a kill to fall among them.
const REFS: usize = 12;

/// The processes that descend from this one.
pub(crate) fn descendants(of: u32) -> Vec<u32> {
    let all: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut found = vec![of];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(all.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    found.remove(0);
    found
}

fn receive_packs(of: u32) -> Vec<u32> {
    let is_one = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"receive-pack".as_slice())
    };
    descendants(of).into_iter().filter(is_one).collect()
}

pub(crate) fn kill(signal: &str, pids: &[u32]) {
    for pid in pids {
        // It may have ended.
        let _ = std::process::Command::new("kill")
            .args([&format!("-{signal}"), &pid.to_string()])
            .stderr(std::process::Stdio::null())
            .status();
    }
}

pub(crate) fn leftovers(bare: &Path) -> Vec<PathBuf> {
    let mut found = surehook::git::stale::ref_locks(bare).unwrap();
    let objects = std::fs::read_dir(bare.join("objects")).unwrap().flatten().map(|entry| entry.path());
    found.extend(objects.filter(|path| path.to_string_lossy().contains("incoming-")));
    found
}

/// Pushes a new commit to all refs at once; gives the commit.
async fn push_all(work: &Checkout<'_>, text: &str) -> (String, tokio::process::Child) {
    let commit = work.commit("file", text).await;
    let mut arguments = vec!["push".to_owned(), "--quiet".into(), "--force".into(), "origin".into()];
    arguments.extend((0..REFS).map(|n| format!("HEAD:refs/heads/b{n}")));
    let mut command = work.command(&arguments);
    command.stderr(std::process::Stdio::null());
    (commit, command.spawn().unwrap())
}

/// Watches the repository during a push, and returns when something of it can be seen: a quarantine in some rounds, the
/// lock of a ref in others. A push that was faster is fine too.
async fn in_the_middle(bare: &Path, push: &mut tokio::process::Child, round: usize) {
    let wanted = ["incoming-", "heads/b0.lock", "heads/b7.lock", "HEAD.lock", "heads/b11.lock"][round % 5];
    while push.try_wait().unwrap().is_none() {
        if leftovers(bare).iter().any(|path| path.to_string_lossy().contains(wanted)) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

async fn rounds(count: usize) {
    let world = World::new().await;
    let mut server = world.serve();
    let url = world.repository(&server, "app");
    let first_address = server.address.clone();
    let work = world.checkout(&url).await;
    let bare = world.data().join("repositories/app.git");
    let mut left_at_a_kill = 0;
    for round in 0..count {
        let (_, mut push) = push_all(&work, &format!("killed {round}")).await;
        in_the_middle(&bare, &mut push, round).await;
        match round % 4 {
            0 | 2 => kill("KILL", &receive_packs(server.id())),
            1 => kill("TERM", &receive_packs(server.id())),
            _ => {
                let all = descendants(server.id());
                server.signal("KILL");
                kill("KILL", &all);
                server.ended().await;
            }
        }
        push.wait().await.unwrap();
        left_at_a_kill += leftovers(&bare).len();
        if round % 4 == 3 {
            server = world.serve();
            work.ok(["remote", "set-url", "origin", &url.replace(&first_address, &server.address)]).await;
        }
        let (commit, mut push) = push_all(&work, &format!("after {round}")).await;
        assert!(push.wait().await.unwrap().success(), "round {round}: the push after the kill was refused");
        let there = world.git.at(&bare).ok(["rev-parse", "refs/heads/b0", "refs/heads/b11"]).await;
        assert!(there.lines().all(|line| line == commit), "{there}");
        let gone = try_eventually(SOON, async || leftovers(&bare).is_empty().then_some(())).await;
        assert!(gone.is_some(), "round {round}: left after a push: {:?}", leftovers(&bare));
    }
    println!("{left_at_a_kill} locks and quarantines were left by {count} kills");
    assert!(left_at_a_kill > 0, "no kill left anything: the rounds prove nothing");
}

#[tokio::test]
async fn after_a_kill_amid_ref_updates_the_next_push_succeeds_unaided() {
    rounds(16).await;
}

#[tokio::test]
#[ignore = "takes minutes"]
async fn after_two_hundred_kills_amid_ref_updates_each_next_push_succeeds() {
    rounds(200).await;
}

fn put_leftovers(bare: &Path) {
    for name in ["refs/heads/main.lock", "packed-refs.lock", "packed-refs.new", "HEAD.lock"] {
        std::fs::write(bare.join(name), "").unwrap();
    }
    for name in ["tmp_objdir-incoming-abcdef", "incoming-abcdef"] {
        std::fs::create_dir_all(bare.join("objects").join(name).join("pack")).unwrap();
    }
}

/// As another account than root, nobody can say who is there: then the age decides.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

fn make_old(paths: &[PathBuf]) {
    for path in paths {
        std::fs::File::open(path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    }
}

#[tokio::test]
async fn leftovers_go_before_a_push_and_without_one() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    let bare = world.data().join("repositories/app.git");
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    put_leftovers(&bare);
    if !is_root() {
        println!("not root: the leftovers are made old");
        make_old(&leftovers(&bare));
    }
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    assert!(leftovers(&bare).is_empty(), "{:?}", leftovers(&bare));
    // The server finds them by itself, too.
    put_leftovers(&bare);
    make_old(&leftovers(&bare));
    let gone = try_eventually(SOON, async || leftovers(&bare).is_empty().then_some(())).await;
    assert!(gone.is_some(), "{:?}", leftovers(&bare));
}

/// Makes a transaction of git that moves `refs/heads/foreign` wait, with its locks taken.
fn hold_transactions(bare: &Path) {
    let text = "[ \"$1\" = prepared ] && grep -q refs/heads/foreign && touch \"$GIT_DIR/held\" && \
                while [ -e \"$GIT_DIR/held\" ]; do sleep 0.02; done; exit 0";
    std::fs::create_dir_all(bare.join("hooks")).unwrap();
    super::world::script(&bare.join("hooks"), "reference-transaction", &format!("#!/bin/sh\n{text}\n"));
}

async fn held(bare: &Path) {
    eventually(SOON, async || bare.join("held").exists().then_some(())).await;
}

async fn foreign_push_keeps_its_lock(
    world: &World,
    server: &Running,
    name: &str,
    start: impl AsyncFn(&Path) -> tokio::process::Child,
) {
    let url = world.repository(server, name);
    let bare = world.data().join(format!("repositories/{name}.git"));
    let work = world.git.init(&format!("work-{name}")).await;
    work.ok(["remote", "add", "origin", &url]).await;
    work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    hold_transactions(&bare);
    let mut foreign = start(&bare).await;
    held(&bare).await;
    let lock = bare.join("refs/heads/foreign.lock");
    assert!(lock.exists(), "{:?}", leftovers(&bare));
    // Not even where it is old: a git that is at work there may need it.
    make_old(std::slice::from_ref(&lock));
    let commit = work.commit("file", "2").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    // The server looks by itself each second.
    let looked = Instant::now();
    eventually(SOON, async || (looked.elapsed() > Duration::from_millis(2500)).then_some(())).await;
    assert!(lock.exists(), "the lock of a git that is alive was removed");
    std::fs::remove_file(bare.join("held")).unwrap();
    assert!(foreign.wait().await.unwrap().success());
    let there = world.git.at(&bare).ok(["rev-parse", "main", "foreign"]).await;
    assert_eq!(there.lines().next(), Some(commit.as_str()));
    assert!(leftovers(&bare).is_empty());
}

#[tokio::test]
async fn a_git_of_somebody_else_never_loses_its_lock() {
    let world = World::new().await;
    let server = world.serve();
    foreign_push_keeps_its_lock(&world, &server, "pushed", async |bare| {
        let work = world.git.init("stranger").await;
        work.commit("strange", "1").await;
        let url = format!("file://{}", bare.display());
        work.command(["push", "--quiet", &url, "HEAD:refs/heads/foreign"]).spawn().unwrap()
    })
    .await;
    foreign_push_keeps_its_lock(&world, &server, "updated", async |bare| {
        let folder = bare.parent().unwrap();
        world
            .git
            .at(folder)
            .command(["--git-dir=updated.git", "update-ref", "refs/heads/foreign", "main"])
            .spawn()
            .unwrap()
    })
    .await;
}

#[tokio::test]
async fn nothing_is_removed_from_a_repository_that_surehook_did_not_make() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    let bare = world.data().join("repositories/app.git");
    world.sql.batch_execute("UPDATE repositories SET origin = 'imported'").await.unwrap();
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    put_leftovers(&bare);
    make_old(&leftovers(&bare));
    let before = leftovers(&bare);
    let output = work.run(["push", "origin", "HEAD:main"]).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("lock"), "{said}");
    assert_eq!(leftovers(&bare), before);
    let doctor = world.command(&world.database_url, &["doctor"]).output().unwrap();
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("refs/heads/main.lock"));
}
