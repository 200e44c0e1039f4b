//! Drift: refs of a hosted repository that the scan found changed, and no push told of. What the scan finds is innocent where
//! a push of the same repository was being announced at that moment, comes to announce it a moment later, or could not
//! record it and left it to the scan; so each find is judged at the next turn. Knows no database and no disk.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use uuid::Uuid;

/// What the pushes to this server and the scan tell each other. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub(super) struct Drift(Arc<Mutex<HashMap<Uuid, Repository>>>);

#[derive(Debug, Default)]
struct Repository {
    /// Announces of pushes that are under way.
    announcing: usize,
    /// When the last of them ended.
    ended_at: Option<Instant>,
    /// One of them failed: what it should have told is told by whoever comes next.
    owes: bool,
    suspect: Option<Suspect>,
}

/// What a scan found.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    looked_at: Instant,
    events: usize,
}

/// An announce of a push, until it is dropped. Unless it says [`Announcing::done`], it failed.
#[derive(Debug)]
pub(super) struct Announcing {
    drift: Drift,
    repository_id: Uuid,
    is_done: bool,
}

impl Drift {
    /// A push begins to announce.
    pub(super) fn announcing(&self, repository_id: Uuid) -> Announcing {
        self.repositories().entry(repository_id).or_default().announcing += 1;
        Announcing { drift: self.clone(), repository_id, is_done: false }
    }

    /// A scan whose look at the repository began at `looked_at` has told this many events.
    pub(super) fn found(&self, repository_id: Uuid, looked_at: Instant, events: usize) {
        let mut repositories = self.repositories();
        let repository = repositories.entry(repository_id).or_default();
        if !std::mem::take(&mut repository.owes) {
            repository.suspect = Some(Suspect { looked_at, events });
        }
    }

    /// What the turn before found and no push has claimed since: repository and number of events.
    pub(super) fn judge(&self) -> Vec<(Uuid, usize)> {
        let mut guilty = Vec::new();
        let mut repositories = self.repositories();
        for (repository_id, repository) in repositories.iter_mut() {
            let Some(suspect) = repository.suspect.take() else { continue };
            if repository.announcing == 0 && repository.ended_at.is_none_or(|at| at < suspect.looked_at) {
                guilty.push((*repository_id, suspect.events));
            }
        }
        repositories.retain(|_, repository| repository.announcing > 0 || repository.owes);
        guilty
    }

    fn repositories(&self) -> MutexGuard<'_, HashMap<Uuid, Repository>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Announcing {
    /// Everything that the push moved is recorded.
    pub(super) fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Announcing {
    fn drop(&mut self) {
        let mut repositories = self.drift.repositories();
        let repository = repositories.entry(self.repository_id).or_default();
        repository.announcing = repository.announcing.saturating_sub(1);
        repository.ended_at = Some(Instant::now());
        repository.owes = !self.is_done;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_no_push_claims_is_drift() {
        let (drift, id) = (Drift::default(), Uuid::nil());
        drift.found(id, Instant::now(), 2);
        assert_eq!(drift.judge(), [(id, 2)]);
        assert_eq!(drift.judge(), []);

        // The push announces while the scan does, or a moment later.
        let push = drift.announcing(id);
        drift.found(id, Instant::now(), 1);
        push.done();
        assert_eq!(drift.judge(), []);
        drift.found(id, Instant::now(), 1);
        drift.announcing(id).done();
        assert_eq!(drift.judge(), []);

        // It could not: once, the scan does it for it.
        drop(drift.announcing(id));
        assert_eq!(drift.judge(), []);
        drift.found(id, Instant::now(), 1);
        assert_eq!(drift.judge(), []);
        drift.found(id, Instant::now(), 1);
        assert_eq!(drift.judge(), [(id, 1)]);

        // A push before the look says nothing about what is found afterwards.
        drift.announcing(id).done();
        drift.found(id, Instant::now(), 1);
        assert_eq!(drift.judge(), [(id, 1)]);
    }
}
