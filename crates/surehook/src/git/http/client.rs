//! The client's end of an answer that a git process gives: a status that waits for the first byte, then a stream that
//! ends properly only if somebody says so.

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use futures_util::stream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

use super::reply::{self, Refused};

const PIECES_AHEAD: usize = 4;

/// Where a task writes its answer.
pub(super) struct Client {
    head: Option<oneshot::Sender<Result<(), Refused>>>,
    pieces: mpsc::Sender<Bytes>,
    is_whole: Arc<AtomicBool>,
    stall_max: Duration,
    presence: Presence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Here,
    /// It left, or reads no more.
    Gone,
}

/// Where the request's handler takes the answer from.
pub(super) struct Answer {
    head: oneshot::Receiver<Result<(), Refused>>,
    pieces: mpsc::Receiver<Bytes>,
    is_whole: Arc<AtomicBool>,
}

/// The reason why a connection is dropped in the middle of an answer.
#[derive(Debug, thiserror::Error)]
#[error("the answer could not be finished")]
struct BrokenOff;

/// The two ends of one answer.
pub(super) fn pair(stall_max: Duration) -> (Client, Answer) {
    let (head_sender, head) = oneshot::channel();
    let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
    let is_whole = Arc::new(AtomicBool::new(false));
    let client = Client {
        head: Some(head_sender),
        pieces: sender,
        is_whole: Arc::clone(&is_whole),
        stall_max,
        presence: Presence::Here,
    };
    (client, Answer { head, pieces, is_whole })
}

impl Client {
    /// Sends bytes, with a 200 before the first. A client that has gone is no error: it is not sent anything more.
    pub(super) async fn send(&mut self, bytes: Bytes) -> Presence {
        if self.presence == Presence::Gone || bytes.is_empty() {
            return self.presence;
        }
        self.begin();
        let sent = tokio::time::timeout(self.stall_max, self.pieces.send(bytes)).await;
        if !matches!(sent, Ok(Ok(()))) {
            self.presence = Presence::Gone;
        }
        self.presence
    }

    /// Whether a status can still be chosen.
    pub(super) fn has_begun(&self) -> bool {
        self.head.is_none()
    }

    /// Ends the answer properly.
    pub(super) fn end(mut self) {
        self.begin();
        if self.presence == Presence::Here {
            self.is_whole.store(true, Ordering::Release);
        }
    }

    /// Ends it with a status, or, if that went out already, by dropping the connection.
    pub(super) fn refuse(mut self, refused: Refused) {
        if let Some(head) = self.head.take() {
            let _ = head.send(Err(refused));
        }
    }

    /// Resolves when nobody reads the answer any more.
    pub(super) async fn gone(&self) {
        self.pieces.closed().await;
    }

    fn begin(&mut self) {
        if let Some(head) = self.head.take() {
            let _ = head.send(Ok(()));
        }
    }
}

impl Answer {
    /// Waits for the first byte or the refusal. The body ends with an error unless the writer ended it properly, be it
    /// that it chose to, or that its task died: that drops the connection, which is what a client can understand.
    pub(super) async fn response(self, content_type: &str) -> Result<Response<Body>, Refused> {
        match self.head.await {
            Ok(Ok(())) => {}
            Ok(Err(refused)) => return Err(refused),
            Err(_) => return Err(Refused::internal("the request could not be served")),
        }
        let state = (self.pieces, self.is_whole, false);
        let body = stream::unfold(state, |(mut pieces, is_whole, has_ended)| async move {
            if has_ended {
                return None;
            }
            match pieces.recv().await {
                Some(piece) => Some((Ok(piece), (pieces, is_whole, false))),
                None if is_whole.load(Ordering::Acquire) => None,
                None => Some((Err(BrokenOff), (pieces, is_whole, true))),
            }
        });
        Ok(reply::from_git(content_type, Body::from_stream(body)))
    }
}
