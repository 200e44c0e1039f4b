//! Follows one push through the tables and tells it with its times: what a person would want to have seen.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use surehook_outbox::Database;
use surehook_outbox::store::operate::{self, DeliveryFilter, EventFilter};
use uuid::Uuid;

use crate::cli::CliError;
use crate::store::inbox::{self, Build};

/// Between two looks at the tables.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What became of the push.
#[derive(Debug, Default)]
pub(super) struct Story {
    event: Option<operate::Event>,
    delivery: Option<operate::Delivery>,
    attempts: Vec<operate::Attempt>,
    build: Option<Build>,
}

/// Follows the newest event of a repository until its build has ended, at most for `within`.
pub(super) async fn follow(
    outbox: &Database,
    inbox_database: &Database,
    repository_id: Uuid,
    within: Duration,
) -> Result<Story, CliError> {
    let begun = Instant::now();
    loop {
        let story = look(outbox, inbox_database, repository_id).await?;
        if story.is_over() || begun.elapsed() > within {
            return Ok(story);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn look(outbox: &Database, inbox_database: &Database, repository_id: Uuid) -> Result<Story, CliError> {
    let aggregate_id = Some(repository_id.to_string());
    let events =
        operate::list_events(outbox, &EventFilter { aggregate_id, limit: 1, ..EventFilter::default() }).await?;
    let Some(event) = events.into_iter().next() else { return Ok(Story::default()) };
    let event_ids = Some(vec![event.event_id]);
    let filter = DeliveryFilter { event_ids, limit: 1, ..DeliveryFilter::default() };
    let delivery = operate::list_deliveries(outbox, &filter).await?.into_iter().next();
    let attempts = match &delivery {
        Some(delivery) => operate::attempts(outbox, delivery.delivery_id).await?,
        None => Vec::new(),
    };
    let key = delivery.as_ref().map(|delivery| delivery.delivery_id.to_string());
    let build =
        inbox::list(inbox_database, 20).await?.into_iter().find(|build| Some(&build.webhook_id) == key.as_ref());
    Ok(Story { event: Some(event), delivery, attempts, build })
}

impl Story {
    /// The build has ended and the sender knows that the webhook arrived.
    fn is_over(&self) -> bool {
        let delivered = self.delivery.as_ref().is_some_and(|delivery| delivery.published_at.is_some());
        delivered && self.build.as_ref().is_some_and(|build| build.finished_at.is_some())
    }

    /// The build ran and succeeded.
    pub(super) fn is_built(&self) -> bool {
        self.is_over() && self.build.as_ref().is_some_and(|build| build.exit_code == Some(0))
    }

    /// The timeline, from the moment before the push on. All times are the database's.
    pub(super) fn tell(&self, begun: Timestamp, accepted: Timestamp, commit: &str) -> String {
        let mut lines: Vec<(f64, String)> = vec![(0.0, "git push begins".into())];
        let since = |moment: Timestamp| moment.duration_since(begun).as_secs_f64();
        let short = &commit[..12.min(commit.len())];
        lines.push((since(accepted), format!("push accepted: main is at {short}, git push says ok")));
        if let Some(event) = &self.event {
            let words = format!("transaction committed: event {} and its delivery", event.event_id);
            lines.push((since(event.created_at), words));
        }
        for attempt in &self.attempts {
            let key = self.delivery.as_ref().map(|delivery| delivery.delivery_id.to_string()).unwrap_or_default();
            lines.push((since(attempt.started_at), format!("POST, X-Webhook-Id {key}, attempt {}", attempt.attempt)));
            let answer = match attempt.status_code {
                Some(code) => format!("the receiver answers {code}"),
                None => format!("no answer: {}", attempt.error.as_deref().unwrap_or("unknown")),
            };
            lines.push((since(attempt.started_at) + f64::from(attempt.duration_ms) / 1000.0, answer));
        }
        if let Some(build) = &self.build {
            if let Some(started_at) = build.started_at {
                lines.push((since(started_at), format!("build {} starts", build.build_id)));
            }
            if let Some(finished_at) = build.finished_at {
                let code = build.exit_code.map_or("no exit code".into(), |code| format!("exit code {code}"));
                lines.push((since(finished_at), format!("build {} finished: {code}", build.build_id)));
            }
        }
        // The sort is stable: what shares a moment stays in the order of cause and effect.
        lines.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let told: String = lines.iter().map(|(at, words)| format!("  {:>8.3} s  {words}\n", at.max(0.0))).collect();
        format!("{told}{}", self.log())
    }

    /// What the build printed.
    fn log(&self) -> String {
        let log = self.build.as_ref().and_then(|build| build.log.as_ref()).and_then(|path| std::fs::read(path).ok());
        let text = log.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        text.lines().take(20).map(|line| format!("              | {line}\n")).collect()
    }
}
