//! Which processes belong to a cluster, as the kernel tells (`/proc`). May send them signals; a process id alone is never
//! believed, because ids are used again.

use std::{os::unix::fs::MetadataExt as _, path::Path};

use rustix::process::{Pid, Signal, kill_process};

/// What the cluster's `postmaster.pid` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Running {
    /// This postmaster runs the cluster.
    Postmaster(Pid),
    /// Somebody works on it in single-user mode.
    SingleUser(Pid),
    /// No living process of the cluster is named there.
    Nobody,
}

/// Who runs the cluster in the folder `cluster`.
pub(super) fn running(cluster: &Path) -> Running {
    let Ok(text) = std::fs::read_to_string(cluster.join("postmaster.pid")) else { return Running::Nobody };
    let Some(number) = text.lines().next().and_then(|line| line.trim().parse::<i32>().ok()) else {
        return Running::Nobody;
    };
    match Pid::from_raw(number.saturating_abs()) {
        Some(pid) if belongs(pid, cluster) && number > 0 => Running::Postmaster(pid),
        Some(pid) if belongs(pid, cluster) => Running::SingleUser(pid),
        _ => Running::Nobody,
    }
}

/// The folder of the socket that the running postmaster has written down.
pub(super) fn socket_of_running(cluster: &Path) -> Option<std::path::PathBuf> {
    let text = std::fs::read_to_string(cluster.join("postmaster.pid")).ok()?;
    let folder = text.lines().nth(4)?.trim();
    folder.starts_with('/').then(|| folder.into())
}

/// Whether this living process is a PostgreSQL of the cluster: all of them work in the cluster's folder.
pub(super) fn belongs(pid: Pid, cluster: &Path) -> bool {
    let process = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
    let same_folder = || {
        let (work, cluster) = (std::fs::metadata(process.join("cwd")).ok()?, std::fs::metadata(cluster).ok()?);
        Some((work.dev(), work.ino()) == (cluster.dev(), cluster.ino()))
    };
    let is_postgres = || {
        // After an upgrade of the package the link reads "…/postgres (deleted)".
        let program = std::fs::read_link(process.join("exe")).ok()?;
        Some(program.file_name()?.to_string_lossy().starts_with("postgres"))
    };
    same_folder() == Some(true) && is_postgres() == Some(true)
}

/// All living PostgreSQL processes of the cluster.
pub(super) fn of_cluster(cluster: &Path) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    ids.filter(|pid| belongs(*pid, cluster)).collect()
}

/// Sends a signal. That the process is gone already is as good.
pub(super) fn signal(pid: Pid, signal: Signal) {
    if let Err(error) = kill_process(pid, signal)
        && error != rustix::io::Errno::SRCH
    {
        tracing::warn!(pid = pid.as_raw_nonzero().get(), ?signal, %error, "a process of PostgreSQL takes no signal");
    }
}
