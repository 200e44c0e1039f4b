//! Takes queued builds, starts their runners and records how they ended. Knows the database through `store::inbox`, and
//! runners through their folder's lock.
//!
//! A build is followed from its lock alone, so it does not matter who started its runner: after a restart the receiver
//! follows those that it finds. Lock held: wait. Free, with a result: record it. Free, without: start it again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use surehook_outbox::crash::point;
use surehook_outbox::store::DatabaseError;
use tokio::process::Child;
use tokio::task::JoinSet;

use super::Shared;
use super::folder::{BuildFolder, Locking, RunResult};
use super::push::Push;
use super::runner;
use crate::store::inbox::{self, Changed, Exit, Outcome, RunningBuild};

/// A build whose runner vanished this often is lost: perhaps it is what kills them.
const ATTEMPTS_MAX: i32 = 5;
/// The queue is looked at that often even if nobody rings.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the lock of a runner is looked at that is not our child.
const LOCK_LOOK_EVERY: Duration = Duration::from_millis(100);
/// Between two tries at what the machine or the database refused.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest time that one statement may take.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs until shutdown; then returns at once and leaves the runners running.
pub(super) async fn supervise(shared: Arc<Shared>) {
    let mut followed = HashSet::new();
    let mut tasks: JoinSet<i64> = JoinSet::new();
    let mut adoption_due = true;
    while !shared.shutdown.is_cancelled() {
        // Registered before the look, so that a build that is queued during it is not slept over.
        let queued = shared.queued.notified();
        if adoption_due {
            adoption_due = adopt(&shared, &mut followed, &mut tasks).await.is_err();
        }
        while !adoption_due && tasks.len() < shared.jobs && !shared.shutdown.is_cancelled() {
            match claim(&shared).await {
                Claim::Taken(build) => {
                    point("run.taken");
                    followed.insert(build.build_id);
                    tasks.spawn(follow(Arc::clone(&shared), build, Begin::Start));
                }
                Claim::NothingToTake => break,
                // A build may have been taken, and the answer was lost on its way.
                Claim::Unknown => adoption_due = true,
            }
        }
        tokio::select! {
            () = shared.shutdown.cancelled() => {}
            () = queued => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
            Some(ended) = tasks.join_next() => match ended {
                Ok(build_id) => {
                    followed.remove(&build_id);
                }
                Err(error) => {
                    // Which build it was is not known: whatever runs and is not followed any more is taken up again.
                    tracing::error!(%error, "the follower of a build broke down; it is followed anew");
                    tasks.abort_all();
                    while tasks.join_next().await.is_some() {}
                    followed.clear();
                    adoption_due = true;
                }
            },
        }
    }
    while tasks.join_next().await.is_some() {}
}

async fn adopt(
    shared: &Arc<Shared>,
    followed: &mut HashSet<i64>,
    tasks: &mut JoinSet<i64>,
) -> Result<(), DatabaseError> {
    let look = tokio::time::timeout(STATEMENT_TIMEOUT, inbox::running(&shared.database, shared.receiver_id));
    let builds = match look.await {
        Ok(Ok(builds)) => builds,
        Ok(Err(error)) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "running builds cannot be looked up yet");
            return Err(error);
        }
        Err(_) => return Err(DatabaseError::Unsuitable("the database does not answer".into())),
    };
    for build in builds {
        if followed.insert(build.build_id) {
            tracing::info!(build_id = build.build_id, attempt = build.attempt, "taking up a running build");
            tasks.spawn(follow(Arc::clone(shared), build, Begin::Adopt));
        }
    }
    Ok(())
}

enum Claim {
    Taken(RunningBuild),
    NothingToTake,
    Unknown,
}

async fn claim(shared: &Shared) -> Claim {
    let claim = inbox::claim(&shared.database, shared.receiver_id, &shared.builds);
    match tokio::time::timeout(STATEMENT_TIMEOUT, claim).await {
        Ok(Ok(Some(build))) => Claim::Taken(build),
        Ok(Ok(None)) => Claim::NothingToTake,
        Ok(Err(error)) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "no build can be taken now");
            Claim::Unknown
        }
        Err(_) => {
            tracing::warn!("the database does not answer");
            Claim::Unknown
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// Claimed just now: no runner was started yet.
    Start,
    /// A runner may be there.
    Adopt,
}

/// Sees one build through to its end; gives its number back. Returns early at shutdown.
async fn follow(shared: Arc<Shared>, mut build: RunningBuild, begin: Begin) -> i64 {
    let folder = BuildFolder::new(shared.builds.join(build.build_id.to_string()));
    let mut child = None;
    let mut start = begin == Begin::Start;
    while let Some(lock) = wait_for_lock(&shared, &folder, child.take()).await {
        if !start {
            match folder.read_result(build.run_key) {
                Ok(Some((result, ended_ago))) => {
                    point("run.result_found");
                    record_end(&shared, &build, result, ended_ago).await;
                    break;
                }
                Ok(None) => match count_vanished(&shared, &mut build).await {
                    Next::Start => start = true,
                    Next::Leave => break,
                },
                Err(error) => {
                    tracing::warn!(build_id = build.build_id, %error, "the result of a build cannot be read now");
                    pause(&shared, PAUSE).await;
                    continue;
                }
            }
        }
        match start_runner(&shared, &build, &folder, lock).await {
            Ok(started) => {
                tracing::info!(build_id = build.build_id, attempt = build.attempt, "build started");
                point("run.started");
                child = Some(started);
                start = false;
            }
            Err(error) => {
                tracing::error!(build_id = build.build_id, %error, "a build cannot be started; it is tried again");
                pause(&shared, PAUSE).await;
            }
        }
    }
    build.build_id
}

/// Waits until no runner lives, and takes its lock. None: shutdown came first.
async fn wait_for_lock(shared: &Shared, folder: &BuildFolder, child: Option<Child>) -> Option<std::fs::File> {
    if let Some(mut child) = child {
        tokio::select! {
            _ = child.wait() => {}
            () = shared.shutdown.cancelled() => return None,
        }
    }
    while !shared.shutdown.is_cancelled() {
        match folder.lock() {
            Ok(Locking::Held(lock)) => return Some(lock),
            Ok(Locking::HeldByOther) => pause(shared, LOCK_LOOK_EVERY).await,
            Err(error) => {
                tracing::error!(folder = %folder.path().display(), %error, "the folder of a build cannot be locked");
                pause(shared, PAUSE).await;
            }
        }
    }
    None
}

async fn start_runner(
    shared: &Arc<Shared>,
    build: &RunningBuild,
    folder: &BuildFolder,
    lock: std::fs::File,
) -> std::io::Result<Child> {
    let mut environment = match Push::parse(&build.payload) {
        Ok(push) => push.environment(),
        // It could be parsed when it was recorded, so another version of this program recorded it.
        Err(error) => {
            tracing::error!(build_id = build.build_id, %error, "the variables of a build cannot be derived");
            Vec::new()
        }
    };
    environment.extend([
        ("SUREHOOK_WEBHOOK_ID", build.webhook_id.clone().into()),
        ("SUREHOOK_BUILD", build.build_id.to_string().into()),
        ("SUREHOOK_BUILD_FOLDER", folder.path().into()),
        ("SUREHOOK_ATTEMPT", build.attempt.to_string().into()),
    ]);
    let (shared, build, folder) = (Arc::clone(shared), build.clone(), folder.clone());
    let started = tokio::task::spawn_blocking(move || {
        let start = runner::Start {
            folder: &folder,
            run_key: build.run_key,
            attempt: build.attempt,
            payload: &build.payload,
            environment,
            exec: &shared.exec,
            timeout: shared.timeout,
            log_bytes_max: shared.log_bytes_max,
        };
        runner::start(&shared.runner, start, lock)
    });
    started.await.map_err(std::io::Error::other)?
}

enum Next {
    Start,
    Leave,
}

/// The runner is gone and has left nothing: the build starts again, unless that has happened too often.
async fn count_vanished(shared: &Shared, build: &mut RunningBuild) -> Next {
    if build.attempt >= ATTEMPTS_MAX {
        tracing::error!(build_id = build.build_id, "build lost: its runner vanished {ATTEMPTS_MAX} times");
        let note = format!("its runner vanished without a result {ATTEMPTS_MAX} times; it is not run again");
        until_done(shared, || inbox::lose(&shared.database, build.build_id, &note)).await;
        return Next::Leave;
    }
    // Longer from start to start, so that what ends the runners has time to pass.
    pause(shared, PAUSE * (1 << (build.attempt - 1).clamp(0, 4))).await;
    let attempt = build.attempt + 1;
    tracing::warn!(build_id = build.build_id, attempt, "the runner of a build vanished; it is run again");
    match until_done(shared, || inbox::run_again(&shared.database, build.build_id, attempt)).await {
        Some(Changed::Done) => {
            build.attempt = attempt;
            Next::Start
        }
        Some(Changed::NotRunning) | None => Next::Leave,
    }
}

async fn record_end(shared: &Shared, build: &RunningBuild, result: RunResult, ended_ago: Duration) {
    let exit = match (result.exit_code, result.exit_signal) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal(signal.unwrap_or_default()),
    };
    tracing::info!(
        build_id = build.build_id,
        exit_code = result.exit_code,
        exit_signal = result.exit_signal,
        duration_ms = result.duration_ms,
        "build finished"
    );
    let outcome = Outcome {
        exit,
        timed_out: result.timed_out,
        duration: Duration::from_millis(result.duration_ms),
        ended_ago,
        note: result.note,
    };
    until_done(shared, || inbox::finish(&shared.database, build.build_id, &outcome)).await;
    point("run.recorded");
}

/// Repeats a statement until the database has taken it. None: shutdown came first; the next start finds the same.
async fn until_done<T, F>(shared: &Shared, mut statement: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = Result<T, DatabaseError>>,
{
    while !shared.shutdown.is_cancelled() {
        match tokio::time::timeout(STATEMENT_TIMEOUT, statement()).await {
            Ok(Ok(done)) => return Some(done),
            Ok(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "a build cannot be recorded yet");
            }
            Err(_) => tracing::warn!("the database does not answer"),
        }
        pause(shared, PAUSE).await;
    }
    None
}

async fn pause(shared: &Shared, duration: Duration) {
    tokio::select! {
        () = tokio::time::sleep(duration) => {}
        () = shared.shutdown.cancelled() => {}
    }
}
