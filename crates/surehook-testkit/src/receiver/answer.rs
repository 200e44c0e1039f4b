//! The ways in which a receiver answers, or fails to. Touches only the connection it is given.

use std::{io::Error, time::Duration};

use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::wait::be_slow;

/// What the receiver does with a request that it has read and recorded.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A proper answer. Its length is set; the connection stays open.
    Status {
        /// The status code.
        code: u16,
        /// Further headers.
        headers: Vec<(String, String)>,
        /// The body.
        body: Vec<u8>,
    },
    /// Closes the connection in an orderly way, without an answer: the receiver has refused, or has done its work and
    /// died before the answer. For the sender these are the same; what the receiver did is the test's own matter.
    Close,
    /// Breaks the connection (a TCP reset).
    Reset,
    /// Says nothing; keeps the connection until the other side closes it or the receiver is dropped.
    Hang,
    /// A proper head with status 200, then one byte of the body per interval, for ever.
    Drip {
        /// The time between two bytes.
        interval: Duration,
    },
    /// Status 200 and a body that never ends, as fast as it is taken.
    Endless,
    /// Half a head, then closes.
    HalfHead,
    /// A proper head with this status and half of the body that it announced, then closes.
    HalfBody {
        /// The status code.
        code: u16,
    },
    /// Bytes that are no HTTP, then closes.
    Garbage,
    /// Takes its time, then does the other thing.
    Delay(Duration, Box<Answer>),
    /// 302 to this URL.
    RedirectTo(String),
}

/// A connection and what was read from it beyond the last request.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) unread: BytesMut,
    pub(super) open: bool,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, unread: BytesMut::new(), open: true }
    }

    async fn close(&mut self) -> Result<(), Error> {
        self.open = false;
        self.stream.shutdown().await
    }
}

impl Answer {
    /// This status, no further headers, an empty body.
    pub fn status(code: u16) -> Self {
        Self::Status { code, headers: Vec::new(), body: Vec::new() }
    }

    /// This status and header.
    pub fn with_header(code: u16, name: &str, value: &str) -> Self {
        Self::Status { code, headers: vec![(name.to_owned(), value.to_owned())], body: Vec::new() }
    }

    /// This, but later.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self::Delay(delay, Box::new(self))
    }

    pub(super) async fn perform(self, connection: &mut Connection) -> Result<(), Error> {
        let mut answer = self;
        while let Self::Delay(delay, next) = answer {
            // A sender that has given up in the meantime is noticed, as a real server would.
            tokio::select! {
                () = be_slow(delay) => answer = *next,
                () = gone(connection) => return connection.close().await,
            }
        }
        match answer {
            Self::Status { code, headers, body } => {
                let mut bytes = head(code, &headers, Some(body.len()));
                bytes.extend_from_slice(&body);
                connection.stream.write_all(&bytes).await
            }
            Self::RedirectTo(url) => {
                let headers = [("Location".to_owned(), url)];
                connection.stream.write_all(&head(302, &headers, Some(0))).await
            }
            Self::Close => connection.close().await,
            Self::Reset => {
                connection.open = false;
                rustix::net::sockopt::set_socket_linger(&connection.stream, Some(Duration::ZERO)).map_err(Error::from)
            }
            Self::Hang => {
                gone(connection).await;
                connection.close().await
            }
            Self::Drip { interval } => {
                connection.stream.write_all(&head(200, &[], Some(1 << 40))).await?;
                loop {
                    be_slow(interval).await;
                    connection.stream.write_all(b".").await?;
                }
            }
            Self::Endless => {
                connection.stream.write_all(&head(200, &[], None)).await?;
                loop {
                    connection.stream.write_all(&[b'.'; 4096]).await?;
                }
            }
            Self::HalfHead => {
                connection.stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Ty").await?;
                connection.close().await
            }
            Self::HalfBody { code } => {
                let mut bytes = head(code, &[], Some(1000));
                bytes.extend_from_slice(&[b'.'; 500]);
                connection.stream.write_all(&bytes).await?;
                connection.close().await
            }
            Self::Garbage => {
                connection.stream.write_all(b"\x00\xffSSH-2.0-not the server that you look for\r\n\r\n").await?;
                connection.close().await
            }
            Self::Delay(..) => unreachable!("delays were taken off"),
        }
    }
}

/// Resolves when the other side has closed or broken the connection; what it sends meanwhile is kept for later.
async fn gone(connection: &mut Connection) {
    while let Ok(1..) = connection.stream.read_buf(&mut connection.unread).await {}
}

fn head(code: u16, headers: &[(String, String)], length: Option<usize>) -> Vec<u8> {
    let reason =
        http::StatusCode::from_u16(code).ok().and_then(|status| status.canonical_reason()).unwrap_or("Scripted");
    let mut head = format!("HTTP/1.1 {code} {reason}\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    match length {
        // These have no body, and a length would be wrong.
        _ if code < 200 || code == 204 || code == 304 => {}
        Some(length) => head.push_str(&format!("Content-Length: {length}\r\n")),
        None => head.push_str("Connection: close\r\n"),
    }
    head.push_str("\r\n");
    head.into_bytes()
}
