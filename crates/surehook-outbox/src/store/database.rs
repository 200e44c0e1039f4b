//! A pool of sessions with one PostgreSQL database. May open connections; holds no SQL of its own but the start-up checks.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use deadpool_postgres::{Connect, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::pooler::{ParameterTypes, Pooler};
use super::session::Session;

/// How long [`Database::close`] waits for sessions to end by themselves.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// What can go wrong between us and PostgreSQL.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The connection URL cannot be read.
    #[error("the database URL cannot be read; it looks like postgres://user:password@host:5432/name")]
    Url(#[source] tokio_postgres::Error),
    /// No session could be had: PostgreSQL is away, refuses us, or all sessions stayed busy.
    #[error("no session with PostgreSQL could be had")]
    Session(#[source] deadpool_postgres::PoolError),
    /// A statement failed.
    #[error("PostgreSQL refused a statement{}", detail(.0))]
    Statement(#[from] tokio_postgres::Error),
    /// The database cannot serve as it is.
    #[error("{0}")]
    Unsuitable(String),
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
    if is_of_a_pooler(db.code()) {
        format!(
            "{said}; a pooler in transaction mode seems to stand before it: give the address of PostgreSQL \
             itself, or let the pooler keep named prepared statements"
        )
    } else {
        said
    }
}

/// What a prepared statement meets in a server process that is not the one in which it was prepared: nothing, its name in
/// use, or another statement of that name.
fn is_of_a_pooler(code: &SqlState) -> bool {
    [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT, SqlState::PROTOCOL_VIOLATION].contains(code)
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
            Self::Session(deadpool_postgres::PoolError::Backend(error)) => error.code(),
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

    /// Whether the database was out of reach, as opposed to having refused what it was asked: the same call may succeed later.
    pub fn is_away(&self) -> bool {
        match self {
            Self::Session(_) => true,
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
    connections: Connections,
    /// Set behind a pooler in transaction mode.
    types: Option<ParameterTypes>,
}

/// The tasks that move the bytes of sessions. The pool would abort them with their session, and PostgreSQL would find out by
/// itself that nobody is there; left alone they sign off, and can be waited for.
#[derive(Clone, Debug, Default)]
struct Connections {
    tasks: TaskTracker,
    cut: CancellationToken,
}

impl Database {
    /// Makes the pool; connects lazily. `sessions_max` bounds the connections of this pool.
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
        config.connect_timeout(Duration::from_secs(5));
        config.keepalives_idle(Duration::from_secs(15));
        config.tcp_user_timeout(Duration::from_secs(20));
        let recycle = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let sockets_only = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        let connections = Connections::default();
        let manager = if sockets_only || config.get_ssl_mode() == SslMode::Disable {
            let connect = Connecting { tls: tokio_postgres::NoTls, connections: connections.clone() };
            Manager::from_connect(config, connect, recycle)
        } else {
            let tls = MakeRustlsConnect::new(crate::tls::client_config());
            Manager::from_connect(config, Connecting { tls, connections: connections.clone() }, recycle)
        };
        let pool = Pool::builder(manager)
            .max_size(sessions_max)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(Duration::from_secs(10)))
            .create_timeout(Some(Duration::from_secs(6)))
            .build()?;
        let types = (pooler == Pooler::Transaction).then(ParameterTypes::default);
        Ok(Self { pool, connections, types })
    }

    /// Takes a session; waits at most 10 s for a free one. Err: nothing was changed, may be repeated.
    pub async fn session(&self) -> Result<Session, DatabaseError> {
        Ok(Session::new(self.pool.get().await.map_err(DatabaseError::Session)?, self.types.clone()))
    }

    /// Refuses new sessions, ends the idle ones, and those in use as they are given back. On return every session has
    /// signed off, or, after two seconds, was cut. May be called again.
    pub async fn close(&self) {
        self.pool.close();
        self.connections.tasks.close();
        if tokio::time::timeout(CLOSE_WITHIN, self.connections.tasks.wait()).await.is_err() {
            self.connections.cut.cancel();
            self.connections.tasks.wait().await;
        }
    }
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
    Tls::Stream: Send + Sync,
    Tls::TlsConnect: Send + Sync,
    <Tls::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    fn connect(&self, config: &Config) -> Boxed<'_, Result<(Client, JoinHandle<()>), Error>> {
        let config = config.clone();
        Box::pin(async move {
            let (client, connection) = config.connect(self.tls.clone()).await?;
            let cut = self.connections.cut.clone();
            self.connections.tasks.spawn(async move {
                tokio::select! {
                    ended = connection => if let Err(error) = ended {
                        tracing::debug!(%error, "a session with PostgreSQL broke");
                    },
                    () = cut.cancelled() => {}
                }
            });
            // What the pool aborts with the session: nothing.
            Ok((client, self.connections.tasks.spawn(std::future::ready(()))))
        })
    }
}
