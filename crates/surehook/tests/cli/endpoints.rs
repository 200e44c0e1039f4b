//! `surehook endpoint`, and where its secrets come from.

use std::io::Write;
use std::process::Stdio;

use uuid::Uuid;

use super::world::*;

#[tokio::test]
async fn endpoints() {
    let world = world().await;
    let app = world.repository("team/app").await;
    let url = "https://ci.example.com/hook";
    let made = world.json(&[
        "endpoint",
        "add",
        "ci",
        "--repo",
        "team/app",
        "--url",
        url,
        "--max-attempts",
        "7",
        "--timeout",
        "1500ms",
    ]);
    assert!(text_of(&made["secret"]).len() >= 43, "a secret that was made is shown");
    assert_eq!(made["aggregate_id"], app.to_string());
    assert_eq!(
        (&made["repository"], &made["max_attempts"], &made["timeout_ms"]),
        (&"team/app".into(), &7.into(), &1500.into())
    );
    for (name, repo, group) in [("group", "team/*", Some("team")), ("all", "*", None)] {
        let made = world.json(&["endpoint", "add", name, "--repo", repo, "--url", url, "--unordered"]);
        assert_eq!((made["aggregate_group"].as_str(), &made["ordered"]), (group, &false.into()));
    }
    let shown = world.json(&["endpoint", "show", "ci"]);
    assert!(shown.get("secret").is_none() && shown["created_at"].as_str().unwrap().ends_with('Z'));
    let listed = world.json(&["endpoint", "list"]);
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|found| found["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["all", "ci", "group"]);
    let table = world.text(&["endpoint", "list"]);
    assert!(table.lines().any(|line| line.starts_with("ci ") && line.contains("team/app")), "{table}");

    let changed = world.json(&[
        "endpoint",
        "set",
        "ci",
        "--url",
        "http://127.1:9000/",
        "--allow-private",
        "true",
        "--header",
        "X-Team: blue",
    ]);
    assert_eq!((&changed["url"], &changed["headers"]["X-Team"]), (&"http://127.0.0.1:9000/".into(), &"blue".into()));
    assert_eq!(changed["max_attempts"], 7, "what is not named stays");
    assert_eq!(world.json(&["endpoint", "pause", "ci", "--reason", "moving"])["state_reason"], "moving");
    assert!(world.text(&["endpoint", "show", "ci"]).contains("moving"));
    assert_eq!(world.json(&["endpoint", "resume", "ci"])["state"], "active");
    world.push(app, "team/app", "{}").await;
    let removed = world.json(&["endpoint", "remove", "ci"]);
    assert_eq!((&removed["state"], &removed["cancelled"]), (&"removed".into(), &1.into()));
}

#[tokio::test]
async fn endpoints_that_cannot_be_saved_and_names_that_are_unknown() {
    let world = world().await;
    world.repository("team/app").await;
    let add = |name, repo, url| world.fails(&["endpoint", "add", name, "--repo", repo, "--url", url]);
    let (problem, advice) = add("ci", "team/ap", "https://ci.example.com/");
    assert!(problem.contains("team/ap") && advice == "Did you mean team/app?", "{problem} {advice}");
    assert!(add("ci", "*", "http://127.0.0.1:9000/").0.contains("--allow-private"));
    assert!(add("ci", "*", "http://[::1]/").0.contains("not a public address"));
    assert!(add("ci", "*", "ftp://ci.example.com/").0.contains("http"));
    assert!(add("c i", "*", "https://ci.example.com/").0.contains("no name"));
    world.text(&["endpoint", "add", "jenkins", "--repo", "*", "--url", "https://ci.example.com/"]);
    assert!(add("jenkins", "*", "https://ci.example.com/").0.contains("already"));
    for command in ["show", "pause", "resume", "remove", "set"] {
        let (problem, advice) = world.fails(&["endpoint", command, "jenkisn"]);
        assert!(problem.contains("jenkisn") && advice == "Did you mean jenkins?", "{command}: {problem} {advice}");
    }
    for header in ["X-Webhook-Id: evil", "Host: evil", "X: a\u{7f}b", "no header"] {
        let output = world.run(&["endpoint", "set", "jenkins", "--header", header]);
        assert!(!output.status.success(), "{header}");
    }
}

#[tokio::test]
async fn secrets_come_from_files_and_the_environment_too() {
    let world = world().await;
    let stored = async |name: &str| -> String {
        world.client.query_one("SELECT secret FROM endpoints WHERE name = $1", &[&name]).await.unwrap().get(0)
    };
    let folder = std::env::temp_dir().join(format!("surehook-cli-{}", Uuid::new_v4()));
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("secret");
    std::fs::write(&file, "from a file\n").unwrap();
    let file = file.to_str().unwrap();
    let add = ["endpoint", "add", "--repo", "*", "--url", "https://ci.example.com/"];
    let made = world.json(&[&add[..], &["one", "--secret-file", file]].concat());
    assert!(made.get("secret").is_none(), "a secret that was given is not shown");
    assert_eq!(stored("one").await, "from a file");
    let output = program()
        .env("SUREHOOK_DATABASE_URL", world.database.url())
        .env("SUREHOOK_SECRET", "from the environment")
        .args(add)
        .arg("two")
        .output()
        .unwrap();
    assert!(output.status.success());
    assert_eq!(stored("two").await, "from the environment");
    let mut child = program()
        .env("SUREHOOK_DATABASE_URL", world.database.url())
        .args(["endpoint", "set", "two", "--secret-next-file", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"from standard input\r\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(stored("two").await, "from the environment");
    world.text(&["endpoint", "set", "two", "--end-rotation"]);
    assert_eq!(stored("two").await, "from standard input");
    assert!(world.fails(&["endpoint", "set", "two", "--end-rotation"]).0.contains("no second secret"));
    std::fs::write(folder.join("bad"), "two\nlines\n").unwrap();
    let bad = folder.join("bad");
    let (problem, _) = world.fails(&[&add[..], &["three", "--secret-file", bad.to_str().unwrap()]].concat());
    assert!(problem.contains("secret") && !problem.contains("lines"), "{problem}");
    std::fs::remove_dir_all(&folder).unwrap();
}
