//! Large pushes, damaged and oversized bodies, and how many git processes run at once.

use std::path::Path;
use std::time::Duration;
use surehook::git::lock::{self, Locked};
use surehook::git::pktline::{FLUSH, packet};
use surehook_testkit::git::{Checkout, Sandbox};
use tokio::io::AsyncWriteExt as _;

use crate::raw::{
    SIDE_BAND, WAITING_HOOK, ZEROS, begin, gzip, hook, hook_begun, let_hook_go, noise, post, push_body, read_all,
    read_until,
};
use crate::server::Server;

async fn commit_noise(work: &Checkout<'_>, bytes: usize) -> String {
    std::fs::write(work.path().join("noise"), noise(bytes)).unwrap();
    work.commit("about", &bytes.to_string()).await;
    work.ok(["add", "noise"]).await;
    work.ok(["commit", "--quiet", "--message", "noise"]).await;
    work.ok(["rev-parse", "HEAD"]).await
}

/// Temporary packs and quarantines that were left in a repository.
fn left_over(repository: &Path) -> Vec<String> {
    let objects = repository.join("objects");
    [objects.clone(), objects.join("pack")]
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("tmp"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn large_pushes_with_the_probe() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    let path = server.create("x").await;
    let work = sandbox.init("work").await;
    for (number, bytes) in [1_900_000, 2_100_000, 2_500_000, 20_000_000].into_iter().enumerate() {
        let commit = commit_noise(&work, bytes).await;
        work.ok(["push", "--quiet", &server.url("x"), &format!("+main:r{bytes}")]).await;
        assert_eq!(sandbox.at(&path).ok(["rev-parse", &format!("r{bytes}")]).await, commit);
        assert_eq!(server.backend.pushes().len(), number + 1);
    }
    let posts = server.seen("/git-receive-pack");
    assert!(posts.iter().any(|seen| seen.length == Some(4)) && posts.iter().any(|seen| seen.length.is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probe_alone_is_no_push() {
    let server = Server::start().await;
    server.create("x").await;
    let answer = post(&server, "x/git-receive-pack", &[], FLUSH).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("application/x-git-receive-pack-result"), "{answer}");
    assert!(server.backend.pushes().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pack_over_the_limit_is_refused_in_words() {
    let server = Server::with(|settings| settings.pack_bytes_max = 1_000_000).await;
    let sandbox = Sandbox::new();
    let path = server.create("x").await;
    let work = sandbox.init("work").await;
    work.commit("file", "small").await;
    work.ok(["push", "--quiet", &server.url("x"), "main"]).await;
    let refs = sandbox.at(&path).ok(["for-each-ref"]).await;
    for bytes in [1_500_000, 30_000_000] {
        commit_noise(&work, bytes).await;
        let output = work.run(["push", &server.url("x"), "main"]).await;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("pack exceeds maximum allowed size"), "{text}");
        assert_eq!(sandbox.at(&path).ok(["for-each-ref"]).await, refs);
        server.is_idle().await;
        assert_eq!(left_over(&path), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_and_oversized_bodies() {
    let server = Server::with(|settings| {
        settings.fetch_request_bytes_max = 100_000;
        settings.pack_bytes_max = 1_000_000;
        settings.refs_per_push_max = 10;
        settings.push_option_bytes_max = 100;
    })
    .await;
    let sandbox = Sandbox::new();
    let path = server.create("x").await;
    let work = sandbox.init("work").await;
    let commit = work.commit("file", "text").await;
    let zipped = "Content-Encoding: gzip";
    let push = gzip(&push_body(&work, "refs/heads/main", &commit, SIDE_BAND).await).await;
    // Everything of the pack is there already when only the end of the compression is missing.
    for end in [10, push.len() / 2, push.len() - 8, push.len() - 1] {
        let answer = post(&server, "x/git-receive-pack", &[zipped], &push[..end]).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{end}: {answer}");
    }
    let bomb = gzip(&vec![b'0'; 50_000_000]).await;
    let want = gzip(&[&packet(b"command=ls-refs\n")[..], b"0000"].concat()).await;
    let command = |name: &str| packet(format!("{ZEROS} {commit} {name}\0 push-options{SIDE_BAND}").as_bytes());
    let many = [command("refs/heads/a").repeat(20), FLUSH.into()].concat();
    let options = [&command("refs/heads/a")[..], FLUSH, &packet(&[b'o'; 200]), FLUSH].concat();
    let endless = gzip(&[&command("refs/heads/a")[..], FLUSH, FLUSH, &vec![0; 50_000_000]].concat()).await;
    for (path, headers, body, status) in [
        ("x/git-upload-pack", vec![zipped], bomb.clone(), "413"),
        ("x/git-upload-pack", vec![zipped, "Git-Protocol: version=2"], want[..want.len() - 4].to_vec(), "400"),
        ("x/git-upload-pack", vec![zipped], b"not gzip at all".to_vec(), "400"),
        ("x/git-upload-pack", vec!["Content-Encoding: br"], b"0000".to_vec(), "415"),
        ("x/git-upload-pack", vec![], vec![], "400"),
        ("x/git-receive-pack", vec![zipped], b"not gzip at all".to_vec(), "400"),
        ("x/git-receive-pack", vec![], vec![], "400"),
        ("x/git-receive-pack", vec![], b"GET / HTTP/1.1".to_vec(), "400"),
        ("x/git-receive-pack", vec![], many, "413"),
        ("x/git-receive-pack", vec![], options, "413"),
        // git itself turns this down, in a report, after the first bytes.
        ("x/git-receive-pack", vec![zipped], endless, "200"),
    ] {
        let answer = post(&server, path, &headers, &body).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path} {headers:?}: {answer}");
        assert!(!answer.contains("ok refs/heads"), "{answer}");
    }
    server.is_idle().await;
    assert_eq!(sandbox.at(&path).ok(["for-each-ref"]).await, "");
    assert_eq!(left_over(&path), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn expect_continue_and_chunks() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    server.create("x").await;
    let work = sandbox.init("work").await;
    let commit = work.commit("file", "text").await;
    let body = push_body(&work, "refs/heads/main", &commit, SIDE_BAND).await;
    let headers = ["Expect: 100-continue", "Transfer-Encoding: chunked"];
    let mut stream = begin(&server, "x/git-receive-pack", &headers).await;
    read_until(&mut stream, |text| text.contains("100 Continue\r\n\r\n")).await;
    // Pieces cut without regard to packets.
    for piece in body.chunks(7) {
        stream.write_all(&[format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()).await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let answer = read_all(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("ok refs/heads/main"), "{answer}");
    assert_eq!(server.backend.pushes().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn git_processes_are_bounded_and_pushes_apart_from_fetches() {
    let server = Server::with(|settings| {
        settings.pushes_max = 1;
        settings.fetches_max = 1;
        settings.slot_wait_max = Duration::from_millis(200);
    })
    .await;
    let sandbox = Sandbox::new();
    let path = server.create("x").await;
    server.create("y").await;
    hook(&path, "pre-receive", WAITING_HOOK);
    let work = sandbox.init("work").await;
    work.commit("file", "text").await;
    let mut first = work.command(["push", "--quiet", &server.url("x"), "main"]).spawn().unwrap();
    hook_begun(&path).await;
    let output = work.run(["push", &server.url("y"), "main"]).await;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("remote: the server is busy"), "{text}");
    sandbox.ok(["ls-remote", &server.open_url("y")]).await;
    // The lock is git's as long as it, or what it started, is there.
    assert!(matches!(lock::exclusive_now(&path).unwrap(), Locked::Busy));
    let_hook_go(&path);
    assert!(first.wait().await.unwrap().success());
    server.is_idle().await;
    assert!(matches!(lock::exclusive_now(&path).unwrap(), Locked::Held(_)));
    work.ok(["push", "--quiet", &server.url("y"), "main"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_waits_for_its_turn() {
    let server = Server::with(|settings| settings.pushes_max = 1).await;
    let sandbox = Sandbox::new();
    let path = server.create("x").await;
    hook(&path, "pre-receive", WAITING_HOOK);
    let work = sandbox.init("work").await;
    work.commit("file", "text").await;
    let mut first = work.command(["push", "--quiet", &server.url("x"), "main:a"]).spawn().unwrap();
    hook_begun(&path).await;
    let mut second = work.command(["push", "--quiet", &server.url("x"), "main:b"]).spawn().unwrap();
    surehook_testkit::eventually(Duration::from_secs(10), async || {
        (server.seen("/info/refs").len() >= 3).then_some(())
    })
    .await;
    assert!(second.try_wait().unwrap().is_none());
    let_hook_go(&path);
    assert!(first.wait().await.unwrap().success() && second.wait().await.unwrap().success());
    assert_eq!(server.backend.pushes().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn upkeep_that_has_the_repository_to_itself_is_waited_for() {
    let server = Server::with(|settings| settings.lock_wait_max = Duration::from_millis(100)).await;
    let sandbox = Sandbox::new();
    let path = server.create("x").await;
    let held = lock::exclusive_now(&path).unwrap();
    assert!(matches!(held, Locked::Held(_)));
    let work = sandbox.init("work").await;
    work.commit("file", "text").await;
    let output = work.run(["push", &server.url("x"), "main"]).await;
    assert!(String::from_utf8_lossy(&output.stderr).contains("remote: the repository is being maintained"));
    // A fetch changes nothing and need not wait.
    sandbox.ok(["ls-remote", &server.open_url("x")]).await;
    drop(held);
    work.ok(["push", "--quiet", &server.url("x"), "main"]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: writes half a gigabyte"]
async fn memory_stays_flat_under_a_large_push() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    server.create("x").await;
    let work = sandbox.init("work").await;
    commit_noise(&work, 300_000_000).await;
    let before = peak_kib();
    work.ok(["-c", "core.bigFileThreshold=1m", "push", "--quiet", &server.url("x"), "main"]).await;
    sandbox.ok(["clone", "--quiet", "--bare", &server.open_url("x"), "clone"]).await;
    let grown = peak_kib() - before;
    assert!(grown < 32 * 1024, "memory grew by {grown} KiB");
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
