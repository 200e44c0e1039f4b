//! From the global options to a database whose schema is up to date.

use std::path::PathBuf;

use surehook_outbox::store::migrate::migrate;
use surehook_outbox::{Database, Pooler, news};

use super::failure::chain;
use super::{CliError, Globals};
use crate::config::file::DatabaseConfig;
use crate::embedded::{Embedded, Role};
use crate::store::{self, INBOX};

/// A database that was connected to for a command.
#[derive(Debug)]
pub struct Connected {
    /// The pool.
    pub database: Database,
    /// Where it is, as the driver reads it.
    pub url: String,
    embedded: Option<Embedded>,
}

/// A command needs few sessions.
const SESSIONS_MAX: usize = 3;

/// Connects to the database that the options name and brings its schema up to date. Err: says what to do.
pub async fn connect(globals: &Globals) -> Result<Connected, CliError> {
    connect_with(globals, Role::Surehook, &small()).await
}

/// The same for the receiver, which has a database of its own: `surehook_receive` of surehook's own PostgreSQL, or the one
/// that the URL names.
pub async fn connect_receive(globals: &Globals) -> Result<Connected, CliError> {
    connect_with(globals, Role::Receive, &small()).await
}

fn small() -> DatabaseConfig {
    DatabaseConfig { sessions_max: SESSIONS_MAX, ..DatabaseConfig::default() }
}

/// The pooler before the database of `--database-url`: what the command line or the environment says, else the settings.
pub(super) fn pooler(globals: &Globals, config: &DatabaseConfig) -> Pooler {
    globals.pooler.unwrap_or(config.pooler).into()
}

/// The same for either role and with these settings.
pub(super) async fn connect_with(
    globals: &Globals,
    role: Role,
    config: &DatabaseConfig,
) -> Result<Connected, CliError> {
    let sessions_max = config.sessions_max;
    if let Some(url) = &globals.database_url {
        return Ok(Connected {
            database: open_database(pooler(globals, config), url, role, sessions_max).await?,
            url: url.clone(),
            embedded: None,
        });
    }
    let embedded = crate::embedded::open(&data_dir(globals), role).await.map_err(|error| {
        CliError::new(
            format!("surehook's own PostgreSQL cannot be used: {}.", chain(&error)),
            "`surehook doctor` looks closer; or name another database with --database-url.",
        )
    })?;
    let url = embedded.url().to_owned();
    let database = match open_database(Pooler::None, &url, role, sessions_max).await {
        Ok(database) => database,
        Err(error) => {
            stop(&embedded).await;
            return Err(error);
        }
    };
    Ok(Connected { database, url, embedded: Some(embedded) })
}

/// A server that cannot be ended is adopted by the next one who opens the data directory: that is worth a word, no failure.
async fn stop(embedded: &Embedded) {
    if let Err(error) = embedded.stop().await {
        tracing::warn!(error = &error as &dyn std::error::Error, "PostgreSQL could not be ended");
    }
}

async fn open_database(pooler: Pooler, url: &str, role: Role, sessions_max: usize) -> Result<Database, CliError> {
    let database = Database::connect_through(pooler, url, "surehook", sessions_max)?;
    match role {
        Role::Surehook => store::prepare(&database).await?,
        Role::Receive => {
            migrate(&database, "inbox", INBOX).await?;
        }
    }
    Ok(database)
}

/// The data directory.
pub(super) fn data_dir(globals: &Globals) -> PathBuf {
    globals.data.clone().unwrap_or_else(crate::config::default_data_dir)
}

impl Connected {
    /// Another pool on the same database, which has made no session yet.
    pub(super) fn another(&self, sessions_max: usize) -> Result<Database, CliError> {
        Ok(Database::connect_through(self.database.pooler(), &self.url, "surehook", sessions_max)?)
    }

    /// Closes the sessions, and ends the embedded server if nobody else uses it.
    pub async fn close(self) {
        self.database.close().await;
        if let Some(embedded) = &self.embedded {
            stop(embedded).await;
        }
    }
}

/// Tells workers that a command has made something due. They would find it by themselves a moment later.
pub(super) async fn tell_workers(database: &Database) {
    if let Err(error) = news::tell(database).await {
        tracing::debug!(error = &error as &dyn std::error::Error, "workers could not be told");
    }
}

/// Connects, does something, and closes whatever comes of it.
pub(super) async fn with_database<T>(
    globals: &Globals,
    work: impl AsyncFnOnce(&Database) -> Result<T, CliError>,
) -> Result<T, CliError> {
    with(connect(globals).await?, work).await
}

/// The same with the database of the receiver.
pub(super) async fn with_receive_database<T>(
    globals: &Globals,
    work: impl AsyncFnOnce(&Database) -> Result<T, CliError>,
) -> Result<T, CliError> {
    with(connect_receive(globals).await?, work).await
}

async fn with<T>(
    connected: Connected,
    work: impl AsyncFnOnce(&Database) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let result = work(&connected.database).await;
    connected.close().await;
    result
}
