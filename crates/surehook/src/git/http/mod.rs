//! The Git server: clone, fetch and push over smart HTTP.
//!
//! A request is taken apart (`route`), allowed or refused by the backend, given a slot for a git process (`slots`),
//! and answered by it (`fetch`, `push`). A git process runs in a task of its own, so that a client that leaves
//! cannot stop a push between the refs and their announcement. This module opens no socket: it gives a router.

mod body;
mod client;
mod fetch;
mod push;
mod reply;
mod request;
mod route;
mod settings;
mod slots;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::response::Response;
use axum::routing::any;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::backend::{Access, GitBackend, Granted, Origin};
use super::command::{Git, Service, ServiceCall, Turn};
use super::lock::{self, Locked};
use super::process::GitProcess;
use reply::Refused;
use request::Caller;
use route::{Kind, Route};
pub use settings::GitHttpSettings;
use slots::Slots;

/// The Git server, to be mounted in the product's router and stopped with the product. Cheap to clone.
#[derive(Clone)]
pub struct GitService {
    inner: Arc<Inner>,
}

struct Inner {
    git: Git,
    backend: Arc<dyn GitBackend>,
    settings: GitHttpSettings,
    slots: Slots,
    tasks: TaskTracker,
    /// No new pushes.
    closing: CancellationToken,
    /// The grace time is nearly over: git processes are asked to end.
    ending: CancellationToken,
    /// They must.
    killing: CancellationToken,
}

/// How a stop went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// All ended by themselves.
    Gracefully,
    /// git processes had to be ended; what they moved was announced.
    AfterTerm,
    /// Something did not end even then and was left behind; the next start-up announces it.
    WithRest,
}

impl GitService {
    /// A server that starts nothing until it is asked.
    #[must_use]
    pub fn new(git: Git, backend: Arc<dyn GitBackend>, settings: GitHttpSettings) -> Self {
        let slots = Slots::new(&settings);
        let inner = Inner {
            git,
            backend,
            settings,
            slots,
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
            ending: CancellationToken::new(),
            killing: CancellationToken::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The routes: everything below `/` that no other route takes.
    pub fn router(&self) -> Router {
        Router::new().route("/{*path}", any(serve)).with_state(self.clone())
    }

    /// How many git processes for fetches and for pushes are running or being announced.
    #[must_use]
    pub fn running(&self) -> usize {
        self.inner.tasks.len()
    }

    /// Takes no more pushes and lets running requests end; when most of `grace` is over, ends their git processes, and in the
    /// rest of it what moved is announced and the tasks are joined. Stopping twice is fine.
    pub async fn stop(&self, grace: Duration) -> Stopped {
        let inner = &self.inner;
        inner.closing.cancel();
        inner.tasks.close();
        let share = inner.settings.terminate_wait.min(grace / 4);
        if tokio::time::timeout(grace - 2 * share, inner.tasks.wait()).await.is_ok() {
            return Stopped::Gracefully;
        }
        inner.ending.cancel();
        if tokio::time::timeout(share, inner.tasks.wait()).await.is_ok() {
            return Stopped::AfterTerm;
        }
        inner.killing.cancel();
        match tokio::time::timeout(share, inner.tasks.wait()).await {
            Ok(()) => Stopped::AfterTerm,
            Err(_) => Stopped::WithRest,
        }
    }

    /// Starts a service process in the repository; a push under its lock. A fetch needs none: it takes no lock of git's,
    /// and upkeep leaves what it may be reading. Clones one after another would keep upkeep away for ever.
    async fn start(
        &self,
        service: Service,
        turn: Turn,
        granted: &Granted,
        caller: &Caller,
    ) -> Result<GitProcess, Refused> {
        let settings = &self.inner.settings;
        let path = &granted.repository.path;
        let lock = match (granted.repository.origin, service) {
            (Origin::Imported, _) | (_, Service::UploadPack) => None,
            (Origin::Hosted, Service::ReceivePack) => match lock::shared(path, settings.lock_wait_max).await {
                Ok(Locked::Held(lock)) => Some(lock),
                Ok(Locked::Busy) => return Err(Refused::busy("the repository is being maintained; try again")),
                Err(error) => return Err(self.disk_trouble(granted, &error)),
            },
        };
        let mut config = Vec::new();
        if service == Service::ReceivePack {
            config.push(("receive.maxInputSize", settings.pack_bytes_max.to_string()));
        }
        let protocol = caller.protocol_for(service);
        let pusher = granted.pusher.as_deref();
        let call = ServiceCall { repository: path, protocol, pusher, config, lock };
        self.inner.git.serve(service, turn, call).map_err(|error| self.disk_trouble(granted, &error))
    }

    fn disk_trouble(&self, granted: &Granted, error: &(dyn std::error::Error + 'static)) -> Refused {
        let (repository, path) = (&granted.repository.name, &granted.repository.path);
        tracing::error!(%repository, ?path, error, "a repository cannot be served");
        Refused::internal("the repository cannot be served just now")
    }

    async fn slot(&self, service: Service) -> Result<OwnedSemaphorePermit, Refused> {
        self.inner.slots.take(service).await.ok_or_else(|| Refused::busy("the server is busy; try again in a moment"))
    }
}

async fn serve(State(service): State<GitService>, request: Request) -> Response {
    match answer(&service, request).await {
        Ok(response) => response,
        Err(refused) => refused.into_response(),
    }
}

async fn answer(service: &GitService, request: Request) -> Result<Response, Refused> {
    let Route { name, kind } = route::parse(request.uri().path(), request.uri().query());
    let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
    match kind {
        Kind::Lfs => return Ok(reply::no_lfs()),
        Kind::Dumb => return Err(Refused::dumb()),
        Kind::Nothing => return Err(Refused::not_found()),
        Kind::Advertise(_) if request.method() != Method::GET => return Err(Refused::method("GET")),
        Kind::Answer(_) if is_get || request.method() != Method::POST => return Err(Refused::method("POST")),
        Kind::Advertise(_) | Kind::Answer(_) => {}
    }
    let name = name.ok_or_else(Refused::not_found)?;
    // Counted from before the check whether the server is stopping, so that a stop waits for what passed it.
    let _counted = service.inner.tasks.token();
    let caller = Caller::of(&request);
    match kind {
        Kind::Advertise(half) => {
            let granted = allow(service, half, &name, &caller).await?;
            if half == Service::ReceivePack {
                service.inner.backend.prepare_push(&granted).await?;
            }
            fetch::advertise(service, half, granted, &caller).await
        }
        Kind::Answer(half) => {
            request::check_content_type(request.headers(), half)?;
            let granted = allow(service, half, &name, &caller).await;
            match half {
                Service::UploadPack => fetch::upload_pack(service, granted?, &caller, request).await,
                Service::ReceivePack => push::receive_pack(service, granted, &caller, request).await,
            }
        }
        Kind::Lfs | Kind::Dumb | Kind::Nothing => Err(Refused::not_found()),
    }
}

async fn allow(
    service: &GitService,
    half: Service,
    name: &super::name::RepoName,
    caller: &Caller,
) -> Result<Granted, Refused> {
    let access = match half {
        Service::UploadPack => Access::Read,
        Service::ReceivePack => Access::Push,
    };
    if access == Access::Push && service.inner.closing.is_cancelled() {
        return Err(Refused::busy("the server is stopping; push again in a moment"));
    }
    Ok(service.inner.backend.authorize(name, access, caller.credentials.clone()).await?)
}
