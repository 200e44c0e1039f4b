//! Repositories of another account. Only root can try this; others pass.

use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Gid, Uid, geteuid};
use surehook::cli::CliError;
use surehook::git::command::{Git, GitSettings};
use surehook::git::imported::ImportedRepository;
use surehook::importing::ImportError;
use surehook_testkit::eventually;

use super::support::{Elsewhere, Steps, everything, zeros};
use super::world::SOON;

/// An account that nobody has, and another one.
const OWNER: u32 = 54_321;
const STRANGER: u32 = 54_322;

fn give_to(folder: &Path, user: u32) {
    for path in everything(folder).keys().map(std::path::PathBuf::as_path).chain([folder]) {
        chown(path, Some(user), Some(user)).unwrap();
    }
}

/// git as another account, which must succeed.
fn git_as(user: u32, folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=Olga Owner", "-c", "user.email=olga@example.org"]).args(arguments);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", "/none").current_dir(folder);
    let output = command.uid(user).gid(user).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn root_follows_the_repository_of_another_account_and_everything_stays_his() {
    if !geteuid().is_root() {
        eprintln!("not root: this test was not run");
        return;
    }
    let there = Elsewhere::new().await;
    let (bare, _, first) = there.with_a_commit("app.git").await;
    give_to(bare.path(), OWNER);
    let work = there.path("work");
    std::fs::create_dir(&work).unwrap();
    chown(&work, Some(OWNER), Some(OWNER)).unwrap();
    git_as(OWNER, &work, &["clone", "--quiet", bare.path().to_str().unwrap(), "."]);
    let before = super::support::settings_of(bare.path());
    let server = there.world.serve();
    there.import(&bare, &[]);
    let mut told: Steps = Vec::new();
    let mut last = first;
    for n in 1..4 {
        git_as(OWNER, &work, &["commit", "--quiet", "--allow-empty", "-m", &n.to_string()]);
        let branch = format!("HEAD:refs/heads/b{n}");
        git_as(OWNER, &work, &["push", "--quiet", "origin", "HEAD:main", &branch]);
        let next = git_as(OWNER, &work, &["rev-parse", "HEAD"]);
        told.extend([
            (format!("refs/heads/b{n}"), zeros(), next.clone()),
            ("refs/heads/main".into(), last, next.clone()),
        ]);
        last = next;
        let mut now = there.told_in_time("app", 2 * n).await;
        now[2 * n - 2..].sort();
        assert_eq!(now[2 * n - 2..], told[2 * n - 2..]);
    }
    let mark = bare.path().join("surehook-highwater");
    let marked = async || std::fs::read_to_string(&mark).ok().filter(|text| text.starts_with("6 "));
    eventually(SOON, marked).await;
    for (path, (owner, ..)) in everything(bare.path()) {
        assert_eq!(owner, OWNER, "{path:?}");
    }
    // Over HTTP git would run as root, and leave files of root's.
    let token = there.world.json(&["token", "create", "--push", "app"])["token"].as_str().unwrap().to_owned();
    let url = format!("http://ada:{token}@{}/app.git", server.address);
    let refused = there.world.git.run(["ls-remote", &url]).await;
    assert!(!refused.status.success());
    let said = there.world.head(&server, "/app.git/info/refs?service=git-upload-pack", Some(&token));
    assert_eq!(said.0, 503);
    there.world.run(&["repo", "detach", "app"]);
    assert_eq!(super::support::settings_of(bare.path()), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_refused() {
    if !geteuid().is_root() {
        eprintln!("not root: this test was not run");
        return;
    }
    let there = Elsewhere::new().await;
    let (bare, _, _) = there.with_a_commit("app.git").await;
    give_to(bare.path(), OWNER);
    let before = everything(bare.path());
    let path = bare.path().to_owned();
    // The identity of this thread alone, for good.
    let look = move || {
        rustix::thread::set_thread_res_gid(Gid::from_raw(STRANGER), Gid::from_raw(STRANGER), Gid::from_raw(STRANGER))?;
        rustix::thread::set_thread_res_uid(Uid::from_raw(STRANGER), Uid::from_raw(STRANGER), Uid::from_raw(STRANGER))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let git = Git::new(GitSettings::default());
        std::io::Result::Ok(runtime.block_on(ImportedRepository::inspect(&git, &path)))
    };
    let refused = std::thread::spawn(look).join().unwrap().unwrap().unwrap_err();
    let said = CliError::from(ImportError::from(refused));
    assert!(said.problem.contains("belongs to user 54321") && said.advice.contains("both as root"), "{said:?}");
    assert!(everything(bare.path()) == before);
    assert_eq!(std::fs::metadata(bare.path()).unwrap().uid(), OWNER);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_in_the_place_of_a_log_holds_nobody_up() {
    let there = Elsewhere::new().await;
    let (bare, work, _) = there.with_a_commit("app.git").await;
    there.import(&bare, &[]);
    let other = there.bare("other.git").await;
    there.import(&other, &[]);
    std::fs::create_dir_all(bare.path().join("logs/refs/heads")).unwrap();
    for name in ["logs/refs/heads/trap", "refs/heads/trap", "packed-refs"] {
        let made = Command::new("mkfifo").arg(bare.path().join(name)).status().unwrap();
        assert!(made.success());
    }
    let _server = there.world.serve();
    there.world.until("the doubt about it", "SELECT count(*) FROM repositories WHERE state = 'unavailable'").await;
    work.ok(["push", "--quiet", other.path().to_str().unwrap(), "main"]).await;
    there.told_in_time("other", 1).await;
    // git itself would wait for ever at these two.
    for name in ["packed-refs", "refs/heads/trap"] {
        std::fs::remove_file(bare.path().join(name)).unwrap();
    }
    there
        .world
        .until(
            "the end of the doubt",
            "SELECT (count(*) = 2)::integer::bigint FROM repositories WHERE state = 'active'",
        )
        .await;
    let second = work.commit("a", "2").await;
    work.ok(["push", "--quiet", "origin", "main"]).await;
    assert_eq!(there.told_in_time("app", 1).await[0].2, second);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_owner_may_not_read_does_not_come_out_through_root() {
    use std::os::unix::fs::PermissionsExt;
    if !geteuid().is_root() {
        eprintln!("not root: this test was not run");
        return;
    }
    let there = Elsewhere::new().await;
    let (hidden, work, _) = there.with_a_commit("hidden.git").await;
    work.ok(["commit", "--quiet", "--allow-empty", "-m", "top secret"]).await;
    work.ok(["push", "--quiet", "origin", "main"]).await;
    let secret = work.ok(["rev-parse", "HEAD"]).await;
    std::fs::set_permissions(hidden.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let bare = there.bare("app.git").await;
    give_to(bare.path(), OWNER);
    there.import(&bare, &[]);
    // He names another's objects as his own, and has heard of the id of a commit.
    let alternates = bare.path().join("objects/info/alternates");
    std::fs::write(&alternates, format!("{}\n", hidden.path().join("objects").display())).unwrap();
    std::fs::write(bare.path().join("refs/heads/theft"), format!("{secret}\n")).unwrap();
    let _server = there.world.serve();
    there.world.until("the doubt about it", "SELECT count(*) FROM repositories WHERE state = 'unavailable'").await;
    assert_eq!(there.told("app").await, []);
    std::fs::remove_file(&alternates).unwrap();
    let step = ("refs/heads/theft".to_owned(), zeros(), secret);
    assert_eq!(there.told_in_time("app", 1).await, [step]);
    let payload: Vec<u8> = there
        .world
        .sql
        .query_one("SELECT payload FROM outbox_events WHERE aggregate_name = 'app'", &[])
        .await
        .unwrap()
        .get(0);
    let text = String::from_utf8(payload).unwrap();
    assert!(!text.contains("top secret") && !text.contains("\"incomplete\":[]"), "{text}");
}
