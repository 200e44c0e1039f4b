//! What the tests of the receiver share: a database and a data directory, receivers that come and go, raw HTTP requests.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use surehook::receive::runner::RunnerCommand;
use surehook::receive::{BODY_BYTES_MAX, LOG_BYTES_MAX, Receiver, ReceiverError, ReceiverSettings};
use surehook::store::INBOX;
use surehook::store::inbox::{self, Build};
use surehook_outbox::store::Database;
use surehook_outbox::store::migrate::migrate;
use surehook_testkit::eventually;
use surehook_testkit::postgres::{self, TestDatabase};
use surehook_webhook::{Secret, Secrets, envelope};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) const SECRET: &str = "what both of us know";
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const ZEROS: &str = "0000000000000000000000000000000000000000";
pub(crate) const COMMIT: &str = "2b1e6f7c9d8a4b3c5d6e7f8091a2b3c4d5e6f708";

/// The JSON of a push, with more fields.
pub(crate) fn body(more: &str) -> String {
    format!(r#"{{"ref":"refs/heads/main","before":"{ZEROS}","after":"{COMMIT}"{more}}}"#)
}

pub(crate) fn push() -> String {
    body("")
}

/// A database and a data directory.
pub(crate) struct World {
    pub(crate) url: String,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) database: Database,
    pub(crate) _owned: Option<TestDatabase>,
}

impl World {
    pub(crate) async fn new() -> Self {
        let owned = postgres::database("inbox", async |url| {
            let database = Database::connect(url, "test", 1).unwrap();
            migrate(&database, "inbox", INBOX).await.unwrap();
            database.close().await;
        })
        .await;
        Self { _owned: None, ..Self::at(owned.url()) }.owning(owned)
    }

    pub(crate) fn at(url: &str) -> Self {
        let database = Database::connect(url, "test", 4).unwrap();
        Self { url: url.into(), folder: tempfile::tempdir().unwrap(), database, _owned: None }
    }

    fn owning(mut self, database: TestDatabase) -> Self {
        self._owned = Some(database);
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits for a file.
    pub(crate) async fn appears(&self, name: &str) {
        eventually(PATIENCE, async || self.path(name).exists().then_some(())).await;
    }

    /// Waits for the end of a build.
    pub(crate) async fn ended(&self, build_id: i64) -> Build {
        eventually(PATIENCE, async || {
            let build = inbox::find(&self.database, build_id).await.unwrap();
            build.filter(|build| build.finished_at.is_some())
        })
        .await
    }

    pub(crate) fn settings(&self, exec: &str) -> impl Future<Output = ReceiverSettings> + Send + 'static {
        let exec = exec.replace("$HERE", &self.folder.path().display().to_string());
        let (url, data_dir) = (self.url.clone(), self.folder.path().to_owned());
        async move {
            ReceiverSettings {
                listener: tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap(),
                database: Database::connect(&url, "surehook receive", 8).unwrap(),
                data_dir,
                secrets: Secrets::from(Secret::parse(SECRET).unwrap()),
                exec: OsString::from(exec),
                jobs: 2,
                accept_untimed: false,
                body_bytes_max: BODY_BYTES_MAX,
                timeout: None,
                log_bytes_max: LOG_BYTES_MAX,
                runner: RunnerCommand::new(env!("CARGO_BIN_EXE_surehook")),
            }
        }
    }

    /// A receiver that runs `exec`, in which `$HERE` is the folder of the test.
    pub(crate) async fn receiver(&self, exec: &str) -> Running {
        self.receiver_with(exec, |_| ()).await
    }

    pub(crate) async fn receiver_with(&self, exec: &str, change: fn(&mut ReceiverSettings)) -> Running {
        // A runtime of its own: to end it is to end the receiver wherever it stands, as SIGKILL would.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let shutdown = CancellationToken::new();
        // Of a receiver that was killed just now a last task may still be on its way out.
        let receiver = eventually(PATIENCE, async || {
            let (settings, shutdown) = (self.settings(exec), shutdown.clone());
            let starting = runtime.spawn(async move {
                let mut settings = settings.await;
                change(&mut settings);
                Receiver::start(settings, shutdown).await
            });
            match starting.await.unwrap() {
                Ok(receiver) => Some(receiver),
                Err(ReceiverError::AlreadyRunning(_)) => None,
                Err(error) => panic!("{error:?}"),
            }
        })
        .await;
        Running { address: receiver.address(), receiver: Some(receiver), runtime: Some(runtime), shutdown }
    }
}

/// A receiver at work; killed when dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    receiver: Option<Receiver>,
    runtime: Option<Runtime>,
    shutdown: CancellationToken,
}

impl Running {
    pub(crate) fn kill(self) {}

    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        self.receiver.take().unwrap().join().await.unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.receiver.take());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A request, written byte by byte so that it may be as odd as it likes.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) chunked: bool,
}

impl Request {
    pub(crate) fn signed(id: Uuid, body: &[u8]) -> Self {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        Self::signed_at(id, body, now_s.try_into().unwrap())
    }

    pub(crate) fn signed_at(id: Uuid, body: &[u8], timestamp_s: i64) -> Self {
        let secrets = Secrets::from(Secret::parse(SECRET).unwrap());
        let headers = envelope::headers(id, timestamp_s, body, &secrets);
        let headers = headers.map(|(name, value)| (name.to_owned(), value)).to_vec();
        Self { method: "POST", path: "/", headers, body: body.to_vec(), chunked: false }
    }

    pub(crate) fn header(&self, name: &str) -> String {
        self.headers.iter().find(|(known, _)| known == name).unwrap().1.clone()
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.iter_mut().find(|(known, _)| known == name).unwrap().1 = value.into();
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self
    }

    pub(crate) fn twice(mut self, name: &str) -> Self {
        self.headers.push((name.to_uppercase(), self.header(name)));
        self
    }

    pub(crate) fn with_body(self, body: &[u8]) -> Self {
        Self { body: body.to_vec(), ..self }
    }

    pub(crate) fn with_method(self, method: &'static str) -> Self {
        Self { method, ..self }
    }

    pub(crate) fn with_path(self, path: &'static str) -> Self {
        Self { path, ..self }
    }

    pub(crate) fn send(&self, address: SocketAddr) -> Answer {
        self.try_send(address).unwrap_or_else(|| panic!("no answer from {address}"))
    }

    /// None: the receiver was not there, or went away before it had answered.
    pub(crate) fn try_send(&self, address: SocketAddr) -> Option<Answer> {
        let mut text = String::new();
        self.exchange(address, &mut text).ok()?;
        Answer::parse(&text)
    }

    fn exchange(&self, address: SocketAddr, answer: &mut String) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut head = format!("{} {} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if self.chunked {
            head += "transfer-encoding: chunked\r\n\r\n";
        } else {
            head += &format!("content-length: {}\r\n\r\n", self.body.len());
        }
        stream.write_all(head.as_bytes())?;
        if self.chunked {
            for chunk in self.body.chunks(60_000) {
                stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes())?;
                stream.write_all(chunk)?;
                stream.write_all(b"\r\n")?;
            }
            stream.write_all(b"0\r\n\r\n")?;
        } else {
            stream.write_all(&self.body)?;
        }
        stream.read_to_string(answer)?;
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) json: serde_json::Value,
    head: String,
}

impl Answer {
    fn parse(text: &str) -> Option<Self> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Self { status, json: serde_json::from_str(body).ok()?, head: head.to_lowercase() })
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.head
            .lines()
            .find_map(|line| Some(line.split_once(": ").filter(|(known, _)| *known == name)?.1.to_uppercase()))
    }
}
