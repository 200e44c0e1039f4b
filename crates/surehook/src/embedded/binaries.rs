//! Finds PostgreSQL's programs. May read `PATH` and folders, and ask programs for their version.
#![expect(
    clippy::disallowed_methods,
    reason = "the embedded server's door for processes; PATH is where programs lie, no setting of ours"
)]

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::EmbeddedError;

/// The oldest major version that will do.
const VERSION_MIN: u32 = 15;

/// Where packages put versions side by side: below the folder, per version, the folder of programs.
const PACKAGES: [(&str, &str); 2] = [("/usr/lib/postgresql", ""), ("/usr", "pgsql-")];

/// A folder with the programs of one version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Binaries {
    version: u32,
    folder: PathBuf,
}

impl Binaries {
    /// The path of a program.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The newest version that will do, for a new cluster.
    pub(super) fn newest() -> Result<Self, EmbeddedError> {
        let found = Self::find();
        match found.iter().max_by_key(|binaries| binaries.version) {
            Some(newest) if newest.version >= VERSION_MIN => Ok(newest.clone()),
            _ => Err(EmbeddedError::NotInstalled { found: versions(&found) }),
        }
    }

    /// The version that made the cluster: no other can run it.
    pub(super) fn of_cluster(cluster: &Path) -> Result<Self, EmbeddedError> {
        let path = cluster.join("PG_VERSION");
        let version = std::fs::read_to_string(&path).map_err(EmbeddedError::file("read", path))?;
        let Some(wanted) = version.trim().parse().ok().filter(|version| *version >= VERSION_MIN) else {
            return Err(EmbeddedError::NoCluster { cluster: cluster.to_owned(), version: version.trim().to_owned() });
        };
        let found = Self::find();
        found.iter().find(|binaries| binaries.version == wanted).cloned().ok_or_else(|| EmbeddedError::OtherVersion {
            cluster: cluster.to_owned(),
            wanted,
            found: versions(&found),
        })
    }

    /// All that are installed, those in `PATH` first.
    fn find() -> Vec<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders: Vec<PathBuf> = std::env::split_paths(&path).filter(|folder| folder.is_absolute()).collect();
        folders.extend(configured());
        folders.extend(PACKAGES.iter().flat_map(|(above, prefix)| packaged(Path::new(above), prefix)));
        let mut seen = Vec::new();
        for folder in folders {
            if !seen.contains(&folder) {
                seen.push(folder);
            }
        }
        seen.into_iter().filter_map(Self::in_folder).collect()
    }

    fn in_folder(folder: PathBuf) -> Option<Self> {
        if !folder.join("initdb").is_file() {
            return None;
        }
        let said = ask(&folder.join("postgres"), "--version")?;
        // "postgres (PostgreSQL) 15.18 (Debian …)", "… 17devel"
        let number: String = said.split_whitespace().nth(2)?.chars().take_while(char::is_ascii_digit).collect();
        Some(Self { version: number.parse().ok()?, folder })
    }
}

fn configured() -> Option<PathBuf> {
    Some(PathBuf::from(ask(Path::new("pg_config"), "--bindir")?.trim()))
}

fn packaged(above: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(above).into_iter().flatten().flatten();
    let of_version = entries.filter(|entry| {
        let name = entry.file_name();
        name.to_str().and_then(|name| name.strip_prefix(prefix)).is_some_and(|rest| rest.parse::<u32>().is_ok())
    });
    of_version.map(|entry| entry.path().join("bin")).collect()
}

fn ask(program: &Path, question: &str) -> Option<String> {
    let answer = Command::new(program).arg(question).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    answer.status.success().then(|| String::from_utf8_lossy(&answer.stdout).into_owned())
}

fn versions(found: &[Binaries]) -> Vec<u32> {
    let mut versions: Vec<u32> = found.iter().map(|binaries| binaries.version).collect();
    versions.sort_unstable();
    versions.dedup();
    versions
}
