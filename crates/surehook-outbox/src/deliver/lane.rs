//! One lane in hand: its deliveries, one after another, until the first that does not arrive. May send and report; the
//! recorder writes.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use uuid::Uuid;

use super::fence::Life;
use super::recorder::{Report, Reports};
use super::{AttemptSeen, Shared};
use crate::crash::point;
use crate::retry::{self, Answer, DeathReason, Head, Next, Outcome, Verdict};
use crate::send::Sent;
use crate::store::claim::{ClaimedLane, Delivery};
use crate::store::record::{Attempt, DeadLetter, Ends, LaneState, Release};
use crate::target::Target;

/// A head whose workers vanished this often is given up.
const CRASHES_MAX: i32 = 3;

pub(super) struct LaneRun {
    pub(super) shared: Arc<Shared>,
    pub(super) reports: Reports,
    pub(super) target: Arc<Target>,
    pub(super) lane: ClaimedLane,
    pub(super) deliveries: Vec<Delivery>,
    pub(super) lease_ends: Instant,
    /// The worker's life in which the lane was claimed.
    pub(super) life: Life,
}

/// Whether the lane goes on.
enum Step {
    GoOn,
    GiveBack(Release),
}

impl LaneRun {
    /// Delivers, reports each step, and gives the lane back. Returns the endpoint whose slot is free now.
    pub(super) async fn run(mut self) -> Uuid {
        let mut head = self.lane.head;
        let mut done = self.lane.done_seq;
        let mut pending = std::mem::take(&mut self.deliveries).into_iter().peekable();
        let release = loop {
            if done == self.lane.until_seq || self.shared.stops.soft.is_cancelled() || self.shared.held.makes_room() {
                break Release::Now;
            }
            let found = pending.next_if(|delivery| delivery.seq == done + 1);
            if found.is_some() && !self.still_ours() {
                break Release::Now;
            }
            match self.step(done + 1, found, &mut head).await {
                Some(Step::GoOn) => {
                    done += 1;
                    head = Head::default();
                }
                // The report that gave the lane back is on its way; nothing is left to say.
                Some(Step::GiveBack(_)) => return self.target.endpoint_id,
                None => break Release::Now,
            }
        };
        self.report(done, head, None, Report::default(), Some(release));
        self.target.endpoint_id
    }

    /// Whether nobody else can have the lane: the lease lasts for another request, and nobody holds this worker for dead.
    fn still_ours(&self) -> bool {
        Instant::now() + self.target.timeout < self.lease_ends && self.shared.fence.life() == Some(self.life)
    }

    /// Handles one delivery. None: it was abandoned at a hard stop, and nothing is charged.
    async fn step(&self, seq: i64, found: Option<Delivery>, head: &mut Head) -> Option<Step> {
        let Some(delivery) = found else {
            return Some(self.bury_unsent(missing(seq), seq, *head, DeathReason::RowMissing, "its row is missing"));
        };
        if delivery.body.is_none() {
            return Some(self.bury_unsent(delivery, seq, *head, DeathReason::RowMissing, "its bytes are missing"));
        }
        if self.lane.crashes >= CRASHES_MAX && seq == self.lane.done_seq + 1 {
            let words = "three workers vanished while they handled it";
            return Some(self.bury_unsent(delivery, seq, *head, DeathReason::CrashedWorker, words));
        }
        head.may_have_arrived |= delivery.replay;
        point("send.ready");
        let sent = self.attempt(&delivery, head).await?;
        point("send.answered");
        let verdict = retry::judge(&self.target.policy, *head, sent.answer, jitter());
        self.log(&delivery, &verdict, &sent);
        if let Some(observer) = &self.shared.settings.observer {
            observer(&AttemptSeen { outcome: verdict.outcome, duration: sent.duration });
        }
        Some(self.conclude(delivery, &verdict, sent))
    }

    /// One request. None: a hard stop came first; the request may have arrived.
    async fn attempt(&self, delivery: &Delivery, head: &mut Head) -> Option<Sent> {
        let started = Instant::now();
        let now_s = self.shared.clock.now().as_second();
        let body = Bytes::from(delivery.body.clone().unwrap_or_default());
        let sending = AssertUnwindSafe(self.shared.sender.send(&self.target, delivery, body, now_s)).catch_unwind();
        tokio::select! {
            biased;
            ended = sending => Some(ended.unwrap_or_else(|_| Sent {
                answer: Answer::Unsendable,
                status_code: None,
                error: Some("surehook itself failed while sending this (a defect: please report it)".into()),
                response_body: None,
                started,
                duration: started.elapsed(),
            })),
            () = self.shared.stops.hard.cancelled() => {
                head.may_have_arrived = true;
                None
            }
        }
    }

    /// Reports an attempt and says whether the lane goes on.
    fn conclude(&self, delivery: Delivery, verdict: &Verdict, sent: Sent) -> Step {
        let seq = delivery.seq;
        let (ends, step) = match verdict.next {
            Next::Published => (Some(Ends::Published), Step::GoOn),
            Next::Retry(delay) => (None, Step::GiveBack(Release::After(delay))),
            Next::PauseEndpoint => (None, Step::GiveBack(Release::Now)),
            Next::Dead(_) if self.target.block_on_dead => (Some(Ends::Failed), Step::GiveBack(Release::Blocked)),
            Next::Dead(_) => (Some(Ends::Failed), Step::GoOn),
        };
        let mut report = Report {
            succeeded: ends == Some(Ends::Published),
            attempts: vec![Attempt {
                lane_id: self.lane.lane_id,
                seq,
                attempt: verdict.head.attempts,
                delivery_id: delivery.delivery_id,
                outcome: verdict.outcome,
                ends,
                status_code: sent.status_code,
                error: sent.error.clone().filter(|_| ends != Some(Ends::Published)),
                response_body: sent.response_body,
                started_at: self.shared.clock.at(sent.started),
                duration: sent.duration,
            }],
            ..Report::default()
        };
        if ends == Some(Ends::Published) && delivery.replay {
            report.replays_delivered.push((self.lane.lane_id, delivery.delivery_id));
        }
        if verdict.next == Next::PauseEndpoint {
            report
                .pauses
                .push((self.target.endpoint_id, "it answered 410 Gone; resume it when it wants webhooks again".into()));
        }
        if let Next::Dead(reason) = verdict.next {
            report.dead.push(DeadLetter {
                lane_id: self.lane.lane_id,
                seq,
                delivery,
                reason,
                attempts: verdict.head.attempts,
                last_status_code: sent.status_code,
                last_error: sent.error.clone(),
            });
        }
        // A dead head that blocks its lane stays the head: an operator replays it in place, or skips it.
        let (done, head, release) = match step {
            Step::GoOn => (seq, Head::default(), None),
            Step::GiveBack(release) => (seq - 1, verdict.head, Some(release)),
        };
        self.report(done, head, sent.error.filter(|_| release.is_some()), report, release);
        step
    }

    /// A delivery that ends without a request.
    fn bury_unsent(&self, delivery: Delivery, seq: i64, head: Head, reason: DeathReason, words: &str) -> Step {
        tracing::error!(
            endpoint = %self.target.name, delivery_id = %delivery.delivery_id, event_id = %delivery.event_id,
            lane_id = self.lane.lane_id, seq, reason = reason.as_str(), "delivery is dead: {words}"
        );
        let report = Report {
            attempts: vec![Attempt {
                lane_id: self.lane.lane_id,
                seq,
                attempt: head.attempts + 1,
                delivery_id: delivery.delivery_id,
                outcome: Outcome::NotSent,
                ends: Some(Ends::Failed),
                status_code: None,
                error: Some(words.to_owned()),
                response_body: None,
                started_at: self.shared.clock.now(),
                duration: Duration::ZERO,
            }],
            dead: vec![DeadLetter {
                lane_id: self.lane.lane_id,
                seq,
                delivery,
                reason,
                attempts: head.attempts,
                last_status_code: None,
                last_error: Some(words.to_owned()),
            }],
            ..Report::default()
        };
        if self.target.block_on_dead {
            self.report(seq - 1, head, Some(words.to_owned()), report, Some(Release::Blocked));
            return Step::GiveBack(Release::Blocked);
        }
        self.report(seq, Head::default(), None, report, None);
        Step::GoOn
    }

    fn report(
        &self,
        done_seq: i64,
        head: Head,
        last_error: Option<String>,
        mut report: Report,
        release: Option<Release>,
    ) {
        report.endpoint_id = self.target.endpoint_id;
        let first_tried_at = report.attempts.first().map(|attempt| attempt.started_at).filter(|_| head.attempts > 0);
        report.lane = Some(LaneState {
            lane_id: self.lane.lane_id,
            epoch: self.lane.epoch,
            done_seq,
            head,
            first_tried_at,
            last_error,
            release,
        });
        self.reports.send(report);
    }

    fn log(&self, delivery: &Delivery, verdict: &Verdict, sent: &Sent) {
        let (endpoint, event_id, delivery_id) = (&self.target.name, delivery.event_id, delivery.delivery_id);
        let (attempt, status, duration_ms) = (verdict.head.attempts, sent.status_code, sent.duration.as_millis());
        let error = sent.error.as_deref().unwrap_or("");
        match verdict.next {
            Next::Published => {
                tracing::info!(%endpoint, %event_id, %delivery_id, attempt, status, duration_ms, "delivered");
            }
            Next::Retry(delay) => {
                let retry_in_ms = delay.as_millis();
                tracing::warn!(%endpoint, %event_id, %delivery_id, attempt, status, duration_ms, retry_in_ms, error, "not delivered yet");
            }
            Next::PauseEndpoint => {
                tracing::error!(%endpoint, %event_id, %delivery_id, attempt, "the endpoint answered 410 and is paused now");
            }
            Next::Dead(reason) => {
                let reason = reason.as_str();
                tracing::error!(%endpoint, %event_id, %delivery_id, attempt, status, reason, error, "delivery is dead: see `surehook dlq list`");
            }
        }
    }
}

/// Stands for a delivery whose row is gone: what is known is its place alone.
fn missing(seq: i64) -> Delivery {
    Delivery {
        seq,
        delivery_id: Uuid::new_v4(),
        event_id: Uuid::nil(),
        event_type: String::new(),
        aggregate_id: String::new(),
        aggregate_name: String::new(),
        webhook_name: String::new(),
        replay: false,
        event_created_at: jiff::Timestamp::UNIX_EPOCH,
        headers: "{}".into(),
        body: None,
    }
}

/// A random number from 0 up to, not including, 1.
fn jitter() -> f64 {
    // Without randomness all waits are of their middle length, which is no reason to stop.
    getrandom::u32().map_or(0.5, |number| f64::from(number) / (f64::from(u32::MAX) + 1.0))
}
