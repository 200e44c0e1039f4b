//! What can be wrong with an imported repository that its owner must put right. Only reads; `doctor` names it.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::git::command::{Git, GitSettings};
use crate::git::imported::{keeps_logs, rings};

/// Directory entries that are looked at in one repository.
const ENTRIES_MAX: usize = 100_000;
/// Unreadable files that are named; more of them have the same cause.
const NAMED_MAX: usize = 3;

/// Something to put right.
pub(super) struct Trouble {
    /// What was found.
    pub(super) found: String,
    /// What to do.
    pub(super) advice: String,
}

/// Looks at the imported repository at `git_dir`. What its state says already is not said again.
pub(super) async fn troubles(git_dir: &Path, id: Uuid) -> Vec<Trouble> {
    let git = Git::new(GitSettings::default());
    let mut troubles = Vec::new();
    if !git_dir.join("config").is_file() {
        return troubles;
    }
    if !rings(&git, git_dir, id).await {
        troubles.push(Trouble {
            found: "no post-receive hook rings for it, so pushes are told by the scan only".into(),
            advice: format!(
                "If {} is yours, add the line that `surehook repo import` printed; else detach and import again.",
                git_dir.join("hooks/post-receive").display()
            ),
        });
    }
    if !keeps_logs(&git, git_dir).await {
        troubles.push(Trouble {
            found: "git does not log every change of a ref there, so steps between two looks are told as one".into(),
            advice: format!("git --git-dir={} config core.logAllRefUpdates always", git_dir.display()),
        });
    }
    for path in unreadable(git_dir) {
        troubles.push(Trouble {
            found: format!("{} cannot be read, and nothing is told of what it holds", path.display()),
            advice: "Give the account of `surehook serve` the right to read it, or run that as the owner or as root."
                .into(),
        });
    }
    troubles
}

/// Refs, logs and their folders that this account cannot read.
fn unreadable(git_dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![git_dir.join("refs"), git_dir.join("logs")];
    let mut entries_left = ENTRIES_MAX;
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(_) => {
                found.push(folder);
                continue;
            }
        };
        for entry in entries.flatten() {
            entries_left = entries_left.saturating_sub(1);
            if entries_left == 0 || found.len() >= NAMED_MAX {
                return found;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => {
                    if let Err(error) = std::fs::File::open(entry.path())
                        && error.kind() != std::io::ErrorKind::NotFound
                    {
                        found.push(entry.path());
                    }
                }
                _ => {}
            }
        }
    }
    found
}
