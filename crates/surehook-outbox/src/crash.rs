//! Crash points: named steps at which a test stops a process, to kill it or what it depends on at exactly that step.
//! Without the feature `crash-points`, which no release has, nothing of this is compiled. With it, may touch one folder.
//!
//! A test arms a point by making a file of its name in the folder. Who comes by first takes it: the file is renamed to
//! `NAME.reached` and says which process waits there. It goes on when that file is gone. If the file says `panic`, whoever
//! comes by panics instead.

/// A process comes by the step `name`: it goes on at once unless a test has armed the point.
#[cfg(not(feature = "crash-points"))]
#[inline]
pub fn point(_name: &'static str) {}

/// Whether a test looks on: then what is one statement is said in its steps.
#[cfg(not(feature = "crash-points"))]
#[inline]
pub fn is_watched() -> bool {
    false
}

#[cfg(feature = "crash-points")]
pub use armed::{is_watched, point, watch};

#[cfg(feature = "crash-points")]
mod armed {
    use std::path::{Path, PathBuf};
    use std::sync::OnceLock;
    use std::time::Duration;

    static FOLDER: OnceLock<PathBuf> = OnceLock::new();

    /// From now on this process looks for armed points in `folder`.
    pub fn watch(folder: PathBuf) {
        // The first one counts: a process is told once, when it starts.
        let _ = FOLDER.set(folder);
    }

    /// Whether a test looks on: then what is one statement is said in its steps.
    pub fn is_watched() -> bool {
        FOLDER.get().is_some()
    }

    /// A process comes by the step `name`: it goes on at once unless a test has armed the point.
    pub fn point(name: &'static str) {
        let Some(folder) = FOLDER.get() else { return };
        let reached = folder.join(format!("{name}.reached"));
        if std::fs::rename(folder.join(name), &reached).is_err() {
            return;
        }
        if std::fs::read_to_string(&reached).is_ok_and(|text| text == "panic") {
            let _ = std::fs::remove_file(&reached);
            panic!("the crash point {name} asks for it");
        }
        // Where there is a runtime its other tasks go on, as they would without this point.
        if tokio::runtime::Handle::try_current().is_ok() {
            tokio::task::block_in_place(|| wait(&reached));
        } else {
            wait(&reached);
        }
    }

    fn wait(reached: &Path) {
        if std::fs::write(reached, std::process::id().to_string()).is_err() {
            return;
        }
        while reached.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
