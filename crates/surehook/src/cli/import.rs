//! `surehook repo import` and `repo detach`: following repositories that somebody else writes to. And `surehook ring`, which
//! their hook runs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use uuid::Uuid;

use super::CliError;
use super::failure::chain;
use super::output::{Out, count};
use crate::capture::announce::Baseline;
use crate::git::imported::{Hook, ImportedError};
use crate::importing::{ImportError, Imported, Importer};
use crate::store::repositories::Repository;

/// Options of `repo import`.
#[derive(Clone, Debug, Args)]
pub struct ImportArgs {
    /// The bare repository
    pub path: PathBuf,
    /// How it is called here; groups are separated by slashes. Default: its file name without .git
    #[arg(long)]
    pub name: Option<String>,
    /// Tell the refs that it has now, as created; otherwise only what comes later is told
    #[arg(long)]
    pub announce: bool,
}

/// Options of the hidden command `ring`.
#[derive(Clone, Debug, Args)]
pub struct RingArgs {
    /// The doorbell
    #[arg(long)]
    pub socket: PathBuf,
    /// The id of the repository
    pub repository_id: Uuid,
}

#[derive(Serialize)]
struct Shown {
    repository_id: Uuid,
    name: String,
    path: String,
    owner: String,
    refs: u64,
    events: usize,
    hook: &'static str,
    /// What is to be added to the hook that is there.
    hook_path: Option<String>,
    hook_line: Option<String>,
}

impl From<Imported> for Shown {
    fn from(imported: Imported) -> Self {
        let (hook, hook_path, hook_line) = match imported.hook {
            Hook::Installed => ("installed", None, None),
            Hook::Mute { .. } => ("mute", None, None),
            Hook::Line { hook, line } => ("foreign", Some(hook.to_string_lossy().into_owned()), Some(line)),
        };
        Self {
            repository_id: imported.repository_id,
            name: imported.name,
            path: imported.path.to_string_lossy().into_owned(),
            owner: imported.owner.name(),
            refs: imported.refs,
            events: imported.events,
            hook,
            hook_path,
            hook_line,
        }
    }
}

pub(super) async fn import(importer: &Importer<'_>, args: &ImportArgs, out: Out) -> Result<(), CliError> {
    let baseline = if args.announce { Baseline::Told } else { Baseline::Silent };
    let shown = Shown::from(importer.import(&args.path, args.name.as_deref(), baseline).await?);
    out.one(&shown, || {
        let refs = count(i64::try_from(shown.refs).unwrap_or(i64::MAX), "ref", "refs");
        let told = if args.announce { "told as created" } else { "the state that nothing is told of" };
        let mut text = format!(
            "Repository {} is followed at {} ({}).\nIts {refs} are {told}; from now on every change is told.",
            shown.name, shown.path, shown.repository_id
        );
        if shown.hook == "mute" {
            text += &format!(
                "\n{} may not run this program, so its hook cannot ring, and pushes are told within a minute only: put surehook \
                 where every account can run it (such as /usr/local/bin), then detach and import again.",
                shown.owner
            );
        }
        if let (Some(path), Some(line)) = (&shown.hook_path, &shown.hook_line) {
            text += &format!(
                "\nThere is a hook already, or a folder of hooks elsewhere: nothing was changed in it. Add this line to {path} \
                 (an executable shell script), or pushes are told within a minute only:\n{line}"
            );
        }
        text
    })
}

pub(super) async fn detach(importer: &Importer<'_>, repository: &Repository, out: Out) -> Result<(), CliError> {
    importer.detach(repository).await?;
    let result = serde_json::json!({ "name": repository.name, "state": "detached" });
    out.one(&result, || {
        format!("Repository {} is not followed any more. Its folder is as it was; its history stays.", repository.name)
    })
}

/// Rings, and says by the exit code whether somebody listens; the hook does not ask.
pub(super) fn ring(args: &RingArgs) -> ExitCode {
    match crate::doorbell::ring(&args.socket, args.repository_id) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}: {error}", args.socket.display());
            ExitCode::FAILURE
        }
    }
}

impl From<ImportError> for CliError {
    fn from(error: ImportError) -> Self {
        let advice = match &error {
            ImportError::Disk(error) => disk_advice(error),
            ImportError::Name { .. } => "Give it one: --name team/app".into(),
            ImportError::NameTaken(_) => "Give it another one: --name team/app".into(),
            ImportError::Already { name, .. } => format!("Look at it with: surehook repo show {name}"),
            ImportError::Copy { name, path, .. } => format!(
                "If it was moved: surehook repo detach {name}, then import it again. If it is a copy: git config --file \
                 {}/config --unset surehook.repositoryId, then import it again.",
                path.display()
            ),
            ImportError::Foreign { path, .. } => format!(
                "Detach it there, with the --data or --database-url of that one; or, if that one is gone: git config --file \
                 {}/config --unset surehook.repositoryId",
                path.display()
            ),
            ImportError::HalfDone { name } => format!("Finish that with: surehook repo detach {name}"),
            ImportError::Hosted(_) => "It is told of already.".into(),
            ImportError::NotImported(name) => format!("To delete it: surehook repo delete {name}"),
            ImportError::Elsewhere(_) => "Run this on the machine that follows it, with the same --data.".into(),
            ImportError::Program(_) => "Start surehook by its absolute path.".into(),
            ImportError::Refs(_) => "Correct that (git fsck looks closer), and import it again.".into(),
            ImportError::Database(_) => "Is PostgreSQL running? `surehook doctor` looks closer.".into(),
        };
        Self::new(format!("{}.", chain(&error)), advice)
    }
}

fn disk_advice(error: &ImportedError) -> String {
    match error {
        ImportedError::NotBare { .. } => "Name the folder of a bare repository, such as /srv/git/app.git.".into(),
        ImportedError::RefStorage(path) => {
            format!("Convert it first: git -C {} refs migrate --ref-format=files", path.display())
        }
        ImportedError::NetworkDisk { .. } => "Import it on the machine that has this disk.".into(),
        ImportedError::NotOwner { owner, .. } => {
            format!("Run `surehook serve` and this command as {}, or both as root, with the same --data.", owner.name())
        }
        ImportedError::Git(_) => "Is git installed, and is the config of the repository in order?".into(),
        ImportedError::Io { .. } => "Is the path right, and may this account reach it?".into(),
    }
}
