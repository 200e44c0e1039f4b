//! Prometheus metrics. Gauges are read from the database at the moment of the scrape, so that they cannot freeze at their
//! last good value; where the database is away the scrape fails, which is what an alert can see.

use std::sync::atomic::Ordering;

use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};
use surehook_outbox::Pulse;
use surehook_outbox::deliver::AttemptSeen;
use surehook_outbox::news::NewsSeen;
use surehook_outbox::store::jobs::JobKind;
use surehook_outbox::store::upkeep::{Bloat, Gauges};

use crate::serve::loops::NAMES;
use crate::upkeep::{Ended, Task};
use crate::watchdog::Counts;

/// Tables whose rows are updated again and again.
pub const BUSY_TABLES: [&str; 4] = ["outbox_dlq", "outbox_lanes", "outbox_workers", "repository_refs"];

/// What a scrape is answered with.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the attempt durations, in seconds.
const DURATION_BUCKETS_S: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// How the removal of what is old stands.
#[derive(Clone, Debug, Default)]
pub struct Retention {
    /// How long the oldest week that nothing holds should have been gone, in seconds.
    pub lag_s: f64,
    /// Weeks that stay, by why and by the endpoint that holds them.
    pub held: Vec<(String, String, i64)>,
}

/// What this process counts by itself. Cloning shares the counts.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    attempts: IntCounterVec,
    durations: Histogram,
    upkeep: IntCounterVec,
    restarts: IntCounterVec,
    listening: IntGauge,
    reconnects: IntCounter,
    pulse: Pulse,
    watchdog: Counts,
    job_items: IntCounterVec,
}

impl Metrics {
    /// All counts at zero; the ages of loops are those of `pulse`.
    pub fn new(pulse: Pulse) -> Result<Self, prometheus::Error> {
        let attempts = IntCounterVec::new(
            Opts::new("surehook_attempts_total", "Requests made by this process, by how they count."),
            &["outcome"],
        )?;
        // Shown from the start, so that a rate over them is right from the first one on.
        for outcome in ["success", "conflict", "strike", "unanswered", "busy", "gone"] {
            attempts.with_label_values(&[outcome]);
        }
        let durations = Histogram::with_opts(
            HistogramOpts::new("surehook_attempt_duration_seconds", "How long the requests of this process took.")
                .buckets(DURATION_BUCKETS_S.to_vec()),
        )?;
        let upkeep = IntCounterVec::new(
            Opts::new(
                "surehook_upkeep_total",
                "Pieces of upkeep of hosted repositories by this process, by how they ended.",
            ),
            &["task", "ended"],
        )?;
        for (task, ended) in Task::ALL.iter().flat_map(|task| Ended::ALL.map(|ended| (*task, ended))) {
            upkeep.with_label_values(&[task.as_str(), ended.as_str()]);
        }
        let restarts = IntCounterVec::new(
            Opts::new("surehook_loop_restarts_total", "Loops of this process that died and were begun again."),
            &["loop"],
        )?;
        for name in NAMES {
            restarts.with_label_values(&[name]);
        }
        let listening = IntGauge::new(
            "surehook_listening",
            "Whether this process hears at once what others enqueue; where not, it finds it by looking.",
        )?;
        let reconnects = IntCounter::new(
            "surehook_listener_reconnects_total",
            "How often this process began anew to hear what others enqueue.",
        )?;
        let build =
            IntGaugeVec::new(Opts::new("surehook_build_info", "The version that runs; always 1."), &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let job_items = IntCounterVec::new(
            Opts::new("surehook_job_items_total", "Items of jobs that this process looked at, by how that ended."),
            &["kind", "ended"],
        )?;
        for (kind, ended) in JobKind::WORDS.iter().flat_map(|kind| ["done", "skipped"].map(|ended| (*kind, ended))) {
            job_items.with_label_values(&[kind, ended]);
        }
        let registry = Registry::new();
        registry.register(Box::new(restarts.clone()))?;
        registry.register(Box::new(listening.clone()))?;
        registry.register(Box::new(reconnects.clone()))?;
        registry.register(Box::new(job_items.clone()))?;
        registry.register(Box::new(build))?;
        registry.register(Box::new(upkeep.clone()))?;
        registry.register(Box::new(attempts.clone()))?;
        registry.register(Box::new(durations.clone()))?;
        Ok(Self {
            registry,
            attempts,
            durations,
            upkeep,
            job_items,
            restarts,
            listening,
            reconnects,
            pulse,
            watchdog: Counts::default(),
        })
    }

    /// Counts an attempt.
    pub fn observe(&self, seen: &AttemptSeen) {
        self.attempts.with_label_values(&[seen.outcome.as_str()]).inc();
        self.durations.observe(seen.duration.as_secs_f64());
    }

    /// Counts a loop that died.
    pub fn observe_restart(&self, name: &str) {
        self.restarts.with_label_values(&[name]).inc();
    }

    /// Notes whether news of other processes is heard.
    pub fn observe_news(&self, seen: NewsSeen) {
        self.listening.set(i64::from(seen != NewsSeen::Deaf));
        if seen == (NewsSeen::Listening { again: true }) {
            self.reconnects.inc();
        }
    }

    /// Counts a piece of upkeep.
    pub fn observe_upkeep(&self, task: Task, ended: Ended) {
        self.upkeep.with_label_values(&[task.as_str(), ended.as_str()]).inc();
    }

    /// Where the watchdog counts.
    pub fn watchdog(&self) -> Counts {
        self.watchdog.clone()
    }

    /// Counts what a step of a job has done.
    pub fn observe_job(&self, kind: JobKind, done: i64, skipped: i64) {
        for (ended, items) in [("done", done), ("skipped", skipped)] {
            self.job_items.with_label_values(&[kind.as_str(), ended]).inc_by(u64::try_from(items).unwrap_or(0));
        }
    }

    /// The answer to a scrape.
    pub fn render(
        &self,
        gauges: &Gauges,
        bloat: &Bloat,
        alerts_open: &[(&str, i64)],
        retention: &Retention,
    ) -> Result<Vec<u8>, prometheus::Error> {
        let now = Registry::new();
        let integers = [
            ("outbox_pending_count", "Deliveries that have not ended.", gauges.pending),
            ("surehook_outbox_pending", "Deliveries that have not ended.", gauges.pending),
            ("surehook_outbox_lanes_with_work", "Lanes that have work.", gauges.lanes_with_work),
            ("surehook_outbox_dead_letters", "Dead letters that nobody has replayed.", gauges.dead_letters),
            ("surehook_endpoints_paused", "Endpoints that are paused.", gauges.endpoints_paused),
            ("surehook_jobs_running", "Jobs that are running.", gauges.jobs_running),
            (
                "surehook_workers_alive",
                "Workers whose heartbeat moved within the last 10 seconds.",
                gauges.workers_alive,
            ),
            (
                "surehook_workers_stuck",
                "Workers of which a loop stands still, or that were lost within a day and not replaced on their machine.",
                gauges.workers_stuck,
            ),
            ("surehook_outbox_lanes_due", "Lanes of active endpoints that are due and not in hand.", gauges.lanes_due),
            (
                "surehook_outbox_lanes_blocked",
                "Lanes that stopped at a dead letter until an operator acts.",
                gauges.lanes_blocked,
            ),
        ];
        for (name, help, value) in integers {
            let gauge = IntGauge::new(name, help)?;
            gauge.set(value);
            now.register(Box::new(gauge))?;
        }
        let seconds = [
            (
                "surehook_outbox_oldest_pending_age_seconds",
                "Age of the oldest delivery that has not ended; 0 if there is none.",
                gauges.oldest_pending_age_s,
            ),
            (
                "surehook_outbox_oldest_due_age_seconds",
                "How long the longest-due lane has been due and not taken; 0 if there is none.",
                gauges.oldest_due_age_s,
            ),
            (
                "surehook_database_oldest_transaction_seconds",
                "Age of the oldest transaction of anybody in the database; 0 if there is none.",
                bloat.oldest_transaction_s,
            ),
        ];
        for (name, help, value) in seconds {
            let gauge = Gauge::new(name, help)?;
            gauge.set(value);
            now.register(Box::new(gauge))?;
        }
        let dead =
            Opts::new("surehook_database_dead_rows", "Rows that are superseded and not cleaned up yet, by table.");
        let dead = IntGaugeVec::new(dead, &["table"])?;
        for (table, rows) in &bloat.dead_rows {
            dead.with_label_values(&[table]).set(*rows);
        }
        now.register(Box::new(dead))?;
        let ages = Opts::new("surehook_loop_age_seconds", "How long ago a loop of this process last came round.");
        let ages = GaugeVec::new(ages, &["loop"])?;
        for age in self.pulse.ages() {
            ages.with_label_values(&[age.name]).set(age.age.as_secs_f64());
        }
        now.register(Box::new(ages))?;
        let messages =
            IntCounterVec::new(Opts::new("surehook_watchdog_messages_total", "What the watchdog sent."), &["result"])?;
        for (result, count) in [("accepted", &self.watchdog.accepted), ("failed", &self.watchdog.failed)] {
            messages.with_label_values(&[result]).inc_by(count.load(Ordering::Relaxed));
        }
        now.register(Box::new(messages))?;
        let alerts = IntGaugeVec::new(Opts::new("surehook_alerts_open", "Alerts that are open, by kind."), &["kind"])?;
        for (kind, count) in alerts_open {
            alerts.with_label_values(&[kind]).set(*count);
        }
        now.register(Box::new(alerts))?;
        let lag = Gauge::new(
            "surehook_retention_lag_seconds",
            "How long the oldest week that nothing holds should have been gone; 0 if there is none.",
        )?;
        lag.set(retention.lag_s);
        now.register(Box::new(lag))?;
        let held = IntGaugeVec::new(
            Opts::new(
                "surehook_retention_held_weeks",
                "Old weeks that stay, by why and by the endpoint that holds them.",
            ),
            &["why", "endpoint"],
        )?;
        for (why, endpoint, weeks) in &retention.held {
            held.with_label_values(&[why, endpoint]).set(*weeks);
        }
        now.register(Box::new(held))?;
        let mut families = now.gather();
        families.extend(self.registry.gather());
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(text)
    }
}
