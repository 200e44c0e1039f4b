//! One HTTP/1.1 exchange on a connection of its own: all that the drill needs of a client.

use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: String,
}

/// Sends a request to `address` (host:port) and reads the answer to its end.
pub async fn exchange(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, String)],
    body: &[u8],
    within: Duration,
) -> anyhow::Result<Answer> {
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        stream.write_all(body).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = tokio::time::timeout(within, exchange).await;
    let answer = answer.with_context(|| format!("{address} does not answer within {within:?}"))?;
    let answer = answer.with_context(|| format!("{address} cannot be reached"))?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("{address} does not speak HTTP"))?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).context("an answer without a status")?;
    Ok(Answer { status, body: body.to_owned() })
}
