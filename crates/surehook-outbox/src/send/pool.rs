//! Connections to endpoints, kept for the next request. hyper speaks HTTP/1.1 on them; who keeps and who drives them is here.
//!
//! The task that makes a request also drives its connection, so an exchange wakes one task and no other. While a connection
//! is idle nobody drives it: whether the receiver has closed it shows when it is taken out.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::Service;

use super::connect::Connector;
use super::route::Origin;

/// A connection that nobody needed for so long is closed.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Idle connections to one origin at most.
const IDLE_PER_ORIGIN_MAX: usize = 256;
/// Headers of an answer at most.
const HEADERS_MAX: usize = 200;

type Body = Full<Bytes>;
type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why there was no answer.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// There is no connection: nothing was sent.
    Connect(BoxError),
    /// The connection broke: the request may have arrived.
    Broken(BoxError),
}

pub(super) struct Pool {
    public_only: HttpsConnector<Connector>,
    private_too: HttpsConnector<Connector>,
    idle: Mutex<HashMap<Origin, Vec<Idle>>>,
}

struct Idle {
    connection: Connection,
    since: Instant,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("origins", &self.idle().len()).finish_non_exhaustive()
    }
}

impl Pool {
    pub(super) fn new(tls: &rustls::ClientConfig) -> Self {
        let connector = |allow_private| {
            hyper_rustls::HttpsConnectorBuilder::new()
                .with_tls_config(tls.clone())
                .https_or_http()
                .enable_http1()
                .wrap_connector(Connector { allow_private })
        };
        Self { public_only: connector(false), private_too: connector(true), idle: Mutex::default() }
    }

    /// Sends a request and waits for the head of the answer. An idle connection that turns out to be closed is replaced as long
    /// as nothing of the request has left. Dropping the future closes the connection.
    pub(super) async fn exchange(
        &self,
        origin: &Origin,
        mut request: Request<Body>,
    ) -> Result<(Response<Incoming>, Connection), ExchangeError> {
        while let Some(mut connection) = self.take(origin).await {
            match connection.send(request).await {
                Ok(response) => return Ok((response, connection)),
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(ExchangeError::Broken(failed.into_error().into())),
                },
            }
        }
        let mut connection = self.connect(origin).await.map_err(ExchangeError::Connect)?;
        match connection.send(request).await {
            Ok(response) => Ok((response, connection)),
            Err(failed) => Err(ExchangeError::Broken(failed.into_error().into())),
        }
    }

    /// Keeps a connection whose answer was read to its end.
    pub(super) async fn give_back(&self, origin: &Origin, mut connection: Connection) {
        if !connection.is_ready().await {
            return;
        }
        let mut idle = self.idle();
        match idle.get_mut(origin) {
            Some(kept) if kept.len() >= IDLE_PER_ORIGIN_MAX => {}
            Some(kept) => kept.push(Idle { connection, since: Instant::now() }),
            None => {
                idle.insert(origin.clone(), vec![Idle { connection, since: Instant::now() }]);
            }
        }
    }

    /// Closes what nobody needed for long.
    pub(super) fn close_idle(&self) {
        self.idle().retain(|_, kept| {
            kept.retain(|idle| idle.since.elapsed() < IDLE_MAX);
            !kept.is_empty()
        });
    }

    /// The connection that was used last, of those that are still open.
    async fn take(&self, origin: &Origin) -> Option<Connection> {
        loop {
            let mut idle = self.idle().get_mut(origin)?.pop()?;
            if idle.since.elapsed() < IDLE_MAX && idle.connection.is_ready().await {
                return Some(idle.connection);
            }
        }
    }

    async fn connect(&self, origin: &Origin) -> Result<Connection, BoxError> {
        let mut connector = if origin.allow_private { self.private_too.clone() } else { self.public_only.clone() };
        let stream = Service::<Uri>::call(&mut connector, origin.uri.clone()).await?;
        let (sender, driver) = http1::Builder::new().max_headers(HEADERS_MAX).handshake(stream).await?;
        Ok(Connection { sender, driver, has_ended: false })
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<Origin, Vec<Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection: it moves only while one of its methods runs.
pub(super) struct Connection {
    sender: http1::SendRequest<Body>,
    driver: http1::Connection<Stream, Body>,
    has_ended: bool,
}

impl Connection {
    async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, hyper::client::conn::TrySendError<Request<Body>>> {
        let answer = self.sender.try_send_request(request);
        self.drive(answer).await
    }

    /// Runs `work` together with what moves the bytes.
    pub(super) async fn drive<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.poll_driver(cx);
            work.as_mut().poll(cx)
        })
        .await
    }

    /// Whether it is open and can take another request, as far as can be seen without waiting.
    async fn is_ready(&mut self) -> bool {
        poll_fn(|cx| {
            self.poll_driver(cx);
            Poll::Ready(!self.has_ended && matches!(self.sender.poll_ready(cx), Poll::Ready(Ok(()))))
        })
        .await
    }

    /// How it ended shows at the request.
    fn poll_driver(&mut self, cx: &mut Context<'_>) {
        if !self.has_ended && Pin::new(&mut self.driver).poll(cx).is_ready() {
            self.has_ended = true;
        }
    }
}
