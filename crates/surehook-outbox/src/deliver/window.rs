//! The window of one endpoint: how many requests this worker may have under way there. Pure; time enters as a value.
//!
//! It begins at a few requests and doubles with each round of answers while they come as fast as before. Silence halves
//! it. An endpoint that stays silent has its circuit opened: nothing goes out but a probe now and then, and the first
//! answer lets one request through, then two, then four: that is the ramp.
//!
//! Silence among answers says that the way loses requests, not that the receiver has too many. So it halves the window only
//! down to where it began, and only once in the time that it took to notice.

use std::time::{Duration, Instant};

/// This many silences one after another, and no success for [`DEAD_FOR`], open the circuit.
const SILENCES: u32 = 5;
/// See [`SILENCES`].
const DEAD_FOR: Duration = Duration::from_secs(15);
/// This many silences one after another open it at once: where half of the requests are lost that does not happen. Who says
/// that he is busy is there, so that does not count here.
const SILENCES_SURE: u32 = 50;
/// Waits between probes grow from the first to the second.
const PROBE_WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Answers are as fast as before if they take at most this many times the fastest of late, …
const SLOWER_THAN: u32 = 2;
/// … or no longer than this: below it, it is this machine that is slow.
const FAST_ENOUGH: Duration = Duration::from_millis(10);
/// After this long the fastest answer is measured anew.
const FASTEST_FOR: Duration = Duration::from_secs(10);

/// What one request brought, as far as the way to the receiver is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It arrived, and the answer took this long.
    Success(Duration),
    /// An answer that refuses: somebody is there.
    Answer,
    /// The receiver, or something before it, is busy or away, and said so after this long.
    Busy(Duration),
    /// No answer, for this long.
    Silence(Duration),
}

/// Whether anything goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Circuit {
    /// As much as the window allows.
    Closed,
    /// Nothing but probes.
    Open {
        /// Since when.
        since: Instant,
        /// The next probe is due then.
        probe_at: Instant,
        /// The wait after it.
        wait: Duration,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Window {
    limit: usize,
    start: usize,
    circuit: Circuit,
    silences_in_a_row: u32,
    last_success: Instant,
    halved_at: Option<Instant>,
    /// The fastest answer of late, and since when it is measured.
    fastest: Option<(Duration, Instant)>,
}

impl Window {
    /// A window that begins at `start` requests.
    pub(super) fn new(start: usize, now: Instant) -> Self {
        Self {
            limit: start.max(1),
            start: start.max(1),
            circuit: Circuit::Closed,
            silences_in_a_row: 0,
            last_success: now,
            halved_at: None,
            fastest: None,
        }
    }

    /// How many requests may be under way.
    pub(super) fn limit(&self, max: usize) -> usize {
        self.limit.min(max).max(1)
    }

    pub(super) fn circuit(&self) -> Circuit {
        self.circuit
    }

    pub(super) fn silences_in_a_row(&self) -> u32 {
        self.silences_in_a_row
    }

    /// How many requests may be begun beside those that are under way.
    pub(super) fn free(&self, under_way: usize, max: usize, now: Instant) -> usize {
        match self.circuit {
            Circuit::Closed => self.limit(max).saturating_sub(under_way),
            Circuit::Open { probe_at, .. } => usize::from(under_way == 0 && now >= probe_at),
        }
    }

    /// Learns from one request; `under_way` counts it.
    pub(super) fn heard(&mut self, heard: Heard, under_way: usize, now: Instant) {
        match heard {
            Heard::Busy(took) => self.silence(took, u32::MAX, now),
            Heard::Silence(took) => self.silence(took, SILENCES_SURE, now),
            Heard::Answer => {
                self.answered();
            }
            Heard::Success(took) => {
                self.last_success = now;
                let was_open = self.answered();
                // Room that is not used is no reason for more.
                if !was_open && under_way * 2 > self.limit && self.is_as_fast_as_before(took, now) {
                    self.limit += 1;
                }
            }
        }
    }

    /// Closes the circuit if it was open, and says whether it was.
    fn answered(&mut self) -> bool {
        self.silences_in_a_row = 0;
        let was_open = self.circuit != Circuit::Closed;
        if was_open {
            (self.circuit, self.limit, self.fastest) = (Circuit::Closed, 1, None);
        }
        was_open
    }

    /// So many in a row are `sure` to be the end.
    fn silence(&mut self, took: Duration, sure: u32, now: Instant) {
        self.silences_in_a_row = self.silences_in_a_row.saturating_add(1);
        if let Circuit::Open { since, probe_at, wait } = self.circuit {
            // What was under way when it opened says nothing new; the probe does.
            if now >= probe_at {
                let wait = (wait * 2).min(PROBE_WAIT.1);
                self.circuit = Circuit::Open { since, probe_at: now + wait, wait };
            }
            return;
        }
        let dead = self.silences_in_a_row >= SILENCES && now.duration_since(self.last_success) >= DEAD_FOR;
        if dead || self.silences_in_a_row >= sure {
            let wait = PROBE_WAIT.0;
            self.circuit = Circuit::Open { since: now, probe_at: now + wait, wait };
            return;
        }
        if self.halved_at.is_none_or(|at| now.duration_since(at) >= took) {
            let least = if self.silences_in_a_row < SILENCES { self.start.min(self.limit) } else { 1 };
            self.limit = (self.limit / 2).max(least);
            self.halved_at = Some(now);
        }
    }

    fn is_as_fast_as_before(&mut self, took: Duration, now: Instant) -> bool {
        let fastest = match self.fastest {
            Some((fastest, since)) if now.duration_since(since) < FASTEST_FOR => {
                self.fastest = Some((fastest.min(took), since));
                fastest.min(took)
            }
            _ => {
                self.fastest = Some((took, now));
                took
            }
        };
        took <= FAST_ENOUGH || took <= fastest * SLOWER_THAN
    }
}

#[cfg(test)]
#[path = "window_test.rs"]
mod tests;
