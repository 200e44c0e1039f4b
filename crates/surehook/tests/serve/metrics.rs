//! What a scrape says, held against what people watch it with: `promtool`, the alert rules and the dashboard in deploy/.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use surehook::store::alerts::KINDS;
use surehook_testkit::eventually;
use surehook_testkit::receiver::Receiver;

use super::world::{SOON, World};

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

const DOCUMENT: &str = include_str!("../../../../docs/metrics.md");

/// A row of the tables in docs/metrics.md.
#[derive(Debug)]
struct Documented {
    name: String,
    kind: String,
    labels: BTreeSet<String>,
    values: BTreeSet<String>,
    alerts: String,
}

fn documented() -> Vec<Documented> {
    let ticked = |text: &str| -> Vec<String> { text.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let rows = DOCUMENT.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, kind, _unit, labels, _meaning, alerts] = cells[..] else { panic!("six columns: {row}") };
        let (mut names, mut values) = (BTreeSet::new(), BTreeSet::new());
        for label in labels.split("; ") {
            let mut ticked = ticked(label).into_iter();
            names.extend(ticked.next());
            values.extend(ticked);
        }
        let name = name.trim_matches('`').to_owned();
        Documented { name, kind: kind.to_owned(), labels: names, values, alerts: alerts.to_owned() }
    })
    .collect()
}

/// A sample of a scrape: name of the series, labels, value.
type Sample = (String, Vec<(String, String)>, f64);

fn samples(text: &str) -> Vec<Sample> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let pairs = labels.trim_end_matches('}').split(',').filter(|pair| !pair.is_empty());
            let pair = |pair: &str| {
                let (name, value) = pair.split_once('=').unwrap();
                (name.to_owned(), value.trim_matches('"').to_owned())
            };
            (name.to_owned(), pairs.map(pair).collect(), value.parse().unwrap())
        })
        .collect()
}

/// The value of a metric without labels.
fn value(text: &str, name: &str) -> f64 {
    samples(text)
        .into_iter()
        .find(|sample| sample.0 == name && sample.1.is_empty())
        .unwrap_or_else(|| panic!("{name}"))
        .2
}

#[tokio::test]
async fn the_document_says_what_a_scrape_shows() {
    let world = World::new().await;
    let server = world.serve();
    let url = world.repository(&server, "app");
    let ci = Receiver::accepting().await;
    world.endpoint("ci", "app", &ci.url("/"), &[]);
    let work = world.checkout(&url).await;
    work.commit("file", "1").await;
    work.ok(["push", "--quiet", "origin", "HEAD:main"]).await;
    world.drained().await;
    let (_, text) = server.get("/metrics").await;
    let documented = documented();
    let shown: BTreeSet<(String, String)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect();
    // One has a series only where a week is held, which takes a month.
    let always = documented.iter().filter(|row| row.name != "surehook_retention_held_weeks");
    let written: BTreeSet<_> = always.map(|row| (row.name.clone(), row.kind.clone())).collect();
    assert_eq!(written, shown, "docs/metrics.md against /metrics");
    let kinds: BTreeSet<String> = KINDS.iter().map(|(_, name)| (*name).to_owned()).collect();
    for (series, labels, _) in samples(&text) {
        let family = |row: &&Documented| {
            let rest = series.strip_prefix(&row.name);
            rest == Some("") || (row.kind == "histogram" && rest.is_some_and(|rest| rest.starts_with('_')))
        };
        let row = documented.iter().find(family).unwrap_or_else(|| panic!("{series}"));
        let names: BTreeSet<String> = labels.iter().map(|(name, _)| name.clone()).filter(|name| name != "le").collect();
        assert_eq!(names, row.labels, "{series}");
        // Values come from lists that are written down, save for the version and the kinds of alerts, which have a list elsewhere.
        for (name, value) in labels.iter().filter(|(name, _)| !["le", "version", "endpoint"].contains(&name.as_str())) {
            let is_known = row.values.contains(value) || (name == "kind" && kinds.contains(value));
            assert!(is_known, "{series}: {name}={value}");
        }
    }
    // The alerts that the document names are those of the rules, and those that surehook sends.
    let rules: BTreeSet<&str> = RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let words = |text: &str| -> BTreeSet<String> { text.split([',', ' ', '`']).map(str::to_owned).collect() };
    let named: BTreeSet<String> = documented.iter().flat_map(|row| words(&row.alerts)).collect();
    for alert in named.iter().filter(|word| word.chars().next().is_some_and(char::is_alphabetic)) {
        assert!(rules.contains(alert.as_str()) || kinds.contains(alert), "no such alert: {alert}");
    }
    for rule in rules.iter().filter(|rule| **rule != "SurehookDown") {
        assert!(named.contains(*rule), "docs/metrics.md does not say which metric {rule} uses");
    }
    // Where a rule sends people must exist.
    let manual = include_str!("../../../../docs/operating.md");
    let anchors: BTreeSet<String> = manual
        .lines()
        .filter(|line| line.starts_with("##"))
        .map(|line| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-"))
        .collect();
    for line in RULES.lines().filter_map(|line| line.trim().strip_prefix("runbook: \"docs/operating.md#")) {
        let anchor = line.trim_end_matches('"');
        assert!(anchor.contains("{{") || anchors.contains(anchor), "docs/operating.md has no section {anchor}");
    }
}

#[tokio::test]
async fn without_workers_the_age_of_due_work_climbs_and_a_drain_brings_it_back_to_zero() {
    let world = World::new().await;
    let server = world.serve();
    world.until("a worker", "SELECT count(*) FROM outbox_workers WHERE heartbeat >= 2").await;
    // Another one is killed; that of the server is kept from its heartbeat, and so from working, by a lock.
    let killed = world.start_with(&world.database_url, &["worker", "--listen", "127.0.0.1:0"]);
    world.until("two workers", "SELECT (count(*) = 2)::integer::bigint FROM outbox_workers WHERE heartbeat >= 2").await;
    killed.signal("KILL");
    let mut lock = world.database.client().await;
    let holder = lock.transaction().await.unwrap();
    holder.execute("SELECT FROM outbox_workers FOR UPDATE", &[]).await.unwrap();
    let scrape = async || {
        let (status, text) = server.get("/metrics").await;
        assert_eq!(status, 200, "{text}");
        text
    };
    let nobody = eventually(SOON, async || {
        let text = scrape().await;
        (value(&text, "surehook_workers_alive") == 0.0).then_some(text)
    })
    .await;
    assert_eq!(value(&nobody, "surehook_outbox_oldest_due_age_seconds"), 0.0, "nothing is due");
    let ci = Receiver::accepting().await;
    world.endpoint("ci", "*", &ci.url("/"), &[]);
    world
        .sql
        .batch_execute(
            "SELECT outbox_enqueue('Happened', 'key-' || n, convert_to('{}', 'UTF8')) FROM generate_series(1, 3) AS n",
        )
        .await
        .unwrap();
    let first = value(&scrape().await, "surehook_outbox_oldest_due_age_seconds");
    let text = eventually(SOON, async || {
        let text = scrape().await;
        (value(&text, "surehook_outbox_oldest_due_age_seconds") >= first + 2.0).then_some(text)
    })
    .await;
    assert_eq!(value(&text, "surehook_outbox_lanes_due"), 3.0);
    assert_eq!(value(&text, "outbox_pending_count"), 3.0);
    assert!(value(&text, "surehook_outbox_oldest_pending_age_seconds") >= 2.0);
    holder.rollback().await.unwrap();
    world.drained().await;
    let text = scrape().await;
    for name in [
        "outbox_pending_count",
        "surehook_outbox_pending",
        "surehook_outbox_lanes_due",
        "surehook_outbox_lanes_with_work",
        "surehook_outbox_oldest_due_age_seconds",
        "surehook_outbox_oldest_pending_age_seconds",
    ] {
        assert_eq!(value(&text, name), 0.0, "{name}");
    }
}

#[tokio::test]
async fn an_old_transaction_and_what_it_keeps_from_being_cleaned_up_are_shown() {
    let world = World::new().await;
    let server = world.serve();
    let mut client = world.database.client().await;
    let old = client.build_transaction().isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
    let old = old.start().await.unwrap();
    old.query("SELECT count(*) FROM outbox_lanes", &[]).await.unwrap();
    let ci = Receiver::accepting().await;
    world.endpoint("ci", "*", &ci.url("/"), &[]);
    for _ in 0..50 {
        world.sql.batch_execute("SELECT outbox_enqueue('Happened', 'key', convert_to('{}', 'UTF8'))").await.unwrap();
    }
    world.drained().await;
    let dead = |text: &str| {
        let is_lanes = |labels: &[(String, String)]| labels.iter().any(|(_, table)| table == "outbox_lanes");
        let all = samples(text);
        all.into_iter().find(|(name, labels, _)| name == "surehook_database_dead_rows" && is_lanes(labels)).unwrap().2
    };
    let text = eventually(SOON, async || {
        let (_, text) = server.get("/metrics").await;
        (dead(&text) >= 50.0 && value(&text, "surehook_database_oldest_transaction_seconds") >= 2.0).then_some(text)
    })
    .await;
    assert!(value(&text, "surehook_database_oldest_transaction_seconds") < 60.0);
    // Autovacuum works while it is open, and in vain.
    world.sql.batch_execute("VACUUM outbox_lanes").await.unwrap();
    let still: i64 = world.count("SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'outbox_lanes'").await;
    assert!(still >= 50, "{still}");
    old.rollback().await.unwrap();
    world.sql.batch_execute("VACUUM outbox_lanes").await.unwrap();
    eventually(SOON, async || {
        let (_, text) = server.get("/metrics").await;
        (dead(&text) == 0.0 && value(&text, "surehook_database_oldest_transaction_seconds") < 2.0).then_some(())
    })
    .await;
}
