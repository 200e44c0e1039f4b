//! The command line as people and programs use it: the real binary against a real PostgreSQL.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test starts the program and makes rows by SQL")]

mod backfills;
mod endpoints;
mod records;
mod world;

use std::process::Command;

use serde_json::Value;
use uuid::Uuid;

use world::*;

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
        "endpoint backfill",
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
        "job",
        "job list",
        "job show",
        "job cancel",
        "job resume",
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
        &["endpoint", "add", "ci", "--alerts", "--url", "https://x.example", "--backfill", "7d"],
        &["endpoint", "backfill", "ci"],
        &["endpoint", "backfill", "ci", "--since", "lately"],
        &["endpoint", "backfill", "ci", "--since", "7d", "--rate", "0"],
        &["endpoint", "backfill", "ci", "--since", "7d", "--dry-run", "--detach"],
        &["delivery", "show", "not-an-id"],
        &["delivery", "list", "--state", "lost"],
        &["delivery", "list", "--commit", "xyz"],
        &["event", "list", "--since", "yesterday"],
        &["event", "list", "--limit", "0"],
        &["dlq", "replay"],
        &["dlq", "replay", "--all", "--rate", "0"],
        &["dlq", "replay", "--all", "--dry-run", "--detach"],
        &["job", "show"],
        &["job", "list", "--state", "asleep"],
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
async fn doctor_names_who_holds_old_weeks() {
    let world = world().await;
    assert!(world.text(&["doctor"]).contains("ok    retention: 0 old weeks are held"));
    world.text(&["endpoint", "add", "ci", "--url", "https://ci.example.com/", "--repo", "*"]);
    let pins = "INSERT INTO outbox_retention_pins (starts_at, ends_at, why, endpoint_id, found)
                SELECT '2026-01-05 00:00Z', '2026-01-12 00:00Z', why, endpoint_id, 2 FROM endpoints, unnest(ARRAY['undelivered', 'dead_letter']) AS why";
    world.client.batch_execute(pins).await.unwrap();
    world.client.batch_execute("UPDATE outbox_retention SET published_days = 9").await.unwrap();
    let text = world.text(&["doctor"]);
    for words in [
        "ok    retention: 1 old week is held, kept for 9 days",
        "warn  retention: the week from 2026-01-05 stays: 2 dead letters of ci",
        "surehook dlq replay --endpoint ci",
        "2 lanes are not empty for ci",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // A week that nobody holds and that is still there.
    let week =
        "CREATE TABLE old PARTITION OF outbox_bodies FOR VALUES FROM ('2025-12-29 00:00Z') TO ('2026-01-05 00:00Z')";
    world.client.batch_execute(week).await.unwrap();
    assert!(world.text(&["doctor"]).contains("warn  retention: rows that should be gone are late by"));
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
