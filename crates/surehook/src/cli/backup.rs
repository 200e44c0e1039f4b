//! `surehook backup` and `surehook restore`: the database and the repositories, in the one order that loses nothing.
//!
//! The database goes first. Refs that are newer than it are told when it is back, under the ids that they had. The other way
//! round it would know of pushes that the refs lack.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::{Deserialize, Serialize};
use surehook_outbox::store::migrate;
use surehook_outbox::store::operate::database_time;
use surehook_outbox::{Database, Pooler};

use super::connect::{connect, data_dir, pooler};
use super::failure::chain;
use super::output::Out;
use super::{CliError, Globals};
use crate::backup::{Copied, copy_storage};
use crate::config::file::DatabaseConfig;
use crate::embedded::{self, EmbeddedError, Role, dump};

/// Options of `backup` and `restore`.
#[derive(Clone, Debug, Args)]
pub struct BackupArgs {
    /// The folder of the backup
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

const DUMP: &str = "database.dump";
const REPOSITORIES: &str = "repositories";
/// Written last: a folder without it is no backup.
const MANIFEST: &str = "backup.json";
const FORMAT: u32 = 1;

/// What a backup holds.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    format: u32,
    surehook: String,
    /// The database is as it was then; the repositories are newer.
    database_time: jiff::Timestamp,
    repositories: u64,
    files: u64,
    bytes: u64,
}

/// Writes a backup while everything goes on.
pub(super) async fn backup(globals: &Globals, args: BackupArgs, out: Out) -> Result<ExitCode, CliError> {
    let to = &args.folder;
    needs_a_session(globals)?;
    make_private(to)?;
    let connected = connect(globals).await?;
    let taken = async {
        let database_time = database_time(&connected.database).await?;
        dump::dump(&connected.url, &to.join(DUMP)).await.map_err(not_dumped)?;
        let from = data_dir(globals).join(REPOSITORIES);
        let copied = copy_storage(&from, &to.join(REPOSITORIES)).await.map_err(|error| unusable(&from, &error))?;
        let Copied { repositories, files, bytes } = copied;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Manifest { format: FORMAT, surehook: version, database_time, repositories, files, bytes })
    };
    let taken: Result<Manifest, CliError> = taken.await;
    connected.close().await;
    let manifest = taken?;
    write_manifest(to, &manifest).map_err(|error| unusable(to, &error))?;
    out.one(&manifest, || {
        format!(
            "{}: the database of {}, and {} repositories of then or later ({} bytes).",
            to.display(),
            manifest.database_time,
            manifest.repositories,
            manifest.bytes
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Fills an empty data directory and an empty database from a backup.
pub(super) async fn restore(globals: &Globals, args: BackupArgs, out: Out) -> Result<ExitCode, CliError> {
    let from = &args.folder;
    needs_a_session(globals)?;
    let manifest = read_manifest(from)?;
    let place = data_dir(globals).join(REPOSITORIES);
    // Removes the folder if it is empty, and only then.
    if std::fs::remove_dir(&place).is_err() && place.exists() {
        return Err(CliError::new(
            format!("{} is not empty.", place.display()),
            "Restore into another --data, or move what is there away first.",
        ));
    }
    let own = match &globals.database_url {
        Some(_) => None,
        None => Some(embedded::open(&data_dir(globals), Role::Surehook).await.map_err(not_dumped)?),
    };
    let url = own.as_ref().map_or_else(|| globals.database_url.clone().unwrap_or_default(), |own| own.url().to_owned());
    let filled = fill(&url, from, &place).await;
    if let Some(own) = &own
        && let Err(error) = own.stop().await
    {
        tracing::warn!(error = &error as &dyn std::error::Error, "PostgreSQL could not be ended");
    }
    filled?;
    out.one(&manifest, || {
        format!(
            "Restored what {} knew at {}. `surehook serve` goes on from there.",
            from.display(),
            manifest.database_time
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

/// pg_dump and pg_restore change settings of their session; a pooler would hand these on to whoever comes next.
fn needs_a_session(globals: &Globals) -> Result<(), CliError> {
    if globals.database_url.is_some() && pooler(globals, &DatabaseConfig::default()) != Pooler::None {
        return Err(CliError::new(
            "pg_dump and pg_restore do not work through a pooler in transaction mode.",
            "Give this command the address of PostgreSQL itself, with --pooler none.",
        ));
    }
    Ok(())
}

async fn fill(url: &str, from: &Path, place: &Path) -> Result<(), CliError> {
    let database = Database::connect(url, "surehook", 2)?;
    let applied = async {
        database.refuse_unknown_pooler().await?;
        migrate::was_applied(&database).await
    };
    let applied = applied.await;
    database.close().await;
    if applied? {
        return Err(CliError::new(
            "The database is not empty: it has the tables of surehook.",
            "Restore into an empty one: CREATE DATABASE surehook ENCODING 'UTF8' TEMPLATE template0",
        ));
    }
    dump::restore(url, &from.join(DUMP)).await.map_err(not_dumped)?;
    let unfinished = place.with_extension("restoring");
    let copied = async {
        if unfinished.exists() {
            std::fs::remove_dir_all(&unfinished)?;
        }
        copy_storage(&from.join(REPOSITORIES), &unfinished).await?;
        std::fs::rename(&unfinished, place)
    };
    copied.await.map_err(|error| unusable(place, &error))
}

fn make_private(folder: &Path) -> Result<(), CliError> {
    use std::os::unix::fs::DirBuilderExt as _;
    // It holds tokens' hashes and endpoints' secrets.
    std::fs::DirBuilder::new().mode(0o700).create(folder).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => CliError::new(
            format!("{} is there already.", folder.display()),
            "Name a folder that is not there yet; each backup has its own.",
        ),
        _ => unusable(folder, &error),
    })
}

fn write_manifest(folder: &Path, manifest: &Manifest) -> std::io::Result<()> {
    let text = serde_json::to_string_pretty(manifest).map_err(std::io::Error::other)?;
    std::fs::write(folder.join(MANIFEST), text)?;
    Ok(rustix::fs::syncfs(std::fs::File::open(folder)?)?)
}

fn read_manifest(folder: &Path) -> Result<Manifest, CliError> {
    let wrong = |problem: String| CliError::new(problem, "Name the folder that `surehook backup` made, whole.");
    let path = folder.join(MANIFEST);
    let text =
        std::fs::read_to_string(&path).map_err(|error| wrong(format!("{} is no backup: {error}.", path.display())))?;
    let manifest: Manifest =
        serde_json::from_str(&text).map_err(|error| wrong(format!("{} cannot be read: {error}.", path.display())))?;
    if manifest.format != FORMAT {
        return Err(wrong(format!(
            "{} was made by surehook {}, in another format.",
            path.display(),
            manifest.surehook
        )));
    }
    Ok(manifest)
}

fn not_dumped(error: EmbeddedError) -> CliError {
    CliError::new(format!("{}.", chain(&error)), "Correct that, and begin with an empty folder and database again.")
}

fn unusable(path: &Path, error: &std::io::Error) -> CliError {
    CliError::new(
        format!("{} cannot be used: {error}.", path.display()),
        "Is there room, and may this user write there?",
    )
}
