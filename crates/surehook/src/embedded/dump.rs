//! Writes a database to a file and reads it back, with PostgreSQL's own programs. May start `pg_dump` and `pg_restore`, on
//! any server: its own or another. They get the connection by their environment, so that no password stands in argv.
#![expect(clippy::disallowed_methods, reason = "the embedded server's door for processes; PATH is where programs lie")]

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use tokio_postgres::config::{Host, SslMode};

use super::EmbeddedError;
use super::binaries::Binaries;

/// Writes the database at `url`, as one moment saw it, to `file`. Err: what the file holds is worth nothing.
pub async fn dump(url: &str, file: &Path) -> Result<(), EmbeddedError> {
    let mut arguments = vec![OsString::from("--format=custom"), "--no-owner".into(), "--no-privileges".into()];
    arguments.push(option("--file=", file));
    run("pg_dump", url, arguments).await
}

/// Fills the empty database at `url` from such a file. Ok: all of it is there. Err: nothing is.
pub async fn restore(url: &str, file: &Path) -> Result<(), EmbeddedError> {
    let name = config(url)?.get_dbname().unwrap_or("surehook").to_owned();
    let mut arguments = vec![OsString::from("--single-transaction"), "--exit-on-error".into(), "--no-owner".into()];
    arguments.extend([OsString::from("--no-privileges"), format!("--dbname={name}").into(), file.into()]);
    run("pg_restore", url, arguments).await
}

async fn run(program: &'static str, url: &str, arguments: Vec<OsString>) -> Result<(), EmbeddedError> {
    let failed = |message: String| EmbeddedError::Dump { program, message };
    let mut command = Command::new(Binaries::newest()?.program(program));
    command.args(arguments).env_clear().env("LC_ALL", "C").envs(environment(&config(url)?));
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut command = tokio::process::Command::from(command);
    let output = command.kill_on_drop(true).output().await.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).lines().take(5).collect::<Vec<_>>().join("; ")))
}

fn config(url: &str) -> Result<tokio_postgres::Config, EmbeddedError> {
    url.parse().map_err(|error: tokio_postgres::Error| EmbeddedError::Dump {
        program: "the database URL",
        message: error.to_string(),
    })
}

/// The variables that libpq reads.
fn environment(config: &tokio_postgres::Config) -> Vec<(&'static str, OsString)> {
    let joined = |parts: Vec<OsString>| parts.join(&OsString::from(","));
    let hosts = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.into(),
        Host::Unix(folder) => folder.clone().into_os_string(),
    });
    let ports = config.get_ports().iter().map(|port| port.to_string().into());
    let ssl_mode = match config.get_ssl_mode() {
        SslMode::Disable => "disable",
        SslMode::Require => "require",
        _ => "prefer",
    };
    let mut variables = vec![("PGHOST", joined(hosts.collect())), ("PGPORT", joined(ports.collect()))];
    variables.push(("PGSSLMODE", ssl_mode.into()));
    variables.extend(config.get_user().map(|user| ("PGUSER", user.into())));
    variables.extend(config.get_dbname().map(|name| ("PGDATABASE", name.into())));
    let password = config.get_password().map(|password| std::ffi::OsStr::from_bytes(password).to_owned());
    variables.extend(password.map(|password| ("PGPASSWORD", password)));
    variables.retain(|(_, value)| !value.is_empty());
    variables
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}
