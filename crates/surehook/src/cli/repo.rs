//! `surehook repo`: repositories, made, looked at and removed; [`super::import`] follows those of others. Works on the data directory of this machine and on
//! the database, whether `serve` is running or not.

use std::io::{BufRead, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Subcommand;
use jiff::Timestamp;
use serde::Serialize;
use surehook_outbox::Database;
use surehook_outbox::store::operate::database_time;
use uuid::Uuid;

use super::connect::{data_dir, with_database};
use super::endpoint::unknown_repository;
use super::failure::chain;
use super::import::{self, ImportArgs};
use super::output::{Out, cell, count, properties, table, when, when_or};
use super::{CliError, Globals};
use crate::capture::announce::Announcer;
use crate::git::backend::ObjectFormat;
use crate::git::name::RepoName;
use crate::hosting::{HostingError, Storage};
use crate::importing::Importer;
use crate::payload::facts::Limits;
use crate::store::repositories::{self, Repository, RepositoryState};

/// Repositories.
#[derive(Debug, Subcommand)]
pub enum RepoCommand {
    /// Make an empty repository
    #[command(after_help = "Examples:\n  \
        surehook repo create app\n  \
        surehook repo create team/app\n\n\
        Then: git push http://127.0.0.1:8080/team/app.git main, with a token from `surehook token create --push team/app`.")]
    Create {
        /// Its name; groups are separated by slashes
        name: String,
        /// The hash of its object ids
        #[arg(long, value_name = "HASH", default_value = "sha1", value_parser = ["sha1", "sha256"])]
        object_format: String,
    },
    /// Follow a bare repository that somebody else writes to, where it lies
    #[command(after_help = "Examples:\n  \
        surehook repo import /srv/git/app.git\n  \
        surehook repo import /srv/git/team/app.git --name team/app\n\n\
        Run it as the owner of the repository or as root, with the same --data as `surehook serve`. What it changes there: \
        reflogs are kept (core.logAllRefUpdates), an id in the config, and a post-receive hook. `repo detach` undoes it.")]
    Import(ImportArgs),
    /// Stop following an imported repository, and undo what that had changed in it
    #[command(after_help = "Example:\n  surehook repo detach team/app\n\n\
        The repository stays where it is. What was told of it stays readable, and goes out to the end.")]
    Detach {
        /// Its name
        name: String,
    },
    /// List repositories, by name
    #[command(after_help = "Example:\n  surehook repo list --json")]
    List,
    /// Show a repository
    #[command(after_help = "Example:\n  surehook repo show team/app")]
    Show {
        /// Its name
        name: String,
    },
    /// Confirm that the refs that are gone from a held repository are meant to be gone
    #[command(after_help = "Example:\n  surehook repo confirm team/app\n\n\
        A repository is held when more than half of its refs (of 20 or more) vanish at once. Their deletion is told when \
        this is confirmed. To the contrary: bring the refs back, and it is active again by itself.")]
    Confirm {
        /// Its name
        name: String,
    },
    /// Delete a repository with all that was pushed to it
    #[command(after_help = "Examples:\n  surehook repo delete team/app\n  surehook repo delete team/app --yes\n\n\
        On a terminal it asks first. Events that were told already stay readable, and go out to the end.")]
    Delete {
        /// Its name
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

/// A row of `repositories`, with the names of its columns.
#[derive(Serialize)]
struct Shown {
    repository_id: Uuid,
    name: String,
    state: &'static str,
    state_reason: Option<String>,
    origin: &'static str,
    object_format: String,
    storage_id: Uuid,
    path: String,
    last_sequence: i64,
    sequence_epoch: Uuid,
    last_commit_sha: Option<String>,
    last_pushed_at: Option<Timestamp>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl From<Repository> for Shown {
    fn from(repository: Repository) -> Self {
        Self {
            repository_id: repository.repository_id,
            name: repository.name,
            state: repository.state.as_str(),
            state_reason: repository.state_reason,
            origin: repository.origin.as_str(),
            object_format: repository.object_format,
            storage_id: repository.storage_id,
            path: String::from_utf8_lossy(&repository.path).into_owned(),
            last_sequence: repository.last_sequence,
            sequence_epoch: repository.sequence_epoch,
            last_commit_sha: repository.last_commit_sha,
            last_pushed_at: repository.last_pushed_at,
            created_at: repository.created_at,
            updated_at: repository.updated_at,
        }
    }
}

pub(super) async fn run(globals: &Globals, command: RepoCommand, out: Out) -> Result<ExitCode, CliError> {
    with_database(globals, async |database| match command {
        RepoCommand::Create { name, object_format } => {
            let name = parse_name(&name)?;
            let format = if object_format == "sha256" { ObjectFormat::Sha256 } else { ObjectFormat::Sha1 };
            let id = storage(globals, database).await?.create(&name, format).await?;
            let shown = Shown::from(find(database, name.as_str()).await?);
            out.one(&shown, || {
                format!(
                    "Repository {name} is there ({id}).\nPush to it at http://ADDRESS/{name}.git, where ADDRESS is that of \
                     `surehook serve`.\nA password for that: surehook token create --push {name}"
                )
            })
        }
        RepoCommand::Import(args) => {
            let storage = storage(globals, database).await?;
            import::import(&Importer { storage: &storage, database }, &args, out).await
        }
        RepoCommand::Detach { name } => {
            let repository = find(database, &name).await?;
            let storage = storage(globals, database).await?;
            import::detach(&Importer { storage: &storage, database }, &repository, out).await
        }
        RepoCommand::List => list(database, out).await,
        RepoCommand::Show { name } => {
            let shown = Shown::from(find(database, &name).await?);
            let now = database_time(database).await?;
            out.one(&shown, || words(&shown, now))
        }
        RepoCommand::Confirm { name } => confirm(globals, database, &name, out).await,
        RepoCommand::Delete { name, yes } => {
            let repository = find(database, &name).await?;
            let name = repository.name.clone();
            if !yes && !confirmed(&name) {
                return Err(CliError::new("Nothing was deleted.", "Answer with the name, or say --yes."));
            }
            storage(globals, database).await?.delete(&repository).await?;
            let result = serde_json::json!({ "name": name, "state": "deleted" });
            out.one(&result, || format!("Repository {name} is deleted."))
        }
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

/// Tells of the deletions; the workers that deliver them look once a second.
async fn confirm(globals: &Globals, database: &Database, name: &str, out: Out) -> Result<(), CliError> {
    let repository = find(database, name).await?;
    let name = repository.name.clone();
    if repository.state != RepositoryState::Held {
        return Err(CliError::new(
            format!("{name} is {}, not held: there is nothing to confirm.", repository.state.as_str()),
            format!("Look at it with: surehook repo show {name}"),
        ));
    }
    let storage = storage(globals, database).await?;
    if storage.storage_id != repository.storage_id {
        return Err(HostingError::Elsewhere { name, root: storage.root }.into());
    }
    let announcer = Announcer::new(database.clone(), storage.root, Arc::new(|| ()), Limits::default());
    let announced = announcer.confirm_held(repository.repository_id).await.map_err(|error| {
        CliError::new(format!("{name} could not be announced: {}.", chain(&error)), "Nothing was confirmed; try again.")
    })?;
    let result = serde_json::json!({ "name": name, "state": "active", "events": announced.events });
    out.one(&result, || {
        format!(
            "Repository {name} is active again; {} recorded.",
            count(announced.events as i64, "event was", "events were")
        )
    })
}

fn parse_name(name: &str) -> Result<RepoName, CliError> {
    RepoName::parse(name).map_err(|error| {
        CliError::new(format!("{name:?} is no name for a repository: {error}."), "For example: team/app")
    })
}

async fn find(database: &Database, name: &str) -> Result<Repository, CliError> {
    let name = name.strip_suffix(".git").unwrap_or(name);
    match repositories::find_by_name(database, name).await? {
        Some(repository) => Ok(repository),
        None => Err(unknown_repository(database, name).await?),
    }
}

async fn storage(globals: &Globals, database: &Database) -> Result<Storage, CliError> {
    Ok(Storage::open(&data_dir(globals), database).await?)
}

impl From<HostingError> for CliError {
    fn from(error: HostingError) -> Self {
        let advice = match &error {
            HostingError::Folder { .. } => {
                "Run this as the account that runs `surehook serve`, with the same --data.".into()
            }
            HostingError::InDoubt(_) => "Mount its volume; nothing is made or removed until then.".into(),
            HostingError::NameTaken(name) => format!("Look at it with: surehook repo show {name}"),
            HostingError::Imported(name) => {
                format!("Stop following it with: surehook repo detach {name}. Its folder is yours to remove.")
            }
            HostingError::Elsewhere { .. } => {
                "Run this on the machine that serves it, with the same --data; `surehook doctor` lists the storages."
                    .into()
            }
            HostingError::Disk(_) => {
                "Is git installed, is there space, and is this the account that runs `surehook serve`?".into()
            }
            HostingError::Database(_) => "Is PostgreSQL running? `surehook doctor` looks closer.".into(),
        };
        Self::new(format!("{}.", chain(&error)), advice)
    }
}

/// On a terminal the name must be typed; elsewhere nobody can be asked, and the command is meant as it stands.
fn confirmed(name: &str) -> bool {
    if !std::io::stdin().is_terminal() {
        return true;
    }
    eprint!("This deletes {name} and all that was pushed to it. Type its name to go on: ");
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).is_ok() && line.trim() == name
}

async fn list(database: &Database, out: Out) -> Result<(), CliError> {
    let shown: Vec<Shown> = repositories::list(database).await?.into_iter().map(Shown::from).collect();
    let now = database_time(database).await?;
    out.list(&shown, "There are no repositories. Make one with: surehook repo create NAME", || {
        let mut table = table(&["NAME", "ORIGIN", "STATE", "LAST PUSH", "LAST COMMIT", "EVENTS", "CREATED"]);
        for repository in &shown {
            table.add_row([
                repository.name.clone(),
                repository.origin.to_owned(),
                repository.state.to_owned(),
                when_or(repository.last_pushed_at, now, "never"),
                repository.last_commit_sha.as_deref().map_or("-".into(), |sha| cell(sha, 13)),
                repository.last_sequence.to_string(),
                when(repository.created_at, now),
            ]);
        }
        table
    })
}

fn words(shown: &Shown, now: Timestamp) -> String {
    let mut rows = vec![
        ("name", shown.name.clone()),
        ("id", shown.repository_id.to_string()),
        ("state", shown.state.to_owned()),
        ("origin", shown.origin.to_owned()),
        ("path", cell(&shown.path, 300)),
        ("object ids", shown.object_format.clone()),
        ("last push", when_or(shown.last_pushed_at, now, "never")),
        ("last commit", shown.last_commit_sha.clone().unwrap_or_else(|| "-".into())),
        ("events", shown.last_sequence.to_string()),
        ("created", when(shown.created_at, now)),
    ];
    if shown.state != RepositoryState::Active.as_str() {
        rows.insert(3, ("why", shown.state_reason.clone().unwrap_or_else(|| "-".into())));
    }
    properties(&rows)
}
