//! Ends what a build left running. May read `/proc` and send signals.
//!
//! Processes are known by the run key in their environment, which children inherit even when they move to a session of
//! their own. A process that hides its environment, or clears it, is not found.

use uuid::Uuid;

/// Ends by force every process of the run but the caller, and returns when no more is seen, or after a few rounds.
#[cfg(target_os = "linux")]
pub(super) fn end_all(run_key: Uuid) {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    const ROUNDS_MAX: u32 = 200;
    const BETWEEN_ROUNDS: std::time::Duration = std::time::Duration::from_millis(5);

    let mark = format!("{}={run_key}", super::runner::RUN_KEY);
    let own_pid = std::process::id();
    for _ in 0..ROUNDS_MAX {
        let mut seen = 0;
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            let Some(pid) = Pid::from_raw(number).filter(|_| number.unsigned_abs() != own_pid) else { continue };
            // Opened before the look, so that the signal cannot reach another process that got the number meanwhile.
            let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            let Ok(environment) = std::fs::read(entry.path().join("environ")) else { continue };
            if environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()) {
                let _ = pidfd_send_signal(process, Signal::KILL);
                seen += 1;
            }
        }
        // One that forked while we looked is found in the next round.
        if seen == 0 {
            return;
        }
        std::thread::sleep(BETWEEN_ROUNDS);
    }
}

/// Elsewhere there is no way to find them.
#[cfg(not(target_os = "linux"))]
pub(super) fn end_all(_run_key: Uuid) {}
