//! What the embedded server keeps on disk, and whose it is. May make the data directory, what stands below here in it, and
//! the socket's folder.
//!
//! ```text
//! <data>/                     0700; made by root: 0710 with the group of the account that runs the server
//! <data>/postgres/            the cluster, of that account
//! <data>/postgres.new-…/      a cluster in the making
//! <data>/postgres.lock        held by the supervisor
//! <data>/postgres.users       shared by all who use the server
//! <data>/postgres.socket      names the folder of the socket
//! <data>/postgres.log(.old)   what the server says
//! /run or /tmp/surehook-…/    the socket's folder: short, because a socket's path has at most 107 bytes
//! ```
//!
//! What root writes lies beside the cluster and not in it, and links are not followed: the account that runs the server
//! must not be able to lead root astray.

use std::{
    ffi::{OsStr, OsString},
    fs::{DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown},
    },
    path::{Path, PathBuf},
};

use super::{
    EmbeddedError,
    account::{self, Account},
};

const LOG_BYTES_MAX: u64 = 10 << 20;
const SOCKET_PREFIX: &str = "surehook-";

/// The places of one data directory, and who runs its server.
#[derive(Clone, Debug)]
pub(super) struct Folders {
    data: PathBuf,
    account: Option<Account>,
}

impl Folders {
    /// Makes the data directory if it is missing; checks that the server will be able to reach it.
    pub(super) fn prepare(data: &Path) -> Result<Self, EmbeddedError> {
        let absolute = std::path::absolute(data).map_err(EmbeddedError::file("find", data))?;
        let account = account::choose(&absolute, &absolute.join("postgres"))?;
        if !absolute.is_dir() {
            make_data(&absolute, account.as_ref())?;
        }
        // Links on the way are resolved, so that every process means the same folder.
        let data = absolute.canonicalize().map_err(EmbeddedError::file("find", &absolute))?;
        if let Some(account) = &account {
            account.can_pass(&data)?;
        }
        Ok(Self { data, account })
    }

    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    pub(super) fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }

    /// The cluster; it is whole if it is there at all.
    pub(super) fn cluster(&self) -> PathBuf {
        self.data.join("postgres")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.data.join("postgres.log")
    }

    pub(super) fn lock_files(&self) -> [PathBuf; 2] {
        [self.data.join("postgres.lock"), self.data.join("postgres.users")]
    }

    /// Opens a file of ours for appending, made if missing.
    pub(super) fn open(&self, path: &Path) -> Result<File, EmbeddedError> {
        let mut options = OpenOptions::new();
        options.create(true).append(true).read(true).mode(0o600).custom_flags(no_follow());
        let file = options.open(path).map_err(EmbeddedError::file("open", path))?;
        if let (Some(account), true) = (&self.account, self.data_of_account()) {
            // In a directory of somebody else's, what we make as root must stay usable by him.
            let owner = file.metadata().map_err(EmbeddedError::file("look at", path))?.uid();
            if owner == 0 {
                std::os::unix::fs::fchown(&file, Some(account.user), Some(account.group))
                    .map_err(EmbeddedError::file("give away", path))?;
            }
        }
        Ok(file)
    }

    fn data_of_account(&self) -> bool {
        let owner = std::fs::metadata(&self.data).map(|found| found.uid());
        owner.ok() == self.account.as_ref().map(|account| account.user)
    }

    /// Opens the log and gives its present length. A long one is put aside first.
    pub(super) fn open_log(&self) -> Result<(File, u64), EmbeddedError> {
        let path = self.log();
        let length =
            |file: &File| Ok::<_, EmbeddedError>(file.metadata().map_err(EmbeddedError::file("read", &path))?.len());
        let file = self.open(&path)?;
        let written = length(&file)?;
        if written <= LOG_BYTES_MAX {
            return Ok((file, written));
        }
        std::fs::rename(&path, path.with_extension("log.old")).map_err(EmbeddedError::file("put aside", &path))?;
        Ok((self.open(&path)?, 0))
    }

    /// An empty folder for a cluster in the making, of the account that runs the server. Earlier attempts are removed.
    pub(super) fn new_cluster(&self) -> Result<PathBuf, EmbeddedError> {
        let prefix = "postgres.new-";
        let entries = std::fs::read_dir(&self.data).map_err(EmbeddedError::file("read", &self.data))?;
        for entry in entries.flatten().filter(|entry| entry.file_name().as_bytes().starts_with(prefix.as_bytes())) {
            std::fs::remove_dir_all(entry.path()).map_err(EmbeddedError::file("remove", entry.path()))?;
        }
        self.private_folder(prefix, &self.data)
    }

    /// Appends to a file that is there, durably.
    pub(super) fn append(&self, path: &Path, text: &str) -> Result<(), EmbeddedError> {
        let append = || {
            let mut file = OpenOptions::new().append(true).custom_flags(no_follow()).open(path)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        append().map_err(EmbeddedError::file("write", path))
    }

    /// Puts the finished cluster in its place.
    pub(super) fn keep_cluster(&self, made: &Path) -> Result<(), EmbeddedError> {
        std::fs::rename(made, self.cluster()).map_err(EmbeddedError::file("rename", made))?;
        let synced = File::open(&self.data).and_then(|folder| folder.sync_all());
        synced.map_err(EmbeddedError::file("write", &self.data))
    }

    /// The folder in which the server makes its socket: the recorded one if it is still there and nobody else's, so that the
    /// URLs of those who joined stay good; else a new one, which is recorded.
    pub(super) fn socket(&self) -> Result<PathBuf, EmbeddedError> {
        if let Some(recorded) = self.recorded_socket()
            && self.is_private(&recorded)
        {
            return Ok(recorded);
        }
        // Root's programs may each see a /tmp of their own, but all see one /run.
        let above = if self.account.is_some() && Path::new("/run").is_dir() { "/run" } else { "/tmp" };
        let folder = self.private_folder(SOCKET_PREFIX, Path::new(above))?;
        self.record_socket(&folder)?;
        Ok(folder)
    }

    /// The socket's folder as it was last recorded.
    pub(super) fn recorded_socket(&self) -> Option<PathBuf> {
        let bytes = std::fs::read(self.data.join("postgres.socket")).ok()?;
        let path = PathBuf::from(OsString::from_vec(bytes.strip_suffix(b"\n")?.to_vec()));
        path.is_absolute().then_some(path)
    }

    /// Records the socket's folder; readers see the old name or the new one.
    pub(super) fn record_socket(&self, folder: &Path) -> Result<(), EmbeddedError> {
        let path = self.data.join("postgres.socket");
        let write = || {
            let mut file = tempfile::Builder::new().prefix("postgres.socket-").tempfile_in(&self.data)?;
            file.write_all(folder.as_os_str().as_bytes())?;
            file.write_all(b"\n")?;
            if let (Some(account), true) = (&self.account, self.data_of_account()) {
                std::os::unix::fs::fchown(file.as_file(), Some(account.user), Some(account.group))?;
            }
            file.persist(&path).map_err(|error| error.error)?;
            Ok(())
        };
        write().map_err(EmbeddedError::file("write", &path))
    }

    /// Removes the socket's folder after the server has ended. What is left of it hurts nobody.
    pub(super) fn remove_socket(&self) {
        if let Some(folder) = self.recorded_socket()
            && self.is_private(&folder)
        {
            remove_socket_files(&folder);
            let _ = std::fs::remove_dir(&folder);
            let _ = std::fs::remove_file(self.data.join("postgres.socket"));
        }
    }

    /// Removes what tells of a server that no longer exists. Only for when no process of the cluster lives: PostgreSQL
    /// itself gives up if the process id in there now belongs to some other program of the same user.
    pub(super) fn remove_traces(&self, socket: &Path) {
        let _ = std::fs::remove_file(self.cluster().join("postmaster.pid"));
        remove_socket_files(socket);
    }

    /// Whether `folder` is one that we made: in a place where everybody may make folders, the name alone proves nothing.
    fn is_private(&self, folder: &Path) -> bool {
        let named = folder.file_name().is_some_and(|name| name.as_bytes().starts_with(SOCKET_PREFIX.as_bytes()));
        let user = self.account.as_ref().map_or_else(|| rustix::process::geteuid().as_raw(), |account| account.user);
        let private = |found: std::fs::Metadata| found.is_dir() && found.uid() == user && found.mode() & 0o777 == 0o700;
        named && std::fs::symlink_metadata(folder).is_ok_and(private)
    }

    /// A new folder that only the account which runs the server may enter.
    fn private_folder(&self, prefix: &str, above: &Path) -> Result<PathBuf, EmbeddedError> {
        let mut builder = tempfile::Builder::new();
        let made = builder.prefix(prefix).permissions(Permissions::from_mode(0o700)).tempdir_in(above);
        let folder = made.map_err(EmbeddedError::file("make a folder in", above))?.keep();
        if let Some(account) = &self.account {
            chown(&folder, Some(account.user), Some(account.group))
                .map_err(EmbeddedError::file("give away", &folder))?;
        }
        Ok(folder)
    }
}

fn make_data(data: &Path, account: Option<&Account>) -> Result<(), EmbeddedError> {
    let make = || {
        if let Some(above) = data.parent() {
            std::fs::create_dir_all(above)?;
        }
        match DirBuilder::new().mode(0o700).create(data) {
            // Another surehook was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            made => made?,
        }
        if let Some(account) = account {
            chown(data, None, Some(account.group))?;
            std::fs::set_permissions(data, Permissions::from_mode(0o710))?;
        }
        Ok(())
    };
    make().map_err(EmbeddedError::file("make the data directory", data))
}

fn remove_socket_files(folder: &Path) {
    for name in [".s.PGSQL.5432", ".s.PGSQL.5432.lock"].map(OsStr::new) {
        let _ = std::fs::remove_file(folder.join(name));
    }
}

fn no_follow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}
