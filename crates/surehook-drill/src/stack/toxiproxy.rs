//! The fault proxy between sender and receiver: the real Toxiproxy, where it can be had, else the small one of the testkit,
//! which takes the same calls. Starts the server, or builds it once with `go`; speaks its API.
#![expect(clippy::disallowed_methods, reason = "it starts Toxiproxy, and go to build it")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use surehook_testkit::fault_proxy::FaultProxy;
use surehook_testkit::try_eventually;
use tokio::process::{Child, Command};

use crate::http::exchange;

/// The Go module of the server, and the version that is built.
const MODULE: &str = "github.com/Shopify/toxiproxy/v2/cmd/server";
const VERSION: &str = "v2.12.0";
const BUILD_WITHIN: Duration = Duration::from_secs(600);
const UP_WITHIN: Duration = Duration::from_secs(20);
const NAME: &str = "surehook-drill";

/// A proxy in front of one upstream.
#[derive(Debug)]
pub struct Proxy {
    api: String,
    name: String,
    /// Where senders connect.
    pub address: String,
    /// Which program it is, for the report.
    pub is: String,
    _server: Server,
}

/// Ends with the proxy.
#[derive(Debug)]
#[expect(dead_code, reason = "held until the proxy goes")]
enum Server {
    Theirs,
    Child(Child),
    Ours(FaultProxy),
}

impl Proxy {
    /// Starts or finds a server, and makes a proxy in it. `builtin` asks for the small one of the testkit.
    pub async fn start(upstream: &str, builtin: bool, say: impl Fn(&str)) -> anyhow::Result<Self> {
        let (server, api) = match std::env::var("TOXIPROXY_URL") {
            _ if builtin => ours().await?,
            Ok(url) => (Server::Theirs, url.trim_start_matches("http://").trim_end_matches('/').to_owned()),
            Err(_) => match find_or_build(&say).await {
                Ok(program) => start(&program).await?,
                Err(reason) => {
                    say(&format!("no Toxiproxy ({reason:#}): the testkit's own fault proxy stands in"));
                    ours().await?
                }
            },
        };
        let version = call(&api, "GET", "/version", None).await?;
        let version = version["version"].as_str().unwrap_or("of an unknown version").to_owned();
        let is = match server {
            Server::Ours(_) => "the testkit's fault proxy".to_owned(),
            // What go builds from a module does not know its number.
            Server::Child(_) if version == "git" => format!("Toxiproxy {VERSION}"),
            _ => format!("Toxiproxy {version}"),
        };
        let name = format!("{NAME}-{}", uuid::Uuid::new_v4().simple());
        let proxy = json!({"name": name, "listen": "127.0.0.1:0", "upstream": upstream, "enabled": true});
        let made = call(&api, "POST", "/proxies", Some(&proxy)).await?;
        let address = made["listen"].as_str().context("the proxy does not say where it listens")?.to_owned();
        Ok(Self { api, name, address, is, _server: server })
    }

    /// Whether anybody listens.
    pub async fn enable(&self, enabled: bool) -> anyhow::Result<()> {
        let path = format!("/proxies/{}", self.name);
        call(&self.api, "POST", &path, Some(&json!({"enabled": enabled}))).await.map(drop)
    }

    /// Adds a toxic to so many of a hundred connections.
    pub async fn add(&self, toxic: &str, stream: &str, percent: f64, attributes: Value) -> anyhow::Result<()> {
        let body = json!({
            "name": format!("{toxic}-{stream}"), "type": toxic, "stream": stream, "toxicity": percent / 100.0,
            "attributes": attributes,
        });
        call(&self.api, "POST", &format!("/proxies/{}/toxics", self.name), Some(&body)).await.map(drop)
    }

    /// Takes a toxic away.
    pub async fn remove(&self, toxic: &str, stream: &str) -> anyhow::Result<()> {
        let path = format!("/proxies/{}/toxics/{toxic}-{stream}", self.name);
        call(&self.api, "DELETE", &path, None).await.map(drop)
    }

    /// Removes the proxy where the server goes on without us.
    pub async fn close(&self) {
        // What is left is a proxy to nowhere.
        let _ = call(&self.api, "DELETE", &format!("/proxies/{}", self.name), None).await;
    }
}

async fn ours() -> anyhow::Result<(Server, String)> {
    let proxy = FaultProxy::start().await.context("the fault proxy cannot be started")?;
    let api = proxy.api().to_string();
    Ok((Server::Ours(proxy), api))
}

async fn start(program: &Path) -> anyhow::Result<(Server, String)> {
    // Its API takes no port of the system's choice; this one is free a moment before.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut command = Command::new(program);
    command.args(["-host", "127.0.0.1", "-port", &port.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let child = command.spawn().with_context(|| format!("{} cannot be started", program.display()))?;
    let api = format!("127.0.0.1:{port}");
    let up = try_eventually(UP_WITHIN, async || call(&api, "GET", "/version", None).await.ok()).await;
    up.context("Toxiproxy does not come up")?;
    Ok((Server::Child(child), api))
}

/// On PATH, or built before, or built now.
async fn find_or_build(say: &impl Fn(&str)) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = |name: &str| std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    if let Some(found) = on_path("toxiproxy-server") {
        return Ok(found);
    }
    let folder = cache_folder().context("there is no folder for caches: HOME is not set")?;
    let built = folder.join(format!("toxiproxy-server-{VERSION}"));
    if built.is_file() {
        return Ok(built);
    }
    let go = on_path("go").context("neither toxiproxy-server nor go is on PATH")?;
    say(&format!("building Toxiproxy {VERSION} with go, once (about half a minute) …"));
    std::fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    // Beside the place where it is to be, so that nobody ever sees half of it.
    let stage = tempfile::Builder::new().prefix("building-").tempdir_in(&folder)?;
    let mut build = Command::new(go);
    build.arg("install").arg(format!("{MODULE}@{VERSION}")).env("GOBIN", stage.path()).env("GOFLAGS", "-trimpath");
    build.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(BUILD_WITHIN, build.output()).await.context("go takes too long")??;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("go did not build it: {}", said.lines().last().unwrap_or_default());
    }
    std::fs::rename(stage.path().join("server"), &built).context("what go built cannot be kept")?;
    Ok(built)
}

fn cache_folder() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let caches =
        std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute()).or_else(home)?;
    Some(caches.join("surehook"))
}

/// One call of the API.
async fn call(api: &str, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let json = [("Content-Type", "application/json".to_owned())];
    let answer = exchange(api, method, path, &json, body.as_bytes(), UP_WITHIN).await;
    let answer = answer.context("the API of the fault proxy")?;
    if !(200..300).contains(&answer.status) {
        bail!("the fault proxy answers {method} {path} with {}: {}", answer.status, answer.body.trim());
    }
    // Older versions give their number as plain text; nothing else comes without JSON, but nothing at all.
    Ok(serde_json::from_str(&answer.body).unwrap_or_else(|_| json!({"version": answer.body.trim()})))
}
