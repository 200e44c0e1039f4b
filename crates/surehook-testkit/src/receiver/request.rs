//! Reads one HTTP/1.1 request and keeps its bytes as they came. Touches only the connection it is given.

use std::{
    io::{Error, ErrorKind},
    time::Instant,
};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Request {
    /// `POST` and the like.
    pub method: String,
    /// The target as it stood in the request line.
    pub path: String,
    /// Names and values in the order and with the bytes in which they came.
    pub headers: Vec<(Bytes, Bytes)>,
    /// The body's exact bytes, without the framing of chunks.
    pub body: Bytes,
    /// Which connection it came on, from 0 in the order of connecting.
    pub connection: usize,
    /// When its head was there.
    pub arrived: Instant,
}

impl Request {
    /// The first header of this name (in any case), if it is readable as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name.as_bytes()))?;
        std::str::from_utf8(value).ok()
    }

    /// The body as text; panics if it is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is UTF-8")
    }
}

/// Reads the next request; `None` when the other side has closed between two requests.
pub(super) async fn read(
    stream: &mut TcpStream,
    unread: &mut BytesMut,
    connection: usize,
) -> Result<Option<Request>, Error> {
    let head_length = loop {
        if let Some(end) = find(unread, b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(unread).await? == 0 {
            return if unread.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
        }
    };
    let arrived = super::now();
    let head = unread.split_to(head_length).freeze();
    unread.advance(4);
    let mut lines = split_lines(&head).into_iter();
    let request_line = lines.next().unwrap_or_default();
    let request_line = String::from_utf8_lossy(&request_line).into_owned();
    let mut words = request_line.split(' ');
    let (method, path) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let headers = lines.map(header).collect::<Option<Vec<_>>>().ok_or(ErrorKind::InvalidData)?;
    let mut request = Request { method, path, headers, body: Bytes::new(), connection, arrived };
    if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    request.body = if request.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        chunked(stream, unread).await?
    } else {
        let length = request.header("content-length").map_or(Ok(0), str::parse);
        exactly(stream, unread, length.map_err(|_| ErrorKind::InvalidData)?).await?
    };
    Ok(Some(request))
}

async fn chunked(stream: &mut TcpStream, unread: &mut BytesMut) -> Result<Bytes, Error> {
    let mut body = BytesMut::new();
    loop {
        let line = line(stream, unread).await?;
        let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
        let digits = std::str::from_utf8(digits).map_err(|_| ErrorKind::InvalidData)?.trim();
        let length = usize::from_str_radix(digits, 16).map_err(|_| ErrorKind::InvalidData)?;
        if length == 0 {
            while !self::line(stream, unread).await?.is_empty() {}
            return Ok(body.freeze());
        }
        body.extend_from_slice(&exactly(stream, unread, length).await?);
        exactly(stream, unread, 2).await?;
    }
}

async fn line(stream: &mut TcpStream, unread: &mut BytesMut) -> Result<Bytes, Error> {
    loop {
        if let Some(end) = find(unread, b"\r\n") {
            let line = unread.split_to(end).freeze();
            unread.advance(2);
            return Ok(line);
        }
        more(stream, unread).await?;
    }
}

async fn exactly(stream: &mut TcpStream, unread: &mut BytesMut, length: usize) -> Result<Bytes, Error> {
    while unread.len() < length {
        more(stream, unread).await?;
    }
    Ok(unread.split_to(length).freeze())
}

async fn more(stream: &mut TcpStream, unread: &mut BytesMut) -> Result<(), Error> {
    match stream.read_buf(unread).await? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

fn header(line: Bytes) -> Option<(Bytes, Bytes)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((line.slice(..colon), line.slice_ref(line[colon + 1..].trim_ascii())))
}

fn split_lines(head: &Bytes) -> Vec<Bytes> {
    let mut lines = Vec::new();
    let mut rest = head.clone();
    while let Some(end) = find(&rest, b"\r\n") {
        lines.push(rest.split_to(end));
        rest.advance(2);
    }
    lines.push(rest);
    lines
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
