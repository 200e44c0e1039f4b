//! The section `watchdog` of the configuration file.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use surehook_outbox::send::PAGERDUTY;
use surehook_outbox::send::direct::Direct;
use surehook_webhook::Secret;

/// PagerDuty's own address.
const PAGERDUTY_URL: &str = "https://events.pagerduty.com/v2/enqueue";
/// PagerDuty's routing keys have this length.
const ROUTING_KEY_CHARS: usize = 32;
/// One attempt to tell must not take longer.
const SEND_WITHIN: Duration = Duration::from_secs(5);

/// Whom the watchdog tells, and when. It is off while neither `url` nor a secret is set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct WatchdogConfig {
    /// Where it POSTs; PagerDuty's own address if it is empty and the format is PagerDuty's.
    pub url: String,
    /// `native` (a signed webhook) or `pagerduty`.
    pub format: String,
    /// Signs, or is the routing key.
    pub secret: Hidden,
    /// A file that holds it instead.
    pub secret_file: String,
    /// The URL may lead to a loopback or private address.
    pub allow_private: bool,
    /// How this process is called, in messages and in the key by which they are told apart; empty: the host name. Processes
    /// of one machine that have a watchdog each need different ones.
    pub name: String,
    /// How often it looks, in seconds.
    pub every_s: u64,
    /// How long the database must be away, in seconds.
    pub database_away_s: u64,
    /// How long a loop must stand still, in seconds.
    pub worker_stuck_s: u64,
    /// How long a delivery must wait, in seconds.
    pub oldest_pending_s: u32,
}

/// A text that is not shown where settings are printed for debugging.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Hidden(String);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "hidden" })
    }
}

impl Default for WatchdogConfig {
    fn default() -> Self {
        Self {
            url: String::new(),
            format: "native".into(),
            secret: Hidden::default(),
            secret_file: String::new(),
            allow_private: false,
            name: String::new(),
            every_s: 5,
            database_away_s: 30,
            worker_stuck_s: 60,
            oldest_pending_s: 3600,
        }
    }
}

impl WatchdogConfig {
    /// Where its messages go. None: it is off. Err: what is wrong with the settings. Reads the secret's file.
    pub fn direct(&self) -> Result<Option<Direct>, String> {
        let is_pagerduty = self.format == PAGERDUTY;
        if self.url.is_empty() && self.secret.0.is_empty() && self.secret_file.is_empty() {
            return Ok(None);
        }
        if !is_pagerduty && self.format != "native" {
            return Err(format!("watchdog.format is native or pagerduty, not {}", self.format));
        }
        if self.every_s == 0 {
            return Err("watchdog.every_s must be at least 1".into());
        }
        let url = match self.url.as_str() {
            "" if is_pagerduty => PAGERDUTY_URL,
            "" => return Err("watchdog.url says where alerts are POSTed; it is missing".into()),
            url if url.starts_with("http://") || url.starts_with("https://") => url,
            _ => return Err("watchdog.url must begin with https:// or http://".into()),
        };
        let text = match (self.secret.0.as_str(), self.secret_file.as_str()) {
            ("", "") => return Err("watchdog needs secret or secret_file".into()),
            ("", file) => std::fs::read_to_string(Path::new(file))
                .map_err(|error| format!("watchdog.secret_file {file} cannot be read: {error}"))?
                .trim()
                .to_owned(),
            (text, "") => text.to_owned(),
            _ => return Err("watchdog.secret and watchdog.secret_file exclude each other".into()),
        };
        if is_pagerduty && text.chars().count() != ROUTING_KEY_CHARS {
            return Err(format!("watchdog: a routing key of PagerDuty has {ROUTING_KEY_CHARS} characters"));
        }
        let secret = Secret::parse(&text).map_err(|error| format!("watchdog: the secret cannot be used: {error}"))?;
        let (format, allow_private) = (self.format.clone(), self.allow_private);
        Ok(Some(Direct { url: url.to_owned(), secret, format, allow_private, timeout: SEND_WITHIN }))
    }
}
