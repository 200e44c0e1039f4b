//! The fault proxy does what Toxiproxy would do, to the calls that Toxiproxy would take.
#![expect(clippy::unwrap_used, reason = "a test panics where it cannot go on")]

use std::time::Duration;

use serde_json::{Value, json};
use surehook_testkit::fault_proxy::FaultProxy;
use surehook_testkit::receiver::{Answer, Receiver};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

async fn exchange(address: &str, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

struct Api {
    server: FaultProxy,
}

impl Api {
    async fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        let request =
            format!("{method} {path} HTTP/1.1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        let answer = exchange(&self.server.api().to_string(), &request).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
    }

    async fn toxic(&self, kind: &str, stream: &str, toxicity: f64, attributes: Value) {
        let body = json!({"name": "t", "type": kind, "stream": stream, "toxicity": toxicity, "attributes": attributes});
        assert_eq!(self.call("POST", "/proxies/ci/toxics", &body).await.0, 200);
    }

    async fn heal(&self) {
        assert_eq!(self.call("DELETE", "/proxies/ci/toxics/t", &Value::Null).await.0, 200);
    }
}

const REQUEST: &str = "POST / HTTP/1.1\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";

#[tokio::test]
async fn it_speaks_toxiproxys_calls_and_harms_a_share_of_the_connections() {
    let receiver = Receiver::start(|_| Answer::status(200)).await;
    let api = Api { server: FaultProxy::start().await.unwrap() };
    let upstream = receiver.url("").trim_start_matches("http://").trim_end_matches('/').to_owned();
    let proxy = json!({"name": "ci", "listen": "127.0.0.1:0", "upstream": upstream});
    let (status, made) = api.call("POST", "/proxies", &proxy).await;
    assert_eq!((status, made["enabled"].as_bool()), (200, Some(true)));
    assert_eq!(api.call("POST", "/proxies", &proxy).await.0, 409);
    let listen = made["listen"].as_str().unwrap().to_owned();
    let reached = || receiver.requests().len();

    assert!(exchange(&listen, REQUEST).await.unwrap().starts_with("HTTP/1.1 200"));
    assert_eq!(reached(), 1);

    // Nothing arrives, and nothing is answered.
    api.toxic("timeout", "upstream", 1.0, json!({"timeout": 0})).await;
    let silent = tokio::time::timeout(Duration::from_millis(300), exchange(&listen, REQUEST)).await;
    assert!(silent.is_err());
    assert_eq!(reached(), 1);
    api.heal().await;

    // It arrives, and the answer is lost.
    api.toxic("limit_data", "downstream", 1.0, json!({"bytes": 0})).await;
    assert_eq!(exchange(&listen, REQUEST).await.unwrap_or_default(), "");
    assert_eq!(reached(), 2);
    api.heal().await;

    api.toxic("reset_peer", "upstream", 1.0, json!({"timeout": 0})).await;
    assert_eq!(exchange(&listen, REQUEST).await.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    api.heal().await;

    api.toxic("reset_peer", "upstream", 0.5, json!({"timeout": 0})).await;
    let mut failed = 0;
    for _ in 0..200 {
        failed += usize::from(exchange(&listen, REQUEST).await.is_err());
    }
    assert!((60..140).contains(&failed), "{failed} of 200");
    api.heal().await;

    let off = api.call("PATCH", "/proxies/ci", &json!({"enabled": false})).await.1;
    assert_eq!(off["enabled"], false);
    surehook_testkit::eventually(Duration::from_secs(5), async || exchange(&listen, REQUEST).await.err()).await;
    api.call("POST", "/proxies/ci", &json!({"enabled": true})).await;
    assert!(exchange(&listen, REQUEST).await.unwrap().starts_with("HTTP/1.1 200"));
    assert_eq!(api.call("DELETE", "/proxies/ci", &Value::Null).await.0, 200);
    assert_eq!(api.call("DELETE", "/proxies/ci", &Value::Null).await.0, 404);
}
