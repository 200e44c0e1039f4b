//! The doorbell of imported repositories: a datagram socket on which a hook names the repository whose refs have moved.
//! Makes, rings and removes that socket; `serve/doorbell.rs` listens.
//!
//! A ring carries nothing but an id, is never answered, and may get lost: the scan finds what no ring told of. So the hook
//! waits for nobody, and the one who rings can do no more than have a repository looked at.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use uuid::Uuid;

/// The longest path that a socket can have: 108 bytes with the zero at the end.
const PATH_BYTES_MAX: usize = 107;
/// How long a ring waits for room in the queue of a busy server.
const RING_WAIT_MAX: Duration = Duration::from_millis(200);
const RING_AGAIN: Duration = Duration::from_millis(10);

/// Where the doorbell of a storage is. The hook has this path written in it, so it depends on nothing that a restart changes.
///
/// The owners of the repositories must be able to reach it. Root's is in `/run`, since nobody else may pass the data directory.
/// Any other account can follow only its own repositories, and has it in the data directory, where nobody else can ring.
pub fn socket_path(storage_root: &Path, storage_id: Uuid) -> PathBuf {
    let name = format!("{}.bell", storage_id.simple());
    if geteuid().is_root() {
        return Path::new("/run/surehook").join(name);
    }
    let beside = storage_root.with_file_name("doorbell");
    // Room for what the name has at the end while it is made.
    if beside.as_os_str().as_bytes().len() + 12 <= PATH_BYTES_MAX {
        return beside;
    }
    PathBuf::from(format!("/tmp/surehook-{}", geteuid().as_raw())).join(name)
}

/// A socket that is listened on. It goes when this is dropped.
#[derive(Debug)]
pub struct Bell {
    socket: UnixDatagram,
    path: PathBuf,
    inode: u64,
}

impl Bell {
    /// Makes the socket, in the place of one that an earlier process left.
    pub fn hang(path: &Path) -> io::Result<Self> {
        let shared = geteuid().is_root();
        if let Some(folder) = path.parent() {
            make_folder(folder, shared)?;
            if shared {
                remove_dead_bells(folder);
            }
        }
        // Under another name first: whoever finds the socket at its place may ring.
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(format!(".{}", std::process::id()));
        let fresh = PathBuf::from(fresh);
        remove(&fresh)?;
        let socket = UnixDatagram::bind(&fresh)?;
        let mode = if shared { 0o666 } else { 0o600 };
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(mode))?;
        socket.set_nonblocking(true)?;
        let inode = std::fs::symlink_metadata(&fresh)?.ino();
        std::fs::rename(&fresh, path)?;
        Ok(Self { socket, path: path.to_owned(), inode })
    }

    /// The socket itself, which does not block.
    pub fn socket(&self) -> io::Result<UnixDatagram> {
        self.socket.try_clone()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // Not the one of a server that has taken the place meanwhile.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Says that refs of this repository have moved. Ok: the server has it in its queue. Err: nobody listens, or it is too busy.
/// Either way it takes moments.
pub fn ring(socket: &Path, repository_id: Uuid) -> io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    let text = repository_id.to_string();
    let end = Instant::now() + RING_WAIT_MAX;
    loop {
        match sender.send_to(text.as_bytes(), socket) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                std::thread::sleep(RING_AGAIN);
            }
            outcome => return outcome.map(drop),
        }
    }
}

/// What a ring says; `None` if it says nothing that we understand.
pub fn parse_ring(bytes: &[u8]) -> Option<Uuid> {
    Uuid::parse_str(std::str::from_utf8(bytes).ok()?.trim_end()).ok()
}

/// The data directory is there; a folder for sockets is made, and must be ours alone to write.
fn make_folder(folder: &Path, shared: bool) -> io::Result<()> {
    if !folder.exists() {
        let mode = if shared { 0o755 } else { 0o700 };
        match std::fs::DirBuilder::new().mode(mode).create(folder) {
            // Whatever the umask takes away.
            Ok(()) => std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    let found = std::fs::symlink_metadata(folder)?;
    let writable_by_all = found.mode() & 0o002 != 0;
    if found.is_dir() && (!folder.starts_with("/tmp") || found.uid() == geteuid().as_raw()) && !writable_by_all {
        return Ok(());
    }
    Err(io::Error::other(format!("{} is no folder that only we may write to", folder.display())))
}

/// A server that was killed leaves its socket, and its data may never be served again. What cannot be removed does no harm.
fn remove_dead_bells(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "bell") {
            let listened_to = UnixDatagram::unbound().and_then(|caller| caller.connect(&path));
            if listened_to.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
                let _ = std::fs::remove_file(&path);
            }
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_arrives_and_nobody_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bell");
        let id = Uuid::from_u128(7);
        assert!(ring(&path, id).is_err());
        let first = Bell::hang(&path).unwrap();
        let bell = Bell::hang(&path).unwrap();
        drop(first);
        ring(&path, id).unwrap();
        let mut bytes = [0; 64];
        let read = bell.socket().unwrap().recv(&mut bytes).unwrap();
        assert_eq!(parse_ring(&bytes[..read]), Some(id));
        // Nobody reads: the queue fills up, and the one who rings goes on all the same.
        let full = (0..100_000).find_map(|_| ring(&path, id).err()).expect("the queue has an end");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        drop(bell);
        assert!(!path.exists());
        for nonsense in [&b""[..], b"x", &[0xff; 36], &[b'0'; 64]] {
            assert_eq!(parse_ring(nonsense), None);
        }
    }

    #[test]
    fn the_path_fits_into_a_socket_address() {
        let deep = Path::new("/").join("d".repeat(200)).join("repositories");
        for root in [Path::new("/srv/surehook/repositories"), &deep] {
            assert!(socket_path(root, Uuid::from_u128(1)).as_os_str().len() + 12 <= PATH_BYTES_MAX);
        }
    }
}
