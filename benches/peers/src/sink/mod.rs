//! The receiver: a process of its own that takes POSTs as fast as it can on one thread, and remembers when each arrived.
//! One address per endpoint (127.0.0.1, 127.0.0.2, …) on one port, so that each is a host of its own to a client.
//!
//! Commands come in on stdin, one a line, and are answered on stdout, one a line; it ends with its input.

mod request;

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::BytesMut;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, LocalSet, spawn_local};

use crate::clock::now_ns;
use crate::load;

/// How an endpoint behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// 204 at once.
    Fast,
    /// 204 after so many milliseconds.
    Slow(u64),
    /// Takes the request and never answers.
    Hang,
    /// 500 at once.
    Fail,
    /// Nobody listens: connections are refused, those that were open are cut.
    Down,
}

/// One line of the sink's input.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Command {
    /// How an endpoint behaves from now on.
    Mode(u16, Mode),
    /// Forgets all that arrived.
    Reset,
    /// Writes all that arrived to a file; see [`Arrival::read_all`].
    Dump(String),
    /// Only asks.
    Stats,
}

/// One line of the sink's output, after each command.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Requests.
    pub(crate) arrivals: usize,
    /// Different ids among those that were answered with success.
    pub(crate) accepted: u32,
    /// Per endpoint: requests without answer, the most there were at once, and open connections.
    pub(crate) in_flight: Vec<u32>,
    pub(crate) in_flight_max: Vec<u32>,
    pub(crate) connections: Vec<u32>,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) at_ns: u64,
    pub(crate) id: u32,
    pub(crate) lane: u32,
    pub(crate) seq: u32,
    pub(crate) endpoint: u16,
    /// Whether it was answered with success.
    pub(crate) accepted: bool,
}

impl Arrival {
    fn write(&self, file: &mut impl std::io::Write) -> std::io::Result<()> {
        file.write_all(&self.at_ns.to_le_bytes())?;
        file.write_all(&self.id.to_le_bytes())?;
        file.write_all(&self.lane.to_le_bytes())?;
        file.write_all(&self.seq.to_le_bytes())?;
        file.write_all(&self.endpoint.to_le_bytes())?;
        file.write_all(&[u8::from(self.accepted)])
    }

    /// Reads a file that [`Command::Dump`] has written.
    pub(crate) fn read_all(bytes: &[u8]) -> Vec<Self> {
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        let small = |bytes: &[u8]| u32::try_from(number(bytes)).unwrap_or(u32::MAX);
        bytes
            .chunks_exact(23)
            .map(|record| Self {
                at_ns: number(&record[..8]),
                id: small(&record[8..12]),
                lane: small(&record[12..16]),
                seq: small(&record[16..20]),
                endpoint: u16::try_from(number(&record[20..22])).unwrap_or(u16::MAX),
                accepted: record[22] == 1,
            })
            .collect()
    }
}

#[derive(Default)]
struct State {
    port: u16,
    arrivals: Vec<Arrival>,
    /// How often all was forgotten: who was at work before that has nothing more to say.
    resets: u32,
    /// By id.
    seen: Vec<bool>,
    accepted: u32,
    endpoints: Vec<Endpoint>,
}

struct Endpoint {
    mode: Mode,
    in_flight: u32,
    in_flight_max: u32,
    connections: u32,
    listener: Option<AbortHandle>,
    /// Told when all connections are to be cut.
    cut: Rc<Notify>,
}

type Shared = Rc<RefCell<State>>;

/// Runs the process, for so many endpoints.
pub(crate) fn main(endpoints: u16) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, run(endpoints))
}

/// Where an endpoint listens.
pub(crate) fn address(endpoint: u16) -> Ipv4Addr {
    let [high, low] = (endpoint + 1).to_be_bytes();
    Ipv4Addr::new(127, 0, high, low)
}

async fn run(endpoints: u16) -> Result<()> {
    let shared: Shared = Rc::default();
    for endpoint in 0..endpoints {
        shared.borrow_mut().endpoints.push(Endpoint {
            mode: Mode::Fast,
            in_flight: 0,
            in_flight_max: 0,
            connections: 0,
            listener: None,
            cut: Rc::default(),
        });
        listen(&shared, endpoint).await?;
    }
    println!("{}", shared.borrow().port);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let command = serde_json::from_str(&line).with_context(|| format!("a command of the sink: {line}"))?;
        obey(&shared, command).await?;
        let answer = shared.borrow().answer();
        println!("{}", serde_json::to_string(&answer)?);
    }
    Ok(())
}

async fn obey(shared: &Shared, command: Command) -> Result<()> {
    match command {
        Command::Mode(endpoint, mode) => set_mode(shared, endpoint, mode).await?,
        Command::Reset => {
            let state = &mut *shared.borrow_mut();
            state.arrivals.clear();
            state.resets += 1;
            state.seen.clear();
            state.accepted = 0;
            for endpoint in &mut state.endpoints {
                endpoint.in_flight_max = endpoint.in_flight;
            }
        }
        Command::Dump(path) => {
            let mut file = BufWriter::new(File::create(path)?);
            for arrival in &shared.borrow().arrivals {
                arrival.write(&mut file)?;
            }
            file.flush()?;
        }
        Command::Stats => {}
    }
    Ok(())
}

impl State {
    fn answer(&self) -> Answer {
        let of = |value: fn(&Endpoint) -> u32| self.endpoints.iter().map(value).collect();
        Answer {
            arrivals: self.arrivals.len(),
            accepted: self.accepted,
            in_flight: of(|endpoint| endpoint.in_flight),
            in_flight_max: of(|endpoint| endpoint.in_flight_max),
            connections: of(|endpoint| endpoint.connections),
        }
    }

    fn endpoint(&mut self, endpoint: u16) -> &mut Endpoint {
        &mut self.endpoints[usize::from(endpoint)]
    }

    /// Notes a request; gives its place. None: it is none that was asked for at this endpoint.
    fn arrived(&mut self, endpoint: u16, body: &[u8]) -> Option<(u32, usize)> {
        let (meant_for, id, lane, seq) = load::parse(body)?;
        if meant_for != endpoint {
            return None;
        }
        self.arrivals.push(Arrival { at_ns: now_ns(), id, lane, seq, endpoint, accepted: false });
        Some((self.resets, self.arrivals.len() - 1))
    }

    fn accept(&mut self, place: Option<(u32, usize)>) {
        let Some((_, place)) = place.filter(|(resets, _)| *resets == self.resets) else { return };
        let arrival = &mut self.arrivals[place];
        arrival.accepted = true;
        let id = arrival.id as usize;
        if self.seen.len() <= id {
            self.seen.resize(id + 1, false);
        }
        if !std::mem::replace(&mut self.seen[id], true) {
            self.accepted += 1;
        }
    }
}

async fn set_mode(shared: &Shared, endpoint: u16, mode: Mode) -> Result<()> {
    let before = std::mem::replace(&mut shared.borrow_mut().endpoint(endpoint).mode, mode);
    if mode == Mode::Down {
        let state = &mut *shared.borrow_mut();
        if let Some(listener) = state.endpoint(endpoint).listener.take() {
            listener.abort();
        }
        state.endpoint(endpoint).cut.notify_waiters();
    } else if before == Mode::Down {
        listen(shared, endpoint).await?;
    }
    Ok(())
}

/// Takes connections; the first endpoint gets a port from the system, the others use the same on their addresses.
async fn listen(shared: &Shared, endpoint: u16) -> Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    let port = shared.borrow().port;
    socket.bind((address(endpoint), port).into()).with_context(|| format!("port {port} of {}", address(endpoint)))?;
    let listener = socket.listen(4096)?;
    shared.borrow_mut().port = listener.local_addr()?.port();
    let task = {
        let shared = Rc::clone(shared);
        spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                spawn_local(connection(Rc::clone(&shared), endpoint, stream));
            }
        })
    };
    shared.borrow_mut().endpoint(endpoint).listener = Some(task.abort_handle());
    Ok(())
}

async fn connection(shared: Shared, endpoint: u16, stream: TcpStream) {
    let cut = {
        let state = &mut *shared.borrow_mut();
        state.endpoint(endpoint).connections += 1;
        Rc::clone(&state.endpoint(endpoint).cut)
    };
    let cut = cut.notified();
    tokio::select! {
        // How a client goes away does not matter here.
        _ = serve(&shared, endpoint, stream) => {}
        () = cut => {}
    }
    shared.borrow_mut().endpoint(endpoint).connections -= 1;
}

const ACCEPTED: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";

async fn serve(shared: &Shared, endpoint: u16, mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = BytesMut::with_capacity(8 * 1024);
    loop {
        while let Some(request) = request::take(&mut buffer)? {
            let (place, mode) = {
                let state = &mut *shared.borrow_mut();
                (state.arrived(endpoint, request.body()), state.endpoint(endpoint).mode)
            };
            let _in_flight = InFlight::new(shared, endpoint);
            let answer: &[u8] = match mode {
                Mode::Fast => ACCEPTED,
                Mode::Slow(for_ms) => {
                    let gone = async { while stream.read_buf(&mut buffer).await.is_ok_and(|count| count > 0) {} };
                    // Who has gone meanwhile was not answered.
                    if tokio::time::timeout(Duration::from_millis(for_ms), gone).await.is_ok() {
                        return Ok(());
                    }
                    ACCEPTED
                }
                Mode::Hang => {
                    // Until the client has enough of it.
                    while stream.read_buf(&mut buffer).await? > 0 {}
                    return Ok(());
                }
                Mode::Fail => b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n",
                Mode::Down => return Ok(()),
            };
            stream.write_all(answer).await?;
            if mode != Mode::Fail {
                shared.borrow_mut().accept(place);
            }
        }
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

/// Counts a request as being without answer for as long as it lives.
struct InFlight<'a>(&'a Shared, u16);

impl<'a> InFlight<'a> {
    fn new(shared: &'a Shared, endpoint: u16) -> Self {
        let state = &mut *shared.borrow_mut();
        let counters = state.endpoint(endpoint);
        counters.in_flight += 1;
        counters.in_flight_max = counters.in_flight_max.max(counters.in_flight);
        Self(shared, endpoint)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().endpoint(self.1).in_flight -= 1;
    }
}
