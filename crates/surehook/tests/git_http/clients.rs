//! Clone, fetch and push by stock git, in every protocol version.

use surehook::git::backend::ObjectFormat;
use surehook_testkit::git::Sandbox;

use crate::raw::{feed, gzip, plain, post, push_body};
use crate::server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn push_clone_and_fetch_in_each_protocol_version() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    server.create("group/sub/x").await;
    let work = sandbox.init("work").await;
    for version in ["0", "1", "2"] {
        let protocol = format!("protocol.version={version}");
        let commit = work.commit("file", version).await;
        // With and without the suffix: the same repository.
        let (push_to, clone_from) = (server.url("group/sub/x"), server.open_url("group/sub/x.git"));
        work.ok(["-c", &protocol, "push", "--quiet", &push_to, "main"]).await;
        let name = format!("clone-{version}");
        sandbox.ok(["-c", &protocol, "clone", "--quiet", &clone_from, &name]).await;
        let clone = sandbox.at(sandbox.path().join(&name));
        assert_eq!(clone.ok(["rev-parse", "HEAD"]).await, commit);
        let next = work.commit("file", &format!("{version} again")).await;
        work.ok(["-c", &protocol, "push", "--quiet", &push_to, "main"]).await;
        clone.ok(["-c", &protocol, "fetch", "--quiet"]).await;
        assert_eq!(clone.ok(["rev-parse", "origin/main"]).await, next);
        clone.ok(["fsck", "--strict"]).await;
    }
    assert_eq!(server.backend.pushes().len(), 6);
    assert!(server.backend.prepared() >= 6);
    let first = &server.backend.pushes()[0];
    assert_eq!((first.pusher.as_deref(), first.remote.as_deref()), (Some("ada"), Some("127.0.0.1")));
}

#[tokio::test(flavor = "multi_thread")]
async fn shallow_and_partial_clones() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    server.create("x").await;
    let work = sandbox.init("work").await;
    for number in 0..5 {
        work.commit("file", &number.to_string()).await;
    }
    work.ok(["push", "--quiet", &server.url("x"), "main"]).await;
    for version in ["0", "2"] {
        let (protocol, url) = (format!("protocol.version={version}"), server.open_url("x.git"));
        let (shallow, partial) = (format!("shallow-{version}"), format!("partial-{version}"));
        sandbox.ok(["-c", &protocol, "clone", "--quiet", "--depth=2", &url, &shallow]).await;
        let shallow = sandbox.at(sandbox.path().join(shallow));
        assert_eq!(shallow.ok(["rev-list", "--count", "HEAD"]).await, "2");
        shallow.ok(["-c", &protocol, "fetch", "--quiet", "--deepen=1"]).await;
        assert_eq!(shallow.ok(["rev-list", "--count", "HEAD"]).await, "3");
        shallow.ok(["-c", &protocol, "fetch", "--quiet", "--unshallow"]).await;
        assert_eq!(shallow.ok(["rev-list", "--count", "HEAD"]).await, "5");

        sandbox.ok(["-c", &protocol, "clone", "--quiet", "--no-checkout", "--filter=blob:none", &url, &partial]).await;
        let partial = sandbox.at(sandbox.path().join(partial));
        assert!(partial.ok(["rev-list", "--objects", "--missing=print", "HEAD"]).await.contains('?'));
    }
    let shallow = sandbox.path().join("pushing");
    sandbox.ok(["clone", "--quiet", "--depth=1", &server.open_url("x"), "pushing"]).await;
    let shallow = sandbox.at(shallow);
    shallow.commit("file", "from a shallow clone").await;
    shallow.ok(["push", "--quiet", &server.url("x"), "main"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_refs_make_compressed_requests() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    let path = server.create("x").await;
    let work = sandbox.init("work").await;
    let history: String = (0..500)
        .map(|number| {
            let commit = "commit refs/heads/main\ncommitter A <a@example.org> 1700000000 +0000\ndata 4\ntext\n";
            format!("{commit}\nreset refs/tags/v{number}\nfrom refs/heads/main\n\n")
        })
        .collect();
    feed(&work, &["fast-import", "--quiet"], history.as_bytes()).await;
    work.ok(["push", "--quiet", "--tags", &server.url("x"), "main"]).await;
    sandbox.ok(["-c", "protocol.version=0", "clone", "--quiet", "--mirror", &server.open_url("x"), "mirror"]).await;
    sandbox.ok(["clone", "--quiet", "--mirror", &server.open_url("x"), "mirror2"]).await;
    assert!(server.seen("/git-upload-pack").iter().any(|seen| seen.encoding.as_deref() == Some("gzip")));
    let refs = sandbox.at(&path).ok(["for-each-ref"]).await;
    assert_eq!(refs.lines().count(), 501);
    for mirror in ["mirror", "mirror2"] {
        assert_eq!(sandbox.at(sandbox.path().join(mirror)).ok(["for-each-ref"]).await, refs);
    }
    assert_eq!(server.backend.pushes().len(), 1);
    // Diverged history: both sides have what the other has not.
    let clone = sandbox.clone(&server.open_url("x"), "diverged").await;
    for number in 0..200 {
        clone.ok(["commit", "--quiet", "--allow-empty", "--message", &format!("mine {number}")]).await;
    }
    let theirs = work.commit("file", "theirs").await;
    work.ok(["push", "--quiet", &server.url("x"), "main"]).await;
    clone.ok(["fetch", "--quiet"]).await;
    assert_eq!(clone.ok(["rev-parse", "origin/main"]).await, theirs);
}

#[tokio::test(flavor = "multi_thread")]
async fn sha256_repositories() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    server.create_as("x", ObjectFormat::Sha256).await;
    sandbox.ok(["init", "--quiet", "--object-format=sha256", "work"]).await;
    let work = sandbox.at(sandbox.path().join("work"));
    let commit = work.commit("file", "text").await;
    assert_eq!(commit.len(), 64);
    work.ok(["push", "--quiet", &server.url("x"), "main"]).await;
    let clone = sandbox.clone(&server.open_url("x"), "clone").await;
    assert_eq!(clone.ok(["rev-parse", "HEAD"]).await, commit);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_compressed_by_hand() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    let path = server.create("x").await;
    let work = sandbox.init("work").await;
    let commit = work.commit("file", "text").await;
    let body = gzip(&push_body(&work, "refs/heads/main", &commit, " report-status").await).await;
    let answer = post(&server, "x/git-receive-pack", &["Content-Encoding: gzip"], &body).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("ok refs/heads/main"), "{answer}");
    assert_eq!(sandbox.at(path).ok(["rev-parse", "main"]).await, commit);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_do_what() {
    let (server, sandbox) = (Server::start().await, Sandbox::new());
    server.create("x").await;
    let work = sandbox.init("work").await;
    work.commit("file", "text").await;
    for (url, says) in [
        (server.url_for("ada", "wrong", "x"), "Authentication failed"),
        (server.url_for("reader", crate::server::PASSWORD, "x"), "remote: this token does not allow that"),
        (server.url("nothing/here"), "remote: there is no such repository"),
        (server.open_url("x"), "could not read Username"),
    ] {
        let output = work.run(["push", &url, "main"]).await;
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && messages.contains(says), "{messages}");
    }
    let answer = plain(&server, "GET", "/x.git/info/refs?service=git-receive-pack", "").await;
    assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("www-authenticate: Basic realm=\"surehook\""));
    let wrong = "Authorization: Basic YWRhOndyb25n\r\n";
    let answer = plain(&server, "GET", "/x/info/refs?service=git-upload-pack", wrong).await;
    assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("a valid token is needed"));

    server.backend.go_away(Some("the database is away; push again later"));
    let output = work.run(["push", &server.url("x"), "main"]).await;
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(messages.contains("remote: the database is away; push again later"), "{messages}");
    assert!(server.backend.pushes().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_and_what_is_not_served() {
    let server = Server::start().await;
    server.create("x").await;
    let answer = plain(&server, "GET", "/x/info/refs?service=git-upload-pack", "").await;
    for header in [
        "content-type: application/x-git-upload-pack-advertisement",
        "expires: Fri, 01 Jan 1980 00:00:00 GMT",
        "pragma: no-cache",
        "cache-control: no-cache, max-age=0, must-revalidate",
        "# service=git-upload-pack",
    ] {
        assert!(answer.contains(header), "{answer}");
    }
    let version_2 = "Git-Protocol: version=2\r\n";
    let answer = plain(&server, "GET", "/x/info/refs?service=git-upload-pack", version_2).await;
    assert!(!answer.contains("# service") && answer.contains("000eversion 2"), "{answer}");
    for (method, path, status, says) in [
        ("POST", "/x.git/info/lfs/objects/batch", "501", r#"{"message":"Git LFS is not served"#),
        ("GET", "/x/info/lfs/locks", "501", "application/vnd.git-lfs+json"),
        ("GET", "/x.git/info/refs", "403", "smart HTTP"),
        ("GET", "/x.git/HEAD", "403", "smart HTTP"),
        ("GET", "/x.git/objects/info/packs", "403", "smart HTTP"),
        ("GET", "/x.git/git-upload-pack", "405", "allow: POST"),
        ("POST", "/x.git/info/refs?service=git-upload-pack", "405", "allow: GET"),
        ("POST", "/x.git/git-upload-pack", "415", "application/x-git-upload-pack-request"),
        ("GET", "/../x.git/info/refs?service=git-upload-pack", "404", "no such repository"),
        ("GET", "/a/..%2f..%2fx/info/refs?service=git-upload-pack", "404", "no such repository"),
        ("GET", "/%2e%2e/x.git/info/refs?service=git-upload-pack", "404", "no such repository"),
        ("GET", "/.new/x.git/info/refs?service=git-upload-pack", "404", "no such repository"),
        ("GET", "/x.git/../x/info/refs?service=git-upload-pack", "404", "no such repository"),
        ("GET", "/-x/info/refs?service=git-upload-pack", "404", "no such repository"),
        ("GET", "/nonsense", "404", "no such repository"),
    ] {
        let answer = plain(&server, method, path, "Content-Length: 0\r\n").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(says), "{path}: {answer}");
    }
}
