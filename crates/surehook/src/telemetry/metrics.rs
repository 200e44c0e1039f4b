//! Prometheus metrics. Gauges are read from the database at the moment of the scrape, so that they cannot freeze at their
//! last good value; where the database is away the scrape fails, which is what an alert can see.

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};
use surehook_outbox::deliver::AttemptSeen;
use surehook_outbox::store::upkeep::Gauges;

use crate::upkeep::{Ended, Task};

/// What a scrape is answered with.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the attempt durations, in seconds.
const DURATION_BUCKETS_S: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// What this process counts by itself. Cloning shares the counts.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    attempts: IntCounterVec,
    durations: Histogram,
    upkeep: IntCounterVec,
}

impl Metrics {
    /// All counts at zero.
    pub fn new() -> Result<Self, prometheus::Error> {
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
        let registry = Registry::new();
        registry.register(Box::new(upkeep.clone()))?;
        registry.register(Box::new(attempts.clone()))?;
        registry.register(Box::new(durations.clone()))?;
        Ok(Self { registry, attempts, durations, upkeep })
    }

    /// Counts an attempt.
    pub fn observe(&self, seen: &AttemptSeen) {
        self.attempts.with_label_values(&[seen.outcome.as_str()]).inc();
        self.durations.observe(seen.duration.as_secs_f64());
    }

    /// Counts a piece of upkeep.
    pub fn observe_upkeep(&self, task: Task, ended: Ended) {
        self.upkeep.with_label_values(&[task.as_str(), ended.as_str()]).inc();
    }

    /// The answer to a scrape.
    pub fn render(&self, gauges: &Gauges, alerts_open: &[(&str, i64)]) -> Result<Vec<u8>, prometheus::Error> {
        let now = Registry::new();
        let integers = [
            ("outbox_pending_count", "Deliveries that have not ended.", gauges.pending),
            ("surehook_outbox_pending", "Deliveries that have not ended.", gauges.pending),
            ("surehook_outbox_lanes_with_work", "Lanes that have work.", gauges.lanes_with_work),
            ("surehook_outbox_dead_letters", "Dead letters that nobody has replayed.", gauges.dead_letters),
            ("surehook_endpoints_paused", "Endpoints that are paused.", gauges.endpoints_paused),
            (
                "surehook_workers_alive",
                "Workers whose heartbeat moved within the last 10 seconds.",
                gauges.workers_alive,
            ),
        ];
        for (name, help, value) in integers {
            let gauge = IntGauge::new(name, help)?;
            gauge.set(value);
            now.register(Box::new(gauge))?;
        }
        let oldest = Gauge::new(
            "surehook_outbox_oldest_pending_age_seconds",
            "Age of the oldest delivery that has not ended; 0 if there is none.",
        )?;
        oldest.set(gauges.oldest_pending_age_s);
        now.register(Box::new(oldest))?;
        let alerts = IntGaugeVec::new(Opts::new("surehook_alerts_open", "Alerts that are open, by kind."), &["kind"])?;
        for (kind, count) in alerts_open {
            alerts.with_label_values(&[kind]).set(*count);
        }
        now.register(Box::new(alerts))?;
        let mut families = now.gather();
        families.extend(self.registry.gather());
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(text)
    }
}
