//! What a push's answer says, and when.

use std::time::Duration;
use surehook_testkit::git::Sandbox;

use crate::raw::{SIDE_BAND, begin, hook, push_body, read_all, read_until};
use crate::server::{Behaviour, Server};
use tokio::io::AsyncWriteExt as _;

fn messages(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_ref_has_its_own_verdict() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    let path = server.create("x").await;
    hook(&path, "update", r#"case "$1" in refs/heads/bad) echo "not this one" >&2; exit 1;; esac"#);
    let work = sandbox.init("work").await;
    let commit = work.commit("file", "text").await;
    let output = work.run(["push", &server.url("x"), "main:good", "main:bad"]).await;
    let text = messages(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("main -> good") && text.contains("remote: not this one"), "{text}");
    assert!(text.contains("! [remote rejected] main -> bad (hook declined)"), "{text}");
    assert_eq!(sandbox.at(&path).ok(["rev-parse", "good"]).await, commit);
    assert!(!sandbox.at(&path).run(["rev-parse", "--verify", "bad"]).await.status.success());

    let output = work.run(["push", "--atomic", &server.url("x"), "main:other", "main:bad"]).await;
    assert!(!output.status.success());
    assert!(!sandbox.at(&path).run(["rev-parse", "--verify", "other"]).await.status.success());
    // git started both times, so both times somebody looks.
    assert_eq!(server.backend.pushes().len(), 2);
}

/// git compares nothing where a client names no value, and would delete what another has pushed meanwhile, log and all.
#[tokio::test(flavor = "multi_thread")]
async fn a_ref_that_was_not_there_is_not_deleted() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    let path = server.create("x").await;
    let work = sandbox.init("work").await;
    work.commit("file", "text").await;
    let output = work.run(["push", &server.url("x"), "main", ":refs/heads/gone"]).await;
    let text = messages(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("was not there when git looked"), "{text}");
    assert!(!sandbox.at(&path).run(["rev-parse", "--verify", "main"]).await.status.success(), "all or nothing");

    // As a client does that looked before the ref was made.
    work.ok(["push", "--quiet", &server.url("x"), "main"]).await;
    let nothing = "0".repeat(40);
    let command = format!("{nothing} {nothing} refs/heads/main\0 report-status side-band-64k");
    let body = format!("{:04x}{command}0000", command.len() + 4);
    let length = format!("Content-Length: {}", body.len());
    let mut stream = begin(&server, "x/git-receive-pack", &[&length]).await;
    stream.write_all(body.as_bytes()).await.unwrap();
    let answer = read_all(&mut stream).await;
    assert!(answer.contains("was not there when git looked"), "{answer}");
    sandbox.at(&path).ok(["rev-parse", "--verify", "main"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn push_options_reach_the_backend() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    server.create("x").await;
    let work = sandbox.init("work").await;
    work.commit("file", "text").await;
    work.ok(["push", "--quiet", "-o", "ci.skip", "-o", "note=a b", &server.url("x"), "main"]).await;
    assert_eq!(server.backend.pushes()[0].push_options, [b"ci.skip".to_vec(), b"note=a b".to_vec()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn success_waits_for_the_announcement() {
    let server = Server::with(|settings| settings.keepalive_every = Duration::from_millis(20)).await;
    let sandbox = Sandbox::new();
    let path = server.create("x").await;
    hook(&path, "post-receive", "echo from the hook >&2");
    server.backend.behave(Behaviour::Wait);
    let work = sandbox.init("work").await;
    let commit = work.commit("file", "text").await;
    let body = push_body(&work, "refs/heads/main", &commit, SIDE_BAND).await;
    let length = format!("Content-Length: {}", body.len());
    let mut stream = begin(&server, "x/git-receive-pack", &[&length]).await;
    stream.write_all(&body).await.unwrap();
    let early = read_until(&mut stream, |text| text.matches("0005\u{2}").count() >= 3).await;
    assert!(early.contains("from the hook") && !early.contains("unpack ok"), "{early}");
    assert_eq!(sandbox.at(&path).ok(["rev-parse", "main"]).await, commit);
    server.backend.open_gate();
    let late = read_all(&mut stream).await;
    assert!(late.contains("unpack ok") && late.contains("ok refs/heads/main"), "{late}");
    assert!(late.ends_with("0000\r\n0\r\n\r\n"), "{late}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_knows_no_side_band_waits_too() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    server.create("x").await;
    server.backend.behave(Behaviour::Wait);
    let work = sandbox.init("work").await;
    let commit = work.commit("file", "text").await;
    let body = push_body(&work, "refs/heads/main", &commit, " report-status").await;
    let length = format!("Content-Length: {}", body.len());
    let mut stream = begin(&server, "x/git-receive-pack", &[&length]).await;
    stream.write_all(&body).await.unwrap();
    server.backend.pushed_times(1).await;
    let mut byte = [0];
    assert!(stream.try_read(&mut byte).is_err(), "nothing may be there yet");
    server.backend.open_gate();
    let answer = read_all(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("000eunpack ok\n0017ok refs/heads/main\n0000"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_announcement_that_is_late_or_fails_does_not_hold_the_client() {
    let server = Server::with(|settings| {
        settings.keepalive_every = Duration::from_millis(10);
        settings.hold_max = Duration::from_millis(100);
    })
    .await;
    let sandbox = Sandbox::new();
    server.create("x").await;
    let work = sandbox.init("work").await;
    for (behaviour, says) in [
        (Behaviour::Wait, "remote: surehook: the push is stored; its webhooks will follow"),
        (Behaviour::Later, "its webhooks will follow: the database is slow"),
        (Behaviour::Panic, "its webhooks will follow"),
    ] {
        server.backend.behave(behaviour);
        work.commit("file", &format!("{behaviour:?}")).await;
        let output = work.run(["push", &server.url("x"), "main"]).await;
        let text = messages(&output);
        assert!(output.status.success() && text.contains(says), "{behaviour:?}: {text}");
    }
    // The one that the client did not wait for still goes on.
    assert_eq!(server.backend.finished(), 1);
    server.backend.open_gate();
    surehook_testkit::eventually(Duration::from_secs(10), async || (server.backend.finished() == 2).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_changes_nothing_or_is_refused_by_the_client() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    server.create("x").await;
    let work = sandbox.init("work").await;
    work.commit("file", "one").await;
    work.ok(["push", "--quiet", &server.url("x"), "main"]).await;
    work.ok(["push", "--quiet", &server.url("x"), "main"]).await;
    work.ok(["commit", "--quiet", "--amend", "--message", "other"]).await;
    assert!(!work.run(["push", &server.url("x"), "main"]).await.status.success());
    assert_eq!(server.backend.pushes().len(), 1);
    work.ok(["push", "--quiet", "--force", &server.url("x"), "main"]).await;
    work.ok(["push", "--quiet", &server.url("x"), "main:side"]).await;
    work.ok(["push", "--quiet", &server.url("x"), ":side"]).await;
    assert_eq!(server.backend.pushes().len(), 4);
}
