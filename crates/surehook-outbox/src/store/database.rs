//! A pool of sessions with one PostgreSQL database. May open connections; holds no SQL of its own but the start-up checks.

use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

/// A session taken from the pool; given back when dropped.
pub type Session = deadpool_postgres::Object;

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
    match error.as_db_error() {
        Some(db) => format!(": {} ({})", db.message(), db.code().code()),
        None => String::new(),
    }
}

impl DatabaseError {
    /// The SQLSTATE, if the server gave one.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Statement(error) | Self::Url(error) => error.code().map(tokio_postgres::error::SqlState::code),
            Self::Session(deadpool_postgres::PoolError::Backend(error)) => {
                error.code().map(tokio_postgres::error::SqlState::code)
            }
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
}

impl Database {
    /// Makes the pool; connects lazily. `sessions_max` bounds the connections of this pool.
    ///
    /// Unix sockets are given as `host=/folder user=… dbname=…`. TLS is used when the server offers it and verified
    /// against the system's certificates; `sslmode=disable` turns it off.
    pub fn connect(url: &str, application_name: &str, sessions_max: usize) -> Result<Self, DatabaseError> {
        let mut config: tokio_postgres::Config = url.parse().map_err(DatabaseError::Url)?;
        config.application_name(application_name);
        config.connect_timeout(Duration::from_secs(5));
        config.keepalives_idle(Duration::from_secs(15));
        config.tcp_user_timeout(Duration::from_secs(20));
        let recycle = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let sockets_only = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        let manager = if sockets_only || config.get_ssl_mode() == SslMode::Disable {
            Manager::from_config(config, tokio_postgres::NoTls, recycle)
        } else {
            Manager::from_config(config, MakeRustlsConnect::new(crate::tls::client_config()), recycle)
        };
        let pool = Pool::builder(manager)
            .max_size(sessions_max)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(Duration::from_secs(10)))
            .create_timeout(Some(Duration::from_secs(6)))
            .build()?;
        Ok(Self { pool })
    }

    /// Takes a session; waits at most 10 s for a free one. Err: nothing was changed, may be repeated.
    pub async fn session(&self) -> Result<Session, DatabaseError> {
        self.pool.get().await.map_err(DatabaseError::Session)
    }

    /// Closes every idle session and refuses new ones; sessions in use close when given back.
    pub fn close(&self) {
        self.pool.close();
    }
}
