//! The first sessions with the embedded server: is it ready, and is the role's database there.
#![expect(clippy::disallowed_methods, reason = "two statements before there is a database that a store could speak to")]

use std::{path::Path, time::Duration};

use tokio_postgres::{Client, Config, NoTls, error::SqlState};

use super::EmbeddedError;

/// The cluster's superuser, and the only user.
pub(super) const USER: &str = "surehook";

/// What a try to connect has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It takes connections.
    Ready,
    /// It is on its way up, or there is nothing yet.
    NotYet,
    /// It is on its way down and waits for its sessions to end.
    Ending,
}

/// The connection string of a database, for tokio-postgres.
pub(super) fn url(socket: &Path, database: &str) -> String {
    let host = socket.to_string_lossy();
    format!("host={} user={} dbname={}", quoted(&host), quoted(USER), quoted(database))
}

/// Whether the server takes connections now.
pub(super) async fn answers(socket: &Path) -> bool {
    look(socket).await == Look::Ready
}

/// Tries to connect.
pub(super) async fn look(socket: &Path) -> Look {
    match connect(socket, "postgres", async |_| Ok(())).await {
        Ok(()) => Look::Ready,
        // 57P03 is said while starting and while ending; only the text tells which. Its language is C by our setting.
        Err(error) if error.as_db_error().is_some_and(|error| error.message().contains("shutting down")) => {
            Look::Ending
        }
        Err(error) if error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS) => Look::Ready,
        Err(_) => Look::NotYet,
    }
}

/// Makes the database if it is missing. May be repeated, also by several at once.
pub(super) async fn ensure(socket: &Path, database: &str) -> Result<(), EmbeddedError> {
    let made = connect(socket, "postgres", async |client| {
        let there = client.query_opt("SELECT 1 FROM pg_database WHERE datname = $1", &[&database]).await?;
        if there.is_some() {
            return Ok(());
        }
        let statement = format!("CREATE DATABASE {database} ENCODING 'UTF8' TEMPLATE template0");
        match client.batch_execute(&statement).await {
            // Another surehook was faster.
            Err(error) if matches!(error.code(), Some(&SqlState::DUPLICATE_DATABASE | &SqlState::UNIQUE_VIOLATION)) => {
                Ok(())
            }
            made => made,
        }
    });
    made.await.map_err(|source| EmbeddedError::Database { database: database.to_owned(), source })
}

/// Runs `work` on a session that is closed again when this returns.
async fn connect<T>(
    socket: &Path,
    database: &str,
    work: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
) -> Result<T, tokio_postgres::Error> {
    let mut config = Config::new();
    config.host_path(socket).user(USER).dbname(database).application_name("surehook start");
    config.connect_timeout(Duration::from_secs(5));
    let (client, mut connection) = config.connect(NoTls).await?;
    let worked = {
        let mut work = std::pin::pin!(work(&client));
        tokio::select! {
            worked = &mut work => worked,
            // The connection broke: the work ends with the error that says so.
            _ = &mut connection => work.await,
        }
    };
    drop(client);
    let _ = connection.await;
    worked
}

fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_survives_spaces_and_quotes() {
        let folder = Path::new(r"/tmp/it's a \folder");
        let config: Config = url(folder, "surehook").parse().unwrap();
        assert_eq!(config.get_hosts(), [tokio_postgres::config::Host::Unix(folder.to_owned())]);
        assert_eq!((config.get_user(), config.get_dbname()), (Some("surehook"), Some("surehook")));
    }
}
