//! Just enough HTTP/1.1 to take a POST with a Content-Length, or chunked, out of a buffer. Pure.

use std::io::{Error, ErrorKind};

use bytes::{Buf as _, Bytes, BytesMut};

/// One request.
pub(crate) struct Request(Bytes);

impl Request {
    pub(crate) fn body(&self) -> &[u8] {
        &self.0
    }
}

/// Takes the first whole request out of the buffer. None: there is more to come.
pub(crate) fn take(buffer: &mut BytesMut) -> std::io::Result<Option<Request>> {
    let Some(head) = find(buffer, b"\r\n\r\n") else { return Ok(None) };
    let body = head + 4;
    match length(&buffer[..head])? {
        Some(length) if buffer.len() < body + length => {
            // Room for the rest at once.
            buffer.reserve(body + length - buffer.len());
            Ok(None)
        }
        Some(length) => {
            buffer.advance(body);
            Ok(Some(Request(buffer.split_to(length).freeze())))
        }
        None => Ok(unchunk(&buffer[body..])?.map(|(content, end)| {
            buffer.advance(body + end);
            Request(content)
        })),
    }
}

/// The Content-Length; None if the body is chunked.
fn length(head: &[u8]) -> std::io::Result<Option<usize>> {
    for line in head.split(|byte| *byte == b'\n').skip(1) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            return length.map(Some).ok_or_else(bad);
        }
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Ok(None);
        }
    }
    Ok(Some(0))
}

/// The content of a chunked body and where it ends; None if there is more to come.
fn unchunk(bytes: &[u8]) -> std::io::Result<Option<(Bytes, usize)>> {
    let (mut content, mut at) = (BytesMut::new(), 0);
    loop {
        let Some(line) = find(&bytes[at..], b"\r\n") else { return Ok(None) };
        let digits = std::str::from_utf8(&bytes[at..at + line]).map_err(|_| bad())?;
        let size = usize::from_str_radix(digits.trim(), 16).map_err(|_| bad())?;
        let begin = at + line + 2;
        let Some(chunk) = bytes.get(begin..begin + size + 2) else { return Ok(None) };
        content.extend_from_slice(&chunk[..size]);
        at = begin + size + 2;
        if size == 0 {
            return Ok(Some((content.freeze(), at)));
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn bad() -> Error {
    Error::new(ErrorKind::InvalidData, "a request that this receiver does not understand")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_one_after_the_other_however_they_are_cut() {
        let wire = b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcPOST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nde\r\n1\r\nf\r\n0\r\n\r\n";
        let (mut buffer, mut bodies) = (BytesMut::new(), Vec::new());
        for byte in wire {
            buffer.extend_from_slice(&[*byte]);
            while let Some(request) = take(&mut buffer).unwrap() {
                bodies.push(request.body().to_vec());
            }
        }
        assert_eq!(bodies, [b"abc".to_vec(), b"def".to_vec()]);
        assert!(buffer.is_empty());
    }
}
