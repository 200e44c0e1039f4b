//! The doorbell: a ring is a hint and nothing more.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use surehook_testkit::try_eventually;

use super::support::{Elsewhere, zeros};

impl Elsewhere {
    /// The socket that the hook of this repository rings.
    fn socket_of(&self, bare: &std::path::Path) -> PathBuf {
        let hook = std::fs::read_to_string(bare.join("hooks/post-receive")).unwrap();
        let (_, rest) = hook.split_once("--socket '").unwrap();
        rest.split_once('\'').unwrap().0.into()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_rings_and_is_told_at_once() {
    let there = Elsewhere::new().await;
    let (bare, work, first) = there.with_a_commit("app.git").await;
    let server = there.serve_without_scan();
    // Imported while the server runs.
    there.import(&bare, &[]);
    let mut before = first;
    for n in 2..6 {
        let next = work.commit("a", &n.to_string()).await;
        let pushed = work.run(["push", "--quiet", "origin", "main"]).await;
        assert!(pushed.status.success() && pushed.stderr.is_empty(), "{pushed:?}");
        let told = there.told_in_time("app", n - 1).await;
        assert_eq!(told[n - 2], ("refs/heads/main".into(), before, next.clone()));
        before = next;
    }
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_server_or_the_program_away_the_push_goes_on_and_is_told_at_the_next_start() {
    let there = Elsewhere::new().await;
    let (bare, work, first) = there.with_a_commit("app.git").await;
    there.import(&bare, &[]);
    let second = work.commit("a", "2").await;
    let pushed = work.run(["push", "--quiet", "origin", "main"]).await;
    assert!(pushed.status.success() && pushed.stderr.is_empty(), "{pushed:?}");
    // A server that was killed leaves its socket, and nobody behind it.
    let server = there.serve_without_scan();
    there.told_in_time("app", 1).await;
    drop(server);
    let third = work.commit("a", "3").await;
    let pushed = work.run(["push", "--quiet", "origin", "main"]).await;
    assert!(pushed.status.success() && pushed.stderr.is_empty(), "{pushed:?}");
    // One that is stopped does not listen, and the ring waits for nobody.
    let server = there.serve_without_scan();
    there.told_in_time("app", 2).await;
    server.signal("STOP");
    let mut expected = vec![
        ("refs/heads/main".to_owned(), first, second.clone()),
        ("refs/heads/main".to_owned(), second, third.clone()),
    ];
    for n in 0..3 {
        let name = format!("refs/heads/b{n}");
        let pushed = work.run(["push", "--quiet", "origin", &format!("main:{name}")]).await;
        assert!(pushed.status.success() && pushed.stderr.is_empty(), "{pushed:?}");
        expected.push((name, zeros(), third.clone()));
    }
    server.signal("CONT");
    there.told_in_time("app", 5).await;
    drop(server);
    // The program is gone.
    let hook = bare.path().join("hooks/post-receive");
    let text = std::fs::read_to_string(&hook).unwrap().replace(env!("CARGO_BIN_EXE_surehook"), "/none/surehook");
    std::fs::write(&hook, &text).unwrap();
    assert!(text.contains("/none/surehook"));
    let pushed = work.run(["push", "--quiet", "origin", "main:refs/heads/b3"]).await;
    assert!(pushed.status.success() && pushed.stderr.is_empty(), "{pushed:?}");
    expected.push(("refs/heads/b3".into(), zeros(), third));
    let _server = there.serve_without_scan();
    assert_eq!(there.told_in_time("app", 6).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn rings_of_strangers_do_no_harm() {
    let there = Elsewhere::new().await;
    let (bare, work, _) = there.with_a_commit("app.git").await;
    there.import(&bare, &[]);
    there.world.run(&["repo", "create", "hosted"]);
    let hosted = there.world.json(&["repo", "show", "hosted"])["repository_id"].as_str().unwrap().to_owned();
    let mut server = there.serve_without_scan();
    let socket = there.socket_of(bare.path());
    // The bell is hung beside the start of the server; what happens before that is the first scan's to find.
    let hung = try_eventually(Duration::from_secs(60), async || std::fs::metadata(&socket).ok()).await;
    let mode = hung.unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 });
    let ringer = UnixDatagram::unbound().unwrap();
    let noise = [
        Vec::new(),
        vec![b'x'; 100_000],
        b"\xff\x00".to_vec(),
        hosted.into_bytes(),
        b"6f9619ff-8b86-d011-b42d-00c04fc964ff".to_vec(),
    ];
    ringer.set_nonblocking(true).unwrap();
    for ring in noise.iter().cycle().take(5000) {
        // A full queue is what a flood is answered with.
        let _ = ringer.send_to(ring, &socket);
    }
    let next = work.commit("a", "2").await;
    work.ok(["push", "--quiet", "origin", "main"]).await;
    // The ring of the push may have found no room: the next one is heard.
    let heard = try_eventually(Duration::from_secs(60), async || {
        let id = there.world.json(&["repo", "show", "app"])["repository_id"].as_str().unwrap().to_owned();
        let _ = ringer.send_to(id.as_bytes(), &socket);
        (there.told("app").await.len() == 1).then_some(())
    })
    .await;
    assert!(heard.is_some());
    assert_eq!(there.told("app").await[0].2, next);
    server.signal("TERM");
    assert_eq!(server.ended().await, Some(0));
    assert!(!socket.exists(), "a server that ends takes its doorbell away");
}
