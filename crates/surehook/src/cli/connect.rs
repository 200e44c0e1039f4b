//! From the global options to a database whose schema is up to date.

use std::path::PathBuf;

use surehook_outbox::Database;
use surehook_outbox::store::migrate::{OUTBOX, migrate};

use super::{CliError, Globals};
use crate::store::REPOSITORIES;

/// A database that was connected to for a command.
#[derive(Debug)]
pub struct Connected {
    /// The pool.
    pub database: Database,
    /// Where it is, as the driver reads it.
    pub url: String,
}

/// A command needs few sessions.
const SESSIONS_MAX: usize = 3;

/// Connects to the database that the options name and brings its schema up to date. Err: says what to do.
pub async fn connect(globals: &Globals) -> Result<Connected, CliError> {
    match &globals.database_url {
        Some(url) => {
            let database = Database::connect(url, "surehook", SESSIONS_MAX)?;
            bring_up_to_date(&database).await?;
            Ok(Connected { database, url: url.clone() })
        }
        None => connect_embedded(globals).await,
    }
}

/// Applies every step of the schema that is missing.
pub(super) async fn bring_up_to_date(database: &Database) -> Result<(), CliError> {
    migrate(database, "outbox", OUTBOX).await?;
    migrate(database, "repositories", REPOSITORIES).await?;
    Ok(())
}

/// Where to join surehook's own PostgreSQL.
async fn connect_embedded(globals: &Globals) -> Result<Connected, CliError> {
    Err(CliError::new(
        format!("surehook's own PostgreSQL in {} cannot be joined yet.", data_dir(globals).display()),
        "Name a database with --database-url or SUREHOOK_DATABASE_URL.",
    ))
}

/// The data directory.
pub(super) fn data_dir(globals: &Globals) -> PathBuf {
    globals.data.clone().unwrap_or_else(crate::config::default_data_dir)
}

impl Connected {
    /// Closes the sessions, and ends the embedded server if nobody else uses it.
    pub async fn close(self) {
        self.database.close();
    }
}

/// Connects, does something, and closes whatever comes of it.
pub(super) async fn with_database<T>(
    globals: &Globals,
    work: impl AsyncFnOnce(&Database) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let connected = connect(globals).await?;
    let result = work(&connected.database).await;
    connected.close().await;
    result
}
