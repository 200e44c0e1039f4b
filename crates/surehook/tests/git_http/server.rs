//! A Git server of the test's own, with a backend that remembers what it was told.
#![expect(clippy::disallowed_methods, reason = "the test's server is a task of its own")]

use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use secrecy::ExposeSecret as _;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use surehook::git::backend::{
    Access, Credentials, GitBackend, Granted, ObjectFormat, Origin, PushHints, PushOutcome, Refusal, RepositoryOnDisk,
};
use surehook::git::command::{Git, GitSettings};
use surehook::git::hosted::HostedRepositories;
use surehook::git::http::{GitHttpSettings, GitService};
use surehook::git::name::RepoName;
use tokio::sync::Semaphore;
use uuid::Uuid;

pub(crate) const PASSWORD: &str = "open-sesame";
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server with hosted repositories; ends with the test.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) backend: Arc<Backend>,
    pub(crate) service: GitService,
    hosted: HostedRepositories,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

/// What is remembered of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) encoding: Option<String>,
    pub(crate) length: Option<u64>,
}

/// Allows reading to all and pushing to those who know the password; records pushes.
#[derive(Default)]
pub(crate) struct Backend {
    repositories: Mutex<HashMap<String, RepositoryOnDisk>>,
    behaviour: Mutex<Behaviour>,
    away: Mutex<Option<String>>,
    pushes: Mutex<Vec<PushHints>>,
    finished: Mutex<usize>,
    prepared: Mutex<usize>,
    gate: Gate,
}

/// What `pushed` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Behaviour {
    #[default]
    Announce,
    /// Waits until the gate opens.
    Wait,
    Later,
    Panic,
}

struct Gate(Semaphore);

impl Default for Gate {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Backend {
    pub(crate) fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    pub(crate) fn go_away(&self, message: Option<&str>) {
        *self.away.lock().unwrap() = message.map(str::to_owned);
    }

    pub(crate) fn open_gate(&self) {
        self.gate.0.add_permits(1000);
    }

    pub(crate) fn pushes(&self) -> Vec<PushHints> {
        self.pushes.lock().unwrap().clone()
    }

    pub(crate) fn finished(&self) -> usize {
        *self.finished.lock().unwrap()
    }

    pub(crate) fn prepared(&self) -> usize {
        *self.prepared.lock().unwrap()
    }

    /// Waits until `pushed` was called so many times.
    pub(crate) async fn pushed_times(&self, times: usize) {
        surehook_testkit::eventually(PATIENCE, async || (self.pushes().len() >= times).then_some(())).await;
    }
}

impl GitBackend for Backend {
    fn authorize<'a>(
        &'a self,
        name: &'a RepoName,
        access: Access,
        credentials: Option<Credentials>,
    ) -> BoxFuture<'a, Result<Granted, Refusal>> {
        async move {
            if let Some(message) = self.away.lock().unwrap().clone() {
                return Err(Refusal::Unavailable(message));
            }
            let pusher = match &credentials {
                Some(given) if given.password.expose_secret() == PASSWORD => Some(given.user.clone()),
                Some(_) => return Err(Refusal::Unauthenticated),
                None if access == Access::Push => return Err(Refusal::Unauthenticated),
                None => None,
            };
            if access == Access::Push && pusher.as_deref() == Some("reader") {
                return Err(Refusal::Forbidden);
            }
            let repository = self.repositories.lock().unwrap().get(name.as_str()).cloned().ok_or(Refusal::NotFound)?;
            Ok(Granted { repository, pusher })
        }
        .boxed()
    }

    fn prepare_push<'a>(&'a self, _: &'a Granted) -> BoxFuture<'a, Result<(), Refusal>> {
        *self.prepared.lock().unwrap() += 1;
        async { Ok(()) }.boxed()
    }

    fn prepare_deletion<'a>(&'a self, _: &'a Granted) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async { Ok(()) })
    }

    fn pushed<'a>(&'a self, _: &'a Granted, hints: PushHints) -> BoxFuture<'a, PushOutcome> {
        async move {
            self.pushes.lock().unwrap().push(hints);
            let behaviour = *self.behaviour.lock().unwrap();
            let outcome = match behaviour {
                Behaviour::Announce => PushOutcome::Announced(1),
                Behaviour::Wait => {
                    self.gate.0.acquire().await.unwrap().forget();
                    PushOutcome::Announced(1)
                }
                Behaviour::Later => PushOutcome::Later("the database is slow".to_owned()),
                Behaviour::Panic => panic!("as the test wants it"),
            };
            *self.finished.lock().unwrap() += 1;
            outcome
        }
        .boxed()
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut GitHttpSettings)) -> Self {
        let folder = tempfile::Builder::new().prefix("surehook-server-").tempdir().unwrap();
        let git = Git::new(GitSettings::default());
        let hosted = HostedRepositories::new(folder.path().to_owned(), git.clone());
        let (backend, mut settings) = (Arc::new(Backend::default()), GitHttpSettings::default());
        change(&mut settings);
        let service = GitService::new(git, Arc::clone(&backend) as Arc<dyn GitBackend>, settings);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let router = service.router().layer(middleware::from_fn_with_state(Arc::clone(&seen), remember));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let router = router.into_make_service_with_connect_info::<SocketAddr>();
            axum::serve(listener, router).await.unwrap();
        });
        Self { address, backend, service, hosted, seen, task, _folder: folder }
    }

    /// Makes a repository and gives its path on disk.
    pub(crate) async fn create(&self, name: &str) -> PathBuf {
        self.create_as(name, ObjectFormat::Sha1).await
    }

    pub(crate) async fn create_as(&self, name: &str, object_format: ObjectFormat) -> PathBuf {
        let (id, name) = (Uuid::new_v4(), RepoName::parse(name).unwrap());
        let new = self.hosted.create(id, object_format).await.unwrap();
        let path = self.hosted.publish(&new, &name).await.unwrap();
        let repository =
            RepositoryOnDisk { id, name: name.clone(), path: path.clone(), object_format, origin: Origin::Hosted };
        self.backend.repositories.lock().unwrap().insert(name.to_string(), repository);
        path
    }

    /// The URL for who may push.
    pub(crate) fn url(&self, name: &str) -> String {
        self.url_for("ada", PASSWORD, name)
    }

    pub(crate) fn url_for(&self, user: &str, password: &str, name: &str) -> String {
        format!("http://{user}:{password}@{}/{name}", self.address)
    }

    pub(crate) fn open_url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    /// The requests so far whose path ends so.
    pub(crate) fn seen(&self, end: &str) -> Vec<Seen> {
        self.seen.lock().unwrap().iter().filter(|seen| seen.path.ends_with(end)).cloned().collect()
    }

    /// Waits until no request is being worked on any more.
    pub(crate) async fn is_idle(&self) {
        surehook_testkit::eventually(PATIENCE, async || (self.service.running() == 0).then_some(())).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn remember(State(seen): State<Arc<Mutex<Vec<Seen>>>>, request: Request, next: Next) -> Response {
    seen.lock().unwrap().push(Seen::of(&request));
    next.run(request).await
}

impl Seen {
    fn of(request: &Request) -> Self {
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Self {
            path: request.uri().path().to_owned(),
            encoding: header("content-encoding"),
            length: header("content-length").and_then(|length| length.parse().ok()),
        }
    }
}
