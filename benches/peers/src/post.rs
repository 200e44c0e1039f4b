//! How the contenders that bring no HTTP client of their own sign and send: HMAC-SHA256 and hyper-util's pooled client.

use std::time::Duration;

use anyhow::{Result, bail};
use bytes::Bytes;
use hmac::{Hmac, Mac as _};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use sha2::Sha256;

use crate::sink;

/// The secret of every endpoint.
pub(crate) const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Where an endpoint is.
pub(crate) fn url(endpoint: u16, port: u16) -> String {
    format!("http://{}:{port}/", sink::address(endpoint))
}

/// Sends; cloning shares its connections.
#[derive(Clone, Debug)]
pub(crate) struct Poster {
    client: Client<HttpConnector, Full<Bytes>>,
    port: u16,
    deadline: Duration,
}

impl Poster {
    pub(crate) fn new(port: u16, deadline: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Self { client, port, deadline }
    }

    /// Ok: it was answered with 2xx within the deadline.
    pub(crate) async fn send(&self, endpoint: u16, body: Bytes) -> Result<()> {
        let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes())?;
        mac.update(&body);
        let digest = mac.finalize().into_bytes();
        let request = Request::post(url(endpoint, self.port))
            .header("content-type", "application/json")
            .header("x-signature", format!("sha256={digest:x}"))
            .body(Full::new(body))?;
        let exchange = async {
            let response = self.client.request(request).await?;
            let status = response.status();
            response.into_body().collect().await?;
            anyhow::Ok(status)
        };
        let status = tokio::time::timeout(self.deadline, exchange).await??;
        if !status.is_success() {
            bail!("answered {status}");
        }
        Ok(())
    }
}
