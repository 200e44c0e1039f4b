//! Alerts go out through the outbox, on lanes of their own: this watches over it and renders what is told. It speaks to the
//! database through `store::watch` alone; what it enqueues is sent by the workers.

use std::time::Duration;

use serde_json::json;
use surehook_outbox::{Database, Wake};
use tokio_util::sync::CancellationToken;

use crate::store::alerts::Alert;
use crate::store::watch::{self, ALERT_EVENT, RenderedAlert};

/// The longest summary that PagerDuty takes, in characters.
const SUMMARY_CHARS_MAX: usize = 1024;

/// Watches until stopped. `node` names this process to whoever is paged.
pub async fn run(
    database: Database,
    wake: Wake,
    node: String,
    every: Duration,
    oldest_pending_s: u64,
    stop: CancellationToken,
) {
    let mut failures = 0u32;
    while !stop.is_cancelled() {
        match watch::watch(&database, oldest_pending_s, |alert| render(alert, &node)).await {
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
}

/// How urgent a kind is, in the words of PagerDuty: `error` where pushes or deliveries stand still or are lost to a person's
/// attention, `warning` where some are late.
fn severity(kind: &str) -> &'static str {
    match kind {
        "oldest_pending" | "refs_unreadable" | "refs_set_aside" => "warning",
        "workers_away" | "storage_unavailable" => "critical",
        _ => "error",
    }
}

/// The bodies of one event. The same key opens and resolves; a new occurrence of the same has the same key again.
fn render(alert: &Alert, node: &str) -> RenderedAlert {
    let dedup_key = format!("surehook:{}:{}", alert.kind, alert.subject);
    let severity = severity(&alert.kind);
    let native = json!({
        "event_type": ALERT_EVENT,
        "alert_id": alert.alert_id,
        "state": if alert.resolved_at.is_some() { "resolved" } else { "open" },
        "kind": alert.kind,
        "subject": alert.subject,
        "severity": severity,
        "details": alert.details,
        "dedup_key": dedup_key,
        "opened_at": alert.opened_at.to_string(),
        "resolved_at": alert.resolved_at.map(|at| at.to_string()),
    });
    let pagerduty = if alert.resolved_at.is_some() {
        json!({ "event_action": "resolve", "dedup_key": dedup_key })
    } else {
        let summary: String = alert.details.chars().take(SUMMARY_CHARS_MAX).collect();
        json!({
            "event_action": "trigger",
            "dedup_key": dedup_key,
            "client": "surehook",
            "payload": {
                "summary": summary,
                "source": node,
                "severity": severity,
                "timestamp": alert.opened_at.to_string(),
                "component": "surehook",
                "class": alert.kind,
                "custom_details": { "alert_id": alert.alert_id, "subject": alert.subject, "what to do": "surehook doctor" },
            },
        })
    };
    RenderedAlert { native: native.to_string().into_bytes(), pagerduty: pagerduty.to_string().into_bytes() }
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
            details: "é".repeat(2_000),
            opened_at: Timestamp::UNIX_EPOCH,
            resolved_at: resolved.then_some(Timestamp::UNIX_EPOCH),
        }
    }

    #[test]
    fn a_resolve_carries_the_key_of_its_trigger_and_a_summary_fits() {
        let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let trigger = read(&render(&alert(false), "node").pagerduty);
        let resolve = read(&render(&alert(true), "node").pagerduty);
        assert_eq!(trigger["event_action"], "trigger");
        assert_eq!(resolve["event_action"], "resolve");
        assert_eq!(trigger["dedup_key"], resolve["dedup_key"]);
        assert!(trigger["dedup_key"].as_str().unwrap().len() <= 255);
        assert_eq!(trigger["payload"]["summary"].as_str().unwrap().chars().count(), SUMMARY_CHARS_MAX);
    }
}
