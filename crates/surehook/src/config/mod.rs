//! Settings: defaults, the configuration file, the environment. The only place that reads the environment, apart from the
//! options of the command line that say so (`env = "SUREHOOK_…"`).
#![expect(clippy::disallowed_methods, reason = "this is the door for the environment")]

pub mod file;
mod watchdog;

use std::path::PathBuf;

/// Where data lies unless somebody says otherwise: `/var/lib/surehook` for root, whose home is closed to the account that
/// PostgreSQL runs under; else `$XDG_DATA_HOME/surehook`, or `~/.local/share/surehook`.
pub fn default_data_dir() -> PathBuf {
    let system = PathBuf::from("/var/lib/surehook");
    if rustix::process::geteuid().is_root() {
        return system;
    }
    // The XDG base directory specification: a relative path is to be ignored.
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match (absolute("XDG_DATA_HOME"), absolute("HOME")) {
        (Some(data), _) => data.join("surehook"),
        (None, Some(home)) => home.join(".local/share/surehook"),
        (None, None) => system,
    }
}

/// What this machine calls itself, for people who look at more than one.
pub fn node_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What `SUREHOOK_LOG` says about how much is logged.
pub fn log_filter() -> Option<String> {
    std::env::var("SUREHOOK_LOG").ok().filter(|text| !text.is_empty())
}

/// The folder in which tests arm crash points; it is told to this process and, being no `SUREHOOK_…`, to its runners.
#[cfg(feature = "crash-points")]
pub fn crash_points() -> Option<PathBuf> {
    std::env::var_os("CRASH_POINTS").map(PathBuf::from)
}

/// Where programs are looked for, for a git that acts for the person at the terminal.
pub fn search_path() -> std::ffi::OsString {
    std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into())
}
