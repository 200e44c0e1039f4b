//! `surehook doctor`: looks at what surehook stands on and at its own state; each finding says what to do.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use surehook_outbox::Database;
use surehook_outbox::store::retention::pins::{Pin, Why};
use surehook_outbox::store::retention::{self, Standing};

use super::connect::connect;
use super::failure::chain;
use super::imported;
use super::locks::stale_locks;
use super::output::{Out, count, span_words};
use super::{CliError, Globals};
use crate::alerting::runbook;
use crate::capture::storage::STORAGE_ID_FILE;
use crate::git::command::{Git, GitSettings};
use crate::store::alerts::{self, AlertKind};
use crate::store::lookup::{self, Health, Storage};
use crate::store::repositories::{self, Origin};

/// So many holders of old weeks are named.
const PINS_MAX: i64 = 20;
/// Rows that are late by more than this are worth a word: two days.
const LAG_MAX_S: f64 = 172_800.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Serialize)]
struct Finding {
    /// What was looked at.
    check: &'static str,
    result: Level,
    /// What was found.
    found: String,
    /// What to do.
    advice: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, result: Level::Ok, found: found.into(), advice: None }
    }

    fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, result: Level::Warn, found: found.into(), advice: Some(advice.into()) }
    }

    fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, result: Level::Fail, found: found.into(), advice: Some(advice.into()) }
    }
}

#[derive(Serialize)]
struct Report {
    result: Level,
    findings: Vec<Finding>,
}

/// Exit code 1 if something fails; warnings alone leave it at 0.
pub(super) async fn run(globals: &Globals, out: Out) -> Result<ExitCode, CliError> {
    let mut findings = vec![look_for_git().await];
    match connect(globals).await {
        Ok(connected) => {
            findings.push(Finding::ok("database", "reachable, and its schema is up to date"));
            match look(&connected.database).await {
                Ok(more) => findings.extend(more),
                Err(error) => findings.push(Finding::fail("database", error.problem, error.advice)),
            }
            connected.close().await;
        }
        Err(error) => findings.push(Finding::fail("database", error.problem, error.advice)),
    }
    let worst = |level| findings.iter().any(|finding| finding.result == level);
    let result = if worst(Level::Fail) {
        Level::Fail
    } else if worst(Level::Warn) {
        Level::Warn
    } else {
        Level::Ok
    };
    let report = Report { result, findings };
    out.one(&report, || report.findings.iter().map(line).collect::<Vec<_>>().join("\n"))?;
    Ok(if result == Level::Fail { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn line(finding: &Finding) -> String {
    let level = match finding.result {
        Level::Ok => "ok  ",
        Level::Warn => "warn",
        Level::Fail => "fail",
    };
    let advice = finding.advice.as_ref().map_or_else(String::new, |advice| format!("\n      → {advice}"));
    format!("{level}  {}: {}{advice}", finding.check, finding.found)
}

async fn look(database: &Database) -> Result<Vec<Finding>, CliError> {
    let health = lookup::health(database).await?;
    let mut findings = judge(&health);
    findings.extend(look_at_retention(database).await?);
    for alert in alerts::list_open(database).await? {
        let (check, advice) = alert_words(&alert);
        let since = span_words((health.now.as_second() - alert.opened_at.as_second()).max(0).unsigned_abs());
        let found = format!("{} (for {since})", alert.details);
        // What is told already is no failure.
        let is_past = alert.kind == AlertKind::Drift.as_str();
        findings.push(if is_past { Finding::warn(check, found, advice) } else { Finding::fail(check, found, advice) });
    }
    for repository in lookup::unfinished_repositories(database).await? {
        findings.push(Finding::warn(
            "repository",
            format!("{} is {} for more than 10 minutes", repository.name, repository.state),
            format!(
                "The serve of its storage finishes this when it starts. If it was imported: surehook repo detach {}",
                repository.name
            ),
        ));
    }
    for storage in lookup::storages(database).await? {
        findings.extend(look_at_storage(database, &storage).await?);
    }
    Ok(findings)
}

/// Whether old weeks go, and who holds those that stay.
async fn look_at_retention(database: &Database) -> Result<Vec<Finding>, CliError> {
    let session = database.session().await?;
    let standing = retention::standing(&session).await?;
    let pinned = retention::pinned(&session, PINS_MAX).await?;
    let mut findings = vec![judge_retention(&standing)];
    for (pin, endpoint) in &pinned {
        let (found, advice) = pin_words(pin, endpoint);
        findings.push(Finding::warn("retention", found, advice));
    }
    Ok(findings)
}

/// Pure: whether what is old goes.
fn judge_retention(standing: &Standing) -> Finding {
    let kept = standing.published_days.map_or_else(String::new, |days| format!(", kept for {days} days"));
    if let Some(error) = &standing.error {
        return Finding::warn(
            "retention",
            format!("the last turn failed: {error}"),
            "A running serve or worker tries it again; if this stays, see its log.",
        );
    }
    if standing.lag_s > LAG_MAX_S {
        let late = span_words(std::time::Duration::from_secs_f64(standing.lag_s).as_secs());
        return Finding::warn(
            "retention",
            format!("rows that should be gone are late by {late}"),
            "Is a serve or worker running? A transaction that stays open on these tables (a dump, a report) holds the removal up.",
        );
    }
    Finding::ok("retention", format!("{} held{kept}", count(standing.weeks_pinned, "old week is", "old weeks are")))
}

/// Pure: who holds which week, and what to do.
fn pin_words(pin: &Pin, endpoint: &str) -> (String, String) {
    let day = |at: jiff::Timestamp| at.to_zoned(jiff::tz::TimeZone::UTC).date().to_string();
    let (week, found) = (day(pin.week.starts_at), pin.found);
    match pin.why {
        Why::Undelivered => (
            format!("the week from {week} stays: {} not empty for {endpoint}", count(found, "lane is", "lanes are")),
            format!(
                "See which: surehook delivery list --state pending. If it is gone for good: surehook endpoint remove {endpoint}"
            ),
        ),
        Why::DeadLetter => (
            format!("the week from {week} stays: {} of {endpoint}", count(found, "dead letter", "dead letters")),
            format!(
                "See them: surehook dlq list --endpoint {endpoint}. Send them again: surehook dlq replay --endpoint {endpoint}"
            ),
        ),
        Why::EndedLately => (
            format!("the week from {week} stays: something of it for {endpoint} has ended only lately"),
            "Nothing to do: it goes when that is old enough too.".into(),
        ),
        Why::OlderWeek => (
            format!(
                "the attempts of the week from {week} stay: they tell how deliveries to {endpoint} of an older week ended"
            ),
            "They go with that week.".into(),
        ),
        Why::Backfill => (
            format!("the week from {week} stays: {endpoint} is being told of it"),
            "It goes when that has ended: surehook job list --state running".into(),
        ),
    }
}

async fn look_for_git() -> Finding {
    match Git::new(GitSettings::default()).version().await {
        Ok(version) => Finding::ok("git", version),
        Err(error) => Finding::fail("git", chain(&error), "Install git (on Debian and Ubuntu: apt-get install git)."),
    }
}

/// A storage of another machine is only named; of one of this machine, the locks that a killed git left are named too.
async fn look_at_storage(database: &Database, storage: &Storage) -> Result<Vec<Finding>, CliError> {
    let root = Path::new(OsStr::from_bytes(&storage.root));
    let holds = count(storage.repositories, "repository", "repositories");
    let place = format!("{} on {}", root.display(), storage.node);
    let here = storage.node == crate::config::node_name();
    if !here {
        return Ok(vec![Finding::ok("storage", format!("{place} holds {holds}; not looked at from this machine"))]);
    }
    let id = std::fs::read_to_string(root.join(STORAGE_ID_FILE)).ok().and_then(|text| text.trim().parse().ok());
    if id != Some(storage.storage_id) {
        return Ok(vec![Finding::fail(
            "storage",
            format!("{place} holds {holds}, but the folder is not there or is another one"),
            "Is its volume mounted? Nothing in it is served or announced until then.",
        )]);
    }
    let mut findings = vec![Finding::ok("storage", format!("{place} holds {holds}"))];
    for repository in repositories::list_of_storage(database, storage.storage_id).await? {
        let git_dir = repository.git_dir(root);
        let advice = match repository.origin {
            Origin::Hosted => {
                "A killed git may have left it. A running serve removes those of hosted repositories; else remove it \
                 when no git works there."
            }
            Origin::Imported => {
                "A killed git may have left it. surehook removes nothing in a repository that it has not made: remove it \
                 when no git works there."
            }
        };
        for lock in stale_locks(&git_dir) {
            let found = format!("{} is older than a minute and blocks its ref in {}", lock.display(), repository.name);
            findings.push(Finding::warn("lock", found, advice));
        }
        if repository.origin == Origin::Imported && repository.state.is_followed() {
            let troubles = imported::troubles(&git_dir, repository.repository_id).await;
            let warn = |trouble: imported::Trouble| {
                Finding::warn("imported", format!("{}: {}", repository.name, trouble.found), trouble.advice)
            };
            findings.extend(troubles.into_iter().map(warn));
        }
    }
    Ok(findings)
}

/// Pure: what an alert is about, and what to do.
fn alert_words(alert: &alerts::Alert) -> (&'static str, String) {
    let Some(kind) = AlertKind::parse(&alert.kind) else { return ("alert", "See: surehook alert list".into()) };
    let check = match kind {
        AlertKind::StorageUnavailable => "storage",
        AlertKind::RepositoryUnavailable => "repository unavailable",
        AlertKind::RepositoryHeld => "repository held",
        AlertKind::RefsUnreadable | AlertKind::RefsSetAside => "refs",
        _ => kind.as_str(),
    };
    let mut lines = runbook::advice(kind, &alert.name);
    lines.push(format!("More: {}", runbook::link("", kind)));
    (check, lines.join("\n        "))
}

/// Pure: what the numbers mean.
fn judge(health: &Health) -> Vec<Finding> {
    let schema = health.schema_version.as_deref().unwrap_or("none");
    let mut findings = vec![Finding::ok("PostgreSQL", format!("version {}, schema {schema}", health.server_version))];
    let waiting_s = health.oldest_pending_at.map_or(0, |at| (health.now.as_second() - at.as_second()).max(0));
    let waiting = span_words(waiting_s.unsigned_abs());
    let pending = count(health.pending, "delivery", "deliveries");
    findings.push(match (health.pending, health.workers) {
        (0, _) => Finding::ok("pending", "nothing waits"),
        (_, 0) => Finding::fail(
            "pending",
            format!("{pending} wait, the oldest for {waiting}, and no worker is running"),
            "Start one: surehook serve, or surehook worker.",
        ),
        _ if waiting_s > 600 => Finding::warn(
            "pending",
            format!("{pending} wait, the oldest for {waiting}"),
            "See which: surehook delivery list --state pending",
        ),
        _ => Finding::ok("pending", format!("{pending} under way, the oldest for {waiting}")),
    });
    if health.pending == 0 && health.workers == 0 {
        findings.push(Finding::warn("workers", "none is running", "Start one: surehook serve, or surehook worker."));
    } else if health.workers > 0 {
        findings.push(Finding::ok("workers", format!("{} alive", health.workers)));
    }
    for name in &health.endpoints_paused {
        let advice = format!("Why: surehook endpoint show {name}. Then: surehook endpoint resume {name}");
        findings.push(Finding::warn("endpoint", format!("{name} is paused"), advice));
    }
    if health.lanes_blocked > 0 {
        findings.push(Finding::warn(
            "lanes",
            format!("{} stopped at a dead letter", count(health.lanes_blocked, "lane has", "lanes have")),
            "See which: surehook delivery list --state failed. Then retry, replay or skip.",
        ));
    }
    findings.push(match health.dead_letters {
        0 => Finding::ok("dead letters", "none"),
        many => Finding::warn(
            "dead letters",
            count(many, "waits for an operator", "wait for an operator"),
            "See them: surehook dlq list. Send them again: surehook dlq replay",
        ),
    });
    findings.push(match health.weeks_ahead {
        0 => Finding::fail(
            "partitions",
            "none ahead: nothing can be recorded after this week",
            "Start surehook serve or worker, or run: SELECT outbox_ensure_partitions()",
        ),
        weeks @ 1..3 => Finding::warn(
            "partitions",
            format!("{weeks} weeks ahead"),
            "A running serve or worker makes more; is one running?",
        ),
        weeks => Finding::ok("partitions", format!("{weeks} weeks ahead")),
    });
    if health.oldest_transaction_s > 300.0 {
        findings.push(Finding::warn(
            "transactions",
            format!("somebody's has been open for {:.0} s", health.oldest_transaction_s),
            "It keeps PostgreSQL from cleaning up. Find it in pg_stat_activity, by xact_start.",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_judged() {
        let now = jiff::Timestamp::from_second(1_800_000_000).unwrap();
        let healthy = Health {
            server_version: "15.8".into(),
            schema_version: Some("1".into()),
            endpoints_paused: Vec::new(),
            dead_letters: 0,
            pending: 0,
            oldest_pending_at: None,
            lanes_blocked: 0,
            weeks_ahead: 8,
            workers: 1,
            oldest_transaction_s: 0.0,
            now,
        };
        let level = |health: &Health, check| {
            judge(health)
                .into_iter()
                .filter(|finding| finding.check == check)
                .map(|finding| finding.result)
                .collect::<Vec<_>>()
        };
        assert!(judge(&healthy).iter().all(|finding| finding.result == Level::Ok));
        let old = now.checked_sub(jiff::SignedDuration::from_secs(3_600)).ok();
        let stuck = Health { pending: 3, oldest_pending_at: old, ..healthy.clone() };
        assert_eq!(level(&stuck, "pending"), [Level::Warn]);
        assert_eq!(level(&Health { workers: 0, ..stuck }, "pending"), [Level::Fail]);
        assert_eq!(level(&Health { dead_letters: 2, ..healthy.clone() }, "dead letters"), [Level::Warn]);
        assert_eq!(level(&Health { weeks_ahead: 0, ..healthy.clone() }, "partitions"), [Level::Fail]);
        assert_eq!(level(&Health { endpoints_paused: vec!["ci".into()], ..healthy }, "endpoint"), [Level::Warn]);
    }
}
