//! Puts the parts together: `serve` (Git over HTTP, capture, delivery) and `worker` (delivery alone). Starts the tasks,
//! stops them in order, joins every one.
//!
//! Order of start: schema, half-made repositories, workers, the first look at every repository, and only then the
//! listener: when the server answers, deliveries are on their way. Order of stop: no new pushes; pushes and requests under
//! way within the grace time; what is left is ended uncharged; last the sessions with PostgreSQL.
#![expect(clippy::disallowed_methods, reason = "this is where tasks are started and joined")]

mod backend;
mod doorbell;
mod drift;
mod health;
pub(crate) mod loops;
mod scan;
mod watch;

use std::future::IntoFuture;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt;
use surehook_outbox::jobs::JobSettings;
use surehook_outbox::{Database, DatabaseError, KeptWorker, Loops, Pulse, Subscribers, Wake, WorkerSettings};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::drift::Drift;
use self::loops::Keeper;
use self::scan::Scan;
pub use self::watch::WatchdogSettings;
use self::watch::WatchdogThread;
use crate::capture::announce::Announcer;
use crate::config::file::Config;
use crate::git::command::{Git, GitError, GitSettings};
use crate::git::http::{GitHttpSettings, GitService};
use crate::hosting::{HostingError, Storage};
use crate::payload::facts::Limits;
use crate::payload::subject::subject_of;
use crate::store;
use crate::telemetry::metrics::Metrics;
use crate::upkeep::{GiveWay, Upkeep};

/// What a server needs.
#[derive(Debug)]
pub struct ServeSettings {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The pool; it is closed when the server has stopped.
    pub database: Database,
    /// Repositories lie in `repositories/` below it.
    pub data: PathBuf,
    /// Who is told past the outbox, if anybody is.
    pub watchdog: Option<WatchdogSettings>,
    /// Everything else.
    pub config: Config,
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The database cannot be used.
    #[error("the database cannot be used")]
    Database(#[from] DatabaseError),
    /// The storage cannot be used.
    #[error("the repositories cannot be used")]
    Storage(#[from] HostingError),
    /// git cannot be run.
    #[error("git cannot be run")]
    Git(#[from] GitError),
    /// The watchdog cannot be started.
    #[error("the watchdog cannot be started: {0}")]
    Watchdog(std::io::Error),
    /// The metrics cannot be set up.
    #[error("the metrics cannot be set up")]
    Metrics(#[from] prometheus::Error),
}

/// A running server. Dropping it stops it hard; [`Server::stop`] is the soft way.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    database: Database,
    engine: Engine,
    git: Option<GitService>,
    http: Option<JoinHandle<()>>,
    closing: CancellationToken,
    grace: Duration,
}

/// What `serve` and `worker` have in common: workers, sweep, retention, jobs, metrics.
struct Engine {
    workers: Vec<KeptWorker>,
    wake: Wake,
    metrics: Metrics,
    keeper: Keeper,
    pulse: Pulse,
    ready: Arc<AtomicBool>,
    watchdog: Option<WatchdogThread>,
}

impl Engine {
    fn start(database: &Database, config: &Config, watchdog: Option<WatchdogSettings>) -> Result<Self, ServeError> {
        let pulse = Pulse::default();
        let metrics = Metrics::new(pulse.clone())?;
        let wake = Wake::default();
        let node = format!("{} (process {})", crate::config::node_name(), std::process::id());
        let observed = metrics.clone();
        let settings = WorkerSettings {
            poll: Duration::from_millis(config.worker.poll_ms),
            lanes_per_claim: config.worker.lanes_per_claim,
            deliveries_per_read: config.worker.deliveries_per_read,
            lanes_in_flight_max: config.worker.lanes_in_flight_max,
            window_start: config.worker.window_start,
            grace: config.grace(),
            still_after: Duration::from_secs(config.worker.still_after_s),
            node: node.clone(),
            observer: Some(Arc::new(move |seen| observed.observe(seen))),
            subscribers: Subscribers::default(),
            pulse: pulse.clone(),
            stalled_after: Duration::from_secs(config.alerts.worker_stuck_s.into()),
        };
        let counted = metrics.clone();
        let loops = Loops::new(Arc::new(move |name| counted.observe_restart(name)));
        let start = |_| KeptWorker::start(database.clone(), settings.clone(), wake.clone(), loops.clone());
        let workers = (0..config.worker.count).map(start).collect();
        let keeper = Keeper { loops: loops.clone(), tasks: TaskTracker::new(), stop: CancellationToken::new() };
        let observed = metrics.clone();
        let job_settings = JobSettings {
            subject_of,
            node,
            observer: Some(Arc::new(move |kind, done, skipped| observed.observe_job(kind, done, skipped))),
        };
        keeper.keep_outbox(database, config, &wake, &metrics, &pulse);
        keeper.keep_jobs(database, &wake, job_settings);
        let beat = pulse.of("runtime");
        keeper.tasks.spawn(watch::come_round(beat, keeper.stop.clone()));
        let watchdog = watchdog
            .map(|settings| WatchdogThread::start(settings, config, &pulse, &metrics, &keeper.stop))
            .transpose();
        let watchdog = watchdog.map_err(ServeError::Watchdog)?;
        Ok(Self { workers, wake, metrics, keeper, pulse, watchdog, ready: Arc::new(AtomicBool::new(false)) })
    }

    async fn stop(&self, now: bool) {
        self.ready.store(false, Ordering::SeqCst);
        self.keeper.stop.cancel();
        self.keeper.tasks.close();
        let workers = futures_util::future::join_all(
            self.workers
                .iter()
                .map(|worker| async move { if now { worker.stop_now().await } else { worker.stop().await } }),
        );
        tokio::join!(workers, self.keeper.tasks.wait());
        if let Some(watchdog) = &self.watchdog {
            watchdog.join().await;
        }
    }
}

impl Server {
    /// Starts Git over HTTP, capture and delivery. Ok: it answers. Err: nothing is left running.
    pub async fn start(settings: ServeSettings) -> Result<Self, ServeError> {
        let ServeSettings { listen, database, data, watchdog, config } = settings;
        let git = Git::new(GitSettings::default());
        let version = git.version().await?;
        store::prepare(&database).await?;
        let storage = Storage::open(&data, &database).await?;
        let finished = storage.finish_leftovers().await?;
        if finished != Default::default() {
            tracing::info!(
                created = finished.created,
                deleted = finished.deleted,
                "finished what had been interrupted"
            );
        }
        let listener = bind(listen).await?;
        let engine = Engine::start(&database, &config, watchdog)?;
        let wake = engine.wake.clone();
        let announcer = Arc::new(Announcer::new(
            database.clone(),
            storage.root.clone(),
            Arc::new(move || wake.wake()),
            Limits::default(),
        ));
        let (give_way, drift) = (GiveWay::default(), Drift::default());
        let backend =
            backend::Backend::new(database.clone(), &storage, Arc::clone(&announcer), give_way.clone(), drift.clone());
        let backend = Arc::new(backend);
        let service = GitService::new(git, backend, git_settings(&config));
        let upkeep = upkeep(&database, &storage, &config, &engine, give_way);
        let pulse = engine.pulse.of("scan");
        let scan = Scan { announcer, storage: storage.clone(), database: database.clone(), drift, pulse };
        engine.keeper.keep_storage(&config, scan, upkeep);
        let router = health::router(&database, &engine).merge(service.router());
        let server = Self::listen(listener, database, engine, Some(service), Some(router), config.grace())?;
        tracing::info!(address = %server.address, storage = %storage.root.display(), git = %version, "serving");
        Ok(server)
    }

    /// Starts delivery alone; with an address also `/healthz`, `/readyz` and `/metrics`.
    pub async fn start_worker(
        listen: Option<SocketAddr>,
        database: Database,
        config: Config,
        watchdog: Option<WatchdogSettings>,
    ) -> Result<Self, ServeError> {
        store::prepare(&database).await?;
        let listener = match listen {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let engine = Engine::start(&database, &config, watchdog)?;
        let router = listener.is_some().then(|| health::router(&database, &engine));
        let server = match listener {
            Some(listener) => Self::listen(listener, database, engine, None, router, config.grace())?,
            None => {
                engine.ready.store(true, Ordering::SeqCst);
                let address = SocketAddr::from(([0, 0, 0, 0], 0));
                let closing = CancellationToken::new();
                Self { address, database, engine, git: None, http: None, closing, grace: config.grace() }
            }
        };
        tracing::info!(workers = server.engine.workers.len(), "delivering");
        Ok(server)
    }

    fn listen(
        listener: TcpListener,
        database: Database,
        engine: Engine,
        git: Option<GitService>,
        router: Option<Router>,
        grace: Duration,
    ) -> Result<Self, ServeError> {
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let address = listener.local_addr().map_err(|source| ServeError::Listen { address: unknown, source })?;
        let closing = CancellationToken::new();
        let router = router.unwrap_or_default();
        // Kept, so that a listener that dies can be begun again without others getting in between.
        let kept = listener.into_std().map_err(|source| ServeError::Listen { address, source })?;
        let (loops, stop) = (engine.keeper.loops.clone(), closing.clone());
        let http = tokio::spawn(async move {
            let begin = |_| serve_http(kept.try_clone(), router.clone(), stop.clone());
            loops.keep("listener", None, stop.clone(), begin).await;
        });
        engine.ready.store(true, Ordering::SeqCst);
        Ok(Self { address, database, engine, git, http: Some(http), closing, grace })
    }

    /// Stops softly: nothing new is taken, what is under way has the grace time, every task is joined, no session with
    /// PostgreSQL stays open. May be called again.
    pub async fn stop(&mut self) {
        self.engine.ready.store(false, Ordering::SeqCst);
        let grace = self.grace;
        let pushes = async {
            if let Some(git) = &self.git {
                git.stop(grace).await;
            }
        };
        tokio::join!(pushes, self.engine.stop(false));
        self.close_http(Duration::from_secs(2)).await;
        self.database.close().await;
    }

    /// Stops at once: requests and pushes under way are abandoned. Nothing that was accepted is lost, the next start goes on.
    pub async fn stop_now(&mut self) {
        let pushes = async {
            if let Some(git) = &self.git {
                let _ = tokio::time::timeout(Duration::from_secs(2), git.stop(Duration::ZERO)).await;
            }
        };
        tokio::join!(pushes, self.engine.stop(true));
        self.close_http(Duration::ZERO).await;
        self.database.close().await;
    }

    /// Idle connections close at once; those in the middle of an answer have `wait`.
    async fn close_http(&mut self, wait: Duration) {
        self.closing.cancel();
        if let Some(mut http) = self.http.take()
            && tokio::time::timeout(wait, &mut http).await.is_err()
        {
            http.abort();
            // Only the abort itself is awaited.
            let _ = http.await;
        }
    }
}

async fn serve_http(listener: std::io::Result<std::net::TcpListener>, router: Router, closing: CancellationToken) {
    let listener = match listener.and_then(TcpListener::from_std) {
        // Small answers must not wait for the acknowledgement of the ones before.
        Ok(listener) => listener.tap_io(|stream| drop(stream.set_nodelay(true))),
        Err(error) => return tracing::error!(%error, "the listener cannot be used"),
    };
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let serving = axum::serve(listener, service).with_graceful_shutdown(closing.cancelled_owned());
    if let Err(error) = serving.into_future().await {
        tracing::error!(%error, "the listener failed");
    }
}

fn upkeep(database: &Database, storage: &Storage, config: &Config, engine: &Engine, give_way: GiveWay) -> Upkeep {
    let observed = engine.metrics.clone();
    Upkeep {
        database: database.clone(),
        storage_id: storage.storage_id,
        storage_root: storage.root.clone(),
        git: Git::new(GitSettings::default()),
        config: config.upkeep.clone(),
        give_way,
        observer: Arc::new(move |task, ended| observed.observe_upkeep(task, ended)),
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })
}

fn git_settings(config: &Config) -> GitHttpSettings {
    GitHttpSettings {
        fetches_max: config.git.fetches_max,
        pushes_max: config.git.pushes_max,
        pack_bytes_max: config.git.pack_bytes_max,
        hold_max: Duration::from_secs(config.git.hold_max_s),
        ..GitHttpSettings::default()
    }
}
