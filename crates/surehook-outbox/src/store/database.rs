//! A pool of sessions with one PostgreSQL database. May open connections; holds no SQL of its own but the start-up checks.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{
    ClientWrapper, Connect, Hook, HookError, Manager, ManagerConfig, Metrics, Pool, PoolError, RecyclingMethod,
    Runtime, TimeoutType, Timeouts,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::pooler::{ParameterTypes, Pooler};
use super::session::Session;

/// How long [`Database::close`] waits for sessions to end by themselves.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// How long one server may take to let us in.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// How long a session may take to begin: each server of the URL has its time.
fn open_within(config: &Config) -> Duration {
    let servers = u32::try_from(config.get_hosts().len()).unwrap_or(u32::MAX).max(1);
    CONNECT_WITHIN.saturating_mul(servers) + Duration::from_secs(1)
}

/// What can go wrong between us and PostgreSQL.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The connection URL cannot be read.
    #[error("the database URL cannot be read; it looks like postgres://user:password@host:5432/name")]
    Url(#[source] tokio_postgres::Error),
    /// No session could be had: PostgreSQL is away, refuses us, or all sessions stayed busy.
    #[error("no session with PostgreSQL could be had")]
    Session(#[source] PoolError),
    /// A statement failed.
    #[error("PostgreSQL refused a statement{}", detail(.0))]
    Statement(#[from] tokio_postgres::Error),
    /// The database cannot serve as it is.
    #[error("{0}")]
    Unsuitable(String),
    /// A pooler in transaction mode stands before it, and nobody said so.
    #[error(
        "between this program and PostgreSQL stands a pooler that gives each transaction to another session (pgbouncer's \
         transaction mode), and nobody said so; prepared statements would go astray behind it"
    )]
    UnknownPooler,
    /// A migration that was applied differs from the one in this program.
    #[error(
        "the database has {component} {name} with another text than this program; it was made by another version of it"
    )]
    MigrationChanged {
        /// Which set of migrations.
        component: String,
        /// Which migration.
        name: String,
    },
    /// The pool cannot be made.
    #[error("the pool of database sessions cannot be made")]
    Pool(#[from] deadpool_postgres::BuildError),
}

fn detail(error: &tokio_postgres::Error) -> String {
    let Some(db) = error.as_db_error() else { return String::new() };
    let said = format!(": {} ({})", db.message(), db.code().code());
    if is_of_a_pooler(db) {
        format!("{said}; a pooler in transaction mode seems to stand before it, and nobody said so")
    } else {
        said
    }
}

/// What a prepared statement meets in a server process that is not the one in which it was prepared: nothing, its name in
/// use, or another statement of that name. (pgbouncer itself says "protocol violation" about everything, and then hangs up.)
fn is_of_a_pooler(error: &DbError) -> bool {
    let is_met = [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT, SqlState::PROTOCOL_VIOLATION];
    is_met.contains(error.code()) && error.parsed_severity() == Some(Severity::Error)
}

impl DatabaseError {
    /// The SQLSTATE, if the server gave one.
    pub fn sqlstate(&self) -> Option<&str> {
        self.code().map(SqlState::code)
    }

    /// The same, as the driver names it.
    pub fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Statement(error) | Self::Url(error) => error.code(),
            Self::Session(PoolError::Backend(error)) => error.code(),
            _ => None,
        }
    }

    /// The constraint that a statement would have broken.
    pub fn constraint(&self) -> Option<&str> {
        match self {
            Self::Statement(error) => error.as_db_error().and_then(|error| error.constraint()),
            _ => None,
        }
    }

    /// Whether it shows that a pooler in transaction mode stands before the database and nobody said so: then
    /// [`Database::connect_through`] with [`Pooler::Transaction`] is what works, or the address of PostgreSQL itself.
    pub fn is_of_an_unknown_pooler(&self) -> bool {
        match self {
            Self::UnknownPooler => true,
            Self::Statement(error) => error.as_db_error().is_some_and(is_of_a_pooler),
            _ => false,
        }
    }

    /// Whether the database was out of reach, as opposed to having refused what it was asked: the same call may succeed later.
    pub fn is_away(&self) -> bool {
        match self {
            Self::Session(_) => true,
            Self::Statement(_) if self.is_of_an_unknown_pooler() => false,
            Self::Statement(error) => match error.code() {
                None => true,
                Some(code) => matches!(&code.code()[..2], "57" | "08" | "53"),
            },
            _ => false,
        }
    }
}

/// A pool of sessions with one database. Cloning shares the pool.
#[derive(Clone, Debug)]
pub struct Database {
    pool: Pool,
    /// Sessions of workers, which plan otherwise; behind a pooler the same.
    workers: Pool,
    connections: Connections,
    /// How to connect beside the pool; without TLS if there is none.
    config: Arc<Config>,
    tls: Option<rustls::ClientConfig>,
    /// Set behind a pooler in transaction mode.
    types: Option<ParameterTypes>,
    /// Set once it was seen that nothing unknown stands in between.
    sessions_last: Arc<OnceCell<()>>,
}

/// The tasks that move the bytes of sessions. The pool would abort them with their session, and PostgreSQL would find out by
/// itself that nobody is there; left alone they sign off, and can be waited for.
#[derive(Clone, Debug, Default)]
struct Connections {
    tasks: TaskTracker,
    cut: CancellationToken,
}

impl Connections {
    /// Moves the bytes of a connection until it ends.
    fn attend<Tls>(
        &self,
        connected: Result<(Client, Connection<Socket, Tls>), Error>,
        mut hear: impl FnMut(AsyncMessage) + Send + 'static,
    ) -> Result<Client, Error>
    where
        Tls: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (client, mut connection) = connected?;
        let cut = self.cut.clone();
        self.tasks.spawn(async move {
            loop {
                let message = tokio::select! {
                    message = std::future::poll_fn(|context| connection.poll_message(context)) => message,
                    () = cut.cancelled() => return,
                };
                match message {
                    Some(Ok(message)) => hear(message),
                    Some(Err(error)) => {
                        tracing::debug!(%error, "a session with PostgreSQL broke");
                        return;
                    }
                    None => return,
                }
            }
        });
        Ok(client)
    }
}

impl Database {
    /// Makes the pool; connects lazily. `sessions_max` bounds the connections of this pool; a worker on it has as many more
    /// at its disposal, and needs five.
    ///
    /// Unix sockets are given as `host=/folder user=… dbname=…`. TLS is used when the server offers it and verified
    /// against the system's certificates; `sslmode=disable` turns it off.
    pub fn connect(url: &str, application_name: &str, sessions_max: usize) -> Result<Self, DatabaseError> {
        Self::connect_through(Pooler::None, url, application_name, sessions_max)
    }

    /// The same through a pooler. Behind one in transaction mode nothing is prepared, and nothing else needs a session
    /// that lasts.
    pub fn connect_through(
        pooler: Pooler,
        url: &str,
        application_name: &str,
        sessions_max: usize,
    ) -> Result<Self, DatabaseError> {
        let mut config: Config = url.parse().map_err(DatabaseError::Url)?;
        config.application_name(application_name);
        config.connect_timeout(CONNECT_WITHIN);
        config.keepalives_idle(Duration::from_secs(15));
        config.tcp_user_timeout(Duration::from_secs(20));
        let recycle = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let sockets_only = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        let connections = Connections::default();
        let without_tls = sockets_only || config.get_ssl_mode() == SslMode::Disable;
        let tls = (!without_tls).then(crate::tls::client_config);
        let builder = || {
            let manager = match tls.clone() {
                None => {
                    let connect = Connecting { tls: tokio_postgres::NoTls, connections: connections.clone() };
                    Manager::from_connect(config.clone(), connect, recycle.clone())
                }
                Some(tls) => {
                    let tls = MakeRustlsConnect::new(tls);
                    let connect = Connecting { tls, connections: connections.clone() };
                    Manager::from_connect(config.clone(), connect, recycle.clone())
                }
            };
            Pool::builder(manager)
                .max_size(sessions_max)
                .runtime(Runtime::Tokio1)
                .wait_timeout(Some(Duration::from_secs(10)))
                .create_timeout(Some(open_within(&config)))
        };
        let pool = builder().build()?;
        let workers = match pooler {
            Pooler::None => builder().post_create(Hook::async_fn(plan_for_workers)).build()?,
            // Statements without a name are planned each time, and what is set would stay in the pooler's sessions.
            Pooler::Transaction => pool.clone(),
        };
        let types = (pooler == Pooler::Transaction).then(ParameterTypes::default);
        let config = Arc::new(config);
        Ok(Self { pool, workers, connections, config, tls, types, sessions_last: Arc::default() })
    }

    /// Whether something stands between this program and PostgreSQL, as was said when the pool was made.
    pub fn pooler(&self) -> Pooler {
        if self.types.is_some() { Pooler::Transaction } else { Pooler::None }
    }

    /// Refuses a pooler in transaction mode of which nobody said anything: behind it a statement that one session prepared
    /// may be taken for that of another. Ok: none was seen, or it is known. Looks once for each pool, and needs two sessions
    /// for that; where the pool has no second one to spare it does not look.
    pub async fn refuse_unknown_pooler(&self) -> Result<(), DatabaseError> {
        if self.types.is_some() || self.pool.status().max_size < 2 {
            return Ok(());
        }
        // Several at once would wait for each other's second session.
        self.sessions_last.get_or_try_init(|| self.see_that_sessions_last()).await?;
        Ok(())
    }

    /// While a session is open, its server process is nobody else's, and it has no other.
    async fn see_that_sessions_last(&self) -> Result<(), DatabaseError> {
        let one = self.session().await?;
        let soon = Timeouts { wait: Some(Duration::from_secs(1)), ..self.pool.timeouts() };
        let mut two = match self.pool.timeout_get(&soon).await {
            Ok(object) => Session::new(object, None),
            Err(PoolError::Timeout(TimeoutType::Wait)) => return Ok(()),
            Err(error) => return Err(DatabaseError::Session(error)),
        };
        let before = one.server_process().await?;
        let transaction = two.transaction().await?;
        let is_shared = transaction.server_process().await? == before;
        // Where the pooler has one process only, `one` would wait for it until the transaction ends.
        let is_another = !is_shared && one.server_process().await? != before;
        transaction.rollback().await?;
        if is_shared || is_another { Err(DatabaseError::UnknownPooler) } else { Ok(()) }
    }

    /// Takes a session; waits at most 10 s for a free one. Err: nothing was changed, may be repeated.
    pub async fn session(&self) -> Result<Session, DatabaseError> {
        Ok(Session::new(self.pool.get().await.map_err(DatabaseError::Session)?, self.types.clone()))
    }

    /// The same for the statements of a worker, in a session that plans for them.
    pub(crate) async fn worker_session(&self) -> Result<Session, DatabaseError> {
        Ok(Session::new(self.workers.get().await.map_err(DatabaseError::Session)?, self.types.clone()))
    }

    /// How long that may take.
    pub(super) fn open_within(&self) -> Duration {
        open_within(&self.config)
    }

    /// Opens a connection beside the pool, for what needs a session that lasts; `purpose` stands behind the application's name.
    /// What the server says unasked goes to `hear`, which is dropped when the connection ends. It ends when the client is dropped.
    pub(super) async fn connect_alone(
        &self,
        purpose: &str,
        hear: impl FnMut(AsyncMessage) + Send + 'static,
    ) -> Result<Client, DatabaseError> {
        let mut config = Config::clone(&self.config);
        config.application_name(format!("{} {purpose}", config.get_application_name().unwrap_or_default()));
        // It is idle most of the time: only this tells that the way is gone.
        config.keepalives_interval(Duration::from_secs(5)).keepalives_retries(3);
        let connected = match &self.tls {
            None => self.connections.attend(config.connect(tokio_postgres::NoTls).await, hear),
            Some(tls) => {
                let tls = MakeRustlsConnect::new(tls.clone());
                self.connections.attend(config.connect(tls).await, hear)
            }
        };
        connected.map_err(|error| DatabaseError::Session(PoolError::Backend(error)))
    }

    /// Refuses new sessions, ends the idle ones, and those in use as they are given back. On return every session has
    /// signed off, or, after two seconds, was cut. May be called again.
    pub async fn close(&self) {
        self.pool.close();
        self.workers.close();
        self.connections.tasks.close();
        if tokio::time::timeout(CLOSE_WITHIN, self.connections.tasks.wait()).await.is_err() {
            self.connections.cut.cancel();
            self.connections.tasks.wait().await;
        }
    }
}

/// The statements of a worker are few and said all day. Each is planned once and finds what it needs by keys: a plan that was
/// made while a table was small, and vacuumed, would read all of it when it no longer is, until somebody analyses it.
const WORKERS_PLAN: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off";

fn plan_for_workers<'a>(client: &'a mut ClientWrapper, _: &Metrics) -> Boxed<'a, Result<(), HookError>> {
    Box::pin(async move { client.batch_execute(WORKERS_PLAN).await.map_err(HookError::Backend) })
}

/// Makes sessions whose tasks are [`Connections`].
struct Connecting<Tls> {
    tls: Tls,
    connections: Connections,
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl<Tls> Connect for Connecting<Tls>
where
    Tls: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    Tls::Stream: Send + Sync + Unpin + 'static,
    Tls::TlsConnect: Send + Sync,
    <Tls::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    fn connect(&self, config: &Config) -> Boxed<'_, Result<(Client, JoinHandle<()>), Error>> {
        let config = config.clone();
        Box::pin(async move {
            let client = self.connections.attend(config.connect(self.tls.clone()).await, |_| ())?;
            // What the pool aborts with the session: nothing.
            Ok((client, self.connections.tasks.spawn(std::future::ready(()))))
        })
    }
}
