//! The receiver's HTTP server: reads a delivery, checks it, records it, answers. Nothing is built here.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use surehook_outbox::crash::point;
use surehook_webhook::body_hash;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::push::Push;
use crate::store::inbox::{self, NewBuild, Recorded};

const CONNECTIONS_MAX: usize = 1024;
/// Longer than senders keep an idle connection (90 s is usual), so that it is they who close it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(100);
/// The whole body must be there within.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The database must answer within; shorter than the deadline of a sender, so that he learns why.
const RECORD_TIMEOUT: Duration = Duration::from_secs(5);
/// What of a body over the limit is read and thrown away: a sender hears the answer only if he may finish.
const DRAIN_BYTES_MAX: usize = 64 * 1024 * 1024;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// What is in flight at shutdown must end within.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
const RETRY_AFTER_S: &str = "2";

/// Serves until shutdown, then answers what is in flight.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let shutdown = shared.shutdown.clone();
    let router = Router::new().fallback(deliver).with_state(shared);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(ended) = connections.join_next() => if let Err(error) = ended {
                tracing::error!(%error, "the handler of a connection broke down");
            },
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(stream, router.clone(), shutdown.clone()));
                }
                Err(error) => {
                    // Out of file descriptors, most likely; it passes when connections end.
                    tracing::warn!(%error, "a connection cannot be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
    drop(listener);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_GRACE, all_ended).await.is_err() {
        tracing::warn!("requests in flight were cut off at shutdown");
        connections.shutdown().await;
    }
}

async fn converse(stream: TcpStream, router: Router, shutdown: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

async fn deliver(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    if head.method != Method::POST {
        let mut answer = refuse(StatusCode::METHOD_NOT_ALLOWED, "deliveries are POSTed");
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return answer;
    }
    // Bounds the bodies in memory.
    let Ok(_permit) = shared.requests.acquire().await else {
        return away("the receiver stops");
    };
    let body = match tokio::time::timeout(BODY_TIMEOUT, read(body, shared.body_bytes_max)).await {
        Ok(Read::Whole(body)) => body,
        Ok(Read::TooLong) => {
            let reason = format!("the body is longer than {} bytes", shared.body_bytes_max);
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, &reason);
        }
        Ok(Read::Broken) => return refuse(StatusCode::BAD_REQUEST, "the body broke off"),
        Err(_) => return refuse(StatusCode::REQUEST_TIMEOUT, "the body did not come in time"),
    };
    if !is_json(&head.headers) {
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "deliveries are application/json");
    }
    let headers = head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let verified = match shared.verifier.verify(headers, &body, now_s()) {
        Ok(verified) => verified,
        Err(reason) => {
            tracing::warn!(%reason, "a delivery was refused");
            return refuse(StatusCode::UNAUTHORIZED, &reason.to_string());
        }
    };
    match Push::parse(&body) {
        Ok(push) => record(&shared, &verified.webhook_id, &push, &body).await,
        Err(error) => {
            tracing::warn!(webhook_id = verified.webhook_id, %error, "a delivery cannot start a build");
            refuse(StatusCode::BAD_REQUEST, &error.to_string())
        }
    }
}

async fn record(shared: &Shared, webhook_id: &str, push: &Push, body: &[u8]) -> Response {
    let repository = push.repository();
    let build = NewBuild {
        webhook_id,
        body_hash: &body_hash(body),
        payload: body,
        event_id: push.event_id(),
        repository_key: &push.repository_key(),
        repository: repository.as_deref(),
        ref_name: &push.ref_column(),
        before: &push.before,
        after: &push.after,
        commit: push.commit(),
    };
    point("receive.believed");
    match tokio::time::timeout(RECORD_TIMEOUT, inbox::record(&shared.database, &build)).await {
        Ok(Ok(Recorded::New { build_id })) => {
            point("receive.recorded");
            shared.queued.notify_one();
            tracing::info!(webhook_id, build_id, ref_name = build.ref_name, "delivery accepted");
            point("receive.answering");
            answer(StatusCode::ACCEPTED, json!({ "status": "accepted", "build": build_id }))
        }
        Ok(Ok(Recorded::Seen { build_id, same_body })) => {
            let message = if same_body {
                "this delivery was accepted before; nothing was started"
            } else {
                "this id came before with another body; nothing was started"
            };
            tracing::info!(webhook_id, build_id, same_body, "delivery seen before");
            let body = json!({ "status": "seen", "build": build_id, "same_body": same_body, "message": message });
            answer(StatusCode::CONFLICT, body)
        }
        Ok(Err(error)) if error.is_away() => {
            tracing::warn!(webhook_id, error = &error as &dyn std::error::Error, "the database is away");
            away("the receiver cannot record deliveries now")
        }
        Ok(Err(error)) => {
            tracing::error!(webhook_id, error = &error as &dyn std::error::Error, "a delivery cannot be recorded");
            refuse(StatusCode::INTERNAL_SERVER_ERROR, "the delivery cannot be recorded")
        }
        Err(_) => {
            tracing::warn!(webhook_id, "the database does not answer");
            away("the receiver cannot record deliveries now")
        }
    }
}

enum Read {
    Whole(Bytes),
    TooLong,
    Broken,
}

/// Reads a body up to the limit; what is over is thrown away.
async fn read(mut body: Body, bytes_max: usize) -> Read {
    let too_long = |length: u64| usize::try_from(length).map_or(true, |length| length > bytes_max);
    if too_long(http_body::Body::size_hint(&body).lower()) {
        drain(body).await;
        return Read::TooLong;
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Read::Broken };
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + data.len() > bytes_max {
            drain(body).await;
            return Read::TooLong;
        }
        whole.extend_from_slice(&data);
    }
    Read::Whole(whole.freeze())
}

async fn drain(mut body: Body) {
    let reading = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = body.frame().await {
            bytes += frame.data_ref().map_or(0, Bytes::len);
            if bytes > DRAIN_BYTES_MAX {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
}

/// Parameters such as a charset do not matter: the body is checked for UTF-8 anyway.
fn is_json(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let media_type = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    media_type.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

/// The age of a delivery is judged by this machine's clock: the database may be elsewhere, or away.
#[expect(clippy::disallowed_methods, reason = "the window of a signature is about the receiver's own clock")]
fn now_s() -> i64 {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX)
}

fn answer(status: StatusCode, body: serde_json::Value) -> Response {
    (status, Json(body)).into_response()
}

fn refuse(status: StatusCode, reason: &str) -> Response {
    answer(status, json!({ "status": "refused", "error": reason }))
}

fn away(reason: &str) -> Response {
    let mut answer = refuse(StatusCode::SERVICE_UNAVAILABLE, reason);
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
    answer
}
