//! A disk in doubt: nothing is told of it, somebody is, and all goes on when it is back.

use std::path::Path;

use surehook_testkit::git::Checkout;
use surehook_testkit::try_eventually;

use super::world::{SOON, World};

/// The open alerts, as kinds. These tests change what is on the disk themselves, so that drift is no surprise.
async fn alerts(world: &World) -> Vec<String> {
    let rows = world
        .sql
        .query("SELECT kind FROM alerts WHERE resolved_at IS NULL AND kind <> 'drift' ORDER BY kind", &[])
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn until_alerts(world: &World, expected: &[&str]) {
    let met = try_eventually(SOON, async || (alerts(world).await == expected).then_some(())).await;
    assert!(met.is_some(), "{expected:?} never came, but {:?}", alerts(world).await);
}

/// Pushes that were told; alerts go out as events too.
async fn events(world: &World) -> i64 {
    world.count("SELECT count(*) FROM outbox_events WHERE event_type = 'RepositoryPushed'").await
}

async fn until_events(world: &World, expected: i64) {
    let met = try_eventually(SOON, async || (events(world).await == expected).then_some(())).await;
    assert!(met.is_some(), "{expected} events never came, but {}", events(world).await);
}

/// A push that must be refused before anything moves; gives what git says.
async fn refused(work: &Checkout<'_>) -> String {
    let output = work.run(["push", "origin", "HEAD:main"]).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    said
}

fn swap(a: &Path, b: &Path) {
    let third = a.with_extension("third");
    std::fs::rename(a, &third).unwrap();
    if b.exists() {
        std::fs::rename(b, a).unwrap();
    }
    std::fs::rename(&third, b).unwrap();
}

#[tokio::test]
async fn an_unmounted_volume_is_one_alert_and_no_event() {
    let world = World::new().await;
    let mut server = world.serve();
    let url = world.repository(&server, "app");
    world.run(&["repo", "create", "other"]);
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    let (root, away) = (world.data().join("repositories"), world.data().join("away"));
    std::fs::rename(&root, &away).unwrap();
    std::fs::create_dir(&root).unwrap();
    work.commit("file", "2").await;
    let said = refused(&work).await;
    assert!(said.contains("unavailable"), "{said}");
    world
        .until(
            "all are unavailable",
            "SELECT (count(*) = 2)::int::bigint FROM repositories WHERE state = 'unavailable'",
        )
        .await;
    let doctor = world.command(&world.database_url, &["doctor"]).output().unwrap();
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(!doctor.status.success() && text.contains("is its volume mounted?"), "{text}");
    assert!(server.get("/metrics").await.1.contains("surehook_alerts_open{kind=\"storage_unavailable\"} 1"));

    // A start in that state makes no second storage in the empty folder, and serves the deliveries.
    server.signal("KILL");
    server.ended().await;
    server = world.serve();
    let url = url.replace(url.split(['@', '/']).nth(3).unwrap(), &server.address);
    work.ok(["remote", "set-url", "origin", &url]).await;
    assert!(refused(&work).await.contains("unavailable"));
    let output = world.command(&world.database_url, &["repo", "create", "third"]).output().unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("mounted"));
    assert!(std::fs::read_dir(&root).unwrap().next().is_none(), "something was written below an empty mount point");
    assert_eq!(world.count("SELECT count(*) FROM storages").await, 1);
    assert_eq!(events(&world).await, 1);

    std::fs::remove_dir(&root).unwrap();
    std::fs::rename(&away, &root).unwrap();
    until_alerts(&world, &[]).await;
    world.until("both are active", "SELECT (count(*) = 2)::int::bigint FROM repositories WHERE state = 'active'").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    assert_eq!(events(&world).await, 2);
}

#[tokio::test]
async fn a_swapped_repository_takes_no_push_and_what_happened_meanwhile_is_told_later() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    world.run(&["repo", "create", "other"]);
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    let root = world.data().join("repositories");
    let (app, other) = (root.join("app.git"), root.join("other.git"));
    swap(&app, &other);
    work.commit("file", "2").await;
    let said = refused(&work).await;
    assert!(said.contains("another repository"), "{said}");
    until_alerts(&world, &["repository_unavailable", "repository_unavailable"]).await;
    // The repository itself, in the wrong place, is changed by somebody.
    world.git.at(&other).ok(["update-ref", "refs/heads/side", "main"]).await;
    swap(&app, &other);
    until_alerts(&world, &[]).await;
    until_events(&world, 2).await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    assert_eq!(events(&world).await, 3);
    let resolved = "SELECT count(*) FROM alerts WHERE kind = 'repository_unavailable' AND resolved_at IS NOT NULL";
    assert_eq!(world.count(resolved).await, 2);
    // It is gone.
    std::fs::rename(&app, root.join("gone")).unwrap();
    assert!(refused(&work).await.contains("unavailable"));
    until_alerts(&world, &["repository_unavailable"]).await;
    world.sql.batch_execute("SELECT 1").await.unwrap();
    std::fs::rename(root.join("gone"), &app).unwrap();
    until_alerts(&world, &[]).await;
    assert_eq!(events(&world).await, 3);
}

#[tokio::test]
async fn a_ref_that_cannot_be_read_is_alerted_of_and_never_told_as_deleted() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main", "HEAD:torn"]).await;
    let bare = world.data().join("repositories/app.git");
    let torn = std::fs::read(bare.join("refs/heads/torn")).unwrap();
    std::fs::write(bare.join("refs/heads/torn"), "").unwrap();
    until_alerts(&world, &["refs_unreadable"]).await;
    let doctor = world.command(&world.database_url, &["doctor"]).output().unwrap();
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("refs/heads/torn"));
    world.git.at(&bare).ok(["update-ref", "refs/heads/side", "main"]).await;
    until_events(&world, 3).await;
    std::fs::write(bare.join("refs/heads/torn"), torn).unwrap();
    until_alerts(&world, &[]).await;

    // Where no ref at all can be read, the repository is unavailable.
    world.git.at(&bare).ok(["pack-refs", "--all"]).await;
    let packed = std::fs::read(bare.join("packed-refs")).unwrap();
    std::fs::write(bare.join("packed-refs"), &packed[..packed.len() - 5]).unwrap();
    until_alerts(&world, &["repository_unavailable"]).await;
    assert!(refused(&work).await.contains("packed-refs"));
    std::fs::write(bare.join("packed-refs"), packed).unwrap();
    until_alerts(&world, &[]).await;
    assert_eq!(events(&world).await, 3);
}

#[tokio::test]
async fn a_mass_disappearance_waits_for_the_operators_word() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "team/app");
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    let all: Vec<String> = (0..24).map(|n| format!("HEAD:refs/heads/b{n}")).collect();
    let mut push = vec!["push".to_owned(), "--quiet".into(), "origin".into()];
    push.extend(all);
    work.ok(&push).await;
    let output = world.command(&world.database_url, &["repo", "confirm", "team/app"]).output().unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("nothing to confirm"));
    let bare = world.data().join("repositories/team/app.git");
    // All at once, so that no scan sees some of them.
    std::fs::rename(bare.join("refs/heads"), world.data().join("heads")).unwrap();
    std::fs::create_dir(bare.join("refs/heads")).unwrap();
    until_alerts(&world, &["repository_held"]).await;
    let said = refused(&work).await;
    assert!(said.contains("held until its operator confirms: 24 of 24 refs are gone"), "{said}");
    let doctor = world.command(&world.database_url, &["doctor"]).output().unwrap();
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("surehook repo confirm"));
    assert_eq!(events(&world).await, 24);
    let confirmed = world.json(&["repo", "confirm", "team/app"]);
    assert_eq!((confirmed["state"].as_str(), confirmed["events"].as_i64()), (Some("active"), Some(24)));
    until_alerts(&world, &[]).await;
    let deleted = "SELECT count(*) FROM outbox_events WHERE convert_from(payload, 'UTF8')::json->>'deleted' = 'true'";
    assert_eq!(world.count(deleted).await, 24);
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    assert_eq!(events(&world).await, 49);
}

#[tokio::test]
async fn a_push_that_deletes_most_refs_is_told_like_any_other() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    let refs = |before: &str| -> Vec<String> { (0..24).map(|n| format!("{before}:refs/heads/b{n}")).collect() };
    let push = |refs: Vec<String>| [vec!["push".to_owned(), "--quiet".into(), "origin".into()], refs].concat();
    work.ok(push(refs("HEAD"))).await;
    work.ok(push(refs(""))).await;
    until_events(&world, 48).await;
    // A scan that came between git and the push's own look may have doubted for a moment.
    until_alerts(&world, &[]).await;
}
