//! The body of a request as a bounded stream of pieces, decompressed where it was compressed, and its way into git.

use async_compression::tokio::bufread::GzipDecoder;
use axum::body::Body;
use axum::http::header::CONTENT_ENCODING;
use axum::http::{HeaderMap, StatusCode};
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt as _, TryStreamExt as _};
use std::io;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;
use tokio_util::io::{ReaderStream, StreamReader};
use tokio_util::sync::CancellationToken;

use super::reply::Refused;

const PIECE_BYTES: usize = 64 * 1024;

/// What is wrong with a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BodyFault {
    #[error("the client left")]
    Gone,
    #[error("the compressed request is damaged or incomplete")]
    Gzip,
    #[error("the request is too large")]
    TooLarge,
    #[error("the client sent nothing for too long")]
    Idle,
    #[error("the server is stopping; try again in a moment")]
    Stopping,
    #[error("earlier changes could not be recorded yet; nothing was pushed, try again in a moment")]
    Untold,
    #[error(
        "a ref that this push deletes was not there when git looked; nothing was pushed: fetch, and push what is left to do"
    )]
    BlindDeletion,
    #[error("the request is not what git sends: {0}")]
    Refused(&'static str),
    #[error("{0}")]
    OverLimit(&'static str),
}

impl From<BodyFault> for Refused {
    fn from(fault: BodyFault) -> Self {
        let status = match fault {
            BodyFault::Gone | BodyFault::Gzip | BodyFault::Refused(_) => StatusCode::BAD_REQUEST,
            BodyFault::TooLarge | BodyFault::OverLimit(_) => StatusCode::PAYLOAD_TOO_LARGE,
            BodyFault::Idle => StatusCode::REQUEST_TIMEOUT,
            BodyFault::Stopping | BodyFault::Untold | BodyFault::BlindDeletion => {
                return Self::busy(fault.to_string());
            }
        };
        Self::new(status, fault.to_string())
    }
}

/// The pieces of a body.
pub(super) struct RequestBody {
    pieces: BoxStream<'static, Result<Bytes, BodyFault>>,
    bytes_left: u64,
    idle_max: Duration,
}

/// The beginning of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// It goes on, or may go on, after these bytes.
    More(Bytes),
    /// That was all.
    All(Bytes),
}

impl RequestBody {
    /// At most `bytes_max` bytes come out, counted after decompression.
    pub(super) fn new(headers: &HeaderMap, body: Body, bytes_max: u64, idle_max: Duration) -> Result<Self, Refused> {
        let encoding = headers.get(CONTENT_ENCODING).map_or(Ok("identity"), |value| value.to_str());
        let plain = body.into_data_stream();
        let pieces = match encoding {
            Ok("identity") => plain.map_err(|_| BodyFault::Gone).boxed(),
            Ok("gzip" | "x-gzip") => {
                let source = StreamReader::new(plain.map_err(|_| io::Error::other(BodyFault::Gone)));
                let mut decoder = GzipDecoder::new(source);
                decoder.multiple_members(true);
                ReaderStream::with_capacity(decoder, PIECE_BYTES).map_err(|error| gzip_fault(&error)).boxed()
            }
            _ => return Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "only gzip is understood as encoding")),
        };
        Ok(Self { pieces, bytes_left: bytes_max, idle_max })
    }

    /// The next piece, never empty; `None` after a proper end. After an error the body is done with.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, BodyFault>> {
        loop {
            let Ok(piece) = tokio::time::timeout(self.idle_max, self.pieces.next()).await else {
                return Some(Err(BodyFault::Idle));
            };
            let piece = match piece? {
                Ok(piece) if piece.is_empty() => continue,
                Ok(piece) => piece,
                Err(fault) => return Some(Err(fault)),
            };
            return match self.bytes_left.checked_sub(piece.len() as u64) {
                None => Some(Err(BodyFault::TooLarge)),
                Some(left) => {
                    self.bytes_left = left;
                    Some(Ok(piece))
                }
            };
        }
    }

    /// Reads until more than `bytes` bytes are there, or the end is.
    pub(super) async fn opening(&mut self, bytes: usize) -> Result<Opening, BodyFault> {
        let mut opening = BytesMut::new();
        while opening.len() <= bytes {
            match self.next().await {
                Some(piece) => opening.extend_from_slice(&piece?),
                None => return Ok(Opening::All(opening.freeze())),
            }
        }
        Ok(Opening::More(opening.freeze()))
    }

    /// Without the limit on bytes: nothing is kept of them, and the caller limits the time.
    async fn drain(&mut self) {
        while let Some(Ok(_)) = self.pieces.next().await {}
    }
}

fn gzip_fault(error: &io::Error) -> BodyFault {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<BodyFault>()) {
        Some(fault) => *fault,
        None => BodyFault::Gzip,
    }
}

/// How the feeding of git ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fed {
    /// All of it.
    Whole,
    /// git stopped reading before the end: it has made up its mind.
    Enough,
}

/// Whether git may see a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    /// Yes.
    Free,
    /// Only after [`Feed::tell`] has succeeded, once.
    WhenTold,
}

/// Everything that the feeding of one request needs to know.
pub(super) struct Feed<'a, F> {
    pub(super) body: RequestBody,
    pub(super) first: Bytes,
    pub(super) stdin: ChildStdin,
    /// Looks at each piece before git sees it.
    pub(super) inspect: F,
    /// What must have happened before some of them.
    pub(super) tell: Option<BoxFuture<'a, Result<(), BodyFault>>>,
    /// When it is cancelled, no more is read.
    pub(super) ending: &'a CancellationToken,
    pub(super) drain_max: Duration,
}

impl<F: FnMut(&[u8]) -> Result<Passage, BodyFault>> Feed<'_, F> {
    /// Feeds git. The last piece is given only when the body has properly ended, so that git cannot act on a request
    /// that was cut off or damaged at its very end. `on_fault` hears of a fault before git can notice it.
    pub(super) async fn run(mut self, on_fault: impl FnOnce(BodyFault)) -> Result<Fed, BodyFault> {
        let ending = self.ending.clone();
        let fed = tokio::select! {
            biased;
            fed = self.pump() => fed,
            () = ending.cancelled() => Err(BodyFault::Stopping),
        };
        if let Err(fault) = fed {
            on_fault(fault);
            drop(self.stdin);
            return Err(fault);
        }
        drop(self.stdin);
        if fed == Ok(Fed::Enough) {
            // A client that is still sending does not read: it gets the answer only if it may finish.
            tokio::select! {
                _ = tokio::time::timeout(self.drain_max, self.body.drain()) => {}
                () = ending.cancelled() => {}
            }
        }
        fed
    }

    async fn admit(&mut self, piece: &[u8]) -> Result<(), BodyFault> {
        if (self.inspect)(piece)? == Passage::WhenTold
            && let Some(tell) = self.tell.take()
        {
            tell.await?;
        }
        Ok(())
    }

    async fn pump(&mut self) -> Result<Fed, BodyFault> {
        let mut held = std::mem::take(&mut self.first);
        self.admit(&held).await?;
        while let Some(piece) = self.body.next().await {
            let piece = piece?;
            self.admit(&piece).await?;
            if self.stdin.write_all(&held).await.is_err() {
                return Ok(Fed::Enough);
            }
            held = piece;
        }
        if self.stdin.write_all(&held).await.is_err() { Ok(Fed::Enough) } else { Ok(Fed::Whole) }
    }
}
