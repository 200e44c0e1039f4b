//! A repository with a long and branched history, pushed and cloned back.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use surehook_testkit::receiver::Receiver;

use super::world::{World, payloads};

const COMMITS: usize = 3000;
const BRANCHES: usize = 30;

/// A stream for `git fast-import`: a main line with merges, branches off it, tags of both kinds.
fn history() -> String {
    let mut stream = String::new();
    for n in 1..=COMMITS {
        let branch = if n % 10 == 5 { "side" } else { "main" };
        let message = format!("commit {n}");
        let content = format!("content {n}\n");
        write!(
            stream,
            "commit refs/heads/{branch}\nmark :{n}\ncommitter Ada <ada@example.com> {} +0000\n",
            1_700_000_000 + n
        )
        .unwrap();
        write!(stream, "data {}\n{message}\n", message.len()).unwrap();
        if n % 10 == 5 {
            writeln!(stream, "from :{}", n - 1).unwrap();
        } else if n % 10 == 6 {
            // The main line takes the side commit in: a merge.
            writeln!(stream, "from :{}\nmerge :{}", n - 2, n - 1).unwrap();
        }
        write!(stream, "M 100644 inline dir-{}/file-{}\ndata {}\n{content}\n", n % 7, n % 50, content.len()).unwrap();
    }
    for n in 1..=BRANCHES {
        write!(stream, "reset refs/heads/branch-{n:02}\nfrom :{}\n\n", n * 90 + 1).unwrap();
        write!(stream, "reset refs/tags/light-{n:02}\nfrom :{}\n\n", n * 91).unwrap();
        write!(
            stream,
            "tag heavy-{n:02}\nfrom :{}\ntagger Ada <ada@example.com> 1700000000 +0000\ndata 3\ntag\n",
            n * 92
        )
        .unwrap();
    }
    stream
}

#[tokio::test]
async fn a_long_history_goes_in_and_comes_back_whole_with_one_event_per_ref() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    let receiver = Receiver::accepting().await;
    world.endpoint("ci", "app", &receiver.url("/"), &[]);
    let source = world.git.init_bare("source").await;
    let mut import = Command::new("git")
        .arg("-C")
        .arg(source.path())
        .args(["fast-import", "--quiet"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    import.stdin.take().unwrap().write_all(history().as_bytes()).unwrap();
    assert!(import.wait().unwrap().success());
    let refs = source.ok(["for-each-ref"]).await;
    source.ok(["push", "--quiet", "--mirror", &url]).await;

    world.git.ok(["clone", "--quiet", "--mirror", &url, "back"]).await;
    let back = world.git.at(world.git.path().join("back"));
    assert_eq!(back.ok(["for-each-ref"]).await, refs, "refs are identical");
    let fsck = back.run(["fsck", "--full"]).await;
    assert!(fsck.status.success() && fsck.stderr.is_empty(), "{}", String::from_utf8_lossy(&fsck.stderr));

    world.drained().await;
    let told = payloads(&receiver.requests());
    let sequences: Vec<i64> = told.iter().map(|p| p["sequence"].as_i64().unwrap()).collect();
    assert_eq!(
        sequences,
        (1..=i64::try_from(refs.lines().count()).unwrap()).collect::<Vec<_>>(),
        "one event per ref, in order"
    );
    let mut names: Vec<&str> = told.iter().map(|p| p["ref"].as_str().unwrap()).collect();
    names.sort_unstable();
    let expected: Vec<&str> = refs.lines().map(|line| line.rsplit_once('\t').unwrap().1).collect();
    assert_eq!(names, expected);
    let new_commits: i64 = told.iter().map(|p| p["total_commits"].as_i64().unwrap()).sum();
    assert_eq!(new_commits, i64::try_from(COMMITS).unwrap(), "each commit is new exactly once");
    // Of the first branch all is new: the newest hundred of its commits, oldest first.
    let first = told.iter().find(|p| p["ref"].as_str().unwrap().starts_with("refs/heads/")).unwrap();
    let listed: Vec<&str> = first["commits"].as_array().unwrap().iter().map(|c| c["id"].as_str().unwrap()).collect();
    let name = first["ref"].as_str().unwrap();
    let newest = source.ok(["rev-list", "--max-count=100", "--reverse", name]).await;
    assert_eq!(listed, newest.lines().collect::<Vec<_>>(), "{name}");
    assert_eq!(first["total_commits"].to_string(), source.ok(["rev-list", "--count", name]).await);
    for payload in &told {
        let after = source.ok(["rev-parse", &format!("{}^{{commit}}", payload["ref"].as_str().unwrap())]).await;
        assert_eq!(payload["head_commit"]["id"], after.trim(), "the head is the peeled commit");
    }
    // A later push brings exactly what is new, oldest first.
    let work = world.git.clone(&url, "work").await;
    work.ok(["checkout", "--quiet", "main"]).await;
    let (first, second) = (work.commit("a", "1").await, work.commit("b", "2").await);
    work.ok(["push", "--quiet", "origin", "main"]).await;
    world.drained().await;
    let last = payloads(&receiver.requests()).pop().unwrap();
    let ids: Vec<&str> = last["commits"].as_array().unwrap().iter().map(|c| c["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [first, second]);
    assert_eq!((&last["commits"][0]["added"], &last["forced"]), (&serde_json::json!(["a"]), &false.into()));
}
