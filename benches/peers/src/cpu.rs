//! How much processor time processes have used, as the kernel counts it (in hundredths of a second).

use std::time::Duration;

/// Of one process with all its threads; zero if it is gone.
pub(crate) fn of(process: u32) -> Duration {
    ticks(process).map_or(Duration::ZERO, |ticks| duration(ticks.own))
}

/// Of a process with its children, those that have ended included.
pub(crate) fn of_family(process: u32) -> Duration {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let living: Duration = children.split_whitespace().filter_map(|child| child.parse().ok()).map(of).sum();
    living + ticks(process).map_or(Duration::ZERO, |ticks| duration(ticks.own + ticks.ended_children))
}

/// What a process holds in memory, in bytes; zero if it is gone.
pub(crate) fn resident_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

struct Ticks {
    own: u64,
    ended_children: u64,
}

fn ticks(process: u32) -> Option<Ticks> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name stands in brackets and may hold anything; the state is the first field after it, the user time the 12th.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let field = |place: usize| fields.get(place)?.parse::<u64>().ok();
    Some(Ticks { own: field(11)? + field(12)?, ended_children: field(13)? + field(14)? })
}

/// Linux counts for user space in hundredths of a second on every machine.
fn duration(ticks: u64) -> Duration {
    Duration::from_millis(ticks * 10)
}
