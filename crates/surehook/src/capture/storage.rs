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
        match std::fs::read_to_string(root.join(STORAGE_ID_FILE)) {
            Ok(text) => {
                return text.trim().parse().map_err(|_| {
                    io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!("{} holds no storage id", root.join(STORAGE_ID_FILE).display()),
                    )
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storage_keeps_its_id() {
        let folder = tempfile::tempdir().unwrap();
        let id = read_or_create_id(folder.path()).unwrap();
        assert_eq!(read_or_create_id(folder.path()).unwrap(), id);
        std::fs::write(folder.path().join(STORAGE_ID_FILE), "?").unwrap();
        assert!(read_or_create_id(folder.path()).is_err());
        assert!(read_or_create_id(&folder.path().join("none")).is_err());
    }
}
