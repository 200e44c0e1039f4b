//! An HTTP/1.1 receiver on a free port of 127.0.0.1 that records what arrives, byte for byte, and answers by a script,
//! also in all the ways in which a real one fails. Written on plain TCP, because a proper server library hides the bytes
//! and does not misbehave.
#![expect(clippy::disallowed_methods, reason = "the tasks started here end with the receiver")]

mod answer;
mod request;

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::BytesMut;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

pub use answer::Answer;
pub use request::Request;

use answer::Connection;

/// A test that waits longer than this for requests has failed.
const REQUESTS_WITHIN: Duration = Duration::from_secs(60);

/// Reads the one request of a connection, for servers that are no [`Receiver`]; `None` if it was closed before one came.
pub async fn read_request(stream: &mut TcpStream, unread: &mut BytesMut) -> std::io::Result<Option<Request>> {
    request::read(stream, unread, 0).await
}

type Script = Box<dyn FnMut(&Request) -> Answer + Send>;

/// A running receiver. Dropping it closes the port and every connection.
#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    script: Mutex<Script>,
    requests: Mutex<Vec<Request>>,
    count: watch::Sender<usize>,
    connections: AtomicUsize,
    in_flight: AtomicUsize,
    in_flight_max: AtomicUsize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").field("requests", &*self.count.borrow()).finish_non_exhaustive()
    }
}

impl Receiver {
    /// Starts on a free port; `script` decides each answer, in the order of arrival.
    pub async fn start(script: impl FnMut(&Request) -> Answer + Send + 'static) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), script).await
    }

    /// Starts at an address of choice: where one that was dropped had been, for a receiver that comes back.
    pub async fn start_at(address: SocketAddr, script: impl FnMut(&Request) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind(address).await.expect("the receiver's port");
        let address = listener.local_addr().expect("the receiver's address");
        let shared = Arc::new(Shared {
            script: Mutex::new(Box::new(script)),
            requests: Mutex::default(),
            count: watch::Sender::new(0),
            connections: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            in_flight_max: AtomicUsize::new(0),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, task }
    }

    /// Starts with these answers, one per request, and `after` for all that come later.
    pub async fn with_answers(answers: impl IntoIterator<Item = Answer>, after: Answer) -> Self {
        let mut answers: VecDeque<Answer> = answers.into_iter().collect();
        Self::start(move |_| answers.pop_front().unwrap_or_else(|| after.clone())).await
    }

    /// Starts with 200 for everything.
    pub async fn accepting() -> Self {
        Self::start(|_| Answer::status(200)).await
    }

    /// From now on `script` decides.
    pub fn set_script(&self, script: impl FnMut(&Request) -> Answer + Send + 'static) {
        *locked(&self.shared.script) = Box::new(script);
    }

    /// From now on everything gets this answer.
    pub fn answer_all(&self, answer: Answer) {
        self.set_script(move |_| answer.clone());
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL with this path (which begins with a slash).
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// What has arrived so far, in the order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        locked(&self.shared.requests).clone()
    }

    /// Waits until `count` requests have arrived whole, and gives all that have. Panics if they do not within a minute.
    pub async fn wait_for(&self, count: usize) -> Vec<Request> {
        let mut arrived = self.shared.count.subscribe();
        let waited = tokio::time::timeout(REQUESTS_WITHIN, arrived.wait_for(|arrived| *arrived >= count)).await;
        if waited.is_err() {
            panic!("{} of {count} requests arrived within {REQUESTS_WITHIN:?}", self.requests().len());
        }
        self.requests()
    }

    /// How many connections were made.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many requests were waiting for the end of their answer at once, at most.
    pub fn in_flight_max(&self) -> usize {
        self.shared.in_flight_max.load(Ordering::SeqCst)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Aborting this task drops the set, which ends every connection.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let id = shared.connections.fetch_add(1, Ordering::SeqCst);
        connections.spawn(serve(stream, id, Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, id: usize, shared: Arc<Shared>) {
    // Answers go out as they are written, so that half an answer arrives as half an answer.
    let _ = stream.set_nodelay(true);
    let mut connection = Connection::new(stream);
    while let Ok(Some(request)) = request::read(&mut connection.stream, &mut connection.unread, id).await {
        let _in_flight = InFlight::enter(&shared);
        let is_last = request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let answer = (locked(&shared.script))(&request);
        locked(&shared.requests).push(request);
        shared.count.send_modify(|count| *count += 1);
        if answer.perform(&mut connection).await.is_err() || !connection.open || is_last {
            return;
        }
    }
}

struct InFlight<'a>(&'a Shared);

impl<'a> InFlight<'a> {
    fn enter(shared: &'a Shared) -> Self {
        let now = shared.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        shared.in_flight_max.fetch_max(now, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> Instant {
    Instant::now()
}
