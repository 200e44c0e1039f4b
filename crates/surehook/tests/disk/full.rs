//! A full disk, of the repositories or of PostgreSQL: pushes are refused in words, nothing is half done, all goes on after.

use std::path::Path;
use std::process::Command;

use surehook_testkit::try_eventually;

use super::locks::leftovers;
use super::world::{SOON, World};

/// A small file system of its own; gone at the end.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    /// `None` where nothing may be mounted; then the test says that it was skipped.
    fn mount(path: &'a Path) -> Option<Self> {
        std::fs::create_dir_all(path).unwrap();
        let output = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"]).arg(path).output();
        match output {
            Ok(output) if output.status.success() => Some(Self(path)),
            other => {
                println!("SKIPPED: a small file system cannot be mounted here: {other:?}");
                None
            }
        }
    }

    fn fill(&self) {
        let zeros = vec![0; 64 * 1024];
        let mut file = std::fs::File::create(self.0.join("ballast")).unwrap();
        while std::io::Write::write_all(&mut file, &zeros).is_ok() {}
        // The last pages, too.
        while std::io::Write::write_all(&mut file, &zeros[..1]).is_ok() {}
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

#[tokio::test]
async fn the_volume_of_the_repositories_is_full() {
    let world = World::new().await;
    let root = world.data().join("repositories");
    let Some(small) = Small::mount(&root) else { return };
    let server = world.serve();
    let url = world.repository(&server, "app");
    let bare = root.join("app.git");
    let work = world.checkout(&url).await;
    let first = work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    // One push is too large; and then nothing fits any more.
    let mut state = 7_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b' ' + u8::try_from((state >> 33) % 95).unwrap())
    };
    let large: String = (0..16_000_000).map(|_| random()).collect();
    work.commit("large", &large).await;
    for what in ["too large", "full"] {
        if what == "full" {
            small.fill();
            work.ok(["reset", "--quiet", "--hard", &first]).await;
            work.commit("file", "2").await;
        }
        let output = work.run(["push", "origin", "HEAD:main", "HEAD:other"]).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("No space left on device"), "{what}: {said}");
        assert_eq!(
            world.git.at(&bare).ok(["for-each-ref", "--format=%(objectname) %(refname)"]).await,
            format!("{first} refs/heads/main"),
            "{what}"
        );
        assert_eq!(world.count("SELECT count(*) FROM outbox_events").await, 1, "{what}");
        let gone = try_eventually(SOON, async || leftovers(&bare).is_empty().then_some(())).await;
        assert!(gone.is_some(), "{what}: {:?}", leftovers(&bare));
    }
    std::fs::remove_file(root.join("ballast")).unwrap();
    work.ok(["push", "--quiet", "origin", "HEAD:main", "HEAD:other"]).await;
    assert_eq!(world.count("SELECT count(*) FROM outbox_events").await, 3);
    world.git.at(&bare).ok(["fsck", "--full"]).await;
}

/// The error that PostgreSQL gives where its disk is full.
const FULL: &str = "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
    CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON repository_refs FOR EACH ROW EXECUTE FUNCTION full_disk()";

#[tokio::test]
async fn postgresql_has_no_space_left() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    world.sql.batch_execute(FULL).await.unwrap();
    // Only its record shows that PostgreSQL is full: the push is on disk, and it is said that the webhook will follow.
    work.commit("file", "2").await;
    let output = work.run(["push", "origin", "HEAD:main"]).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("its webhooks will follow"), "{said}");
    // From then on nothing is taken that cannot be recorded.
    work.commit("file", "3").await;
    let output = work.run(["push", "origin", "HEAD:main"]).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("could not be recorded yet"), "{said}");
    assert_eq!(world.count("SELECT count(*) FROM outbox_events").await, 1);
    world.sql.batch_execute("DROP TRIGGER full_disk ON repository_refs").await.unwrap();
    world.until("the event follows", "SELECT (count(*) = 2)::int::bigint FROM outbox_events").await;
    assert_eq!(world.count("SELECT count(*) FROM repository_refs WHERE set_aside IS NOT NULL").await, 0);
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    assert_eq!(world.count("SELECT count(*) FROM outbox_events").await, 3);
}
