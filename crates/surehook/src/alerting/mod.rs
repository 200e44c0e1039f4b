//! Alerts go out through the outbox, on lanes of their own: this watches over it and renders what is told. It speaks to the
//! database through `store::watch` alone; what it enqueues is sent by the workers.

pub mod runbook;

use std::time::Duration;

use serde_json::json;
use surehook_outbox::pulse::Beat;
use surehook_outbox::{Database, Wake};
use tokio_util::sync::CancellationToken;

use self::runbook::Severity;
use crate::config::file::AlertsConfig;
use crate::store::alerts::{Alert, AlertKind};
use crate::store::watch::{self, ALERT_EVENT, RenderedAlert, WatchSettings};

/// The longest summary that PagerDuty takes, in characters.
const SUMMARY_CHARS_MAX: usize = 1024;

/// Watches until stopped. `node` names this process to whoever is paged.
pub async fn run(
    database: Database,
    wake: Wake,
    node: String,
    config: AlertsConfig,
    pulse: Beat,
    stop: CancellationToken,
) {
    let mut failures = 0u32;
    let settings = WatchSettings {
        oldest_pending_s: config.oldest_pending_s,
        worker_stuck_s: config.worker_stuck_s,
        drift_quiet_s: config.drift_quiet_s,
        mute: config.mute,
    };
    let every = Duration::from_secs(config.every_s.max(1));
    while !stop.is_cancelled() {
        pulse.beat();
        match watch::watch(&database, &settings, |alert| render(alert, &node, &config.runbook_url)).await {
            Ok(watched) => {
                failures = 0;
                if watched.told > 0 {
                    wake.wake();
                }
            }
            Err(error) => {
                failures += 1;
                if failures == 1 || failures.is_multiple_of(60) {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, failures, "the watch over the outbox failed; it is tried again");
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = stop.cancelled() => {}
        }
    }
    pulse.rest();
}

/// The bodies of one event. The same key opens and resolves; a new occurrence of the same has the same key again.
fn render(alert: &Alert, node: &str, runbook_url: &str) -> RenderedAlert {
    let dedup_key = format!("surehook:{}:{}", alert.kind, alert.subject);
    let kind = AlertKind::parse(&alert.kind);
    let severity = kind.map_or(Severity::Error, runbook::severity).as_str();
    let advice = kind.map(|kind| runbook::advice(kind, &alert.name)).unwrap_or_default();
    let runbook = kind.map(|kind| runbook::link(runbook_url, kind));
    let native = json!({
        "event_type": ALERT_EVENT,
        "alert_id": alert.alert_id,
        "state": if alert.resolved_at.is_some() { "resolved" } else { "open" },
        "kind": alert.kind,
        "subject": alert.subject,
        "name": alert.name,
        "severity": severity,
        "details": alert.details,
        "what_to_do": advice,
        "runbook": runbook,
        "dedup_key": dedup_key,
        "opened_at": alert.opened_at.to_string(),
        "resolved_at": alert.resolved_at.map(|at| at.to_string()),
    });
    let pagerduty = if alert.resolved_at.is_some() {
        json!({ "event_action": "resolve", "dedup_key": dedup_key })
    } else {
        let page = Page {
            dedup_key: &dedup_key,
            summary: &alert.details,
            source: node,
            severity,
            timestamp: &alert.opened_at.to_string(),
            class: &alert.kind,
            details: json!({
                "alert_id": alert.alert_id,
                "subject": alert.subject,
                "name": alert.name,
                "what to do": advice.join("\n"),
                "runbook": runbook,
            }),
            link: (!runbook_url.is_empty()).then_some(runbook.as_deref()).flatten(),
        };
        page.trigger()
    };
    RenderedAlert { native: native.to_string().into_bytes(), pagerduty: pagerduty.to_string().into_bytes() }
}

/// A trigger of PagerDuty's Events API v2, without the routing key.
pub(crate) struct Page<'a> {
    pub(crate) dedup_key: &'a str,
    /// The line that the phone shows; cut to what PagerDuty takes.
    pub(crate) summary: &'a str,
    pub(crate) source: &'a str,
    pub(crate) severity: &'a str,
    pub(crate) timestamp: &'a str,
    pub(crate) class: &'a str,
    pub(crate) details: serde_json::Value,
    /// Absolute; PagerDuty takes no other.
    pub(crate) link: Option<&'a str>,
}

impl Page<'_> {
    pub(crate) fn trigger(&self) -> serde_json::Value {
        let summary: String = self.summary.chars().take(SUMMARY_CHARS_MAX).collect();
        let mut trigger = json!({
            "event_action": "trigger",
            "dedup_key": self.dedup_key,
            "client": "surehook",
            "payload": {
                "summary": summary,
                "source": self.source,
                "severity": self.severity,
                "timestamp": self.timestamp,
                "component": "surehook",
                "class": self.class,
                "custom_details": self.details,
            },
        });
        if let Some(link) = self.link {
            trigger["links"] = json!([{ "href": link, "text": format!("Runbook: {}", self.class) }]);
        }
        trigger
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::Value;
    use uuid::Uuid;

    use super::*;

    fn alert(resolved: bool) -> Alert {
        Alert {
            alert_id: Uuid::nil(),
            kind: "dead_letters".into(),
            subject: "7".into(),
            name: "ci".into(),
            details: "é".repeat(2_000),
            opened_at: Timestamp::UNIX_EPOCH,
            resolved_at: resolved.then_some(Timestamp::UNIX_EPOCH),
        }
    }

    #[test]
    fn a_resolve_carries_the_key_of_its_trigger_and_a_summary_fits() {
        let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let trigger = read(&render(&alert(false), "node", "https://wiki.example.com/surehook").pagerduty);
        let resolve = read(&render(&alert(true), "node", "").pagerduty);
        assert_eq!(trigger["links"][0]["href"], "https://wiki.example.com/surehook#dead_letters");
        assert!(read(&render(&alert(false), "node", "").pagerduty).get("links").is_none(), "a path is no link");
        assert_eq!(trigger["event_action"], "trigger");
        assert_eq!(resolve["event_action"], "resolve");
        assert_eq!(trigger["dedup_key"], resolve["dedup_key"]);
        assert!(trigger["dedup_key"].as_str().unwrap().len() <= 255);
        assert_eq!(trigger["payload"]["summary"].as_str().unwrap().chars().count(), SUMMARY_CHARS_MAX);
    }
}
