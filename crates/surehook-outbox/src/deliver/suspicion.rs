//! Lanes under suspicion, with which workers vanished: each is handled alone, so that none beside it is charged for what it may
//! do. Pure; time enters as a value.

use std::time::Instant;

/// Where the handling stands.
#[derive(Debug, Default)]
pub(super) enum Suspicion {
    #[default]
    None,
    /// Lanes in hand come back, nothing is claimed.
    MakingRoom { since: Instant },
    /// One is in hand, alone.
    Alone { since: Instant },
    /// The others have their turn, for as long as that took.
    Resting { until: Instant },
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The others': claim as always.
    Others,
    /// That of a lane under suspicion, as soon as nothing else is in hand.
    Suspect,
}

impl Suspicion {
    /// Whose turn it is; `suspect_is_due` says whether a lane under suspicion waits.
    pub(super) fn turn(&mut self, suspect_is_due: bool, now: Instant) -> Turn {
        if let Self::Alone { since } = *self {
            // It has ended: else nobody had asked.
            *self = Self::Resting { until: now + now.duration_since(since) };
        }
        let rests = matches!(*self, Self::Resting { until } if now < until);
        if !suspect_is_due || rests {
            if !rests {
                *self = Self::None;
            }
            return Turn::Others;
        }
        if !matches!(self, Self::MakingRoom { .. }) {
            *self = Self::MakingRoom { since: now };
        }
        Turn::Suspect
    }

    /// A lane under suspicion is taken, with nothing else in hand.
    pub(super) fn begins(&mut self, now: Instant) {
        let since = if let Self::MakingRoom { since } = *self { since } else { now };
        *self = Self::Alone { since };
    }

    /// Whether one is in hand.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self, Self::Alone { .. })
    }
}
