//! A message that goes out past the outbox: from a watchdog, which must be heard while the database is away. Nothing is
//! recorded and nothing is retried here; it is signed and sent like a delivery.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use surehook_webhook::secret::Secret;
use uuid::Uuid;

use super::{Sender, Sent};
use crate::retry::{Conflict, Policy};
use crate::store::claim::Delivery;
use crate::target::Target;

/// Where such a message goes.
#[derive(Clone, Debug)]
pub struct Direct {
    /// Absolute URL.
    pub url: String,
    /// Signs; the routing key where the format is PagerDuty's.
    pub secret: Secret,
    /// `native` or `pagerduty`.
    pub format: String,
    /// Loopback and private addresses are wanted.
    pub allow_private: bool,
    /// Deadline of one attempt.
    pub timeout: Duration,
}

impl Sender {
    /// Makes one attempt within the deadline. `message_id` is sent as `X-Webhook-Id`; `now` is database time.
    pub async fn send_direct(&self, to: &Direct, message_id: Uuid, body: Vec<u8>, now: Timestamp) -> Sent {
        let target = Target {
            endpoint_id: Uuid::nil(),
            name: "direct".into(),
            url: to.url.clone(),
            secrets: Ok(vec![to.secret.clone()]),
            headers: Vec::new(),
            format: to.format.clone(),
            allow_private: to.allow_private,
            timeout: to.timeout,
            in_flight_max: 1,
            rate_max_per_s: None,
            block_on_dead: false,
            policy: Policy {
                max_attempts: 1,
                max_unanswered: 1,
                count_every_silence: true,
                max_age: to.timeout,
                retry_max_delay: to.timeout,
                conflict: Conflict::Success,
            },
            route: Default::default(),
        };
        let delivery = Delivery {
            seq: 1,
            delivery_id: message_id,
            event_id: message_id,
            event_type: String::new(),
            aggregate_id: String::new(),
            aggregate_name: String::new(),
            webhook_name: String::new(),
            replay: false,
            event_created_at: now,
            headers: "{}".into(),
            body: None,
        };
        self.send(&target, &delivery, Bytes::from(body), now.as_second()).await
    }
}
