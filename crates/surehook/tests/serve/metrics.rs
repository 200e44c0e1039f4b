//! What a scrape says, held against what people watch it with: `promtool`, the alert rules and the dashboard in deploy/.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use super::world::World;

const RULES: &str = include_str!("../../../../deploy/prometheus-rules.yml");
const DASHBOARD: &str = include_str!("../../../../deploy/grafana-dashboard.json");

/// The metrics of ours that a text names.
fn named(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with("outbox_") || word.starts_with("surehook_")).collect()
}

#[tokio::test]
async fn what_is_watched_is_there() {
    let world = World::new().await;
    let server = world.serve();
    let (status, text) = server.get("/metrics").await;
    assert_eq!(status, 200);
    let shown = named(&text);
    for (what, watched) in [("rules", named(RULES)), ("dashboard", named(DASHBOARD))] {
        assert!(watched.len() >= 5, "{what}: {watched:?}");
        let missing: Vec<&&str> = watched.difference(&shown).collect();
        assert!(missing.is_empty(), "the {what} watch what no scrape has: {missing:?}");
    }
    serde_json::from_str::<serde_json::Value>(DASHBOARD).unwrap();
    // No sample twice.
    let samples: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .map(|x| x.0)
        .collect();
    assert_eq!(samples.iter().collect::<BTreeSet<_>>().len(), samples.len());
}

#[tokio::test]
async fn promtool_has_one_objection_which_is_known() {
    if Command::new("promtool").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("promtool is not installed (Debian: prometheus): not checked");
        return;
    }
    let world = World::new().await;
    let server = world.serve();
    let (_, text) = server.get("/metrics").await;
    let mut promtool = Command::new("promtool");
    let mut child = promtool
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let objections = String::from_utf8(output.stderr).unwrap();
    // The one name that is fixed from outside ends like a histogram's count.
    for line in objections.lines() {
        assert!(line.starts_with("outbox_pending_count "), "{objections}");
    }
}

#[test]
fn the_alert_rules_pass_their_tests() {
    if Command::new("promtool").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("promtool is not installed (Debian: prometheus): not checked");
        return;
    }
    let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
    for arguments in [["check", "rules", "prometheus-rules.yml"], ["test", "rules", "prometheus-rules-test.yml"]] {
        let output = Command::new("promtool").args(arguments).current_dir(deploy).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
}
