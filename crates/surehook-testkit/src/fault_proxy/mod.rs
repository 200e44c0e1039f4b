//! A small fault proxy for where the real Toxiproxy cannot be had. It takes those calls of Toxiproxy's API that surehook's
//! drill makes: a proxy is made, switched off and on and removed, and the toxics `timeout`, `latency`, `reset_peer` and
//! `limit_data` are added to it, each for a share of the connections, which is drawn when a connection begins. Other than
//! Toxiproxy it leaves connections alone that are there already when a toxic comes or goes. Listens on free ports of 127.0.0.1.
#![expect(clippy::disallowed_methods, reason = "the tasks started here end with the proxy")]

mod carry;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::dice::{Dice, fresh_seed};
use crate::receiver::{Request, read_request};

use carry::{Effect, Side, carry};

/// A running server with its proxies. All of it ends when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    api: SocketAddr,
    task: JoinHandle<()>,
    proxies: Arc<Mutex<BTreeMap<String, Proxy>>>,
}

#[derive(Debug)]
struct Proxy {
    listen: SocketAddr,
    upstream: String,
    toxics: Arc<Mutex<BTreeMap<String, Toxic>>>,
    /// None: switched off.
    task: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy, Debug)]
struct Toxic {
    side: Side,
    /// In millionths.
    toxicity: u64,
    effect: Effect,
}

impl FaultProxy {
    /// Starts the API on a free port.
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let api = listener.local_addr()?;
        let proxies = Arc::<Mutex<BTreeMap<String, Proxy>>>::default();
        let shared = Arc::clone(&proxies);
        let task = tokio::spawn(async move {
            // One call after another, as they come.
            while let Ok((client, _)) = listener.accept().await {
                // A caller that goes away has not asked for anything.
                let _ = answer(client, &shared).await;
            }
        });
        Ok(Self { api, task, proxies })
    }

    /// Where its API is.
    pub fn api(&self) -> SocketAddr {
        self.api
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
        locked(&self.proxies).values_mut().for_each(Proxy::switch_off);
    }
}

impl Proxy {
    fn shown(&self, name: &str) -> Value {
        let (listen, enabled) = (self.listen.to_string(), self.task.is_some());
        json!({"name": name, "listen": listen, "upstream": self.upstream, "enabled": enabled})
    }

    async fn switch_on(listen: SocketAddr, upstream: &str, toxics: &Arc<Mutex<BTreeMap<String, Toxic>>>) -> Started {
        let listener = TcpListener::bind(listen).await?;
        let listen = listener.local_addr()?;
        let task = tokio::spawn(accept(listener, upstream.to_owned(), Arc::clone(toxics)));
        Ok((listen, task))
    }

    fn switch_off(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

type Started = std::io::Result<(SocketAddr, JoinHandle<()>)>;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Its connections end with it.
async fn accept(listener: TcpListener, upstream: String, toxics: Arc<Mutex<BTreeMap<String, Toxic>>>) {
    let mut dice = Dice::new(fresh_seed());
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                let drawn: Vec<Toxic> = locked(&toxics).values().copied().collect();
                let drawn = drawn.into_iter().filter(|toxic| dice.below(1_000_000) < toxic.toxicity);
                let effects = drawn.map(|toxic| (toxic.side, toxic.effect)).collect::<Vec<_>>();
                let upstream = upstream.clone();
                open.spawn(async move { carry(client, &upstream, &effects).await });
            }
            Some(_) = open.join_next() => {}
        }
    }
}

/// Why a call is not carried out.
type Refusal = (&'static str, String);

async fn answer(mut client: TcpStream, proxies: &Mutex<BTreeMap<String, Proxy>>) -> std::io::Result<()> {
    let mut unread = BytesMut::new();
    let Some(request) = read_request(&mut client, &mut unread).await? else { return Ok(()) };
    let (status, body) = match call(&request, proxies).await {
        Ok(body) => ("200 OK", body.to_string()),
        Err((status, words)) => (status, json!({"error": words}).to_string()),
    };
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    client.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes()).await
}

async fn call(request: &Request, proxies: &Mutex<BTreeMap<String, Proxy>>) -> Result<Value, Refusal> {
    let body: Value = if request.body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&request.body).map_err(|error| ("400 Bad Request", error.to_string()))?
    };
    let words: Vec<&str> = request.path.trim_matches('/').split('/').collect();
    let unknown = |what: &str| ("404 Not Found", format!("{what} not found"));
    match (request.method.as_str(), &words[..]) {
        ("GET", ["version"]) => Ok(json!({"version": env!("CARGO_PKG_VERSION")})),
        ("POST", ["proxies"]) => create(&body, proxies).await,
        ("DELETE", ["proxies", name]) => {
            let mut proxy = locked(proxies).remove(*name).ok_or_else(|| unknown("proxy"))?;
            proxy.switch_off();
            Ok(Value::Null)
        }
        ("POST" | "PATCH", ["proxies", name]) => {
            let enabled = body["enabled"].as_bool().ok_or(("400 Bad Request", "enabled is missing".to_owned()))?;
            let (listen, upstream, toxics, runs) = {
                let proxies = locked(proxies);
                let proxy = proxies.get(*name).ok_or_else(|| unknown("proxy"))?;
                (proxy.listen, proxy.upstream.clone(), Arc::clone(&proxy.toxics), proxy.task.is_some())
            };
            let started = if enabled && !runs {
                let started = Proxy::switch_on(listen, &upstream, &toxics).await;
                Some(started.map_err(|error| ("500 Internal Server Error", error.to_string()))?.1)
            } else {
                None
            };
            let mut proxies = locked(proxies);
            let proxy = proxies.get_mut(*name).ok_or_else(|| unknown("proxy"))?;
            match started {
                Some(task) => proxy.task = Some(task),
                None if !enabled => proxy.switch_off(),
                None => {}
            }
            Ok(proxy.shown(name))
        }
        ("POST", ["proxies", name, "toxics"]) => {
            let (key, toxic) = toxic(&body).ok_or(("400 Bad Request", "no such toxic".to_owned()))?;
            let proxies = locked(proxies);
            let proxy = proxies.get(*name).ok_or_else(|| unknown("proxy"))?;
            locked(&proxy.toxics).insert(key, toxic);
            Ok(body)
        }
        ("DELETE", ["proxies", name, "toxics", toxic]) => {
            let proxies = locked(proxies);
            let proxy = proxies.get(*name).ok_or_else(|| unknown("proxy"))?;
            locked(&proxy.toxics).remove(*toxic).ok_or_else(|| unknown("toxic"))?;
            Ok(Value::Null)
        }
        _ => Err(unknown("call")),
    }
}

async fn create(body: &Value, proxies: &Mutex<BTreeMap<String, Proxy>>) -> Result<Value, Refusal> {
    let missing = |field: &str| ("400 Bad Request", format!("{field} is missing"));
    let name = body["name"].as_str().ok_or_else(|| missing("name"))?;
    let upstream = body["upstream"].as_str().ok_or_else(|| missing("upstream"))?;
    let listen = body["listen"].as_str().and_then(|text| text.parse().ok()).ok_or_else(|| missing("listen"))?;
    if locked(proxies).contains_key(name) {
        return Err(("409 Conflict", "proxy already exists".into()));
    }
    let toxics = Arc::default();
    let started = Proxy::switch_on(listen, upstream, &toxics).await;
    let (listen, task) = started.map_err(|error| ("500 Internal Server Error", error.to_string()))?;
    let proxy = Proxy { listen, upstream: upstream.to_owned(), toxics, task: Some(task) };
    let shown = proxy.shown(name);
    locked(proxies).insert(name.to_owned(), proxy);
    Ok(shown)
}

fn toxic(body: &Value) -> Option<(String, Toxic)> {
    let attribute = |name: &str| body["attributes"][name].as_u64().unwrap_or_default();
    let effect = match body["type"].as_str()? {
        "timeout" => Effect::Timeout { after_ms: attribute("timeout") },
        "latency" => Effect::Latency { ms: attribute("latency") },
        "reset_peer" => Effect::ResetPeer { after_ms: attribute("timeout") },
        "limit_data" => Effect::LimitData { bytes: attribute("bytes") },
        _ => return None,
    };
    let (side, word) = match body["stream"].as_str().unwrap_or("downstream") {
        "upstream" => (Side::Upstream, "upstream"),
        _ => (Side::Downstream, "downstream"),
    };
    let name = body["name"].as_str().map_or_else(|| format!("{}_{word}", body["type"]), Into::into);
    // A share between 0 and 1, exactly enough for a draw.
    let toxicity = (body["toxicity"].as_f64().unwrap_or(1.0).clamp(0.0, 1.0) * 1e6).round();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it lies between 0 and a million")]
    let toxicity = toxicity as u64;
    Some((name, Toxic { side, toxicity, effect }))
}
