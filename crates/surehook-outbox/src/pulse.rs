//! The pulse of a process: when each of its loops last came round. A loop that hangs cannot say so itself; whoever watches
//! it can see it here. May read the monotonic clock, and touches nothing else.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The pulses of all loops of a process. Cloning shares them.
#[derive(Clone, Debug)]
pub struct Pulse {
    since: Instant,
    loops: Arc<Mutex<Vec<Beat>>>,
}

/// The pulse of one loop: the loop beats, others look. Cloning shares it, so that a loop that is started anew goes on with it.
#[derive(Clone, Debug)]
pub struct Beat {
    name: &'static str,
    since: Instant,
    /// Milliseconds after `since`; [`RESTS`] while the loop waits for something that may not come for long.
    at_ms: Arc<AtomicU64>,
}

const RESTS: u64 = u64::MAX;

/// How long ago a loop came round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// The loop.
    pub name: &'static str,
    /// How long ago; zero while it rests.
    pub age: Duration,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { since: Instant::now(), loops: Arc::default() }
    }
}

impl Pulse {
    /// A loop that rests until its first beat. Of loops with the same name the one that is furthest behind is shown.
    pub fn of(&self, name: &'static str) -> Beat {
        let beat = Beat { name, since: self.since, at_ms: Arc::new(AtomicU64::new(RESTS)) };
        self.loops().push(beat.clone());
        beat
    }

    /// Every loop, in the order of their names.
    pub fn ages(&self) -> Vec<Age> {
        let mut ages: Vec<Age> = self.loops().iter().map(Beat::age).collect();
        ages.sort_by_key(|age| (age.name, std::cmp::Reverse(age.age)));
        ages.dedup_by_key(|age| age.name);
        ages
    }

    fn loops(&self) -> MutexGuard<'_, Vec<Beat>> {
        self.loops.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Beat {
    /// The loop comes round and has something to do: it will beat or rest again soon.
    pub fn beat(&self) {
        let ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(RESTS - 1);
        self.at_ms.store(ms, Ordering::Relaxed);
    }

    /// The loop waits for something that may not come for long, or has come to its end as it should.
    pub fn rest(&self) {
        self.at_ms.store(RESTS, Ordering::Relaxed);
    }

    /// How long ago it last came round.
    pub fn age(&self) -> Age {
        let age = match self.at_ms.load(Ordering::Relaxed) {
            RESTS => Duration::ZERO,
            ms => self.since.elapsed().saturating_sub(Duration::from_millis(ms)),
        };
        Age { name: self.name, age }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_that_is_furthest_behind_is_shown() {
        let pulse =
            Pulse { since: Instant::now().checked_sub(Duration::from_secs(60)).unwrap(), loops: Arc::default() };
        let (slow, fast, idle) = (pulse.of("claims"), pulse.of("claims"), pulse.of("recorder"));
        slow.at_ms.store(0, Ordering::Relaxed);
        fast.beat();
        let ages = pulse.ages();
        assert_eq!(ages.iter().map(|age| age.name).collect::<Vec<_>>(), ["claims", "recorder"]);
        assert!(ages[0].age >= Duration::from_secs(60), "{ages:?}");
        assert_eq!(ages[1].age, Duration::ZERO);
        slow.rest();
        idle.beat();
        assert!(pulse.ages().iter().all(|age| age.age < Duration::from_secs(30)));
    }
}
