//! Who else is in a repository: looks through `/proc` for processes of this machine. Only reads. Blocking.
//!
//! Nothing in a lock file says whose it is. But a git that works in a bare repository has its working directory there, or
//! was given the repository by an argument or in its environment, or has a file of it open.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Who is in a repository, beside this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Presence {
    /// No process of this machine.
    Nobody,
    /// Of some git it cannot be read where it is.
    Unknown,
    /// A process that is no git: perhaps somebody's shell.
    Somebody,
    /// A git.
    Git,
}

/// Looks for processes in the repository. What began after this call is not seen.
pub fn look(repository: &Path) -> Presence {
    let Ok(place) = Place::of(repository) else { return Presence::Unknown };
    let Ok(entries) = fs::read_dir("/proc") else { return Presence::Unknown };
    let own = std::process::id();
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own)
        .map(|pid| {
            place.presence_of(Path::new("/proc").join(pid.to_string()).as_path()).unwrap_or_else(|error| {
                match error.kind() {
                    // It has ended meanwhile.
                    io::ErrorKind::NotFound => Presence::Nobody,
                    _ if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Presence::Nobody,
                    _ => Presence::Unknown,
                }
            })
        })
        .max()
        .unwrap_or(Presence::Unknown)
}

/// The repository, by name and by what it is.
struct Place {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Place {
    fn of(repository: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(repository)?;
        Ok(Self { path: fs::canonicalize(repository)?, device: metadata.dev(), inode: metadata.ino() })
    }

    fn presence_of(&self, process: &Path) -> io::Result<Presence> {
        let is_git = fs::read(process.join("comm"))?.starts_with(b"git");
        let working = match fs::read_link(process.join("cwd")) {
            // Another account's process that does not even call itself git: no repository that surehook made is its to write.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_git => return Ok(Presence::Nobody),
            other => other?,
        };
        let is_in = self.holds(&working)
            // Another name of the same folder, by a bind mount.
            || fs::metadata(process.join("cwd")).is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode))
            || (is_git && self.is_named(process, &working)?)
            || self.is_open(process)?;
        Ok(match (is_in, is_git) {
            (false, _) => Presence::Nobody,
            (true, false) => Presence::Somebody,
            (true, true) => Presence::Git,
        })
    }

    fn holds(&self, path: &Path) -> bool {
        path.starts_with(&self.path)
    }

    /// Whether an argument or `GIT_DIR` leads here: git then stays where it was started.
    fn is_named(&self, process: &Path, working: &Path) -> io::Result<bool> {
        let arguments = fs::read(process.join("cmdline"))?;
        let environment = fs::read(process.join("environ"))?;
        let from_environment = environment.split(|byte| *byte == 0).filter(|entry| entry.starts_with(b"GIT_"));
        Ok(arguments.split(|byte| *byte == 0).chain(from_environment).any(|text| {
            let value = text.iter().position(|byte| *byte == b'=').map_or(text, |at| &text[at + 1..]);
            !value.is_empty()
                && fs::canonicalize(working.join(OsStr::from_bytes(value))).is_ok_and(|path| self.holds(&path))
        }))
    }

    fn is_open(&self, process: &Path) -> io::Result<bool> {
        let files = fs::read_dir(process.join("fd"))?;
        Ok(files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|target| self.holds(&target))))
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test starts processes to be found")]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A git that waits on its standard input.
    fn waiting(arguments: &[&str], folder: &Path) -> Ended {
        let mut command = Command::new("git");
        command.args(arguments).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ended(command.spawn().unwrap())
    }

    fn until(path: &Path, expected: Presence) {
        let patience = std::time::Instant::now();
        while look(path) != expected {
            assert!(patience.elapsed().as_secs() < 30, "never {expected:?}, but {:?}", look(path));
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_git_is_seen_wherever_it_was_started() {
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("app.git");
        let status = Command::new("git").args(["init", "--quiet", "--bare", "app.git"]).current_dir(&folder).status();
        assert!(status.unwrap().success());
        // A git of another account may be at work elsewhere on this machine, and may not be looked into.
        let nobody = look(&repository);
        assert!(nobody <= Presence::Unknown);
        let in_it = waiting(&["update-ref", "--stdin"], &repository);
        until(&repository, Presence::Git);
        drop(in_it);
        until(&repository, nobody);
        let above = waiting(&["--git-dir=app.git", "update-ref", "--stdin"], folder.path());
        until(&repository, Presence::Git);
        drop(above);
        let shell = Ended(Command::new("cat").current_dir(&repository).stdin(Stdio::piped()).spawn().unwrap());
        until(&repository, Presence::Somebody);
        drop(shell);
        until(&repository, nobody);
        assert_eq!(look(&folder.path().join("none")), Presence::Unknown);
    }
}
