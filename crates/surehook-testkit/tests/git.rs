//! The git client for tests, on a real git.

use surehook_testkit::git::Sandbox;

#[tokio::test]
async fn a_sandbox_pushes_and_clones() {
    let sandbox = Sandbox::new();
    let bare = sandbox.init_bare("hosted.git").await;
    let work = sandbox.init("work").await;
    let commit = work.commit("folder/file", "text").await;
    work.ok(["push", "--quiet", "--", &bare.path().display().to_string(), "main"]).await;
    let copy = sandbox.clone(&bare.path().display().to_string(), "copy").await;
    assert_eq!(copy.ok(["rev-parse", "HEAD"]).await, commit);
    assert_eq!(copy.ok(["log", "-1", "--format=%an <%ae>"]).await, "Ada Example <ada@example.org>");
    assert!(!copy.run(["rev-parse", "no-such-thing"]).await.status.success());
}
