//! The fence: a worker whom others may hold for dead sends nothing new and claims nothing. May read the monotonic clock.
//!
//! Others declare a worker dead no sooner than [`HELD_FOR_ALIVE`] after they first saw its counter where it stands. So for
//! that long after a beat was *sent*, if it was acknowledged, nobody has. It needs no look at the database, and holds for a
//! process that stood still: the first thing that it asks when it goes on is the clock.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The least time between two reads of a counter that are compared.
pub(super) const HELD_FOR_ALIVE: Duration = Duration::from_secs(3);

/// From one time that this worker was declared dead to the next. What was claimed in an earlier one belongs to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life(u64);

#[derive(Debug, Default)]
pub(super) struct Fence(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    count: i64,
    life: u64,
    open_until: Option<Instant>,
}

/// What a beat brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beaten {
    /// The fence was open and stays open.
    Open,
    /// It is open again, or for the first time.
    Opened,
    /// It is open again, but meanwhile others took over what this worker held.
    WasDeclaredDead,
}

impl Fence {
    /// The present life; None while others may hold this worker for dead.
    pub(super) fn life(&self) -> Option<Life> {
        let state = self.state();
        state.open_until.filter(|until| Instant::now() < *until).map(|_| Life(state.life))
    }

    /// Notes an acknowledged beat: when it was sent, and where the counter stands.
    pub(super) fn beaten(&self, sent: Instant, count: i64) -> Beaten {
        let mut state = self.state();
        let was_open = state.open_until.is_some_and(|until| Instant::now() < until);
        let was_declared_dead = count <= state.count;
        state.count = count;
        state.open_until = Some(sent + HELD_FOR_ALIVE);
        if was_declared_dead {
            state.life += 1;
            return Beaten::WasDeclaredDead;
        }
        if was_open { Beaten::Open } else { Beaten::Opened }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_with_a_beat_lapses_without_and_a_new_life_is_another() {
        let fence = Fence::default();
        assert_eq!(fence.life(), None);
        let now = Instant::now();
        assert_eq!(fence.beaten(now, 1), Beaten::Opened);
        let first = fence.life();
        assert!(first.is_some());
        assert_eq!(fence.beaten(now, 2), Beaten::Open);
        assert_eq!(fence.life(), first);
        // Acknowledged, but sent too long ago to tell anything of now.
        let long_ago = now.checked_sub(HELD_FOR_ALIVE).unwrap();
        assert_eq!(fence.beaten(long_ago, 3), Beaten::Open);
        assert_eq!(fence.life(), None);
        // An answer that was lost leaves a gap, which is no death.
        assert_eq!(fence.beaten(now, 5), Beaten::Opened);
        assert_eq!(fence.life(), first);
        assert_eq!(fence.beaten(now, 1), Beaten::WasDeclaredDead);
        assert!(fence.life().is_some() && fence.life() != first);
    }
}
