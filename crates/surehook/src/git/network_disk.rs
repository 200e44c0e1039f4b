//! Tells disks of this machine from those that other machines write to as well. Asks the kernel; touches nothing.

use std::io;
use std::path::Path;

/// Kinds of file systems by the number that `statfs` gives (linux/magic.h, and the sources of those that are not in it).
/// FUSE is among them: it may be `sshfs` or anything else, and does not tell.
const NETWORK_KINDS: [(u64, &str); 17] = [
    (0x6969, "nfs"),
    (0x517b, "smb"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x564c, "ncp"),
    (0x7375_7245, "coda"),
    (0x5346_414f, "afs"),
    (0x6b41_4653, "afs"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "ceph"),
    (0x6573_5546, "fuse"),
    (0x0bd0_0bd0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x7461_636f, "ocfs2"),
    (0x0116_1970, "gfs2"),
    (0x1983_0326, "beegfs"),
    (0x786f_4256, "vboxsf"),
];

/// The name of the network file system that `path` lies on; `None`: the disk is this machine's.
pub fn kind_of(path: &Path) -> io::Result<Option<&'static str>> {
    // The type of this field has another width and sign on each architecture; the numbers have 32 bits.
    let number = rustix::fs::statfs(path)?.f_type as u64 & 0xffff_ffff;
    Ok(name_of(number))
}

fn name_of(number: u64) -> Option<&'static str> {
    NETWORK_KINDS.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_disks_are_known_by_their_numbers() {
        // ext4, xfs, btrfs, tmpfs, overlayfs, zfs
        for local in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1] {
            assert_eq!(name_of(local), None);
        }
        for (number, name) in [(0x6969, "nfs"), (0xff53_4d42, "cifs"), (0x6573_5546, "fuse")] {
            assert_eq!(name_of(number), Some(name));
        }
        // procfs is as local as can be.
        assert_eq!(kind_of(Path::new("/proc")).unwrap(), None);
        assert!(kind_of(Path::new("/none")).is_err());
    }
}
