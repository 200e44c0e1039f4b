//! What payloads say of odd commits, large pushes, tags and rewritten branches.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Instant;

use proptest::prelude::*;
use surehook::capture::folder;
use surehook::payload::{objects::Objects, range::range};

use crate::support::{Event, World, ZEROS, feed, step};

/// A linear history for fast-import: `count` commits on main, each with its own file content.
fn history(count: usize) -> String {
    let mut text = String::from("reset refs/heads/main\n");
    for number in 1..=count {
        let from = if number == 1 { String::new() } else { format!("from :{}\n", number - 1) };
        write!(
            text,
            "commit refs/heads/main\nmark :{number}\ncommitter A <a@x> {} +0000\ndata 2\nm\n{from}M 644 inline f\ndata {}\n{number}\n",
            1_600_000_000 + number,
            number.to_string().len()
        )
        .unwrap();
    }
    text
}

#[tokio::test]
async fn two_new_commits_on_a_long_history_are_those_two() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let bare = world.bare(&repo);
    feed(&bare, &["fast-import", "--quiet"], history(50_000).as_bytes()).await;
    world.announce(&repo).await;
    let first = &world.events(&repo).await[0];
    assert_eq!((first.body["total_commits"].as_u64(), first.commits().len()), (Some(50_000), 100));
    assert_eq!(first.body["commits_truncated"], true);
    let tree = bare.ok(["rev-parse", "main^{tree}"]).await;
    let make = async |parent: &str, message: &str| {
        feed(
            &bare,
            &["-c", "user.name=A", "-c", "user.email=a@x", "commit-tree", &tree, "-p", parent, "-m", message],
            b"",
        )
        .await
    };
    let tip = bare.ok(["rev-parse", "main"]).await;
    let one = make(&tip, "one").await;
    let two = make(&one, "two").await;
    bare.ok(["update-ref", "refs/heads/topic", &two]).await;
    bare.ok(["update-ref", "refs/heads/same", &tip]).await;
    let begun = Instant::now();
    world.announce(&repo).await;
    let took = begun.elapsed();
    assert!(took.as_millis() < 1500, "{took:?}");
    let events = world.events(&repo).await;
    let find = |name: &str| events.iter().find(|event| event.text("ref") == name).unwrap();
    assert_eq!(find("refs/heads/topic").commits(), [&one, &two]);
    assert_eq!(find("refs/heads/topic").body["commits_truncated"], false);
    let same = find("refs/heads/same");
    assert_eq!(same.commits(), Vec::<&str>::new());
    assert_eq!(same.body["head_commit"]["id"], tip);
    assert_eq!(same.body["created"], true);
}

#[tokio::test]
async fn lists_are_cut_at_the_cap_with_the_true_total() {
    for count in [99, 100, 101, 5000] {
        let world = World::new().await;
        let repo = world.repository("app").await;
        feed(&world.bare(&repo), &["fast-import", "--quiet"], history(count).as_bytes()).await;
        world.announce(&repo).await;
        let event = &world.events(&repo).await[0];
        let expected = world.bare(&repo).ok(["rev-list", "--reverse", "main"]).await;
        let expected: Vec<&str> = expected.lines().skip(count.saturating_sub(100)).collect();
        assert_eq!(event.commits(), expected);
        assert_eq!(event.body["total_commits"], count);
        assert_eq!(event.body["commits_truncated"], count > 100);
        assert_eq!(event.body["head_commit"]["id"], *expected.last().unwrap());
    }
}

#[tokio::test]
async fn forced_means_that_before_is_no_ancestor() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, a) = world.seeded(&repo).await;
    let b = work.commit("file", "b").await;
    let c = work.commit("file", "c").await;
    work.ok(["checkout", "--quiet", "-B", "rewritten", &a]).await;
    let d = work.commit("file", "d").await;
    work.ok(["checkout", "--quiet", "--orphan", "unrelated"]).await;
    let e = work.commit("file", "e").await;
    world.announce(&repo).await;
    for commit in [&c, &b, &d, &e] {
        work.ok(["push", "--quiet", "--force", "origin", &format!("{commit}:refs/heads/main")]).await;
    }
    world.announce(&repo).await;
    let events = world.events(&repo).await;
    let told: Vec<_> = events[1..].iter().map(|event| (event.body["forced"] == true, event.commits())).collect();
    assert_eq!(told, [(false, vec![b.as_str(), c.as_str()]), (true, vec![]), (true, vec![&d]), (true, vec![&e])]);
    // What was there before is pruned: the event is told without it.
    let bare = world.bare(&repo);
    bare.ok(["update-ref", "refs/heads/main", &a]).await;
    std::fs::remove_file(repo.path.join("objects").join(&e[..2]).join(&e[2..])).unwrap();
    world.announce(&repo).await;
    let last = world.events(&repo).await.pop().unwrap();
    assert_eq!(last.text("after"), a);
    assert_eq!(last.body["forced"], true);
    assert!(last.body["incomplete"][0].as_str().unwrap().contains("is missing"), "{}", last.body);
}

#[tokio::test]
async fn tags_of_every_kind() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, a) = world.seeded(&repo).await;
    work.ok(["tag", "light"]).await;
    work.ok(["tag", "-a", "-m", "x", "annotated"]).await;
    work.ok(["tag", "-a", "-m", "x", "nested", "annotated"]).await;
    work.ok(["tag", "-a", "-m", "x", "tree", "HEAD^{tree}"]).await;
    work.ok(["tag", "blob", "HEAD:file"]).await;
    work.ok(["push", "--quiet", "origin", "--tags"]).await;
    world.announce(&repo).await;
    let events = world.events(&repo).await;
    for (tag, head) in [("light", true), ("annotated", true), ("nested", true), ("tree", false), ("blob", false)] {
        let event = events.iter().find(|event| event.text("ref") == format!("refs/tags/{tag}")).unwrap();
        assert_eq!(event.text("after"), work.ok(["rev-parse", tag]).await);
        assert_eq!(event.body["head_commit"]["id"] == a.as_str(), head, "{tag}");
        assert_eq!(event.body["head_commit"].is_null(), !head, "{tag}");
        assert_eq!(event.commits(), Vec::<&str>::new());
        assert_eq!(event.body["incomplete"], serde_json::json!([]));
    }
    let b = work.commit("file", "two").await;
    work.ok(["tag", "-f", "light"]).await;
    work.ok(["push", "--quiet", "--force", "origin", "light", ":annotated", ":blob"]).await;
    world.announce(&repo).await;
    let events = world.events(&repo).await;
    let moved = events[events.len() - 3..].iter().find(|event| event.text("ref") == "refs/tags/light").unwrap();
    assert_eq!((moved.text("before"), moved.text("after")), (a.as_str(), b.as_str()));
    assert_eq!(moved.body["forced"], false);
    assert_eq!(events.iter().filter(|event| event.body["deleted"] == true).count(), 2);
}

async fn pushed_commit(world: &World, name: &str, raw: &[u8]) -> serde_json::Value {
    let repo = world.repository(name).await;
    let bare = world.bare(&repo);
    let blob = feed(&bare, &["hash-object", "-w", "--stdin"], b"x").await;
    let tree = feed(&bare, &["mktree", "-z"], &[format!("100644 blob {blob}\tf").as_bytes(), b"\xff\0"].concat()).await;
    let raw = [format!("tree {tree}\n").as_bytes(), raw].concat();
    let commit = feed(&bare, &["hash-object", "-t", "commit", "--literally", "-w", "--stdin"], &raw).await;
    let work = world.clone_of(&repo, "empty").await;
    work.ok(["fetch", "--quiet", "origin"]).await;
    bare.ok(["update-ref", "refs/heads/main", &commit]).await;
    assert_eq!(world.announce(&repo).await.events, 1);
    let event = world.events(&repo).await.pop().unwrap();
    assert_eq!(event.step(), step("refs/heads/main", ZEROS, &commit));
    let told = event.body["commits"][0].clone();
    assert_eq!(told["id"], commit);
    assert_eq!(told["added"], serde_json::json!(["f\u{fffd}"]));
    told
}

#[tokio::test]
async fn any_bytes_become_valid_text() {
    let world = World::new().await;
    let signed = |author: &[u8], more: &[u8], message: &[u8]| {
        let who =
            [b"author ".as_slice(), author, b" <a@x> 1700000000 +0100\ncommitter C <c@x> 1700000000 -0330\n"].concat();
        [&who, more, b"\n", message].concat()
    };
    let told = pushed_commit(&world, "nul", &signed(b"A", b"", b"a\0b\xed\xa0\x80\n")).await;
    assert_eq!(told["message"], "a\0b\u{fffd}\u{fffd}\u{fffd}\n");
    assert_eq!(told["timestamp"], "2023-11-14T18:43:20-03:30");
    let told = pushed_commit(&world, "latin", &signed(b"\xe9ric", b"encoding ISO-8859-1\n", b"caf\xe9")).await;
    assert_eq!((told["author"]["name"].as_str(), told["message"].as_str()), (Some("éric"), Some("café")));
    let told = pushed_commit(&world, "broken", &signed(b"\xe9ric", b"", b"\xff\xfe")).await;
    assert_eq!(
        (told["author"]["name"].as_str(), told["message"].as_str()),
        (Some("\u{fffd}ric"), Some("\u{fffd}\u{fffd}"))
    );
    let told = pushed_commit(&world, "empty", &signed(b"", b"", b"")).await;
    assert_eq!(told["author"], serde_json::json!({"name": "", "email": "a@x"}));
    let told = pushed_commit(&world, "huge", &signed(b"A", b"", &vec![b'm'; 5_000_000])).await;
    assert_eq!((told["message_truncated"].as_bool(), told["message"].as_str().unwrap().len()), (Some(true), 65536));
}

#[tokio::test]
async fn file_lists_of_every_kind_of_change() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let stream = "\
blob\nmark :1\ndata 1\nx\nblob\nmark :2\ndata 1\ny\n\
commit refs/heads/main\nmark :10\ncommitter A <a@x> 1 +0000\ndata 1\na\nM 644 :1 a\nM 644 :1 d/keep\nM 644 :1 link\nM 644 :1 run\nM 644 :1 was-file\nM 160000 1111111111111111111111111111111111111111 sub\n\
commit refs/heads/main\nmark :11\ncommitter A <a@x> 2 +0000\ndata 1\nb\nfrom :10\nR a b\nM 120000 :1 link\nM 755 :1 run\nD was-file\nM 644 :1 was-file/inner\nM 160000 2222222222222222222222222222222222222222 sub\nM 644 :2 d/keep\n\
commit refs/heads/side\nmark :12\ncommitter A <a@x> 3 +0000\ndata 1\nc\nfrom :10\nM 644 :1 x\n\
commit refs/heads/more\nmark :13\ncommitter A <a@x> 4 +0000\ndata 1\nd\nfrom :10\nM 644 :1 y\n\
commit refs/heads/main\nmark :14\ncommitter A <a@x> 5 +0000\ndata 1\nm\nfrom :11\nmerge :12\nmerge :13\nM 644 :1 x\nM 644 :1 y\n";
    feed(&world.bare(&repo), &["fast-import", "--quiet"], stream.as_bytes()).await;
    world.bare(&repo).ok(["update-ref", "-d", "refs/heads/side"]).await;
    world.bare(&repo).ok(["update-ref", "-d", "refs/heads/more"]).await;
    world.announce(&repo).await;
    let event = &world.events(&repo).await[0];
    let lists = |index: usize| {
        let commit = &event.body["commits"][index];
        serde_json::json!([commit["added"], commit["removed"], commit["modified"]])
    };
    let count = event.commits().len();
    assert_eq!(count, 5);
    assert_eq!(lists(0), serde_json::json!([["a", "d/keep", "link", "run", "sub", "was-file"], [], []]));
    assert_eq!(
        lists(1),
        serde_json::json!([["b", "was-file/inner"], ["a", "was-file"], ["d/keep", "link", "run", "sub"]])
    );
    assert_eq!(lists(4), serde_json::json!([["x", "y"], [], []]), "a merge is compared with its first parent");
    assert_eq!(event.body["head_commit"]["added"], serde_json::json!(["x", "y"]));
}

#[tokio::test]
async fn huge_pushes_are_shortened_and_never_dropped() {
    let world = World::new().await;
    let mut many_files = String::from(
        "blob\nmark :1\ndata 1\nx\ncommit refs/heads/main\nmark :2\ncommitter A <a@x> 1 +0000\ndata 1\na\n",
    );
    for number in 0..40_000 {
        writeln!(many_files, "M 644 :1 a-folder-with-a-long-name/{}/file-{number}", number % 100).unwrap();
    }
    let mut long_messages = String::new();
    for number in 1..=150 {
        let from = if number == 1 { String::new() } else { format!("from :{}\n", number - 1) };
        let message = "é".repeat(100_000);
        write!(
            long_messages,
            "commit refs/heads/main\nmark :{number}\ncommitter A <a@x> {number} +0000\ndata 200000\n{message}\n{from}"
        )
        .unwrap();
    }
    for (name, stream) in [("files", many_files), ("messages", long_messages)] {
        let repo = world.repository(name).await;
        feed(&world.bare(&repo), &["fast-import", "--quiet"], stream.as_bytes()).await;
        assert_eq!(world.announce(&repo).await.events, 1);
        let event: Event = world.events(&repo).await.pop().unwrap();
        assert!(event.bytes <= 1024 * 1024, "{} bytes", event.bytes);
        let head = &event.body["head_commit"];
        assert_eq!(head["files_truncated"], name == "files");
        assert_eq!(head["message_truncated"], name == "messages");
        assert!(!event.commits().is_empty());
    }
}

#[tokio::test]
async fn what_is_corrupt_is_left_out_and_named() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, a) = world.seeded(&repo).await;
    world.announce(&repo).await;
    let b = work.commit("sub/file", "two").await;
    let tree = work.ok(["rev-parse", "HEAD:sub"]).await;
    work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
    let object = |id: &str| repo.path.join("objects").join(&id[..2]).join(&id[2..]);
    std::fs::remove_file(object(&tree)).unwrap();
    world.announce(&repo).await;
    let event = world.events(&repo).await.pop().unwrap();
    assert_eq!((event.commits(), event.text("before")), (vec![b.as_str()], a.as_str()));
    assert_eq!(event.body["incomplete"], serde_json::json!([format!("files of commit {b}: tree {tree} is missing")]));
    let c = work.commit("file", "three").await;
    work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
    std::fs::remove_file(object(&c)).unwrap();
    std::fs::write(object(&c), "rubbish").unwrap();
    world.announce(&repo).await;
    let event = world.events(&repo).await.pop().unwrap();
    assert_eq!((event.text("after"), event.body["head_commit"].is_null()), (c.as_str(), true));
    assert!(event.body["incomplete"][0].as_str().unwrap().contains("cannot be read"), "{}", event.body);
}

#[derive(Clone, Debug)]
struct Graph {
    /// Per commit its parents (earlier ones) and its date.
    commits: Vec<(BTreeSet<usize>, i64)>,
    hidden: Vec<usize>,
}

fn graphs() -> impl Strategy<Value = Graph> {
    let commit = (prop::collection::vec(any::<prop::sample::Index>(), 0..4), 0..2000_i64);
    (prop::collection::vec(commit, 2..40), prop::collection::vec(any::<prop::sample::Index>(), 0..4)).prop_map(
        |(commits, hidden)| {
            let count = commits.len();
            let parents = |at: usize, picks: Vec<prop::sample::Index>| match at {
                0 => BTreeSet::new(),
                _ => picks.into_iter().map(|pick| pick.index(at)).collect(),
            };
            let commits =
                commits.into_iter().enumerate().map(|(at, (picks, date))| (parents(at, picks), date)).collect();
            Graph { commits, hidden: hidden.into_iter().map(|pick| pick.index(count)).collect() }
        },
    )
}

#[tokio::test]
async fn ranges_are_those_of_git_on_any_history() {
    use proptest::strategy::ValueTree;
    let world = World::new().await;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let repo = world.repository("app").await;
    let bare = world.bare(&repo);
    for round in 0..60 {
        let graph = graphs().new_tree(&mut runner).unwrap().current();
        let mut stream = String::new();
        for (at, (parents, date)) in graph.commits.iter().enumerate() {
            write!(stream, "reset refs/heads/r{round}\ncommit refs/heads/r{round}\nmark :{}\ncommitter A <a@x> {date} +0000\ndata 8\n{:08}\n", at + 1, at + round * 1000).unwrap();
            for (nth, parent) in parents.iter().enumerate() {
                writeln!(stream, "{} :{}", if nth == 0 { "from" } else { "merge" }, parent + 1).unwrap();
            }
        }
        let marks = format!("--export-marks={}", repo.path.join("marks").display());
        feed(&bare, &["fast-import", "--quiet", "--force", &marks], stream.as_bytes()).await;
        let marks = std::fs::read_to_string(repo.path.join("marks")).unwrap();
        let mut ids = vec![String::new(); graph.commits.len()];
        for line in marks.lines() {
            let (mark, id) = line.split_once(' ').unwrap();
            ids[mark[1..].parse::<usize>().unwrap() - 1] = id.to_owned();
        }
        let tip = ids.last().unwrap();
        let mut arguments = vec!["rev-list".to_owned(), tip.clone()];
        arguments.extend(graph.hidden.iter().map(|at| format!("^{}", ids[*at])));
        let expected = bare.ok(&arguments).await;
        let expected: BTreeSet<&str> = expected.lines().collect();
        let repository = folder::open(&repo.path, repo.id).unwrap();
        let mut objects = Objects::new(&repository);
        let id = |text: &str| gix::ObjectId::from_hex(text.as_bytes()).unwrap();
        let hidden: Vec<_> = graph.hidden.iter().map(|at| id(&ids[*at])).collect();
        let ancestor = hidden.first().copied();
        let found = range(&mut objects, id(tip), &hidden, ancestor.filter(|_| hidden.len() == 1), 1000, 100_000);
        let listed: Vec<String> = found.newest.iter().map(ToString::to_string).collect();
        assert_eq!(listed.iter().map(String::as_str).collect::<BTreeSet<_>>(), expected, "{graph:?}");
        assert_eq!(found.total, expected.len() as u64);
        for (at, commit) in listed.iter().enumerate() {
            let number = ids.iter().position(|id| id == commit).unwrap();
            assert!(graph.commits[number].0.iter().all(|parent| !listed[..at].contains(&ids[*parent])));
        }
        if let (1, Some(ancestor)) = (hidden.len(), ancestor) {
            let is_ancestor =
                bare.run(["merge-base", "--is-ancestor", &ancestor.to_string(), tip]).await.status.success();
            assert_eq!(found.ancestor_reached, is_ancestor, "{graph:?}");
        }
    }
}
