//! How an endpoint stands at the moment, for whoever was woken because of it: what waits, what it last met, what is dead,
//! which alerts are open, and what to do.

use jiff::Timestamp;
use serde::Serialize;
use surehook_outbox::Database;
use uuid::Uuid;

use super::CliError;
use super::output::{cell, count, when};
use crate::alerting::runbook;
use crate::store::alerts::{self, AlertKind};
use crate::store::lookup::{self, Standing};

/// As it is shown.
#[derive(Serialize)]
pub(super) struct Shown {
    #[serde(flatten)]
    standing: Standing,
    alerts: Vec<Open>,
}

#[derive(Serialize)]
struct Open {
    kind: String,
    opened_at: Timestamp,
    details: String,
    what_to_do: Vec<String>,
}

pub(super) async fn read(database: &Database, endpoint_id: Uuid) -> Result<Shown, CliError> {
    let standing = lookup::standing(database, endpoint_id).await?;
    let subject = endpoint_id.to_string();
    let open = alerts::list_open(database).await?.into_iter().filter(|alert| alert.subject == subject);
    let alerts = open.map(|alert| Open {
        what_to_do: AlertKind::parse(&alert.kind).map(|kind| runbook::advice(kind, &alert.name)).unwrap_or_default(),
        kind: alert.kind,
        opened_at: alert.opened_at,
        details: alert.details,
    });
    Ok(Shown { standing, alerts: alerts.collect() })
}

impl Shown {
    /// As lines of a list of properties.
    pub(super) fn rows(&self, now: Timestamp) -> Vec<(&'static str, String)> {
        let Standing {
            pending,
            oldest_pending_at,
            lanes_blocked,
            dead_letters,
            last_error,
            last_error_at,
            next_try_at,
            lanes_held,
            ..
        } = &self.standing;
        let mut rows = vec![(
            "waiting",
            match oldest_pending_at {
                Some(at) => {
                    format!("{}, the oldest since {}", count(*pending, "delivery", "deliveries"), when(*at, now))
                }
                None => "nothing".into(),
            },
        )];
        if let (Some(error), Some(at)) = (last_error, last_error_at) {
            rows.push(("last error", format!("{} ({})", cell(error, 200), when(*at, now))));
        }
        if let Some(at) = next_try_at {
            rows.push(("next try", when(*at, now)));
        }
        if *lanes_blocked > 0 {
            rows.push(("stopped", format!("{} at a dead letter", count(*lanes_blocked, "lane", "lanes"))));
        }
        if *lanes_held > 0 {
            let lanes = count(*lanes_held, "lane waits", "lanes wait");
            rows.push(("back-fill", format!("{lanes} for older events: surehook job list --state running")));
        }
        if *dead_letters > 0 {
            rows.push(("dead letters", dead_letters.to_string()));
        }
        for alert in &self.alerts {
            rows.push(("alert", format!("{} since {}", alert.kind, when(alert.opened_at, now))));
            rows.extend(alert.what_to_do.iter().map(|line| ("to do", line.clone())));
        }
        rows
    }
}
