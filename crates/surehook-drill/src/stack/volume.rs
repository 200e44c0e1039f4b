//! A small file system of its own, which can be filled. Mounts and unmounts it; where that is not allowed there is none.
#![expect(clippy::disallowed_methods, reason = "it starts mount and umount")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A mounted volume; gone when dropped.
#[derive(Debug)]
pub struct SmallVolume {
    path: PathBuf,
}

impl SmallVolume {
    /// `None` where nothing may be mounted.
    pub fn mount(path: &Path) -> Option<Self> {
        std::fs::create_dir_all(path).ok()?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=384m", "tmpfs"]).arg(path).stdout(Stdio::null()).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then(|| Self { path: path.to_owned() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills it to the last byte.
    pub fn fill(&self) -> std::io::Result<()> {
        let mut ballast = std::fs::File::create(self.path.join("ballast"))?;
        for piece in [64 * 1024, 1] {
            let zeros = vec![0; piece];
            // Ends when there is no room.
            while ballast.write_all(&zeros).is_ok() {}
        }
        Ok(())
    }

    /// Makes room again.
    pub fn empty(&self) -> std::io::Result<()> {
        std::fs::remove_file(self.path.join("ballast"))
    }
}

impl Drop for SmallVolume {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}
