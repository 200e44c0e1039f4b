//! The only outbound socket: one signed POST, its answer or the lack of one, within a deadline.
//!
//! No redirects are followed, no proxy is taken from the environment, nothing is inflated, and at most
//! [`RESPONSE_BYTES_MAX`] of an answer are read. Connections are reused.

mod connect;

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use surehook_webhook::envelope;
use surehook_webhook::secret::{Secret, Secrets};

pub use connect::{ConnectError, Connector};

use crate::retry::{Answer, parse_retry_after};
use crate::store::claim::{Delivery, parse_headers};
use crate::target::Target;

/// How much of an answer is read and kept, in bytes.
pub const RESPONSE_BYTES_MAX: usize = 16 * 1024;

/// How long the rest of an answer is waited for once its status is known.
const RESPONSE_BODY_WAIT_MAX: Duration = Duration::from_secs(2);

/// Sent with every delivery.
const USER_AGENT: &str = concat!("surehook/", env!("CARGO_PKG_VERSION"));

/// The format of endpoints that are PagerDuty's.
pub const PAGERDUTY: &str = "pagerduty";

type HttpClient = Client<HttpsConnector<Connector>, Full<Bytes>>;

/// Sends deliveries. Cloning shares its connections.
#[derive(Clone, Debug)]
pub struct Sender {
    public_only: HttpClient,
    private_too: HttpClient,
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
        let tls = crate::tls::client_config();
        Self { public_only: client(&tls, false), private_too: client(&tls, true) }
    }

    /// Makes one attempt, which ends within the target's deadline. `now_s` is database time in seconds since 1970. Dropping
    /// the future abandons the attempt; it may have arrived all the same.
    pub async fn send(&self, target: &Target, delivery: &Delivery, body: Bytes, now_s: i64) -> Sent {
        let started = Instant::now();
        let ended = match request(target, delivery, body, now_s) {
            Err(reason) => Ended::nothing(Answer::Unsendable, reason),
            Ok(request) => {
                let client = if target.allow_private { &self.private_too } else { &self.public_only };
                tokio::time::timeout(target.timeout, exchange(client, request, started, target.timeout, now_s))
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

fn client(tls: &rustls::ClientConfig, allow_private: bool) -> HttpClient {
    let https = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls.clone())
        .https_or_http()
        .enable_http1()
        .wrap_connector(Connector { allow_private });
    #[expect(clippy::disallowed_methods, reason = "this is the door for outbound HTTP")]
    let mut builder = Client::builder(TokioExecutor::new());
    builder
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .pool_max_idle_per_host(256)
        .http1_max_headers(200)
        .build(https)
}

/// Later headers replace earlier ones of the same name: the administrator's, then the format's, then the webhook's own.
fn request(target: &Target, delivery: &Delivery, body: Bytes, now_s: i64) -> Result<Request<Full<Bytes>>, String> {
    let secrets = match &target.secrets {
        Err(error) => return Err(format!("the secret of the endpoint cannot be used: {error}")),
        Ok(secrets) => {
            let mut secrets = secrets.iter().cloned();
            let primary = secrets.next().ok_or("the endpoint has no secret")?;
            Secrets { primary, next: secrets.next() }
        }
    };
    let body = if target.format == PAGERDUTY { with_routing_key(&body, &secrets.primary)? } else { body };
    let own = envelope::headers(delivery.delivery_id, now_s, &body, &secrets);
    let mut request =
        Request::post(&target.url).body(Full::new(body)).map_err(|error| format!("the URL cannot be used: {error}"))?;
    if request.uri().host().is_none() {
        return Err("the URL names no host".into());
    }
    let format_headers = parse_headers(&delivery.headers);
    let pairs = std::iter::once(("user-agent", USER_AGENT))
        .chain(target.headers.iter().chain(&format_headers).map(|(name, value)| (name.as_str(), value.as_str())))
        .chain(own.iter().map(|(name, value)| (*name, value.as_str())));
    for (name, value) in pairs {
        let header: HeaderName =
            name.parse().map_err(|_| format!("the header name {name:?} is not allowed by HTTP"))?;
        let value: HeaderValue =
            value.parse().map_err(|_| format!("the value of header {name} is not allowed by HTTP"))?;
        request.headers_mut().insert(header, value);
    }
    Ok(request)
}

/// PagerDuty knows its customers by a key in the body. It is a secret, so it is put in when the body is sent and not stored with it.
fn with_routing_key(body: &Bytes, secret: &Secret) -> Result<Bytes, String> {
    let mut fields: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(body).map_err(|error| format!("the body is no JSON object: {error}"))?;
    fields.insert("routing_key".into(), secret.expose_text().into());
    serde_json::to_vec(&fields).map(Bytes::from).map_err(|error| format!("the body cannot be written: {error}"))
}

async fn exchange(
    client: &HttpClient,
    request: Request<Full<Bytes>>,
    started: Instant,
    timeout: Duration,
    now_s: i64,
) -> Ended {
    match client.request(request).await {
        Err(error) => {
            let sent = !error.is_connect();
            Ended::nothing(Answer::Silence { sent }, explain(&error))
        }
        Ok(response) => {
            let status = response.status();
            let retry_after =
                response.headers().get(http::header::RETRY_AFTER).and_then(|v| parse_retry_after(v.as_bytes(), now_s));
            // The status is the verdict. What is left of the deadline, and no more than a moment, goes to its words.
            let wait = timeout.saturating_sub(started.elapsed()).min(RESPONSE_BODY_WAIT_MAX);
            let body = read_capped(response, wait).await;
            let error = (!status.is_success()).then(|| format!("HTTP {status}"));
            Ended {
                answer: Answer::Status(status.as_u16(), retry_after),
                status_code: Some(status.as_u16()),
                error,
                response_body: Some(body),
            }
        }
    }
}

/// Reads until the end, the cap, the wait or a fault, whichever comes first. A connection whose answer was not read to
/// its end is closed by dropping it, never reused.
async fn read_capped(response: Response<Incoming>, wait: Duration) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut body = response.into_body();
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            if let Some(data) = frame.data_ref() {
                let room = RESPONSE_BYTES_MAX - kept.len();
                kept.extend_from_slice(&data[..data.len().min(room)]);
                if kept.len() == RESPONSE_BYTES_MAX {
                    break;
                }
            }
        }
    };
    // Running into the wait is no error: what came so far is kept.
    let _ = tokio::time::timeout(wait, reading).await;
    kept
}

/// The innermost causes say most: "connection refused", "certificate expired".
fn explain(error: &ClientError) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(current) = cause {
        let text = current.to_string();
        if !words.iter().any(|word| word.contains(&text)) {
            words.retain(|word| !text.contains(word.as_str()));
            words.push(text);
        }
        cause = current.source();
    }
    if words.is_empty() { error.to_string() } else { words.join(": ") }
}
