//! Checks what arrives: signatures, age, one value per header. Pure: the clock's reading is passed in.

use crate::envelope::{WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP, X_SIGNATURE, X_WEBHOOK_ID};
use crate::secret::Secrets;
use crate::signature::{verify_standard_signature, verify_x_signature};

/// How far the timestamp of a delivery may be from the receiver's clock, by the Standard Webhooks specification.
pub const TOLERANCE_S: u32 = 300;
/// The longest id of a delivery.
pub const ID_BYTES_MAX: usize = 200;

/// What is known of a delivery that was believed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// The idempotency key: visible ASCII without a full stop, at most [`ID_BYTES_MAX`] bytes. surehook sends a UUID.
    pub webhook_id: String,
    /// When the attempt was made by the sender's clock, in seconds since 1970; `None` if it came untimed.
    pub timestamp_s: Option<i64>,
}

/// Why a delivery is not believed. Answer it with 401.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// A header that is demanded is missing.
    #[error("the header {0} is missing")]
    MissingHeader(&'static str),
    /// Two values leave open which one was meant.
    #[error("the header {0} came twice")]
    DuplicatedHeader(&'static str),
    /// The id or the timestamp is not of the form that it must have.
    #[error("the header {0} is malformed")]
    MalformedHeader(&'static str),
    /// `X-Webhook-Id` and `webhook-id` name two deliveries.
    #[error("the two ids differ")]
    IdsDiffer,
    /// A signature is malformed, made with another secret, or over other bytes.
    #[error("the signature in {0} is wrong")]
    BadSignature(&'static str),
    /// Older than the tolerance: perhaps somebody repeats what he overheard.
    #[error("the delivery is {age_s} s old")]
    TooOld {
        /// How old, in seconds.
        age_s: i64,
    },
    /// Further in the future than the tolerance: one of the clocks is wrong.
    #[error("the delivery is {ahead_s} s ahead of the clock")]
    TooNew {
        /// How far ahead, in seconds.
        ahead_s: i64,
    },
}

/// Checks deliveries with the secrets of one endpoint.
///
/// `X-Signature` does not cover the id, so it alone would let an eavesdropper repeat a body under a new id. Therefore
/// `X-Signature` *and* the three headers of Standard Webhooks are demanded, which cover id and time too.
#[derive(Clone, Debug)]
pub struct Verifier {
    secrets: Secrets,
    tolerance_s: u32,
    accept_untimed: bool,
}

impl Verifier {
    /// With a tolerance of [`TOLERANCE_S`], and all signatures demanded.
    pub fn new(secrets: Secrets) -> Self {
        Self { secrets, tolerance_s: TOLERANCE_S, accept_untimed: false }
    }

    /// Sets how far clocks may differ, in seconds.
    #[must_use]
    pub fn tolerance_s(mut self, tolerance_s: u32) -> Self {
        self.tolerance_s = tolerance_s;
        self
    }

    /// Whether `X-Signature` with `X-Webhook-Id` suffices if none of the three headers of Standard Webhooks came, for
    /// senders that know only these. If one of the three came, all three must be right all the same.
    #[must_use]
    pub fn accept_untimed(mut self, accept_untimed: bool) -> Self {
        self.accept_untimed = accept_untimed;
        self
    }

    /// Checks a delivery over the raw bytes of its body, before they are parsed. Names may be in any case.
    ///
    /// Ok: the sender knew a secret, and the time is within the tolerance of `now_s`. Whether the id was seen before is
    /// the business of a [`SeenStore`](crate::SeenStore).
    pub fn verify<'h>(
        &self,
        headers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
        body: &[u8],
        now_s: i64,
    ) -> Result<Verified, Refused> {
        let found = Found::collect(headers)?;
        let untimed = self.accept_untimed
            && found.webhook_id.is_none()
            && found.webhook_timestamp.is_none()
            && found.webhook_signature.is_none();

        let x_id = parse_id(X_WEBHOOK_ID, found.x_webhook_id)?;
        let x_signature = found.x_signature.ok_or(Refused::MissingHeader(X_SIGNATURE))?;
        let standard = if untimed {
            None
        } else {
            let id = parse_id(WEBHOOK_ID, found.webhook_id)?;
            let timestamp_s = parse_timestamp(found.webhook_timestamp)?;
            let signature = found.webhook_signature.ok_or(Refused::MissingHeader(WEBHOOK_SIGNATURE))?;
            if id != x_id {
                return Err(Refused::IdsDiffer);
            }
            Some((timestamp_s, signature))
        };

        if !self.secrets.iter().any(|secret| verify_x_signature(secret, body, x_signature).is_ok()) {
            return Err(Refused::BadSignature(X_SIGNATURE));
        }
        if let Some((timestamp_s, signature)) = standard {
            let believed = |secret| verify_standard_signature(secret, x_id, timestamp_s, body, signature).is_ok();
            if !self.secrets.iter().any(believed) {
                return Err(Refused::BadSignature(WEBHOOK_SIGNATURE));
            }
            self.check_age(timestamp_s, now_s)?;
        }
        Ok(Verified { webhook_id: x_id.into(), timestamp_s: standard.map(|(timestamp_s, _)| timestamp_s) })
    }

    fn check_age(&self, timestamp_s: i64, now_s: i64) -> Result<(), Refused> {
        let age_s = now_s.saturating_sub(timestamp_s);
        if age_s > i64::from(self.tolerance_s) {
            return Err(Refused::TooOld { age_s });
        }
        if age_s < -i64::from(self.tolerance_s) {
            return Err(Refused::TooNew { ahead_s: age_s.saturating_neg() });
        }
        Ok(())
    }
}

/// The five headers that matter, each at most once.
#[derive(Default)]
struct Found<'h> {
    x_signature: Option<&'h [u8]>,
    x_webhook_id: Option<&'h [u8]>,
    webhook_id: Option<&'h [u8]>,
    webhook_timestamp: Option<&'h [u8]>,
    webhook_signature: Option<&'h [u8]>,
}

impl<'h> Found<'h> {
    fn collect(headers: impl IntoIterator<Item = (&'h str, &'h [u8])>) -> Result<Self, Refused> {
        let mut found = Self::default();
        for (name, value) in headers {
            for (known, place) in [
                (X_SIGNATURE, &mut found.x_signature),
                (X_WEBHOOK_ID, &mut found.x_webhook_id),
                (WEBHOOK_ID, &mut found.webhook_id),
                (WEBHOOK_TIMESTAMP, &mut found.webhook_timestamp),
                (WEBHOOK_SIGNATURE, &mut found.webhook_signature),
            ] {
                if name.eq_ignore_ascii_case(known) && place.replace(value).is_some() {
                    return Err(Refused::DuplicatedHeader(known));
                }
            }
        }
        Ok(found)
    }
}

/// A full stop in an id would let `id.timestamp.body` be cut in more than one way.
fn parse_id<'h>(name: &'static str, value: Option<&'h [u8]>) -> Result<&'h str, Refused> {
    let value = value.ok_or(Refused::MissingHeader(name))?;
    let plain = value.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'.');
    if value.is_empty() || value.len() > ID_BYTES_MAX || !plain {
        return Err(Refused::MalformedHeader(name));
    }
    std::str::from_utf8(value).map_err(|_| Refused::MalformedHeader(name))
}

/// Decimal digits in the one way that the sender signed them: no sign, no leading zero.
fn parse_timestamp(value: Option<&[u8]>) -> Result<i64, Refused> {
    let value = value.ok_or(Refused::MissingHeader(WEBHOOK_TIMESTAMP))?;
    let malformed = Refused::MalformedHeader(WEBHOOK_TIMESTAMP);
    let canonical = matches!(value, [b'0'] | [b'1'..=b'9', ..]) && value.iter().all(u8::is_ascii_digit);
    if !canonical {
        return Err(malformed);
    }
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).ok_or(malformed)
}
