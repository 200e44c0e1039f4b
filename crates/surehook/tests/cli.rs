//! The command line as people and programs use it: the real binary against a real PostgreSQL.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test starts the program and makes rows by SQL")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use surehook_outbox::Database;
use surehook_outbox::store::migrate::{OUTBOX, migrate};
use surehook_testkit::postgres::{Client, TestDatabase};
use uuid::Uuid;

struct World {
    database: TestDatabase,
    client: Client,
}

async fn world() -> World {
    let database = surehook_testkit::postgres::database("surehook", async |url| {
        let database = Database::connect(url, "test", 2).unwrap();
        migrate(&database, "outbox", OUTBOX).await.unwrap();
        migrate(&database, "repositories", surehook::store::REPOSITORIES).await.unwrap();
        database.close().await;
    })
    .await;
    let client = database.client().await;
    World { database, client }
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_surehook"));
    for name in ["SUREHOOK_DATA", "SUREHOOK_DATABASE_URL", "SUREHOOK_SECRET", "RUST_BACKTRACE"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

impl World {
    fn run(&self, arguments: &[&str]) -> Output {
        program().env("SUREHOOK_DATABASE_URL", self.database.url()).args(arguments).output().unwrap()
    }

    fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Fails with exit code 1 and two lines: what went wrong, and what to do.
    fn fails(&self, arguments: &[&str]) -> (String, String) {
        let output = self.run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let lines: Vec<&str> = stderr.lines().collect();
        assert_eq!(lines.len(), 2, "{arguments:?}: {stderr}");
        (lines[0].strip_prefix("error: ").unwrap().to_owned(), lines[1].to_owned())
    }

    async fn repository(&self, name: &str) -> Uuid {
        let id = Uuid::new_v4();
        self.client
            .execute(
                "WITH storage AS (INSERT INTO storages (storage_id, node, root) VALUES (gen_random_uuid(), 'here', '/r') RETURNING storage_id)
                 INSERT INTO repositories (repository_id, name, storage_id, path, origin, state)
                 SELECT $1, $2, storage_id, convert_to($2 || '.git', 'UTF8'), 'hosted', 'active' FROM storage",
                &[&id, &name],
            )
            .await
            .unwrap();
        id
    }

    async fn push(&self, repository: Uuid, name: &str, payload: &str) -> Uuid {
        self.client
            .query_one(
                "SELECT event_id FROM outbox_enqueue_many(ARRAY['RepositoryPushed'], ARRAY[$1], ARRAY[$2::bytea], NULL, ARRAY[$3])",
                &[&repository.to_string(), &payload.as_bytes(), &name],
            )
            .await
            .unwrap()
            .get(0)
    }

    async fn kill_head(&self, delivery: &str) {
        let delivery: Uuid = delivery.parse().unwrap();
        for statement in [
            "INSERT INTO outbox_attempts (lane_id, seq, attempt, delivery_id, outcome, ends, status_code, error, response_body, started_at, duration_ms, created_at)
             SELECT lane_id, seq, 5, delivery_id, 'strike', 'failed', 500, 'answered 500', 'oh no', now(), 7, now() FROM outbox_deliveries WHERE delivery_id = $1",
            "INSERT INTO outbox_dlq (delivery_id, endpoint_id, endpoint_name, url, ordering_key, event_id, event_type, aggregate_id, aggregate_name,
                    webhook_name, format, headers, body, reason, attempts, last_status_code, last_error, lane_id, seq, event_created_at, failed_at, updated_at)
             SELECT d.delivery_id, l.endpoint_id, p.name, p.url, l.ordering_key, d.event_id, e.event_type, e.aggregate_id, e.aggregate_name,
                    d.webhook_name, 'native', '{}', e.payload, 'max_attempts', 5, 500, 'answered 500', l.lane_id, d.seq, e.created_at, now(), now()
               FROM outbox_deliveries d JOIN outbox_lanes l USING (lane_id) JOIN outbox_events e ON e.event_id = d.event_id
               JOIN endpoints p ON p.endpoint_id = l.endpoint_id WHERE d.delivery_id = $1",
            "UPDATE outbox_lanes l SET done_seq = d.seq, ready_at = CASE WHEN d.seq < l.last_seq THEN now() END
               FROM outbox_deliveries d WHERE d.lane_id = l.lane_id AND d.delivery_id = $1",
        ] {
            assert_eq!(self.client.execute(statement, &[&delivery]).await.unwrap(), 1, "{statement}");
        }
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

#[test]
fn every_command_has_help_with_an_example() {
    let commands = [
        "",
        "serve",
        "worker",
        "receive",
        "receive list",
        "receive log",
        "demo",
        "doctor",
        "backup",
        "restore",
        "repo",
        "repo create",
        "repo list",
        "repo show",
        "repo delete",
        "token",
        "token create",
        "token list",
        "token revoke",
        "endpoint",
        "endpoint add",
        "endpoint list",
        "endpoint show",
        "endpoint set",
        "endpoint pause",
        "endpoint resume",
        "endpoint remove",
        "event",
        "event list",
        "event show",
        "delivery",
        "delivery list",
        "delivery show",
        "delivery explain",
        "delivery retry",
        "delivery skip",
        "dlq",
        "dlq list",
        "dlq show",
        "dlq replay",
    ];
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().collect();
        let output = program().args(&words).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && help.contains("Usage: surehook"), "{command}");
        let is_group = help.contains("Commands:") && !["", "receive"].contains(&command);
        assert!(is_group || help.contains("Example"), "{command} has no example:\n{help}");
    }
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for arguments in [
        &["nonsense"][..],
        &["token"],
        &["endpoint", "add"],
        &["endpoint", "add", "ci", "--url", "https://x.example"],
        &["delivery", "show", "not-an-id"],
        &["delivery", "list", "--state", "lost"],
        &["delivery", "list", "--commit", "xyz"],
        &["event", "list", "--since", "yesterday"],
        &["event", "list", "--limit", "0"],
        &["dlq", "replay"],
        &["receive"],
        &["serve", "--listen", "here"],
    ] {
        let output = program().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn an_unreachable_database_is_told_in_two_lines() {
    for url in ["host=/nowhere user=nobody dbname=none", "postgres://nobody@127.0.0.1:1/none", "mysql://x"] {
        let output = program().args(["token", "list", "--database-url", url]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert_eq!(stderr.lines().count(), 2, "{stderr}");
    }
    let output = program().args(["doctor", "--json", "--database-url", "host=/nowhere user=nobody"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), report["result"].as_str()), (Some(1), Some("fail")));
}

#[tokio::test]
async fn tokens() {
    let world = world().await;
    assert!(world.text(&["token", "list"]).contains("There are no tokens"));
    assert_eq!(world.json(&["token", "list"]), serde_json::json!([]));
    let made = world.json(&["token", "create", "--push", "team/app.git", "--read", "team/*", "--note", "laptop"]);
    assert!(text_of(&made["token"]).starts_with("sh_"));
    assert_eq!((&made["push"], &made["read"]), (&serde_json::json!(["team/app"]), &serde_json::json!(["team/*"])));
    let admin = world.text(&["token", "create", "--admin"]);
    assert!(admin.contains("sh_") && admin.contains("everything"), "{admin}");

    let listed = world.json(&["token", "list"]);
    assert_eq!(listed.as_array().unwrap().len(), 2);
    let ours = &listed[1];
    assert_eq!(
        (&ours["token_id"], &ours["note"], &ours["is_admin"]),
        (&made["token_id"], &"laptop".into(), &false.into())
    );
    assert!(!listed.to_string().contains("sh_") && !listed.to_string().contains("token_hash"));
    assert!(world.text(&["token", "list"]).contains("push team/app, read team/*"));

    let id = text_of(&made["token_id"]);
    assert_eq!(world.json(&["token", "revoke", &id])["revoked"], true);
    assert_eq!(world.json(&["token", "list"]).as_array().unwrap().len(), 1);
    assert_eq!(world.json(&["token", "list", "--revoked"]).as_array().unwrap().len(), 2);
    let (problem, _) = world.fails(&["token", "revoke", &Uuid::new_v4().to_string()]);
    assert!(problem.contains("no token"), "{problem}");
    assert!(world.fails(&["token", "create"]).0.contains("--push"));
    assert!(world.fails(&["token", "create", "--push", "../x"]).0.contains("../x"));
}

#[tokio::test]
async fn options_that_every_command_has_stand_before_or_after_it() {
    let world = world().await;
    let url = world.database.url();
    for arguments in [
        ["--json", "--database-url", url, "token", "list"],
        ["token", "--json", "--database-url", url, "list"],
        ["token", "list", "--json", "--database-url", url],
        ["--database-url", url, "token", "list", "--json"],
    ] {
        let output = program().args(arguments).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "[]", "{arguments:?}");
    }
}

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

#[tokio::test]
async fn events_and_deliveries() {
    let world = world().await;
    let app = world.repository("team/app").await;
    world.text(&["endpoint", "add", "ci", "--repo", "team/app", "--url", "https://ci.example.com/"]);
    let first = world
        .push(app, "team/app", r#"{"ref":"refs/heads/main","after":"1111111111111111111111111111111111111111"}"#)
        .await;
    let second = world
        .push(app, "team/app", r#"{"ref":"refs/heads/main","after":"2222222222222222222222222222222222222222"}"#)
        .await;

    let events = world.json(&["event", "list", "--repo", "team/app"]);
    assert_eq!(events[0]["event_id"], second.to_string());
    assert_eq!((&events[1]["event_id"], &events[1]["deliveries"]), (&first.to_string().into(), &1.into()));
    assert_eq!(world.json(&["event", "list", "--commit", "1111111"])[0]["event_id"], first.to_string());
    assert_eq!(world.json(&["event", "show", &first.to_string()])["payload"]["ref"], "refs/heads/main");
    assert!(world.text(&["event", "show", &first.to_string()]).contains("refs/heads/main"));
    assert!(world.fails(&["event", "list", "--repo", "team/ap"]).1.contains("team/app"));

    let deliveries = world.json(&["delivery", "list", "--state", "pending", "--endpoint", "ci"]);
    let (head, behind) = (text_of(&deliveries[1]["delivery_id"]), text_of(&deliveries[0]["delivery_id"]));
    assert_eq!((&deliveries[1]["is_head"], &deliveries[1]["status"]), (&true.into(), &"pending".into()));
    assert_eq!(world.json(&["delivery", "list", "--commit", "2222222"])[0]["delivery_id"], behind.as_str());
    assert_eq!(world.json(&["delivery", "list", "--event", &first.to_string()])[0]["delivery_id"], head.as_str());
    assert_eq!(world.json(&["delivery", "list", "--commit", "3333333"]), serde_json::json!([]));
    assert_eq!(world.json(&["delivery", "list", "--since", "1h", "--limit", "1"]).as_array().unwrap().len(), 1);

    let explained = world.json(&["delivery", "explain", &behind]);
    assert_eq!((&explained["ahead"], &explained["head_delivery_id"]), (&1.into(), &head.as_str().into()));
    let words = world.text(&["delivery", "explain", &behind]);
    assert!(
        words.contains("1 delivery goes") && words.contains(&format!("surehook delivery explain {head}")),
        "{words}"
    );
    let (problem, advice) = world.fails(&["delivery", "retry", &behind]);
    assert!(problem.contains(&head) && advice.contains(&head), "{problem} {advice}");
    assert_eq!(world.json(&["delivery", "retry", &head])["result"], "due");
    world.text(&["endpoint", "pause", "ci", "--reason", "moving"]);
    let words = world.text(&["delivery", "explain", &head]);
    assert!(
        words.contains("paused") && words.contains("moving") && words.contains("surehook endpoint resume ci"),
        "{words}"
    );

    assert_eq!(world.json(&["delivery", "skip", &head])["result"], "skipped");
    let shown = world.json(&["delivery", "show", &head]);
    assert_eq!((&shown["status"], &shown["attempt_list"][0]["outcome"]), (&"skipped".into(), &"not_sent".into()));
    assert_eq!(world.json(&["delivery", "list", "--state", "skipped"])[0]["delivery_id"], head.as_str());
    assert_eq!(world.json(&["delivery", "list", "--state", "cancelled"]), serde_json::json!([]));
    world.text(&["endpoint", "remove", "ci"]);
    assert_eq!(world.json(&["delivery", "list", "--state", "cancelled"])[0]["delivery_id"], behind.as_str());
    assert!(world.fails(&["delivery", "retry", &head]).0.contains("skipped"));
    assert!(world.fails(&["delivery", "show", &Uuid::new_v4().to_string()]).0.contains("no delivery"));
}

#[tokio::test]
async fn dead_letters() {
    let world = world().await;
    let app = world.repository("app").await;
    world.text(&["endpoint", "add", "ci", "--repo", "app", "--url", "https://ci.example.com/"]);
    let mut dead = Vec::new();
    for _ in 0..3 {
        let event = world.push(app, "app", r#"{"ref":"refs/heads/main"}"#).await;
        let delivery = text_of(&world.json(&["delivery", "list", "--event", &event.to_string()])[0]["delivery_id"]);
        dead.push(delivery);
    }
    world.kill_head(&dead[0]).await;
    let (problem, advice) = world.fails(&["dlq", "replay", &dead[0]]);
    assert!(problem.contains("refs/heads/main") && advice.contains("--anyway"), "{problem} {advice}");
    world.kill_head(&dead[1]).await;
    world.kill_head(&dead[2]).await;

    let listed =
        world.json(&["dlq", "list", "--reason", "max_attempts", "--endpoint", "ci", "--repo", "app", "--since", "1h"]);
    assert_eq!(listed.as_array().unwrap().len(), 3);
    assert_eq!((&listed[0]["state"], &listed[0]["last_status_code"]), (&"dead".into(), &500.into()));
    assert_eq!(world.json(&["dlq", "list", "--reason", "max_age"]), serde_json::json!([]));
    assert_eq!(world.json(&["delivery", "list", "--state", "failed"]).as_array().unwrap().len(), 3);
    let shown = world.json(&["dlq", "show", &dead[0]]);
    assert_eq!(
        (&shown["body"]["ref"], &shown["attempt_list"][0]["response_body"]),
        (&"refs/heads/main".into(), &"oh no".into())
    );
    assert!(world.text(&["delivery", "explain", &dead[0]]).contains("surehook dlq replay"));

    let words = world.text(&["dlq", "replay", &dead[0]]);
    assert!(words.contains("409") && words.contains("same id"), "{words}");
    assert!(world.fails(&["dlq", "replay", &dead[0]]).0.contains("on its way"));
    assert_eq!(world.json(&["dlq", "replay", "--all", "--endpoint", "ci"])["replayed"], 2);
    assert_eq!(world.json(&["dlq", "replay", "--all"])["replayed"], 0);
    let pending = world.json(&["delivery", "list", "--state", "pending"]);
    let order: Vec<String> =
        pending.as_array().unwrap().iter().rev().map(|found| text_of(&found["delivery_id"])).collect();
    assert_eq!(order, dead, "replays keep the order of the events");
    assert!(world.fails(&["dlq", "show", &Uuid::new_v4().to_string()]).0.contains("no dead letter"));
}

#[tokio::test]
async fn repositories() {
    let world = world().await;
    let data = std::env::temp_dir().join(format!("surehook-cli-{}", Uuid::new_v4()));
    let data_text = data.to_str().unwrap();
    let repo = |arguments: &[&'static str]| {
        let all: Vec<&str> = ["repo", "--data", data_text].into_iter().chain(arguments.iter().copied()).collect();
        world.json(&all)
    };
    assert_eq!(repo(&["list"]), serde_json::json!([]));
    let made = repo(&["create", "team/app.git"]);
    assert_eq!(
        (&made["name"], &made["state"], &made["origin"]),
        (&"team/app".into(), &"active".into(), &"hosted".into())
    );
    assert!(data.join("repositories/team/app.git/HEAD").is_file());
    assert_eq!(repo(&["list"])[0]["repository_id"], made["repository_id"]);
    assert_eq!(repo(&["show", "team/app"])["object_format"], "sha1");
    assert_eq!(repo(&["create", "--object-format", "sha256", "b"])["object_format"], "sha256");
    let fails = |arguments: &[&str]| world.fails(&[&["repo", "--data", data_text], arguments].concat());
    assert!(fails(&["create", "team/app"]).0.contains("already"));
    assert!(fails(&["create", "../x"]).0.contains("no name"));
    assert_eq!(fails(&["show", "team/ap"]).1, "Did you mean team/app?");
    assert_eq!(std::fs::read_dir(data.join("repositories/.new")).unwrap().count(), 0, "nothing is left over");

    let elsewhere = data.join("elsewhere");
    let (problem, _) = world.fails(&["repo", "delete", "team/app", "--data", elsewhere.to_str().unwrap()]);
    assert!(problem.contains("does not lie in"), "{problem}");
    assert_eq!(repo(&["delete", "team/app"])["state"], "deleted");
    assert!(!data.join("repositories/team/app.git").exists());
    assert_eq!(repo(&["create", "team/app"])["state"], "active", "the name is free again");
    assert!(world.text(&["doctor", "--data", data_text]).contains("holds 2 repositories"));
    std::fs::remove_dir_all(&data).unwrap();
    assert_eq!(world.run(&["doctor"]).status.code(), Some(1), "the storage is gone");
}

#[tokio::test]
async fn builds_of_the_receiver() {
    let world = world().await;
    assert_eq!(world.json(&["receive", "list"]), serde_json::json!([]));
    assert!(world.text(&["receive", "list", "--limit", "3"]).contains("Nothing was built"));
    assert!(world.fails(&["receive", "log", "17"]).0.contains("no build 17"));
    assert_eq!(world.run(&["receive", "--secret", "s", "list"]).status.code(), Some(2));
}

#[tokio::test]
async fn doctor_says_what_is_wrong_and_what_to_do() {
    let world = world().await;
    let report = world.json(&["doctor"]);
    assert_ne!(report["result"], "fail", "{report}");
    let app = world.repository("app").await;
    world.text(&["endpoint", "add", "ci", "--repo", "app", "--url", "https://ci.example.com/"]);
    world.text(&["endpoint", "pause", "ci"]);
    world.push(app, "app", "{}").await;
    world
        .client
        .execute("INSERT INTO alerts (kind, subject, details) VALUES ('repository_unavailable', 'app', 'app: the disk is away')", &[])
        .await
        .unwrap();
    let output = world.run(&["doctor"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for words in ["fail  pending", "warn  endpoint: ci is paused", "surehook endpoint resume ci", "the disk is away"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[tokio::test]
async fn a_reader_that_goes_away_is_no_error() {
    let world = world().await;
    let script = r#""$0" token list --json --database-url "$1" | true; exit "${PIPESTATUS[0]}""#;
    let output = Command::new("bash")
        .args(["-c", script, env!("CARGO_BIN_EXE_surehook"), world.database.url()])
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new("bash")
        .args(["-c", r#""$0" --help | true; exit "${PIPESTATUS[0]}""#, env!("CARGO_BIN_EXE_surehook")])
        .output()
        .unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
