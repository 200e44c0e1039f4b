//! Subscribers within the process: a handler instead of a URL, under the rules of every delivery (order, retry, dead letters,
//! takeover). Runs what the service gives it; touches neither database nor network.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use uuid::Uuid;

use crate::retry::{Answer, Head};
use crate::send::Sent;
use crate::store::claim::Delivery;

/// What the URL of such an endpoint begins with; its name follows.
pub const SCHEME: &str = "subscriber:";

/// Why a handler did not do it, in words that are kept with the attempt.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// What a handler is told.
#[derive(Clone, Debug)]
pub struct Told {
    /// The same at every retry and replay: by it a handler recognises a repeat.
    pub delivery_id: Uuid,
    /// The event.
    pub event_id: Uuid,
    /// Its type.
    pub event_type: String,
    /// What it is about.
    pub aggregate_id: String,
    /// The name of that.
    pub aggregate_name: String,
    /// The exact bytes that were enqueued.
    pub payload: Bytes,
    /// How often this was tried before.
    pub tried: u32,
    /// An earlier try may have got through although nobody heard of its end.
    pub may_be_repeat: bool,
}

/// Handles what it is told. Ok: the delivery has ended. Err, a panic, or more time than the endpoint's deadline: it is tried
/// again, and a dead letter in the end. It may be told the same thing again after Ok, if the process dies at that moment.
pub trait Subscriber: Send + Sync + 'static {
    /// Handles one event. Events of one aggregate come one after another; those of others come beside it.
    fn handle(&self, told: Told) -> Handling;
}

/// A handler at work.
pub type Handling = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send>>;

impl<Function, Running> Subscriber for Function
where
    Function: Fn(Told) -> Running + Send + Sync + 'static,
    Running: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    fn handle(&self, told: Told) -> Handling {
        Box::pin(self(told))
    }
}

/// The handlers of a worker, by the names of their endpoints. Cloning shares them.
#[derive(Clone, Default)]
pub struct Subscribers(HashMap<String, Arc<dyn Subscriber>>);

impl fmt::Debug for Subscribers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

impl Subscribers {
    /// With one more handler. Its endpoint is made by [`subscribe`](crate::store::endpoints::subscribe).
    #[must_use]
    pub fn with(mut self, name: &str, subscriber: impl Subscriber) -> Self {
        self.0.insert(name.to_owned(), Arc::new(subscriber));
        self
    }

    /// Whether what goes to this URL can be handled here: HTTP always, a subscriber if it is one of these.
    pub(crate) fn can_reach(&self, url: &str) -> bool {
        name_in(url).is_none_or(|name| self.0.contains_key(name))
    }

    /// Tells a subscriber, within the deadline.
    pub(crate) async fn tell(&self, name: &str, delivery: &Delivery, head: &Head, timeout: Duration) -> Sent {
        let started = Instant::now();
        let ended = match self.0.get(name) {
            None => Err((Answer::Silence { sent: false }, format!("no subscriber {name} in this process"))),
            Some(subscriber) => {
                let told = Told {
                    delivery_id: delivery.delivery_id,
                    event_id: delivery.event_id,
                    event_type: delivery.event_type.clone(),
                    aggregate_id: delivery.aggregate_id.clone(),
                    aggregate_name: delivery.aggregate_name.clone(),
                    payload: delivery.body.clone().unwrap_or_default(),
                    tried: head.attempts,
                    may_be_repeat: head.may_have_arrived,
                };
                // A handler may panic before its first await, too.
                let handling = AssertUnwindSafe(async { subscriber.handle(told).await }).catch_unwind();
                match tokio::time::timeout(timeout, handling).await {
                    Ok(Ok(Ok(()))) => Ok(()),
                    Ok(Ok(Err(error))) => Err((Answer::Unsendable, format!("subscriber {name}: {error}"))),
                    Ok(Err(_)) => Err((Answer::Unsendable, format!("subscriber {name} panicked"))),
                    Err(_) => {
                        Err((Answer::Silence { sent: true }, format!("subscriber {name} took longer than {timeout:?}")))
                    }
                }
            }
        };
        let (answer, error) = match ended {
            Ok(()) => (Answer::Status(200, None), None),
            Err((answer, error)) => (answer, Some(error)),
        };
        Sent { answer, status_code: None, error, response_body: None, started, duration: started.elapsed() }
    }
}

/// The name in the URL of a subscriber; None: it is an HTTP endpoint.
pub(crate) fn name_in(url: &str) -> Option<&str> {
    url.strip_prefix(SCHEME)
}
