//! One lane in hand: its deliveries, one after another, until the first that does not arrive. May send and report; the
//! recorder writes.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::feed::Feed;
use super::fence::Life;
use super::gate::CircuitChange;
use super::held::Grip;
use super::recorder::{Report, Reports};
use super::window::Heard;
use super::{AttemptSeen, Shared};
use crate::crash::point;
use crate::retry::{self, Answer, DeathReason, Head, Next, Outcome, Verdict};
use crate::send::Sent;
use crate::store::claim::{self, ClaimedLane, Delivery, Range};
use crate::store::record::{Attempt, DeadLetter, Ends, LaneState, Release};
use crate::subscriber;
use crate::target::Target;

/// A head whose workers vanished this often is given up.
const CRASHES_MAX: i32 = 3;

/// A lane is kept while it has work, but after so many deliveries it makes room if others of its endpoint wait.
const QUANTUM: usize = 100;

/// Reading on begins when this part of what one read brings at most is left in hand: the next must be there before it is gone.
const READ_ON_AT: usize = 2;

/// A lane that goes on reads twice as much each time, up to so many times what it began with.
const READ_GROWS_TO: usize = 8;

/// But only while the bodies that all lanes have in hand are fewer bytes than this.
const READ_GROWS_BELOW: usize = 8 * 1024 * 1024;

pub(super) struct LaneRun {
    shared: Arc<Shared>,
    reports: Reports,
    feed: Feed,
    target: Arc<Target>,
    lane: ClaimedLane,
    grip: Arc<Grip>,
    /// The worker's life in which the lane was claimed.
    life: Life,
    /// Read and not sent yet.
    in_hand: VecDeque<Delivery>,
    /// What is being read.
    coming: Option<oneshot::Receiver<Vec<Delivery>>>,
    /// Everything up to here was read, or is being read.
    read_to: i64,
    /// How many deliveries one read brings at most.
    read_max: usize,
}

/// Whether the lane goes on.
enum Step {
    GoOn,
    /// The report that gave it back is on its way.
    GaveBack,
}

/// What comes next in a lane.
enum Coming {
    Delivery(Box<Delivery>),
    /// There should be one, and there is none.
    Missing,
    /// Nothing more, or the database does not say.
    Nothing,
}

impl LaneRun {
    pub(super) fn new(
        shared: Arc<Shared>,
        reports: Reports,
        feed: Feed,
        target: Arc<Target>,
        (mut lane, grip): (ClaimedLane, Arc<Grip>),
        life: Life,
    ) -> Self {
        let in_hand = VecDeque::from(std::mem::take(&mut lane.deliveries));
        shared.held.add_body_bytes(in_hand.iter().map(size).sum());
        let (read_to, read_max) = (lane.done_seq, shared.settings.deliveries_per_read);
        let mut run =
            Self { shared, reports, feed, target, lane, grip, life, in_hand, coming: None, read_to, read_max };
        run.keep_what_joins_on();
        run
    }

    /// Delivers, reports each step, and gives the lane back.
    pub(super) async fn run(mut self) {
        let mut head = self.lane.head;
        let mut done = self.lane.done_seq;
        let mut sent = 0;
        while !self.is_to_go_back(sent) {
            let found = match self.next(done).await {
                Coming::Delivery(delivery) => Some(*delivery),
                Coming::Missing => None,
                Coming::Nothing => break,
            };
            if found.is_some() && !self.is_clear_to_send().await {
                break;
            }
            match self.step(done + 1, found, &mut head).await {
                Some(Step::GoOn) => {
                    done += 1;
                    sent += 1;
                    // A delivery that is missing was not read.
                    self.read_to = self.read_to.max(done);
                    head = Head::default();
                }
                Some(Step::GaveBack) => return,
                None => break,
            }
        }
        if !self.grip.is_lost() {
            self.report(done, head, None, Report::default(), Some(Release::Now));
        }
    }

    /// Whether the lane ends here, after so many deliveries.
    fn is_to_go_back(&self, sent: usize) -> bool {
        let (shared, endpoint_id) = (&self.shared, self.target.endpoint_id);
        shared.stops.soft.is_cancelled()
            || shared.held.makes_room()
            || self.grip.is_lost()
            || (sent >= 1 && self.lane.crashes > 0)
            || (sent >= QUANTUM && shared.gate.is_crowded(endpoint_id))
            || shared.gate.is_over(&self.target)
    }

    /// Whether a request may begin: its time has come, the lease lasts for it, and nobody holds this worker for dead.
    async fn is_clear_to_send(&self) -> bool {
        if let Some(at) = self.shared.gate.pace(&self.target) {
            tokio::select! {
                () = tokio::time::sleep_until(at.into()) => {}
                () = self.shared.stops.soft.cancelled() => return false,
            }
        }
        Instant::now() + self.target.timeout < self.grip.lease_ends() && self.shared.fence.life() == Some(self.life)
    }

    /// Takes the delivery after `done`, and sees to it that those after it are on their way.
    async fn next(&mut self, done: i64) -> Coming {
        let last_seq = self.grip.last_seq();
        if done >= last_seq {
            return Coming::Nothing;
        }
        if self.in_hand.is_empty() && self.coming.is_none() && !self.read_on(last_seq) {
            return Coming::Nothing;
        }
        if self.in_hand.is_empty()
            && let Some(coming) = self.coming.take()
        {
            let Ok(read) = coming.await else { return Coming::Nothing };
            self.take_in(read);
        }
        let Some(delivery) = self.in_hand.pop_front() else { return Coming::Missing };
        self.shared.held.take_body_bytes(size(&delivery));
        if self.in_hand.len() <= self.read_max / READ_ON_AT
            && self.coming.is_none()
            && self.lane.crashes == 0
            && self.read_to < last_seq
        {
            self.read_on(last_seq);
        }
        Coming::Delivery(Box::new(delivery))
    }

    /// Asks for the deliveries after those that were read. False: the endpoint takes nothing any more.
    fn read_on(&mut self, last_seq: i64) -> bool {
        // Its settings may have changed while the lane was kept.
        let Some(target) = self.shared.scout.target(self.target.endpoint_id) else { return false };
        self.target = target;
        if self.shared.held.body_bytes() < READ_GROWS_BELOW {
            let most = self.shared.settings.deliveries_per_read.saturating_mul(READ_GROWS_TO);
            self.read_max = self.read_max.saturating_mul(2).min(most);
        }
        let read_max = i64::try_from(self.read_max).unwrap_or(i64::MAX);
        let (after_seq, until_seq) = (self.read_to, last_seq.min(self.read_to.saturating_add(read_max)));
        let format = self.target.format.clone();
        self.coming = Some(self.feed.ask(Range { lane_id: self.lane.lane_id, after_seq, until_seq, format }));
        true
    }

    fn take_in(&mut self, read: Vec<Delivery>) {
        self.shared.held.add_body_bytes(read.iter().map(size).sum());
        self.in_hand.extend(read);
        self.keep_what_joins_on();
    }

    /// What follows a gap is read again when its turn comes.
    fn keep_what_joins_on(&mut self) {
        let joined =
            self.in_hand.iter().zip(self.read_to + 1..).take_while(|(delivery, seq)| delivery.seq == *seq).count();
        for delivery in self.in_hand.drain(joined..) {
            self.shared.held.take_body_bytes(size(&delivery));
        }
        self.read_to += i64::try_from(joined).unwrap_or(0);
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
        self.hear(&verdict, &sent);
        self.log(&delivery, &verdict, &sent);
        if let Some(observer) = &self.shared.settings.observer {
            observer(&AttemptSeen { outcome: verdict.outcome, duration: sent.duration });
        }
        Some(self.conclude(delivery, &verdict, sent))
    }

    /// One request. None: a hard stop came first; the request may have arrived.
    async fn attempt(&self, delivery: &Delivery, head: &mut Head) -> Option<Sent> {
        let started = Instant::now();
        let sending = AssertUnwindSafe(self.send(delivery, *head)).catch_unwind();
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

    async fn send(&self, delivery: &Delivery, head: Head) -> Sent {
        let (shared, target) = (&self.shared, &self.target);
        if let Some(name) = subscriber::name_in(&target.url) {
            return shared.settings.subscribers.tell(name, delivery, &head, target.timeout).await;
        }
        let body = delivery.body.clone().unwrap_or_default();
        shared.sender.send(target, delivery, body, shared.clock.now().as_second()).await
    }

    /// Tells the endpoint's window what the way to it was like.
    fn hear(&self, verdict: &Verdict, sent: &Sent) {
        let heard = match verdict.outcome {
            Outcome::Success | Outcome::Conflict => Heard::Success(sent.duration),
            Outcome::Unanswered => Heard::Silence(sent.duration),
            Outcome::Busy => Heard::Busy(sent.duration),
            Outcome::Strike | Outcome::Gone if sent.status_code.is_some() => Heard::Answer,
            // Nothing was sent.
            Outcome::Strike | Outcome::Gone | Outcome::NotSent => return,
        };
        let endpoint = &self.target.name;
        match self.shared.gate.heard(&self.target, heard) {
            None => {}
            Some(CircuitChange::Opened) => {
                let error = sent.error.as_deref().unwrap_or("");
                tracing::warn!(%endpoint, error, "the endpoint is silent: its circuit is open, and only probes go out until it answers");
            }
            Some(CircuitChange::Closed(open_for)) => {
                let open_s = open_for.as_secs();
                tracing::info!(%endpoint, open_s, "the endpoint answers again: its circuit is closed, and deliveries ramp up");
            }
        }
    }

    /// Reports an attempt and says whether the lane goes on.
    fn conclude(&self, delivery: Delivery, verdict: &Verdict, sent: Sent) -> Step {
        let seq = delivery.seq;
        let (ends, stays) = match verdict.next {
            Next::Published => (Some(Ends::Published), None),
            Next::Retry(delay) => (None, Some(Release::After(delay))),
            Next::PauseEndpoint => (None, Some(Release::Now)),
            // A dead head that blocks its lane stays the head: an operator replays it in place, or skips it.
            Next::Dead(_) if self.target.block_on_dead => (Some(Ends::Failed), Some(Release::Blocked)),
            Next::Dead(_) => (Some(Ends::Failed), None),
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
        if stays.is_some() {
            self.report(seq - 1, verdict.head, sent.error, report, stays);
            return Step::GaveBack;
        }
        self.go_on(seq, report)
    }

    /// Reports that the head has ended. The last delivery that is known of gives its lane back with the same words.
    fn go_on(&self, seq: i64, report: Report) -> Step {
        let is_last = seq >= self.grip.last_seq();
        self.report(seq, Head::default(), None, report, is_last.then_some(Release::Now));
        if is_last { Step::GaveBack } else { Step::GoOn }
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
            return Step::GaveBack;
        }
        self.go_on(seq, report)
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
            lease: claim::lease(self.target.timeout, self.shared.settings.deliveries_per_read),
        });
        self.reports.send(report);
    }

    fn log(&self, delivery: &Delivery, verdict: &Verdict, sent: &Sent) {
        let (endpoint, event_id, delivery_id) = (&self.target.name, delivery.event_id, delivery.delivery_id);
        let (attempt, status, duration_ms) = (verdict.head.attempts, sent.status_code, sent.duration.as_millis());
        let error = sent.error.as_deref().unwrap_or("");
        match verdict.next {
            Next::Published => {
                tracing::debug!(%endpoint, %event_id, %delivery_id, attempt, status, duration_ms, "delivered");
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

impl Drop for LaneRun {
    fn drop(&mut self) {
        self.shared.held.take_body_bytes(self.in_hand.iter().map(size).sum());
        self.shared.gate.leave(self.target.endpoint_id);
    }
}

fn size(delivery: &Delivery) -> usize {
    delivery.body.as_ref().map_or(0, bytes::Bytes::len)
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
