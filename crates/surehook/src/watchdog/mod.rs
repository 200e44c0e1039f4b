//! The watchdog: tells a person, without the outbox and without the database, that the database is away, that nobody works,
//! that this process hangs, or that something waits for far too long. It runs on a thread and a runtime of its own, so that
//! it goes on where those of the process stand still, and has a database session of its own.
//!
//! What it cannot do: it dies with its process and its machine. That is what the rules for Prometheus are for.

mod incident;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use surehook_outbox::clock::DatabaseClock;
use surehook_outbox::retry::Answer;
use surehook_outbox::send::direct::Direct;
use surehook_outbox::send::{PAGERDUTY, Sender};
use surehook_outbox::{Database, Pulse};
use tokio_util::sync::CancellationToken;

use self::incident::{Due, Incident, Say, Seen, Told};
use crate::alerting::Page;
use crate::alerting::runbook::{self, Severity};
use crate::config::file::WatchdogConfig;
use crate::store::alerts::AlertKind;
use crate::store::watch::{self, ALERT_EVENT, Vitals};

/// A look at the database must not take longer.
const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// At a stop, what is due is tried for so long.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(2);

/// What it needs.
pub(crate) struct Watchdog {
    pub(crate) config: WatchdogConfig,
    pub(crate) to: Direct,
    /// Nobody else uses its sessions.
    pub(crate) database: Database,
    pub(crate) pulse: Pulse,
    pub(crate) runbook_url: String,
    pub(crate) counts: Counts,
}

/// What it sent. Cloning shares the counts.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub(crate) accepted: Arc<AtomicU64>,
    pub(crate) failed: Arc<AtomicU64>,
}

/// What it watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vital {
    DatabaseAway,
    WorkersAway,
    WorkerStuck,
    OldestPending,
}

impl Vital {
    const ALL: [Self; 4] = [Self::DatabaseAway, Self::WorkersAway, Self::WorkerStuck, Self::OldestPending];

    fn kind(self) -> Option<AlertKind> {
        match self {
            Self::DatabaseAway => None,
            Self::WorkersAway => Some(AlertKind::WorkersAway),
            Self::WorkerStuck => Some(AlertKind::WorkerStuck),
            Self::OldestPending => Some(AlertKind::OldestPending),
        }
    }

    fn as_str(self) -> &'static str {
        self.kind().map_or(runbook::DATABASE_AWAY, AlertKind::as_str)
    }

    /// Higher than that of the same kind through the outbox: here nothing goes out any more.
    fn severity(self) -> Severity {
        match self {
            Self::DatabaseAway | Self::WorkersAway => Severity::Critical,
            Self::WorkerStuck | Self::OldestPending => Severity::Error,
        }
    }

    fn advice(self) -> Vec<String> {
        match self.kind() {
            None => runbook::database_away(),
            // Those that name an endpoint have none to name here.
            Some(AlertKind::OldestPending) => vec!["See what waits, and for what: surehook doctor".into()],
            Some(kind) => runbook::advice(kind, ""),
        }
    }
}

/// What a turn saw.
struct Look {
    vitals: Result<Vitals, String>,
    stuck: Vec<String>,
}

impl Watchdog {
    /// Watches until stopped. Blocks: for a thread of its own.
    pub(crate) fn run(self, stop: &CancellationToken) {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(%error, "there is no watchdog: its runtime could not be made");
                return;
            }
        };
        runtime.block_on(self.watch(stop));
    }

    async fn watch(self, stop: &CancellationToken) {
        let every = Duration::from_secs(self.config.every_s);
        let may_be_open = self.to.format == PAGERDUTY;
        let mut incidents = Vital::ALL.map(|vital| {
            let hold = match vital {
                Vital::DatabaseAway => Duration::from_secs(self.config.database_away_s),
                // What these show has lasted already; one look more, so that a moment in between is no alarm.
                _ => every / 2,
            };
            (vital, Incident::new(hold, may_be_open))
        });
        let (sender, clock) = (Sender::new(), DatabaseClock::default());
        while !stop.is_cancelled() {
            let began = Instant::now();
            let look = tokio::select! {
                look = self.look(&clock) => look,
                () = stop.cancelled() => break,
            };
            let now = Instant::now();
            for (vital, incident) in &mut incidents {
                let was_open = incident.is_open();
                incident.see(self.judge(*vital, &look), began, now);
                if incident.is_open() != was_open {
                    let (kind, is_open) = (vital.as_str(), incident.is_open());
                    tracing::warn!(kind, is_open, "the watchdog sees a change, and tells it");
                }
            }
            let telling = incidents.iter_mut().map(|(vital, incident)| self.tell(&sender, &clock, *vital, incident));
            tokio::select! {
                _ = futures_util::future::join_all(telling) => {}
                () = stop.cancelled() => break,
            }
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = stop.cancelled() => {}
            }
        }
        // What was seen last is said once more; what stays open is resolved by the next process of this name.
        let telling = incidents.iter_mut().map(|(vital, incident)| self.tell(&sender, &clock, *vital, incident));
        let _ = tokio::time::timeout(LAST_WORDS_WITHIN, futures_util::future::join_all(telling)).await;
        self.database.close().await;
    }

    async fn look(&self, clock: &DatabaseClock) -> Look {
        let stuck_after = Duration::from_secs(self.config.worker_stuck_s);
        let ages = self.pulse.ages().into_iter().filter(|age| runbook::MUST_COME_ROUND.contains(&age.name));
        let stuck = ages
            .filter(|age| age.age >= stuck_after)
            .map(|age| format!("{} for {} s", age.name, age.age.as_secs()))
            .collect();
        let vitals = match tokio::time::timeout(LOOK_WITHIN, watch::vitals(&self.database)).await {
            Ok(Ok(vitals)) => {
                clock.set(vitals.now);
                Ok(vitals)
            }
            Ok(Err(error)) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "the watchdog does not reach the database");
                // Not the words of the driver: they may name hosts and accounts, and this goes out.
                Err("the database is away or refuses".to_owned())
            }
            Err(_) => Err(format!("the database does not answer within {} s", LOOK_WITHIN.as_secs())),
        };
        Look { vitals, stuck }
    }

    fn judge(&self, vital: Vital, look: &Look) -> Seen {
        let name = &self.config.name;
        match (vital, &look.vitals) {
            (Vital::DatabaseAway, Ok(_)) => Seen::Fine,
            (Vital::DatabaseAway, Err(reason)) => {
                let after = self.config.database_away_s;
                Seen::Wrong(format!("{name}: {reason}, for more than {after} s; pushes are refused, deliveries wait"))
            }
            // Loops that wait for the database do not hang.
            (_, Err(_)) => Seen::Unknown,
            (Vital::WorkerStuck, Ok(_)) if look.stuck.is_empty() => Seen::Fine,
            (Vital::WorkerStuck, Ok(_)) => {
                Seen::Wrong(format!("{name}: this process hangs: {} without coming round", look.stuck.join(", ")))
            }
            (Vital::WorkersAway, Ok(vitals)) if vitals.is_work_without_workers => {
                Seen::Wrong("deliveries are due, and no worker has been alive for 30 seconds".into())
            }
            (Vital::OldestPending, Ok(vitals))
                if vitals.oldest_pending_age_s >= f64::from(self.config.oldest_pending_s) =>
            {
                let minutes = vitals.oldest_pending_age_s / 60.0;
                Seen::Wrong(format!(
                    "the oldest of {} deliveries that wait has waited for {minutes:.0} minutes",
                    vitals.pending
                ))
            }
            (Vital::WorkersAway | Vital::OldestPending, Ok(_)) => Seen::Fine,
        }
    }

    async fn tell(&self, sender: &Sender, clock: &DatabaseClock, vital: Vital, incident: &mut Incident) {
        let Some(due) = incident.due(Instant::now()) else { return };
        let body = self.render(vital, &due, clock);
        let sent = sender.send_direct(&self.to, due.message_id, body, clock.now()).await;
        let told = match sent.answer {
            Answer::Status(200..=299 | 409, _) => Told::Yes,
            Answer::Status(_, wait) => Told::No { perhaps: true, wait },
            Answer::Silence { sent } => Told::No { perhaps: sent, wait: None },
            Answer::Unsendable => Told::No { perhaps: false, wait: None },
        };
        incident.told(&due.say, told, Instant::now());
        let kind = vital.as_str();
        if told == Told::Yes {
            self.counts.accepted.fetch_add(1, Ordering::Relaxed);
            tracing::info!(kind, "the watchdog was heard");
        } else {
            self.counts.failed.fetch_add(1, Ordering::Relaxed);
            let error = sent.error.unwrap_or_default();
            tracing::warn!(kind, error, "the watchdog was not heard; it says it again");
        }
    }

    fn render(&self, vital: Vital, due: &Due, clock: &DatabaseClock) -> Vec<u8> {
        let (kind, severity, name) = (vital.as_str(), vital.severity().as_str(), &self.config.name);
        let dedup_key = format!("surehook:watchdog:{kind}:{name}");
        let (link, advice) = (runbook::link_to(&self.runbook_url, kind), vital.advice());
        let began = clock.at(due.began).to_string();
        let body = match (&due.say, self.to.format == PAGERDUTY) {
            (Say::Resolve, true) => json!({ "event_action": "resolve", "dedup_key": dedup_key }),
            (Say::Trigger(words), true) => Page {
                dedup_key: &dedup_key,
                summary: words,
                source: name,
                severity,
                timestamp: &began,
                class: kind,
                details: json!({ "what to do": advice.join("\n"), "runbook": link, "told by": "watchdog" }),
                link: (!self.runbook_url.is_empty()).then_some(&link),
            }
            .trigger(),
            (say, false) => {
                let is_over = *say == Say::Resolve;
                json!({
                    "event_type": ALERT_EVENT,
                    "alert_id": due.message_id,
                    "state": if is_over { "resolved" } else { "open" },
                    "kind": kind,
                    "subject": name,
                    "name": name,
                    "severity": severity,
                    "details": match say { Say::Trigger(words) => words, Say::Resolve => "it is over" },
                    "what_to_do": advice,
                    "runbook": link,
                    "dedup_key": dedup_key,
                    "opened_at": (!is_over).then_some(&began),
                    "resolved_at": is_over.then_some(&began),
                    "told_by": "watchdog",
                })
            }
        };
        body.to_string().into_bytes()
    }
}
