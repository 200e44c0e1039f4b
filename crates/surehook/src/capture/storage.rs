//! A storage is a folder that holds repositories. Its id stands in a file in it, so that a swapped volume is noticed.

use std::io::{self, Write};
use std::path::Path;

use uuid::Uuid;

/// The file with the id.
pub const STORAGE_ID_FILE: &str = "storage-id";

/// Reads the id of the storage at `root`, and gives it a random one if it has none. Err: the folder is not there, or the file
/// holds no id; nothing was changed.
pub fn read_or_create_id(root: &Path) -> io::Result<Uuid> {
    loop {
        if let Some(id) = read_id(root)? {
            return Ok(id);
        }
        let mut file = tempfile::Builder::new().prefix(STORAGE_ID_FILE).tempfile_in(root)?;
        writeln!(file, "{}", Uuid::new_v4())?;
        file.as_file().sync_all()?;
        match file.persist_noclobber(root.join(STORAGE_ID_FILE)) {
            Ok(_) => std::fs::File::open(root)?.sync_all()?,
            // Another process was first: its id counts.
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.error),
        }
    }
}

/// Whether the storage at `root` is the one with this id. Err says in words what is there instead.
pub fn check(root: &Path, storage_id: Uuid) -> Result<(), String> {
    let shown = root.display();
    match read_id(root) {
        Ok(Some(id)) if id == storage_id => Ok(()),
        Ok(Some(id)) => Err(format!("{shown} is another storage: its id is {id}, not {storage_id}")),
        Ok(None) if root.is_dir() => {
            Err(format!("{shown} is not the storage that it was: it has no {STORAGE_ID_FILE}; is its volume mounted?"))
        }
        Ok(None) => Err(format!("{shown} is not there; is its volume mounted?")),
        Err(error) => Err(format!("{shown} cannot be read: {error}")),
    }
}

/// The id of the storage at `root`; `None` if there is no storage.
pub fn read_id(root: &Path) -> io::Result<Option<Uuid>> {
    let path = root.join(STORAGE_ID_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            text.trim().parse().map(Some).map_err(|_| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{} holds no storage id", path.display()))
            })
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storage_keeps_its_id() {
        let folder = tempfile::tempdir().unwrap();
        let id = read_or_create_id(folder.path()).unwrap();
        assert_eq!(read_or_create_id(folder.path()).unwrap(), id);
        assert_eq!(check(folder.path(), id), Ok(()));
        assert!(check(folder.path(), Uuid::nil()).unwrap_err().contains("another storage"));
        assert!(check(&folder.path().join("none"), id).unwrap_err().contains("mounted"));
        std::fs::write(folder.path().join(STORAGE_ID_FILE), "?").unwrap();
        assert!(read_or_create_id(folder.path()).is_err());
        assert!(read_or_create_id(&folder.path().join("none")).is_err());
    }
}
