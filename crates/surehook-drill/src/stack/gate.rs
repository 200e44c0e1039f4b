//! The receiver's front door: passes each request on, one to a connection, and counts it. Behind the fault proxy, which draws
//! once for each connection, so that each request is drawn for. On demand it fails as front doors do.
#![expect(clippy::disallowed_methods, reason = "the tasks started here end with the gate")]

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use serde::Serialize;
use surehook_testkit::dice::Dice;
use surehook_testkit::receiver::{Request, read_request};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Between two bytes of an answer that drips.
const DRIP: Duration = Duration::from_millis(50);

/// What passed.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Passed {
    /// Requests that reached the front door.
    pub requests: usize,
    /// Those among them whose id had been there before.
    pub repeated: usize,
    /// Requests whose answer the receiver gave with 409: it knew them, and started nothing.
    pub suppressed: usize,
}

/// A running gate. Closed when dropped.
#[derive(Debug)]
pub struct Gate {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    upstream: String,
    fails: bool,
    dice: Dice,
    passed: Passed,
    seen: HashSet<String>,
    statuses: HashMap<u16, usize>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Pass,
    /// An answer of the door itself; the receiver hears nothing.
    Status(&'static str),
    Garbage,
    Close,
    /// The receiver answers, and nobody hears it.
    LoseAnswer,
    /// The answer comes a byte at a time.
    Drip,
}

impl Gate {
    /// Opens on a free port; the receiver is set later.
    pub async fn open(dice: Dice) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = State {
            upstream: String::new(),
            fails: false,
            dice,
            passed: Passed::default(),
            seen: HashSet::new(),
            statuses: HashMap::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state) });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on the receiver is there.
    pub fn lead_to(&self, upstream: &str) {
        upstream.clone_into(&mut self.shared.state().upstream);
    }

    /// Whether half of all requests fail from now on.
    pub fn fail(&self, fails: bool) {
        self.shared.state().fails = fails;
    }

    /// What passed so far.
    pub fn passed(&self) -> Passed {
        self.shared.state().passed
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request, and says what becomes of it and where the receiver is.
    fn admit(&self, request: &Request) -> (Fate, String) {
        let mut state = self.state();
        state.passed.requests += 1;
        let id = request.header("x-webhook-id").unwrap_or_default().to_owned();
        if !state.seen.insert(id) {
            state.passed.repeated += 1;
        }
        let fate = match state.dice.below(20) {
            _ if !state.fails => Fate::Pass,
            0 => Fate::Status("503 Service Unavailable"),
            1 => Fate::Status("502 Bad Gateway"),
            2 => Fate::Status("500 Internal Server Error"),
            3 => Fate::Status("429 Too Many Requests"),
            4 => Fate::Garbage,
            5 => Fate::Close,
            6 | 7 => Fate::LoseAnswer,
            8 | 9 => Fate::Drip,
            _ => Fate::Pass,
        };
        (fate, state.upstream.clone())
    }

    fn answered(&self, status: u16) {
        let mut state = self.state();
        *state.statuses.entry(status).or_default() += 1;
        if status == 409 {
            state.passed.suppressed += 1;
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // Out of files: the next one may be luckier.
                let Ok((client, _)) = accepted else { continue };
                let shared = Arc::clone(&shared);
                // A broken connection is the sender's to notice.
                open.spawn(async move { drop(serve(client, &shared).await) });
            }
            Some(_) = open.join_next() => {}
        }
    }
}

async fn serve(mut client: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut unread = BytesMut::new();
    let Some(request) = read_request(&mut client, &mut unread).await? else { return Ok(()) };
    let (fate, upstream) = shared.admit(&request);
    match fate {
        Fate::Close => return Ok(()),
        Fate::Garbage => return client.write_all(b"\x16\x03\x01 this is not HTTP\r\n\r\n").await,
        Fate::Status(status) => {
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            return client.write_all(answer.as_bytes()).await;
        }
        Fate::Pass | Fate::LoseAnswer | Fate::Drip => {}
    }
    let mut receiver = TcpStream::connect(upstream).await?;
    receiver.write_all(&written(&request)).await?;
    // The receiver closes after its answer, so that this is all of it.
    let mut answer = Vec::new();
    receiver.read_to_end(&mut answer).await?;
    let status = std::str::from_utf8(answer.get(9..12).unwrap_or_default()).ok().and_then(|text| text.parse().ok());
    shared.answered(status.unwrap_or_default());
    match fate {
        Fate::LoseAnswer => Ok(()),
        Fate::Drip => {
            for byte in &answer {
                client.write_all(std::slice::from_ref(byte)).await?;
                tokio::time::sleep(DRIP).await;
            }
            Ok(())
        }
        _ => client.write_all(&answer).await,
    }
}

/// The request as it came, but for the connection, which ends with it.
fn written(request: &Request) -> Vec<u8> {
    let mut bytes = format!("{} {} HTTP/1.1\r\n", request.method, request.path).into_bytes();
    for (name, value) in &request.headers {
        let hop = [&b"connection"[..], b"transfer-encoding", b"content-length"];
        if !hop.iter().any(|hop| name.eq_ignore_ascii_case(hop)) {
            bytes.extend_from_slice(name);
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
    }
    bytes.extend(format!("Content-Length: {}\r\nConnection: close\r\n\r\n", request.body.len()).bytes());
    bytes.extend_from_slice(&request.body);
    bytes
}
