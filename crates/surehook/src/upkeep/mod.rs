//! The upkeep of hosted repositories, which git itself is told not to do: what killed gits left is removed, refs and
//! objects are packed, what nothing reaches any more goes, and so do old lines of logs.
//!
//! One repository at a time, under its exclusive lock, so never during a push; a push that comes is given way to. Each step
//! may be killed at any moment: git writes packs and refs beside the old ones first. Imported repositories are not touched.

mod give_way;
mod plan;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use surehook_outbox::store::operate::database_time;
use surehook_outbox::{Database, DatabaseError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::capture::folder;
use crate::capture::trim::{self, Told, Trimmed};
use crate::config::file::UpkeepConfig;
use crate::git::command::{Git, GitError, GitUpkeep};
use crate::git::lock::{self, Locked};
use crate::git::stale;
use crate::store::announce::read_refs;
use crate::store::repositories::{self, Origin, Repository, RepositoryState};
pub use give_way::GiveWay;
pub use plan::{STAMP_FILE, Task};

/// How a piece of upkeep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It is done.
    Done,
    /// A push came; it is tried again at the next turn.
    GaveWay,
    /// It failed; it is tried again at the next turn.
    Failed,
}

impl Ended {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Done, Self::GaveWay, Self::Failed];

    /// Its name in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::GaveWay => "gave_way",
            Self::Failed => "failed",
        }
    }
}

/// Is told of each piece of upkeep.
pub type Observer = Arc<dyn Fn(Task, Ended) + Send + Sync>;

/// The upkeep of one storage.
pub struct Upkeep {
    /// Says what there is.
    pub database: Database,
    /// The storage.
    pub storage_id: Uuid,
    /// Where it lies.
    pub storage_root: PathBuf,
    /// Does the packing.
    pub git: Git,
    /// The thresholds.
    pub config: UpkeepConfig,
    /// Through which pushes ask it to leave.
    pub give_way: GiveWay,
    /// Is told of each piece of upkeep.
    pub observer: Observer,
}

/// Why a piece of upkeep failed.
#[derive(Debug, thiserror::Error)]
enum UpkeepError {
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Disk(#[from] io::Error),
}

impl Upkeep {
    /// Keeps them up until stopped: at once, and then at intervals.
    pub async fn run(&self, every: Duration, stop: CancellationToken) {
        loop {
            tokio::select! {
                outcome = self.turn() => if let Err(error) = outcome {
                    tracing::warn!(error = &error as &dyn std::error::Error, "upkeep could not begin; it runs again");
                },
                // What it is about may be abandoned at any moment.
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
        let (id, looked) = (repository.repository_id, git_dir.clone());
        // Nothing is touched of a repository that lies in its place. Announce says what is wrong with it.
        let is_itself = tokio::task::spawn_blocking(move || folder::open(&looked, id).is_ok()).await;
        if !is_itself.unwrap_or(false) {
            return;
        }
        if let Err(error) = stale::clean(&git_dir).await {
            tracing::warn!(repository = %repository.name, %error, "what killed gits left could not be removed");
        }
        let counted = git_dir.clone();
        let tasks = match blocking(move || plan::count(&counted)).await {
            Ok(counts) => plan::plan(&counts, &self.config),
            Err(error) => {
                tracing::warn!(repository = %repository.name, %error, "what it needs could not be counted");
                return;
            }
        };
        if tasks.is_empty() {
            return;
        }
        match lock::exclusive_now(&git_dir) {
            Ok(Locked::Held(alone)) => self.work(repository, &git_dir, &tasks, &alone).await,
            // A push is under way: at the next turn, then.
            Ok(Locked::Busy) => {}
            Err(error) => tracing::warn!(repository = %repository.name, %error, "it could not be locked for upkeep"),
        }
    }

    async fn work(&self, repository: &Repository, git_dir: &Path, tasks: &[Task], alone: &OwnedFd) {
        let working = self.give_way.begin(repository.repository_id);
        if let Err(error) = stale::clean_temporary(git_dir, alone) {
            tracing::warn!(repository = %repository.name, %error, "what killed gits left could not be removed");
        }
        for task in tasks {
            let begun = Instant::now();
            let outcome = self.task(repository, git_dir, *task, working.asked()).await;
            let ended = match &outcome {
                Ok(ended) => *ended,
                Err(_) => Ended::Failed,
            };
            (self.observer)(*task, ended);
            let (name, task) = (&repository.name, task.as_str());
            let duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            match outcome {
                Ok(Ended::Done) => tracing::info!(repository = %name, task, duration_ms, "upkeep done"),
                Ok(_) => {
                    tracing::info!(repository = %name, task, duration_ms, "upkeep gave way to a push");
                    return;
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(repository = %name, task, duration_ms, error, "upkeep failed; it runs again");
                    return;
                }
            }
        }
    }

    async fn task(
        &self,
        repository: &Repository,
        git_dir: &Path,
        task: Task,
        asked: &CancellationToken,
    ) -> Result<Ended, UpkeepError> {
        let unreachable_days = self.config.unreachable_days;
        let commands = match task {
            Task::TrimLogs => return self.trim_logs(repository, git_dir, asked).await,
            Task::PackRefs => &[GitUpkeep::PackRefs][..],
            Task::Repack => &[GitUpkeep::Repack],
            Task::RepackAll => &[GitUpkeep::RepackAll { unreachable_days }, GitUpkeep::Prune { unreachable_days }],
        };
        for command in commands {
            if !self.git.keep_up(git_dir, *command, asked).await? {
                return Ok(Ended::GaveWay);
            }
        }
        if task == Task::RepackAll {
            let git_dir = git_dir.to_path_buf();
            blocking(move || plan::set_stamp(&git_dir)).await?;
        }
        Ok(Ended::Done)
    }

    async fn trim_logs(
        &self,
        repository: &Repository,
        git_dir: &Path,
        asked: &CancellationToken,
    ) -> Result<Ended, UpkeepError> {
        let older_than_s =
            database_time(&self.database).await?.as_second() - i64::from(self.config.log_days) * 24 * 60 * 60;
        let session = self.database.session().await?;
        let rows = read_refs(&session, repository.repository_id).await?;
        drop(session);
        let kind = if repository.object_format == "sha256" { gix::hash::Kind::Sha256 } else { gix::hash::Kind::Sha1 };
        let (git_dir, asked) = (git_dir.to_path_buf(), asked.clone());
        let (bytes, ended) = blocking(move || {
            let told = rows
                .iter()
                .filter(|(_, row)| !row.cursor.value.is_null())
                .filter_map(|(name, row)| Some((name.as_slice(), Told::Before(row.cursor.place?))));
            let mut bytes = 0;
            for (name, told) in told.chain([(b"HEAD".as_slice(), Told::All)]) {
                if asked.is_cancelled() {
                    return Ok((bytes, Ended::GaveWay));
                }
                if let Trimmed::Bytes(gone) = trim::trim(&git_dir, name, told, older_than_s, kind)? {
                    bytes += gone;
                }
            }
            Ok((bytes, Ended::Done))
        })
        .await?;
        if bytes > 0 {
            tracing::info!(repository = %repository.name, bytes, "old lines of logs are gone");
        }
        Ok(ended)
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
