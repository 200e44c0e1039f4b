//! The retry rule: from what came back, and what the delivery went through, to what happens next. Pure; time and
//! chance enter as values.
//!
//! What a receiver *answers* says something about the message: an answer that refuses is a strike, and
//! [`Policy::max_attempts`] strikes end the delivery. *Silence* says something about the way: it ends a delivery only if
//! others got through meanwhile, so an outage of any length kills nothing that waits.

use std::time::Duration;

/// The longest wait that a `Retry-After` can ask for.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// Waits after the first, second, … strike: a receiver's own restart fits inside.
const STRIKE_DELAYS_S: [u64; 4] = [5, 30, 120, 300];

/// Waits after silence grow from one second to this.
const SILENCE_DELAY_MAX_S: u64 = 60;

/// What an answer of 409 means at an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// The receiver has seen this id: delivered.
    Success,
    /// A refusal like another.
    Strike,
    /// Delivered if an earlier try may have arrived, else a refusal.
    SuccessIfMayHaveArrived,
}

/// The limits of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Strikes until a delivery is dead.
    pub max_attempts: u32,
    /// Counted silences until a delivery is dead.
    pub max_unanswered: u32,
    /// Count each silence, whether other deliveries get through or not: the plain textbook rule.
    pub count_every_silence: bool,
    /// A delivery first tried longer ago than this dies at its next failure, if others get through.
    pub max_age: Duration,
    /// The longest wait between two attempts, save for what the receiver asks for.
    pub retry_max_delay: Duration,
    /// What 409 means.
    pub conflict: Conflict,
}

/// What the head of a lane went through before this attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Requests made.
    pub attempts: u32,
    /// Answers that refused it.
    pub strikes: u32,
    /// Silences that count.
    pub unanswered: u32,
    /// A try without an answer may have reached the receiver.
    pub may_have_arrived: bool,
    /// How long ago it was first tried.
    pub age: Duration,
    /// Whether another delivery to the endpoint got through since the last attempt at this one.
    pub others_got_through: bool,
}

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An HTTP status, and how long the receiver asks us to wait.
    Status(u16, Option<Duration>),
    /// What is stored cannot be sent as it is (a URL or a header that HTTP does not allow): nothing was asked.
    Unsendable,
    /// Nothing that could be read as an answer; `sent` if the request may have reached the receiver.
    Silence {
        /// Whether bytes of the request may have left.
        sent: bool,
    },
}

/// How an attempt counts; the words are those of `outbox_attempts.outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// 2xx.
    Success,
    /// 409 that means seen.
    Conflict,
    /// An answer that refuses.
    Strike,
    /// No answer.
    Unanswered,
    /// 429, 502, 503, 504: the receiver, or something before it, is busy or away.
    Busy,
    /// 410: the receiver wants nothing more.
    Gone,
    /// No request was made.
    NotSent,
}

impl Outcome {
    /// The word in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Conflict => "conflict",
            Self::Strike => "strike",
            Self::Unanswered => "unanswered",
            Self::Busy => "busy",
            Self::Gone => "gone",
            Self::NotSent => "not_sent",
        }
    }
}

/// Why a delivery is dead; the words are those of `outbox_dlq.reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeathReason {
    /// Refused too often.
    MaxAttempts,
    /// Unanswered too often while others got through.
    MaxUnanswered,
    /// Tried for too long while others got through.
    MaxAge,
    /// Its row or its bytes are gone.
    RowMissing,
    /// Workers that handled it vanished three times.
    CrashedWorker,
}

impl DeathReason {
    /// The word in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MaxAttempts => "max_attempts",
            Self::MaxUnanswered => "max_unanswered",
            Self::MaxAge => "max_age",
            Self::RowMissing => "row_missing",
            Self::CrashedWorker => "crashed_worker",
        }
    }
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It arrived.
    Published,
    /// Try again after this long.
    Retry(Duration),
    /// Give up: dead letter.
    Dead(DeathReason),
    /// The receiver wants nothing more: hold everything for this endpoint until a person resumes it.
    PauseEndpoint,
}

/// The verdict on one attempt: how it counts, what the head has been through now, and what happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How the attempt counts.
    pub outcome: Outcome,
    /// The head after it. `age` and `others_got_through` are left as they came in.
    pub head: Head,
    /// What happens next.
    pub next: Next,
}

/// Judges one attempt. `jitter` is a random number from 0 up to, not including, 1.
pub fn judge(policy: &Policy, head: Head, answer: Answer, jitter: f64) -> Verdict {
    let outcome = classify(policy, &head, answer);
    let head = Head { attempts: head.attempts + 1, ..head };
    match outcome {
        Outcome::Success | Outcome::Conflict => Verdict { outcome, head, next: Next::Published },
        Outcome::Gone => Verdict { outcome, head, next: Next::PauseEndpoint },
        Outcome::Strike => judge_strike(policy, head, answer, jitter),
        Outcome::Unanswered | Outcome::Busy | Outcome::NotSent => judge_silence(policy, head, answer, outcome, jitter),
    }
}

fn classify(policy: &Policy, head: &Head, answer: Answer) -> Outcome {
    match answer {
        Answer::Silence { .. } => Outcome::Unanswered,
        Answer::Status(200..=299, _) => Outcome::Success,
        Answer::Status(409, _) => match policy.conflict {
            Conflict::Success => Outcome::Conflict,
            Conflict::SuccessIfMayHaveArrived if head.may_have_arrived => Outcome::Conflict,
            Conflict::SuccessIfMayHaveArrived | Conflict::Strike => Outcome::Strike,
        },
        Answer::Status(410, _) => Outcome::Gone,
        Answer::Status(429 | 502 | 503 | 504, _) => Outcome::Busy,
        Answer::Status(..) | Answer::Unsendable => Outcome::Strike,
    }
}

fn judge_strike(policy: &Policy, head: Head, answer: Answer, jitter: f64) -> Verdict {
    let head = Head { strikes: head.strikes + 1, ..head };
    let next = if head.strikes >= policy.max_attempts {
        Next::Dead(DeathReason::MaxAttempts)
    } else if too_old(policy, &head) {
        Next::Dead(DeathReason::MaxAge)
    } else {
        let index = usize::try_from(head.strikes - 1).unwrap_or(usize::MAX).min(STRIKE_DELAYS_S.len() - 1);
        Next::Retry(delay(policy, Duration::from_secs(STRIKE_DELAYS_S[index]), answer, jitter))
    };
    Verdict { outcome: Outcome::Strike, head, next }
}

fn judge_silence(policy: &Policy, head: Head, answer: Answer, outcome: Outcome, jitter: f64) -> Verdict {
    let counts = policy.count_every_silence || head.others_got_through;
    let may_have_arrived = match answer {
        Answer::Silence { sent } => sent,
        // A gateway's answer says nothing about what the receiver behind it did.
        Answer::Status(code, _) => matches!(code, 502 | 504),
        Answer::Unsendable => false,
    };
    let head = Head {
        unanswered: head.unanswered + u32::from(counts),
        may_have_arrived: head.may_have_arrived || may_have_arrived,
        ..head
    };
    let next = if head.unanswered >= policy.max_unanswered {
        Next::Dead(DeathReason::MaxUnanswered)
    } else if too_old(policy, &head) {
        Next::Dead(DeathReason::MaxAge)
    } else {
        let silences = head.attempts.saturating_sub(head.strikes).saturating_sub(1);
        let seconds = 1u64.checked_shl(silences).unwrap_or(SILENCE_DELAY_MAX_S).min(SILENCE_DELAY_MAX_S);
        Next::Retry(delay(policy, Duration::from_secs(seconds), answer, jitter))
    };
    Verdict { outcome, head, next }
}

/// Age counts only in healthy time: where nothing gets through, nothing dies of it.
fn too_old(policy: &Policy, head: &Head) -> bool {
    head.others_got_through && head.age > policy.max_age
}

/// Three quarters of the wait are fixed, one quarter is chance, so that a crowd that failed at once does not come back at
/// once. What the receiver asks for is a lower bound, and its chance lies above it.
fn delay(policy: &Policy, wanted: Duration, answer: Answer, jitter: f64) -> Duration {
    let own = wanted.min(policy.retry_max_delay).mul_f64(0.75 + 0.25 * jitter.clamp(0.0, 1.0));
    let Answer::Status(_, Some(asked)) = answer else { return own };
    let asked = asked.min(RETRY_AFTER_MAX);
    if asked > own { asked.mul_f64(1.0 + 0.1 * jitter.clamp(0.0, 1.0)) } else { own }
}

/// Reads a `Retry-After` value: seconds, or an HTTP date relative to `now_s` (seconds since 1970). What cannot be read,
/// is negative or lies in the past asks for nothing.
pub fn parse_retry_after(value: &[u8], now_s: i64) -> Option<Duration> {
    let text = std::str::from_utf8(value).ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        let seconds = text.parse::<u64>().unwrap_or(u64::MAX).min(RETRY_AFTER_MAX.as_secs());
        return (seconds > 0).then(|| Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    let ahead = u64::try_from(date.as_second().checked_sub(now_s)?).ok()?;
    (ahead > 0).then(|| Duration::from_secs(ahead).min(RETRY_AFTER_MAX))
}

#[cfg(test)]
#[path = "retry_test.rs"]
mod tests;
