//! Clients that leave, git that dies, and servers that stop, in the middle of a push.

use rustix::process::Signal;
use std::time::Duration;
use surehook::git::http::Stopped;
use surehook::git::pktline::{FLUSH, packet};
use surehook_testkit::git::Sandbox;
use tokio::io::AsyncWriteExt as _;

use crate::raw::{
    SIDE_BAND, WAITING_HOOK, begin, hook, hook_begun, is_used_by_a_process, let_hook_go, noise, processes_using,
    push_body, read_all, read_until,
};
use crate::server::{Behaviour, PATIENCE, Server};

#[tokio::test(flavor = "multi_thread")]
async fn the_client_leaves_in_the_middle_of_the_pack() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    let path = server.create("x").await;
    let work = sandbox.init("work").await;
    let commit = work.commit("file", "text").await;
    let body = push_body(&work, "refs/heads/main", &commit, SIDE_BAND).await;
    // By length and by chunks; far from the end, and one byte before it.
    for (number, cut) in [body.len() - 40, body.len() - 1, body.len() - 1].into_iter().enumerate() {
        let length = format!("Content-Length: {}", body.len());
        let framing = if number == 2 { "Transfer-Encoding: chunked" } else { &length };
        let mut stream = begin(&server, "x/git-receive-pack", &[framing]).await;
        if number == 2 {
            stream.write_all(format!("{:x}\r\n", body.len()).as_bytes()).await.unwrap();
        }
        stream.write_all(&body[..cut]).await.unwrap();
        surehook_testkit::eventually(PATIENCE, async || (server.service.running() > 0).then_some(())).await;
        drop(stream);
        server.is_idle().await;
        assert!(!is_used_by_a_process(&path));
        assert_eq!(sandbox.at(&path).ok(["for-each-ref"]).await, "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunked_push_without_its_last_chunk_moves_nothing() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    let path = server.create("x").await;
    let work = sandbox.init("work").await;
    let commit = work.commit("file", "text").await;
    let body = push_body(&work, "refs/heads/main", &commit, SIDE_BAND).await;
    let mut stream = begin(&server, "x/git-receive-pack", &["Transfer-Encoding: chunked"]).await;
    stream.write_all(&[format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n"].concat()).await.unwrap();
    surehook_testkit::eventually(PATIENCE, async || (server.service.running() > 0).then_some(())).await;
    drop(stream);
    server.is_idle().await;
    assert_eq!(sandbox.at(&path).ok(["for-each-ref"]).await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_leaves_while_git_works_and_while_the_answer_waits() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    let path = server.create("x").await;
    hook(&path, "pre-receive", WAITING_HOOK);
    server.backend.behave(Behaviour::Wait);
    let work = sandbox.init("work").await;
    let commit = work.commit("file", "text").await;
    let body = push_body(&work, "refs/heads/main", &commit, SIDE_BAND).await;
    let length = format!("Content-Length: {}", body.len());
    // Right after the last byte: git is at work, and nobody listens any more.
    let mut stream = begin(&server, "x/git-receive-pack", &[&length]).await;
    stream.write_all(&body).await.unwrap();
    hook_begun(&path).await;
    drop(stream);
    let_hook_go(&path);
    server.backend.pushed_times(1).await;
    assert_eq!(sandbox.at(&path).ok(["rev-parse", "main"]).await, commit);
    // While the answer waits for the announcement.
    let body = push_body(&work, "refs/heads/other", &commit, SIDE_BAND).await;
    let length = format!("Content-Length: {}", body.len());
    let mut stream = begin(&server, "x/git-receive-pack", &[&length]).await;
    stream.write_all(&body).await.unwrap();
    server.backend.pushed_times(2).await;
    drop(stream);
    server.backend.open_gate();
    server.is_idle().await;
    assert_eq!(server.backend.finished(), 2);
    assert!(!is_used_by_a_process(&path));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_client_does_not_stop_its_push() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    let path = server.create("x").await;
    hook(&path, "update", WAITING_HOOK);
    let work = sandbox.init("work").await;
    let commit = work.commit("file", "text").await;
    let mut client = work.command(["push", "--quiet", &server.url("x"), "main"]).spawn().unwrap();
    hook_begun(&path).await;
    client.kill().await.unwrap();
    let_hook_go(&path);
    server.backend.pushed_times(1).await;
    assert_eq!(sandbox.at(&path).ok(["rev-parse", "main"]).await, commit);
}

#[tokio::test(flavor = "multi_thread")]
async fn git_dies_in_the_middle() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    let path = server.create("x").await;
    hook(&path, "post-receive", "kill -9 $PPID");
    let work = sandbox.init("work").await;
    let commit = work.commit("file", "text").await;
    // A client with side-bands gets a last word.
    let output = tokio::time::timeout(PATIENCE, work.run(["push", &server.url("x"), "main"])).await.unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("git ended before it could report"), "{text}");
    // The ref moved nevertheless, and the backend was told.
    assert_eq!(sandbox.at(&path).ok(["rev-parse", "main"]).await, commit);
    server.backend.pushed_times(1).await;
    // One without gets a status, since nothing went out yet.
    hook(&path, "update", "kill -9 $PPID");
    let body = push_body(&work, "refs/heads/other", &commit, " report-status").await;
    let length = format!("Content-Length: {}", body.len());
    let mut stream = begin(&server, "x/git-receive-pack", &[&length]).await;
    stream.write_all(&body).await.unwrap();
    let answer = read_all(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    server.backend.pushed_times(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_whose_git_dies_drops_the_connection() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    let path = server.create("x").await;
    let work = sandbox.init("work").await;
    // More than fits into the buffers between git and a client that does not read.
    std::fs::write(work.path().join("noise"), noise(40_000_000)).unwrap();
    work.ok(["add", "."]).await;
    let commit = work.commit("file", "text").await;
    work.ok(["push", "--quiet", &server.url("x"), "main"]).await;
    let body = [&packet(format!("want {commit} side-band-64k\n").as_bytes())[..], FLUSH, &packet(b"done\n")].concat();
    let length = format!("Content-Length: {}", body.len());
    let mut stream = begin(&server, "x/git-upload-pack", &[&length]).await;
    stream.write_all(&body).await.unwrap();
    let early = read_until(&mut stream, |text| text.len() > 100_000).await;
    assert!(early.starts_with("HTTP/1.1 200"));
    let using = processes_using(&path);
    assert!(!using.is_empty());
    for pid in using {
        let _ = rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL);
    }
    let late = read_all(&mut stream).await;
    assert!(!late.ends_with("0\r\n\r\n"), "a broken answer must not look finished");
    server.is_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_then_ends_what_runs_and_announces_it() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    let path = server.create("x").await;
    hook(&path, "post-receive", WAITING_HOOK);
    let work = sandbox.init("work").await;
    let commit = work.commit("file", "text").await;
    let client = work.command(["push", &server.url("x"), "main"]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    hook_begun(&path).await;
    let service = server.service.clone();
    let stopping = async { service.stop(Duration::from_millis(300)).await };
    let refused = async {
        surehook_testkit::eventually(PATIENCE, async || {
            let output = work.run(["push", &server.url("x"), "main:late"]).await;
            String::from_utf8_lossy(&output.stderr).contains("remote: the server is stopping").then_some(())
        })
        .await;
    };
    let (stopped, ()) = tokio::join!(stopping, refused);
    assert_eq!(stopped, Stopped::AfterTerm);
    assert!(!client.wait_with_output().await.unwrap().status.success());
    assert_eq!(sandbox.at(&path).ok(["rev-parse", "main"]).await, commit);
    assert_eq!(server.backend.finished(), 1);
    assert!(!is_used_by_a_process(&path));
    assert_eq!(server.service.stop(Duration::ZERO).await, Stopped::Gracefully);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_lets_running_pushes_finish() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    let path = server.create("x").await;
    hook(&path, "update", WAITING_HOOK);
    let work = sandbox.init("work").await;
    work.commit("file", "text").await;
    let mut client = work.command(["push", "--quiet", &server.url("x"), "main"]).spawn().unwrap();
    hook_begun(&path).await;
    let stopping = async { server.service.stop(PATIENCE).await };
    let letting = async { let_hook_go(&path) };
    let (stopped, ()) = tokio::join!(stopping, letting);
    assert_eq!(stopped, Stopped::Gracefully);
    assert!(client.wait().await.unwrap().success());
    assert_eq!(server.backend.finished(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_whose_client_left_is_ended() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    let path = server.create("x").await;
    let work = sandbox.init("work").await;
    let commit = work.commit("file", "text").await;
    work.ok(["push", "--quiet", &server.url("x"), "main"]).await;
    let want = packet(format!("want {commit} side-band-64k\n").as_bytes());
    let mut stream = begin(&server, "x/git-upload-pack", &["Transfer-Encoding: chunked"]).await;
    let piece = [&want[..], FLUSH].concat();
    stream.write_all(&[format!("{:x}\r\n", piece.len()).as_bytes(), &piece, b"\r\n"].concat()).await.unwrap();
    surehook_testkit::eventually(PATIENCE, async || is_used_by_a_process(&path).then_some(())).await;
    drop(stream);
    server.is_idle().await;
    assert!(!is_used_by_a_process(&path));
}
