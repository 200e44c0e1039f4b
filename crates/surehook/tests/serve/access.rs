//! Who is let in: what the protocol answers, and what stock git makes of it.

use surehook_testkit::try_eventually;

use super::world::{SOON, World};

#[tokio::test]
async fn each_refusal_has_its_status_and_git_ends_by_itself() {
    let world = World::new().await;
    let server = world.serve();
    let pusher = world.repository(&server, "app");
    world.repository(&server, "other");
    let token = |arguments: &[&str]| {
        let made = world.json(&[&["token", "create"], arguments].concat());
        (made["token"].as_str().unwrap().to_owned(), made["token_id"].as_str().unwrap().to_owned())
    };
    let (reader, _) = token(&["--read", "app"]);
    let (stranger, _) = token(&["--push", "other"]);
    let (revoked, id) = token(&["--push", "app"]);
    world.run(&["token", "revoke", &id]);
    let (pushes, _) = token(&["--push", "app"]);
    let work = world.checkout(&pusher).await;
    work.commit("file", "1").await;

    for (what, credentials, read, push) in [
        ("nobody", None, 401, 401),
        ("a guess", Some("guess"), 401, 401),
        ("an empty password", Some(""), 401, 401),
        ("a reader", Some(reader.as_str()), 200, 403),
        ("a stranger", Some(stranger.as_str()), 403, 403),
        ("a revoked token", Some(revoked.as_str()), 401, 401),
        ("a pusher", Some(pushes.as_str()), 200, 200),
    ] {
        for (service, expected) in [("git-upload-pack", read), ("git-receive-pack", push)] {
            let (status, head) = world.head(&server, &format!("/app.git/info/refs?service={service}"), credentials);
            assert_eq!(status, expected, "{what}, {service}: {head}");
            let asks = head.contains("www-authenticate: basic realm=");
            assert_eq!(asks, expected == 401, "{what}, {service}: {head}");
        }
        let at = credentials.map(|token| format!("x:{token}@")).unwrap_or_default();
        let url = format!("http://{at}{}/app.git", server.address);
        let mut git = work.command(["push", &url, "HEAD:main"]).spawn().unwrap();
        let ended = try_eventually(SOON, async || git.try_wait().unwrap()).await;
        assert_eq!(ended.map(|status| status.success()), Some(push == 200), "{what}");
    }
    assert_eq!(world.count("SELECT count(*) FROM outbox_events").await, 1, "of the one that may");
    // Whoever may not read cannot find out which repositories there are.
    let missing = world.head(&server, "/missing.git/info/refs?service=git-upload-pack", Some(&stranger)).0;
    assert_eq!(missing, 403);
}
