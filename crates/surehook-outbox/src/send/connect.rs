//! Opening a TCP connection to an endpoint: look the name up, refuse what is not public unless it is wanted, connect.
//! The guard stands here, at connect time, so that a name cannot show one address to a check and another to the socket.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::address;

/// Where a name has several addresses, none of them may use up the whole deadline.
const ONE_ADDRESS_OF_SEVERAL: Duration = Duration::from_millis(2500);

/// Why no connection could be had.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The URL names no host.
    #[error("the URL names no host")]
    NoHost,
    /// The name could not be looked up.
    #[error("the name {host} could not be looked up: {source}")]
    Lookup {
        /// The name.
        host: String,
        /// What the resolver said.
        source: std::io::Error,
    },
    /// The name has no address.
    #[error("the name {0} has no address")]
    NoAddress(String),
    /// The address is not public, and the endpoint was not added with `--allow-private`.
    #[error(
        "{host} leads to {address}, which is not a public address; allow it with: surehook endpoint set NAME --allow-private true"
    )]
    NotPublic {
        /// The name.
        host: String,
        /// Where it leads.
        address: std::net::IpAddr,
    },
    /// Nobody answered there.
    #[error("no connection to {address}: {source}")]
    Tcp {
        /// The last address tried.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Connects to endpoints; a tower service, as hyper wants it.
#[derive(Clone, Copy, Debug)]
pub struct Connector {
    /// Let private and loopback addresses through.
    pub allow_private: bool,
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let allow_private = self.allow_private;
        Box::pin(async move { connect(&uri, allow_private).await.map(TokioIo::new) })
    }
}

async fn connect(uri: &Uri, allow_private: bool) -> Result<TcpStream, ConnectError> {
    let host = uri.host().ok_or(ConnectError::NoHost)?.trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port))
        .await
        .map_err(|source| ConnectError::Lookup { host: host.to_owned(), source })?
        .collect();
    // One address that is not public is enough to refuse: which of several is used must not be a matter of luck.
    if let Some(private) = addresses.iter().find(|address| !allow_private && !address::is_public(address.ip())) {
        return Err(ConnectError::NotPublic { host: host.to_owned(), address: private.ip() });
    }
    let several = addresses.len() > 1;
    let mut last = ConnectError::NoAddress(host.to_owned());
    for address in addresses {
        let attempt = TcpStream::connect(address);
        let outcome = if several {
            tokio::time::timeout(ONE_ADDRESS_OF_SEVERAL, attempt)
                .await
                .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
        } else {
            attempt.await
        };
        match outcome {
            Ok(stream) => {
                // Small requests must not wait for the acknowledgement of the one before.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(source) => last = ConnectError::Tcp { address, source },
        }
    }
    Err(last)
}
