//! The only outbound socket: one signed POST, its answer or the lack of one, within a deadline.
//!
//! No redirects are followed, no proxy is taken from the environment, nothing is inflated, and at most
//! [`RESPONSE_BYTES_MAX`] of an answer are read. Connections are reused.

mod connect;
pub mod direct;
mod pool;
mod route;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use surehook_webhook::secret::Secret;

use self::pool::{Connection, ExchangeError, Pool};
use crate::retry::{Answer, parse_retry_after};
use crate::store::claim::Delivery;
use crate::target::Target;

pub use connect::{ConnectError, Connector};
pub(crate) use route::Route;

/// How much of an answer is read and kept, in bytes.
pub const RESPONSE_BYTES_MAX: usize = 16 * 1024;

/// How long the rest of an answer is waited for once its status is known.
const RESPONSE_BODY_WAIT_MAX: Duration = Duration::from_secs(2);

/// The format of endpoints that are PagerDuty's.
pub const PAGERDUTY: &str = "pagerduty";

/// Sends deliveries. Cloning shares its connections.
#[derive(Clone, Debug)]
pub struct Sender {
    pool: Arc<Pool>,
}

/// What came of one attempt.
#[derive(Clone, Debug)]
pub struct Sent {
    /// What the retry rule looks at.
    pub answer: Answer,
    /// The status, if an answer came.
    pub status_code: Option<u16>,
    /// What went wrong, in words for a person; None for 2xx.
    pub error: Option<String>,
    /// The first bytes of the answer.
    pub response_body: Option<Vec<u8>>,
    /// When it began.
    pub started: Instant,
    /// How long it took.
    pub duration: Duration,
}

impl Default for Sender {
    fn default() -> Self {
        Self::new()
    }
}

impl Sender {
    /// Makes a sender that trusts the certificates of the system (`SSL_CERT_FILE` and `SSL_CERT_DIR` are honoured).
    pub fn new() -> Self {
        Self { pool: Arc::new(Pool::new(&crate::tls::client_config())) }
    }

    /// Makes one attempt, which ends within the target's deadline. `now_s` is database time in seconds since 1970. Dropping
    /// the future abandons the attempt; it may have arrived all the same.
    pub async fn send(&self, target: &Target, delivery: &Delivery, body: Bytes, now_s: i64) -> Sent {
        let started = Instant::now();
        let made = target.route().and_then(|route| Ok((route, route.request(delivery, body, now_s)?)));
        let ended = match made {
            Err(reason) => Ended::nothing(Answer::Unsendable, reason),
            Ok((route, request)) => {
                tokio::time::timeout(target.timeout, self.exchange(route, request, started, target.timeout, now_s))
                    .await
                    .unwrap_or_else(|_| {
                        let reason = format!("no answer within {:?}", target.timeout);
                        Ended::nothing(Answer::Silence { sent: true }, reason)
                    })
            }
        };
        let Ended { answer, status_code, error, response_body } = ended;
        Sent { answer, status_code, error, response_body, started, duration: started.elapsed() }
    }

    /// Closes connections that were not needed for a while. To be called now and then.
    pub fn close_idle(&self) {
        self.pool.close_idle();
    }

    async fn exchange(
        &self,
        route: &Route,
        request: Request<Full<Bytes>>,
        started: Instant,
        timeout: Duration,
        now_s: i64,
    ) -> Ended {
        let (response, mut connection) = match self.pool.exchange(&route.origin, request).await {
            Ok(answered) => answered,
            Err(ExchangeError::Connect(error)) => {
                return Ended::nothing(Answer::Silence { sent: false }, explain(&*error));
            }
            Err(ExchangeError::Broken(error)) => {
                return Ended::nothing(Answer::Silence { sent: true }, explain(&*error));
            }
        };
        let status = response.status();
        let retry_after =
            response.headers().get(http::header::RETRY_AFTER).and_then(|v| parse_retry_after(v.as_bytes(), now_s));
        // The status is the verdict. What is left of the deadline, and no more than a moment, goes to its words.
        let wait = timeout.saturating_sub(started.elapsed()).min(RESPONSE_BODY_WAIT_MAX);
        let (body, is_whole) = read_capped(response, &mut connection, wait).await;
        if is_whole {
            self.pool.give_back(&route.origin, connection).await;
        }
        let error = (!status.is_success()).then(|| format!("HTTP {status}"));
        Ended {
            answer: Answer::Status(status.as_u16(), retry_after),
            status_code: Some(status.as_u16()),
            error,
            response_body: Some(body),
        }
    }
}

struct Ended {
    answer: Answer,
    status_code: Option<u16>,
    error: Option<String>,
    response_body: Option<Vec<u8>>,
}

impl Ended {
    fn nothing(answer: Answer, error: String) -> Self {
        Self { answer, status_code: None, error: Some(error), response_body: None }
    }
}

/// PagerDuty knows its customers by a key in the body. It is a secret, so it is put in when the body is sent and not stored with it.
fn with_routing_key(body: &Bytes, secret: &Secret) -> Result<Bytes, String> {
    let mut fields: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(body).map_err(|error| format!("the body is no JSON object: {error}"))?;
    fields.insert("routing_key".into(), secret.expose_text().into());
    serde_json::to_vec(&fields).map(Bytes::from).map_err(|error| format!("the body cannot be written: {error}"))
}

/// Reads until the end, the cap, the wait or a fault, whichever comes first, and says whether it was the end. A connection
/// whose answer was not read to its end is closed by dropping it, never reused.
async fn read_capped(response: Response<Incoming>, connection: &mut Connection, wait: Duration) -> (Vec<u8>, bool) {
    let mut kept = Vec::new();
    let mut body = response.into_body();
    if body.is_end_stream() {
        return (kept, true);
    }
    let reading = async {
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return false };
            if let Some(data) = frame.data_ref() {
                let room = RESPONSE_BYTES_MAX - kept.len();
                kept.extend_from_slice(&data[..data.len().min(room)]);
                if data.len() > room || (kept.len() == RESPONSE_BYTES_MAX && !body.is_end_stream()) {
                    return false;
                }
            }
        }
        true
    };
    // Running into the wait is no error: what came so far is kept.
    let is_whole = tokio::time::timeout(wait, connection.drive(reading)).await.unwrap_or(false);
    (kept, is_whole)
}

/// The innermost causes say most: "connection refused", "certificate expired".
fn explain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(current) = cause {
        let text = current.to_string();
        if !words.iter().any(|word| word.contains(&text)) {
            words.retain(|word| !text.contains(word.as_str()));
            words.push(text);
        }
        cause = current.source();
    }
    words.join(": ")
}
