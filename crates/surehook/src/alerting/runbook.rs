//! What a person who is paged needs to know of each kind of alert: how urgent it is, and what to do first. Pure. The long
//! form stands in docs/operating.md, one section per kind; a test holds the two together.

use crate::store::alerts::AlertKind;

/// How urgent, in the words of PagerDuty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Pushes or all deliveries stand still.
    Critical,
    /// Some stand still, or wait for a person.
    Error,
    /// Some are late, or something is odd.
    Warning,
}

impl Severity {
    /// As PagerDuty says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// The severity of a kind.
pub fn severity(kind: AlertKind) -> Severity {
    match kind {
        AlertKind::WorkersAway | AlertKind::StorageUnavailable => Severity::Critical,
        AlertKind::OldestPending
        | AlertKind::CircuitOpen
        | AlertKind::WorkerStuck
        | AlertKind::Drift
        | AlertKind::RefsUnreadable
        | AlertKind::RefsSetAside => Severity::Warning,
        AlertKind::RepositoryUnavailable
        | AlertKind::RepositoryHeld
        | AlertKind::DeadLetters
        | AlertKind::EndpointGone => Severity::Error,
    }
}

/// What to do first, one step a line. `name` is that of the subject, for the commands.
pub fn advice(kind: AlertKind, name: &str) -> Vec<String> {
    let lines: &[&str] = match kind {
        AlertKind::StorageUnavailable => &[
            "Is its volume mounted? Mount it: the next scan goes on by itself.",
            "Nothing in it is served or announced until then; nothing that was accepted is lost.",
        ],
        AlertKind::RepositoryUnavailable => &[
            "See why: surehook repo show {name}",
            "Put its folder right: the next scan makes it active again. Until then its pushes are refused.",
        ],
        AlertKind::RepositoryHeld => &[
            "See which refs are gone: surehook repo show {name}",
            "Bring them back, or say that they are meant to be gone: surehook repo confirm {name}",
        ],
        AlertKind::RefsUnreadable => &[
            "Restore the file that is named, or remove it if the ref is meant to be gone.",
            "All other refs of the repository go on.",
        ],
        AlertKind::RefsSetAside => {
            &["Read the error lines of serve: they say why. Each announce tries them again; all other refs go on."]
        }
        AlertKind::DeadLetters => &[
            "See what they met: surehook dlq list",
            "Repair the receiver, then send them again: surehook dlq replay --endpoint {name}",
        ],
        AlertKind::EndpointGone => &[
            "Its receiver says that it is gone for good. Ask its owner; see: surehook endpoint show {name}",
            "Let it go on: surehook endpoint resume {name}. Or end it: surehook endpoint remove {name}",
        ],
        AlertKind::CircuitOpen => &[
            "See since when, and what it last said: surehook endpoint show {name}",
            "Bring its receiver back: a probe goes out at least once a minute, and everything follows in order by itself.",
        ],
        AlertKind::OldestPending => &[
            "See what it waits for: surehook endpoint show {name}",
            "Is the receiver away, that is all: everything goes out in order when it is back.",
        ],
        AlertKind::WorkersAway => {
            &["Start one: surehook serve, or surehook worker --database-url URL", "Then look again: surehook doctor"]
        }
        AlertKind::WorkerStuck => &[
            "The others do its work. See what its process does, keep its log, then restart it.",
            "Then look again: surehook doctor",
        ],
        AlertKind::Drift => &[
            "The changes were told. Find out who writes to {name} past surehook: surehook event list --repo {name}",
            "If it was you, there is nothing to do; the alert ends by itself.",
        ],
    };
    lines.iter().map(|line| line.replace("{name}", name)).collect()
}

/// What only the watchdog can tell of: while the database is away no alert can be opened in it.
pub const DATABASE_AWAY: &str = "database_away";

/// What to do first when the database is away.
pub fn database_away() -> Vec<String> {
    vec![
        "Bring PostgreSQL back: is it running, is its disk full, does the network reach it? Its own log says why it went.".into(),
        "Nothing that was accepted is lost; pushes are refused and deliveries wait until then. Look closer: surehook doctor".into(),
    ]
}

/// Loops that come round every few seconds as long as a process is well.
pub const MUST_COME_ROUND: [&str; 5] = ["claims", "recorder", "heartbeat", "watch", "runtime"];

/// Where the long form stands: a section of the runbook at `base`, a URL; of the manual, if that is empty.
pub fn link(base: &str, kind: AlertKind) -> String {
    link_to(base, kind.as_str())
}

/// The same by the name of the section.
pub(crate) fn link_to(base: &str, section: &str) -> String {
    let base = if base.is_empty() { "docs/operating.md" } else { base };
    format!("{base}#{section}")
}
