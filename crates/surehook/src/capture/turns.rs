//! One announce at a time per repository and process. Calls that come while one runs share the next one, and each caller gets
//! the outcome of an announce that began after its call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

/// The turns of all repositories; `Hint` is what a call brings along, `Outcome` what it gets.
pub struct Turns<Hint, Outcome> {
    slots: Mutex<HashMap<Uuid, Arc<Slot<Hint, Outcome>>>>,
}

struct Slot<Hint, Outcome> {
    /// Held while an announce runs; what it left, and up to which call it counts.
    last: tokio::sync::Mutex<Option<(u64, Outcome)>>,
    waiting: Mutex<Waiting<Hint>>,
}

struct Waiting<Hint> {
    calls: u64,
    hints: Vec<(u64, Hint)>,
}

impl<Hint, Outcome> Default for Turns<Hint, Outcome> {
    fn default() -> Self {
        Self { slots: Mutex::default() }
    }
}

impl<Hint: Clone, Outcome: Clone> Turns<Hint, Outcome> {
    /// Runs `work` with the hints of all calls that wait, or waits for a run that began after this call. When the caller goes
    /// away during a run, the hints are kept for the next.
    pub async fn take<Run: Future<Output = Outcome>>(
        &self,
        repository_id: Uuid,
        hint: Hint,
        work: impl FnOnce(Vec<Hint>) -> Run,
    ) -> Outcome {
        let slot = self.slot(repository_id);
        let call = slot.waiting(|waiting| {
            waiting.calls += 1;
            waiting.hints.push((waiting.calls, hint));
            waiting.calls
        });
        let mut last = slot.last.lock().await;
        if let Some((covered, outcome)) = &*last
            && *covered >= call
        {
            return outcome.clone();
        }
        let (covers, hints) =
            slot.waiting(|waiting| (waiting.calls, waiting.hints.iter().map(|(_, hint)| hint.clone()).collect()));
        let outcome = work(hints).await;
        slot.waiting(|waiting| waiting.hints.retain(|(call, _)| *call > covers));
        *last = Some((covers, outcome.clone()));
        outcome
    }

    fn slot(&self, repository_id: Uuid) -> Arc<Slot<Hint, Outcome>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Slot {
            last: tokio::sync::Mutex::new(None),
            waiting: Mutex::new(Waiting { calls: 0, hints: Vec::new() }),
        };
        Arc::clone(slots.entry(repository_id).or_insert_with(|| Arc::new(new())))
    }
}

impl<Hint, Outcome> Slot<Hint, Outcome> {
    fn waiting<T>(&self, change: impl FnOnce(&mut Waiting<Hint>) -> T) -> T {
        change(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn calls_during_a_run_share_the_next_one() {
        let turns: Turns<usize, usize> = Turns::default();
        let runs = AtomicUsize::new(0);
        let gate = tokio::sync::Notify::new();
        let work = |hints: Vec<usize>| {
            let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
            let gate = &gate;
            async move {
                if run == 1 {
                    gate.notified().await;
                    assert_eq!(hints, [0]);
                } else {
                    assert_eq!(hints, [1, 2, 3]);
                }
                run
            }
        };
        let id = Uuid::nil();
        let later = async {
            tokio::task::yield_now().await;
            let three =
                futures_util::future::join3(turns.take(id, 1, work), turns.take(id, 2, work), turns.take(id, 3, work));
            let open = async {
                tokio::task::yield_now().await;
                gate.notify_one();
            };
            futures_util::future::join(three, open).await.0
        };
        let (first, others) = futures_util::future::join(turns.take(id, 0, work), later).await;
        assert_eq!((first, others), (1, (2, 2, 2)));
    }

    #[tokio::test]
    async fn a_call_that_is_given_up_leaves_its_hints() {
        let turns: Turns<usize, Vec<usize>> = Turns::default();
        {
            let given_up = turns.take(Uuid::nil(), 1, |_| std::future::pending());
            futures_util::pin_mut!(given_up);
            assert!(futures_util::poll!(given_up.as_mut()).is_pending());
        }
        assert_eq!(turns.take(Uuid::nil(), 2, async |hints| hints).await, [1, 2]);
    }
}
