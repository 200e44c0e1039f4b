//! Who runs PostgreSQL. May read `/etc/passwd` and start a shell as that account to see what it can reach.
//!
//! Not root: we do. Root, in this order: the owner of the cluster; the owner of the data directory if that is not root;
//! `postgres`; `nobody` (which other services may share: they could then read the cluster; install the package's own
//! account to avoid that).
#![expect(clippy::disallowed_methods, reason = "the embedded server's door for processes")]

use std::{
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::fs::Access;

use super::EmbeddedError;

/// An account that runs PostgreSQL in the place of root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) name: String,
    pub(super) user: u32,
    pub(super) group: u32,
}

/// The account to run the server with; `None`: we run it ourselves. `data` need not exist yet.
pub(super) fn choose(data: &Path, cluster: &Path) -> Result<Option<Account>, EmbeddedError> {
    let us = rustix::process::geteuid().as_raw();
    let owner_of = |path: &Path| std::fs::symlink_metadata(path).ok().map(|found| (found.uid(), found.gid()));
    if us != 0 {
        // The cluster must be ours, because PostgreSQL demands it; in the data directory it is enough that we may write.
        let writable = |path: &Path| rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK).is_ok();
        return match (owner_of(cluster), owner_of(data)) {
            (Some((owner, _)), _) if owner != us => Err(EmbeddedError::NotOurs { path: cluster.to_owned(), owner }),
            (None, Some((owner, _))) if owner != us && !writable(data) => {
                Err(EmbeddedError::NotOurs { path: data.to_owned(), owner })
            }
            _ => Ok(None),
        };
    }
    match owner_of(cluster) {
        Some((0, _)) => {
            let account = usual()?.name;
            Err(EmbeddedError::ClusterOfRoot { cluster: cluster.to_owned(), account })
        }
        Some((user, group)) => Ok(Some(of_user(user, group))),
        None => match owner_of(data) {
            Some((user, group)) if user != 0 => Ok(Some(of_user(user, group))),
            _ => usual().map(Some),
        },
    }
}

fn usual() -> Result<Account, EmbeddedError> {
    let known = accounts();
    let named = |name| known.iter().find(|account| account.name == name && account.user != 0).cloned();
    named("postgres").or_else(|| named("nobody")).ok_or(EmbeddedError::NoAccount)
}

fn of_user(user: u32, group: u32) -> Account {
    let known = accounts().into_iter().find(|account| account.user == user);
    known.unwrap_or_else(|| Account { name: format!("uid {user}"), user, group })
}

fn accounts() -> Vec<Account> {
    let Ok(bytes) = std::fs::read("/etc/passwd") else { return Vec::new() };
    let line = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some(Account { name, user: fields.nth(1)?.parse().ok()?, group: fields.next()?.parse().ok()? })
    };
    String::from_utf8_lossy(&bytes).lines().filter_map(line).collect()
}

impl Account {
    /// Ok: this account can reach `folder`. Err names the first folder on the way that is closed to it.
    pub(super) fn can_pass(&self, folder: &Path) -> Result<(), EmbeddedError> {
        // Permissions, access lists and mount options decide together, so the account itself is asked.
        let ask = r#"for folder; do cd "$folder" 2>/dev/null || exit 1; printf .; done"#;
        let mut way: Vec<PathBuf> = folder.ancestors().map(Path::to_owned).collect();
        way.reverse();
        let shell = Path::new("/bin/sh");
        let answer = Command::new(shell)
            .args(["-c", ask, "sh"])
            .args(&way)
            .env_clear()
            .current_dir("/")
            .uid(self.user)
            .gid(self.group)
            .stdin(Stdio::null())
            .output()
            .map_err(|source| EmbeddedError::Program { program: shell.to_owned(), source })?;
        match way.get(answer.stdout.len()) {
            None => Ok(()),
            Some(closed) => Err(EmbeddedError::NotPassable { folder: closed.clone(), account: self.name.clone() }),
        }
    }
}
