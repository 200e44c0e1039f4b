//! Imported repositories on disk: what can be followed at all, and the few things that following changes there. All of it is
//! done as the owner of the repository, and [`ImportedRepository::release`] undoes all of it.
//!
//! What is changed: the reflog setting (a line is added, none replaced, so that taking it away restores what was), the id,
//! and the hook that rings the doorbell. A hook that is there stays as it is.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::backend::ObjectFormat;
use super::command::{Git, GitError};
use super::hosted::ID_KEY;
use super::network_disk;
use crate::owner::{Owner, Standing};

const LOG_KEY: &str = "core.logAllRefUpdates";
const LOG_ALWAYS: &str = "always";
/// Set where the reflog setting was added by us.
const LOG_ADDED_KEY: &str = "surehook.addedLogAllRefUpdates";
/// Set where the folder of the hooks was made by us.
const HOOKS_ADDED_KEY: &str = "surehook.addedHooksFolder";
/// What stands in every hook of ours, and nowhere else.
const HOOK_MARK: &str = "# Installed by `surehook repo import`";
/// No hook that we would take for ours is longer.
const HOOK_BYTES_MAX: u64 = 64 * 1024;

/// Why a repository cannot be imported, or let go.
#[derive(Debug, thiserror::Error)]
pub enum ImportedError {
    /// There is nothing, or nothing that is a repository.
    #[error("{path} is no bare repository: {reason}")]
    NotBare {
        /// Where.
        path: PathBuf,
        /// What was found instead.
        reason: String,
    },
    /// Its refs are stored in a way that keeps no log files.
    #[error("{0} stores its refs as `reftable`; surehook follows the files of refs and their logs")]
    RefStorage(PathBuf),
    /// Its disk is another machine's.
    #[error("{path} lies on a network file system ({kind}), where others can change it unseen")]
    NetworkDisk {
        /// Where.
        path: PathBuf,
        /// Which kind.
        kind: &'static str,
    },
    /// It belongs to another account, and we are not root.
    #[error("{path} belongs to {}, and surehook writes there only as that account", .owner.name())]
    NotOwner {
        /// Where.
        path: PathBuf,
        /// Whose it is.
        owner: Owner,
    },
    /// git failed.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The file system failed.
    #[error("{action} {path}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// What became of the hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    /// It rings.
    Installed,
    /// It is there, but the owner may not run this program, so it does not ring.
    Mute {
        /// The program.
        program: PathBuf,
    },
    /// There is one of somebody else's; this line, added to it, rings.
    Line {
        /// The hook.
        hook: PathBuf,
        /// What to add to it.
        line: String,
    },
}

/// What the hook runs.
#[derive(Clone, Debug)]
pub struct Ringer {
    /// This program, by an absolute path.
    pub program: PathBuf,
    /// The socket that it rings.
    pub socket: PathBuf,
}

/// A bare repository that somebody else made, and that can be followed.
#[derive(Clone, Debug)]
pub struct ImportedRepository {
    /// Where it lies: absolute, without links.
    pub path: PathBuf,
    /// Whose it is.
    pub owner: Owner,
    /// The hash of its object ids.
    pub object_format: ObjectFormat,
    /// The id that it carries already, if it does.
    pub id: Option<Uuid>,
    git: Git,
}

impl ImportedRepository {
    /// Looks whether the repository at `path` can be followed. Writes nothing. Err says what is in the way.
    pub async fn inspect(git: &Git, path: &Path) -> Result<Self, ImportedError> {
        let path = std::fs::canonicalize(path).map_err(failed("looking at", path))?;
        is_git_folder(&path)?;
        if let Some(kind) = network_disk::kind_of(&path).map_err(failed("looking at the disk of", &path))? {
            return Err(ImportedError::NetworkDisk { path, kind });
        }
        let owner = Owner::of(&path).map_err(failed("looking at", &path))?;
        if owner.standing() == Standing::Stranger {
            return Err(ImportedError::NotOwner { path, owner });
        }
        let git = git.acting_as(owner);
        let storage = git.config_value(&path, "extensions.refStorage").await?;
        if storage.is_some_and(|storage| !storage.eq_ignore_ascii_case("files")) || path.join("reftable").is_dir() {
            return Err(ImportedError::RefStorage(path));
        }
        let id = git.config_value(&path, ID_KEY).await?.and_then(|id| Uuid::parse_str(&id).ok());
        let opened = gix::open::Options::isolated()
            .with_enforced_trust(gix::sec::Trust::Full)
            .open_path_as_is(true)
            .open(&path)
            .map_err(|error| ImportedError::NotBare { path: path.clone(), reason: error.to_string() })?;
        if !opened.is_bare() {
            return Err(ImportedError::NotBare { path, reason: "it has a work tree".into() });
        }
        let object_format = match opened.object_hash() {
            gix::hash::Kind::Sha256 => ObjectFormat::Sha256,
            _ => ObjectFormat::Sha1,
        };
        Ok(Self { path, owner, object_format, id, git })
    }

    /// The repository at `path` that is registered already, whatever is there now.
    pub fn known(git: &Git, path: PathBuf, object_format: ObjectFormat) -> Result<Self, ImportedError> {
        let owner = Owner::of(&path).map_err(failed("looking at", &path))?;
        if owner.standing() == Standing::Stranger {
            return Err(ImportedError::NotOwner { path, owner });
        }
        Ok(Self { git: git.acting_as(owner), path, owner, object_format, id: None })
    }

    /// Has git log every change of a ref from now on, and writes the id. May be repeated.
    ///
    /// # Errors
    /// What was done so far stays, for [`Self::release`] to undo.
    pub async fn adopt(&self, id: Uuid) -> Result<(), ImportedError> {
        let (git, path) = (&self.git, &self.path);
        let logs = git.config_value(path, LOG_KEY).await?;
        if !logs.is_some_and(|value| value.eq_ignore_ascii_case(LOG_ALWAYS)) {
            // The note first: interrupted in between, nobody else's line is taken for ours.
            git.set_config_value(path, LOG_ADDED_KEY, "true").await?;
            git.add_config_value(path, LOG_KEY, LOG_ALWAYS).await?;
        }
        Ok(git.set_config_value(path, ID_KEY, &id.to_string()).await?)
    }

    /// Installs the hook that rings, unless there is one already. May be repeated.
    ///
    /// # Errors
    /// As [`Self::adopt`].
    pub async fn install_hook(&self, id: Uuid, ringer: &Ringer) -> Result<Hook, ImportedError> {
        let elsewhere = self.git.config_value(&self.path, "core.hooksPath").await?;
        let folder = self.path.join("hooks");
        let hook = folder.join("post-receive");
        let line = ring_line(id, ringer);
        if let Some(elsewhere) = elsewhere {
            // A folder that other repositories may share is not ours to write to.
            return Ok(Hook::Line { hook: self.path.join(elsewhere).join("post-receive"), line });
        }
        if !folder.exists() {
            self.git.set_config_value(&self.path, HOOKS_ADDED_KEY, "true").await?;
        }
        let text = format!(
            "#!/bin/sh\n{HOOK_MARK}; `surehook repo detach` removes it.\n\
             # It tells the server that refs have moved. It never fails a push: what no ring told of, the next scan finds.\n\
             {line}\nexit 0\n"
        );
        let installed = self.owner.act(|| {
            std::fs::create_dir_all(&folder)?;
            if std::fs::symlink_metadata(&hook).is_ok() {
                if !is_our_hook(&hook) {
                    return Ok(false);
                }
                std::fs::remove_file(&hook)?;
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(&hook)?;
            file.set_permissions(std::fs::Permissions::from_mode(0o755))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            Ok(true)
        });
        if !installed.map_err(failed("writing", &hook))? {
            return Ok(Hook::Line { hook, line });
        }
        let program = ringer.program.clone();
        let can_run = || Ok(rustix::fs::access(&program, rustix::fs::Access::EXEC_OK)?);
        Ok(if self.owner.act(can_run).is_ok() { Hook::Installed } else { Hook::Mute { program } })
    }

    /// Undoes everything that following changed, `files` among it. May be repeated.
    ///
    /// # Errors
    /// Some of it is left; repeat it.
    pub async fn release(&self, files: &[&str]) -> Result<(), ImportedError> {
        let (git, path) = (&self.git, &self.path);
        let hook = path.join("hooks/post-receive");
        let remove_folder = git.config_value(path, HOOKS_ADDED_KEY).await?.is_some();
        let removed = self.owner.act(|| {
            if is_our_hook(&hook) {
                std::fs::remove_file(&hook)?;
            }
            if remove_folder {
                // Somebody may have put a hook of his own there.
                let _ = std::fs::remove_dir(path.join("hooks"));
            }
            Ok(())
        });
        removed.map_err(failed("removing what surehook wrote in", path))?;
        if git.config_value(path, LOG_ADDED_KEY).await?.is_some() {
            git.remove_config_value(path, LOG_KEY, "^always$").await?;
            git.unset_config_value(path, LOG_ADDED_KEY).await?;
        }
        git.unset_config_value(path, HOOKS_ADDED_KEY).await?;
        // After this it cannot be repeated, and nobody writes these files any more.
        git.unset_config_value(path, ID_KEY).await?;
        let removed = self.owner.act(|| {
            for file in files {
                match std::fs::remove_file(path.join(file)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        });
        removed.map_err(failed("removing what surehook wrote in", path))
    }
}

/// Whether git logs every change of a ref there, whatever other settings the repository has.
pub async fn keeps_logs(git: &Git, repository: &Path) -> bool {
    let value = git.effective_value(repository, LOG_KEY).await.ok().flatten();
    value.is_some_and(|value| value.eq_ignore_ascii_case(LOG_ALWAYS))
}

/// Whether a hook runs after each push that names this id.
pub async fn rings(git: &Git, repository: &Path, id: Uuid) -> bool {
    let elsewhere = git.config_value(repository, "core.hooksPath").await.ok().flatten();
    let hook = repository.join(elsewhere.as_deref().unwrap_or("hooks")).join("post-receive");
    let is_executable = std::fs::metadata(&hook).is_ok_and(|found| found.permissions().mode() & 0o111 != 0);
    is_executable && read_hook(&hook).is_some_and(|text| text.contains(&id.to_string()))
}

/// A line of shell that rings, and succeeds whatever happens.
fn ring_line(id: Uuid, ringer: &Ringer) -> String {
    let (program, socket) = (quoted(&ringer.program), quoted(&ringer.socket));
    format!("{program} ring --socket {socket} {id} </dev/null >/dev/null 2>&1 || true")
}

/// As one word of the shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"))
}

fn is_our_hook(hook: &Path) -> bool {
    read_hook(hook).is_some_and(|text| text.contains(HOOK_MARK))
}

fn read_hook(hook: &Path) -> Option<String> {
    let found = std::fs::metadata(hook).ok()?;
    let bytes = (found.is_file() && found.len() <= HOOK_BYTES_MAX).then(|| std::fs::read(hook))?.ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn is_git_folder(path: &Path) -> Result<(), ImportedError> {
    let not_bare = |reason: String| Err(ImportedError::NotBare { path: path.to_owned(), reason });
    if path.join(".git").exists() {
        return not_bare("it has a work tree".into());
    }
    if path.join("commondir").exists() {
        return not_bare("it is the private folder of a linked worktree".into());
    }
    match ["HEAD", "config", "objects", "refs"].iter().find(|name| !path.join(name).exists()) {
        Some(missing) => not_bare(format!("it has no {missing}")),
        None => Ok(()),
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImportedError {
    let path = path.to_owned();
    move |source| ImportedError::Io { action, path, source }
}
