//! The configuration file: one struct per concern, every key optional, an unknown key is an error. The defaults printed
//! by [`reference()`] are the reference.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use surehook_outbox::Pooler;
use surehook_outbox::retention::RetentionSettings;

pub use super::watchdog::WatchdogConfig;
use crate::store::alerts::AlertKind;

/// Settings beyond those that have an option on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The delivery workers.
    pub worker: WorkerConfig,
    /// Git over HTTP.
    pub git: GitConfig,
    /// The database.
    pub database: DatabaseConfig,
    /// The look for changes that no push told of.
    pub scan: ScanConfig,
    /// The upkeep of hosted repositories.
    pub upkeep: UpkeepConfig,
    /// How long what has ended is kept.
    pub retention: RetentionConfig,
    /// When something is an alert.
    pub alerts: AlertsConfig,
    /// Who is told past the outbox.
    pub watchdog: WatchdogConfig,
    /// How a stop goes.
    pub stop: StopConfig,
}

/// The delivery workers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerConfig {
    /// Workers in this process.
    pub count: u16,
    /// How long a worker waits at most before it looks for work, in milliseconds.
    pub poll_ms: u64,
    /// Whether workers of other processes are told of new work, and theirs heard: it is found sooner. Without it they poll.
    pub notify: bool,
    /// Lanes claimed at once from one endpoint.
    pub lanes_per_claim: usize,
    /// Deliveries taken at once from a lane.
    pub deliveries_per_read: usize,
    /// Lanes in hand at once, over all endpoints.
    pub lanes_in_flight_max: usize,
    /// Requests at once with which the window of an endpoint begins.
    pub window_start: usize,
    /// A worker one of whose loops takes longer than this for a turn is replaced, in seconds.
    pub still_after_s: u64,
}

/// Git over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct GitConfig {
    /// git processes for clones and fetches at once.
    pub fetches_max: usize,
    /// git processes for pushes at once.
    pub pushes_max: usize,
    /// Largest packfile of one push, in bytes.
    pub pack_bytes_max: u64,
    /// How long a push's success is held back for its events, in seconds.
    pub hold_max_s: u64,
}

/// The database.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DatabaseConfig {
    /// Sessions of this process with PostgreSQL at most.
    pub sessions_max: usize,
    /// What stands between this process and the PostgreSQL of `--database-url`.
    pub pooler: PoolerKind,
}

/// What stands between this process and PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum PoolerKind {
    /// Nothing, or a pooler in session mode
    None,
    /// A pooler in transaction mode: no statement is prepared, nothing is listened for
    Transaction,
}

impl From<PoolerKind> for Pooler {
    fn from(kind: PoolerKind) -> Self {
        match kind {
            PoolerKind::None => Self::None,
            PoolerKind::Transaction => Self::Transaction,
        }
    }
}

/// The look for changes that no push told of.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScanConfig {
    /// How often every repository is looked at, in seconds.
    pub every_s: u64,
}

/// The upkeep of hosted repositories.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpkeepConfig {
    /// How often each repository is looked at, in seconds.
    pub every_s: u64,
    /// More loose refs than this are packed.
    pub loose_refs_max: usize,
    /// More packs than this are joined.
    pub packs_max: usize,
    /// More loose objects than this are packed.
    pub loose_objects_max: usize,
    /// How often a repository that has changed is gone through as a whole, in days.
    pub whole_every_days: u16,
    /// How long objects are kept that nothing reaches, in days.
    pub unreachable_days: u16,
    /// How long lines of reflogs are kept that are told, in days.
    pub log_days: u16,
}

/// How long what has ended is kept.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionConfig {
    /// Events and deliveries that ended longer ago than this go, week by week, in days.
    pub published_days: u16,
    /// The answers of receivers go earlier, in days.
    pub attempt_bodies_days: u16,
    /// How often is looked for what can go, in seconds.
    pub every_s: u64,
}

/// When something is an alert.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlertsConfig {
    /// How often the outbox is looked at, in seconds.
    pub every_s: u64,
    /// How long a delivery may wait before that is an alert, in seconds.
    pub oldest_pending_s: u32,
    /// How long a loop of a worker may stand still, or a worker be lost, before that is an alert, in seconds.
    pub worker_stuck_s: u32,
    /// How long nothing more of a drift must be seen until it counts as over, in seconds.
    pub drift_quiet_s: u32,
    /// Kinds of alerts that are recorded and told to nobody.
    pub mute: Vec<String>,
    /// Where the runbook is read, a URL; alerts link to its sections. Empty: they name the section of the manual.
    pub runbook_url: String,
}

/// How a stop goes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct StopConfig {
    /// How long requests and pushes under way may go on, in seconds.
    pub grace_s: u64,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            count: 1,
            poll_ms: 1000,
            lanes_per_claim: 16,
            deliveries_per_read: 20,
            lanes_in_flight_max: 2048,
            window_start: 8,
            still_after_s: 60,
            notify: true,
        }
    }
}

impl Default for GitConfig {
    fn default() -> Self {
        Self { fetches_max: 32, pushes_max: 32, pack_bytes_max: 10 * 1024 * 1024 * 1024, hold_max_s: 20 }
    }
}

impl Default for DatabaseConfig {
    fn default() -> Self {
        Self { sessions_max: 16, pooler: PoolerKind::None }
    }
}

impl Default for ScanConfig {
    fn default() -> Self {
        Self { every_s: 60 }
    }
}

impl Default for UpkeepConfig {
    fn default() -> Self {
        Self {
            every_s: 60,
            loose_refs_max: 1000,
            packs_max: 50,
            loose_objects_max: 6700,
            whole_every_days: 7,
            unreachable_days: 14,
            log_days: 30,
        }
    }
}

impl Default for RetentionConfig {
    fn default() -> Self {
        let RetentionSettings { published_days, attempt_bodies_days, every } = RetentionSettings::default();
        Self { published_days, attempt_bodies_days, every_s: every.as_secs() }
    }
}

impl Default for AlertsConfig {
    fn default() -> Self {
        Self {
            every_s: 5,
            oldest_pending_s: 900,
            worker_stuck_s: 60,
            drift_quiet_s: 3600,
            mute: Vec::new(),
            runbook_url: String::new(),
        }
    }
}

impl Default for StopConfig {
    fn default() -> Self {
        Self { grace_s: 20 }
    }
}

impl Config {
    /// How long what has ended is kept.
    pub fn retention(&self) -> RetentionSettings {
        let RetentionConfig { published_days, attempt_bodies_days, every_s } = self.retention;
        RetentionSettings { published_days, attempt_bodies_days, every: Duration::from_secs(every_s) }
    }

    /// The grace time of a stop.
    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.stop.grace_s)
    }
}

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("the configuration file {path} cannot be read: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It says something that is not understood.
    #[error("the configuration file {path} is wrong: {message}")]
    Wrong {
        /// Which file.
        path: PathBuf,
        /// Where and what.
        message: String,
    },
}

/// Reads a configuration file; without one, the defaults.
pub fn read(path: Option<&Path>) -> Result<Config, ConfigError> {
    let Some(path) = path else { return Ok(Config::default()) };
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let wrong = |message: String| ConfigError::Wrong { path: path.to_owned(), message };
    let config: Config = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    check(&config).map_err(|message| wrong(message.to_owned()))?;
    Ok(config)
}

fn check(config: &Config) -> Result<(), &'static str> {
    let worker = &config.worker;
    let least = [
        (worker.count as usize, "worker.count must be at least 1"),
        (worker.lanes_per_claim, "worker.lanes_per_claim must be at least 1"),
        (worker.deliveries_per_read, "worker.deliveries_per_read must be at least 1"),
        (worker.lanes_in_flight_max, "worker.lanes_in_flight_max must be at least 1"),
        (worker.window_start, "worker.window_start must be at least 1"),
        (config.git.fetches_max, "git.fetches_max must be at least 1"),
        (config.git.pushes_max, "git.pushes_max must be at least 1"),
    ];
    if let Some((_, message)) = least.iter().find(|(value, _)| *value == 0) {
        return Err(message);
    }
    if worker.poll_ms < 10 {
        return Err("worker.poll_ms must be at least 10");
    }
    if worker.still_after_s == 0 {
        return Err("worker.still_after_s must be at least 1");
    }
    if config.scan.every_s == 0 {
        return Err("scan.every_s must be at least 1");
    }
    if config.upkeep.every_s == 0 {
        return Err("upkeep.every_s must be at least 1");
    }
    if config.retention.published_days == 0 || config.retention.attempt_bodies_days == 0 {
        return Err("retention.published_days and retention.attempt_bodies_days must be at least 1");
    }
    if config.retention.every_s == 0 {
        return Err("retention.every_s must be at least 1");
    }
    if config.alerts.mute.iter().any(|kind| AlertKind::parse(kind).is_none()) {
        return Err("alerts.mute names a kind that there is not; they stand in docs/operating.md");
    }
    if !config.alerts.runbook_url.is_empty() && !config.alerts.runbook_url.starts_with("http") {
        return Err("alerts.runbook_url must be a URL");
    }
    if config.database.sessions_max < 4 {
        return Err(
            "database.sessions_max must be at least 4: claiming, recording, the heartbeat and a push each need one",
        );
    }
    Ok(())
}

/// The default configuration as a file.
pub fn reference() -> String {
    toml::to_string(&Config::default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_the_default_and_unknown_keys_are_errors() {
        let parsed: Config = toml::from_str(&reference()).unwrap();
        assert_eq!(parsed, Config::default());
        check(&parsed).unwrap();
        for text in ["[worker]\nworkers = 3", "[other]\n", "worker = 3"] {
            assert!(toml::from_str::<Config>(text).is_err(), "{text}");
        }
        for text in [
            "[worker]\ncount = 0",
            "[retention]\npublished_days = 0",
            "[scan]\nevery_s = 0",
            "[database]\nsessions_max = 1",
            "[worker]\npoll_ms = 1",
            "[alerts]\nmute = [\"dead\"]",
            "[alerts]\nrunbook_url = \"x\"",
        ] {
            assert!(check(&toml::from_str(text).unwrap()).is_err(), "{text}");
        }
    }
}
