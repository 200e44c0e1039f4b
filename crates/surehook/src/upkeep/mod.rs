//! The upkeep of hosted repositories, which git itself is told not to do: what killed gits left is removed.
//! One repository at a time; imported ones are not touched.

use std::path::PathBuf;
use std::time::Duration;

use surehook_outbox::{Database, DatabaseError};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::capture::folder;
use crate::git::stale;
use crate::store::repositories::{self, Origin, Repository, RepositoryState};

/// The upkeep of one storage.
pub struct Upkeep {
    database: Database,
    storage_id: Uuid,
    storage_root: PathBuf,
}

impl Upkeep {
    /// Of the storage at `storage_root`.
    pub fn new(database: Database, storage_id: Uuid, storage_root: PathBuf) -> Self {
        Self { database, storage_id, storage_root }
    }

    /// Keeps them up until stopped: at once, and then at intervals.
    pub async fn run(self, every: Duration, stop: CancellationToken) {
        loop {
            tokio::select! {
                outcome = self.turn() => if let Err(error) = outcome {
                    tracing::warn!(error = &error as &dyn std::error::Error, "upkeep could not begin; it runs again");
                },
                // Nothing of it is left half done by being abandoned.
                () = stop.cancelled() => return,
            }
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Looks at each repository once. Err: they could not be listed.
    pub async fn turn(&self) -> Result<(), DatabaseError> {
        for repository in repositories::list_of_storage(&self.database, self.storage_id).await? {
            if repository.origin == Origin::Hosted && repository.state == RepositoryState::Active {
                self.keep_up(&repository).await;
            }
        }
        Ok(())
    }

    async fn keep_up(&self, repository: &Repository) {
        let git_dir = repository.git_dir(&self.storage_root);
        // Nothing is touched of a repository that lies in its place. Announce says what is wrong with it.
        if folder::open(&git_dir, repository.repository_id).is_err() {
            return;
        }
        if let Err(error) = stale::clean(&git_dir).await {
            tracing::warn!(repository = %repository.name, %error, "what killed gits left could not be removed");
        }
    }
}
