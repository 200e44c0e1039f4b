//! The table `inbox_builds`: deliveries that the receiver believed, and the builds that they start.
#![expect(clippy::disallowed_methods, reason = "this is a door for SQL")]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use surehook_outbox::store::migrate::Migration;
use surehook_outbox::store::{Database, DatabaseError};
use surehook_webhook::BodyHash;
use tokio_postgres::Row;
use uuid::Uuid;

/// The schema of the receiver, in a database of its own.
pub const INBOX: &[Migration] =
    &[Migration { name: "20261202_inbox", sql: include_str!("../../migrations/20261202_inbox.sql") }];

/// A delivery that was believed, as it is recorded. Texts must not contain NUL.
#[derive(Clone, Copy, Debug)]
pub struct NewBuild<'d> {
    /// The idempotency key.
    pub webhook_id: &'d str,
    /// SHA-256 of `payload`.
    pub body_hash: &'d BodyHash,
    /// The body as it came.
    pub payload: &'d [u8],
    /// The event that it tells of.
    pub event_id: Option<&'d str>,
    /// Builds with the same key run one after another.
    pub repository_key: &'d str,
    /// The name of the repository.
    pub repository: Option<&'d str>,
    /// The ref that moved.
    pub ref_name: &'d str,
    /// Object id before, in lower-case hex.
    pub before: &'d str,
    /// Object id after, in lower-case hex.
    pub after: &'d str,
    /// The head commit.
    pub commit: Option<&'d str>,
}

/// What became of [`record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The first delivery of this id: its build is queued.
    New {
        /// The number of the build.
        build_id: i64,
    },
    /// The id came before; nothing was changed.
    Seen {
        /// The build that it started then.
        build_id: i64,
        /// Whether the bytes are the same.
        same_body: bool,
    },
}

/// Records a delivery and queues its build, in one statement. Ok: committed, and of any number of concurrent calls with
/// one id exactly one got `New`. Err: nothing is recorded, unless the answer of the database was lost; may be repeated.
pub async fn record(database: &Database, build: &NewBuild<'_>) -> Result<Recorded, DatabaseError> {
    let session = database.session().await?;
    loop {
        // The look before the insert keeps repeats from using up numbers; the insert decides.
        let inserted = session
            .query_opt(
                "INSERT INTO inbox_builds (webhook_id, body_hash, payload, event_id, repository_key, repository, ref, before_sha, after_sha, commit_sha)
                 SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10
                  WHERE NOT EXISTS (SELECT 1 FROM inbox_builds WHERE webhook_id = $1)
                 ON CONFLICT (webhook_id) DO NOTHING
                 RETURNING build_id",
                &[
                    &build.webhook_id, &build.body_hash.as_slice(), &build.payload, &build.event_id, &build.repository_key,
                    &build.repository, &build.ref_name, &build.before, &build.after, &build.commit,
                ],
            )
            .await?;
        if let Some(row) = inserted {
            return Ok(Recorded::New { build_id: row.get(0) });
        }
        let seen = session
            .query_opt(
                "SELECT build_id, body_hash = $2 FROM inbox_builds WHERE webhook_id = $1",
                &[&build.webhook_id, &build.body_hash.as_slice()],
            )
            .await?;
        // No row: somebody removed it just now, so this delivery is the first again.
        if let Some(row) = seen {
            return Ok(Recorded::Seen { build_id: row.get(0), same_body: row.get(1) });
        }
    }
}

/// A build that a receiver runs.
#[derive(Clone, Debug)]
pub struct RunningBuild {
    /// Its number.
    pub build_id: i64,
    /// What its processes and its result are known by.
    pub run_key: Uuid,
    /// Which start this is, from 1.
    pub attempt: i32,
    /// The idempotency key of its delivery.
    pub webhook_id: String,
    /// The body of its delivery.
    pub payload: Vec<u8>,
}

impl RunningBuild {
    fn read(row: &Row) -> Self {
        Self {
            build_id: row.get(0),
            run_key: row.get(1),
            attempt: row.get(2),
            webhook_id: row.get(3),
            payload: row.get(4),
        }
    }
}

/// Takes the oldest queued build whose repository has none before it and none running. `builds` is the absolute path of
/// the folder in which the receiver keeps the folders of its builds. Ok(None): there is none to take now.
pub async fn claim(
    database: &Database,
    receiver_id: Uuid,
    builds: &Path,
) -> Result<Option<RunningBuild>, DatabaseError> {
    let session = database.session().await?;
    let folder = builds.join("").into_os_string().into_vec();
    let row = session.query_opt(CLAIM, &[&receiver_id, &folder]).await?;
    Ok(row.as_ref().map(RunningBuild::read))
}

/// The heads are found by hopping over the index from one repository to the next, so a long queue of one repository
/// costs nothing.
const CLAIM: &str = "
    WITH RECURSIVE heads AS (
        (SELECT repository_key, build_id, state FROM inbox_builds
          WHERE state IN ('queued', 'running') ORDER BY repository_key, build_id LIMIT 1)
        UNION ALL
        SELECT following.* FROM heads CROSS JOIN LATERAL (
            SELECT b.repository_key, b.build_id, b.state FROM inbox_builds AS b
             WHERE b.state IN ('queued', 'running') AND b.repository_key > heads.repository_key
             ORDER BY b.repository_key, b.build_id LIMIT 1) AS following
    ),
    taken AS MATERIALIZED (
        SELECT b.build_id FROM heads JOIN inbox_builds AS b ON b.build_id = heads.build_id
         WHERE heads.state = 'queued' AND b.state = 'queued'
           AND NOT EXISTS (SELECT 1 FROM inbox_builds AS other
                            WHERE other.repository_key = heads.repository_key AND other.state = 'running')
         ORDER BY b.build_id LIMIT 1 FOR UPDATE OF b SKIP LOCKED
    )
    UPDATE inbox_builds AS b
       SET state = 'running', attempt = 1, receiver_id = $1, folder = $2::bytea || convert_to(b.build_id::text, 'UTF8'), started_at = now()
      FROM taken WHERE b.build_id = taken.build_id
    RETURNING b.build_id, b.run_key, b.attempt, b.webhook_id, b.payload";

/// The builds that this receiver has claimed and not recorded as ended, oldest first.
pub async fn running(database: &Database, receiver_id: Uuid) -> Result<Vec<RunningBuild>, DatabaseError> {
    let session = database.session().await?;
    let rows = session
        .query(
            "SELECT build_id, run_key, attempt, webhook_id, payload FROM inbox_builds
              WHERE state = 'running' AND receiver_id = $1 ORDER BY build_id",
            &[&receiver_id],
        )
        .await?;
    Ok(rows.iter().map(RunningBuild::read).collect())
}

/// What became of a change to a running build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It is as asked.
    Done,
    /// The build was not in the state that the caller saw; nothing was changed.
    NotRunning,
}

/// Counts one more start of a build whose runner vanished: `attempt` is the new number. May be repeated.
pub async fn run_again(database: &Database, build_id: i64, attempt: i32) -> Result<Changed, DatabaseError> {
    let session = database.session().await?;
    let changed = session
        .execute(
            "UPDATE inbox_builds SET attempt = $2, started_at = CASE WHEN attempt = $2 THEN started_at ELSE now() END
              WHERE build_id = $1 AND state = 'running' AND attempt IN ($2 - 1, $2)",
            &[&build_id, &attempt],
        )
        .await?;
    Ok(if changed == 1 { Changed::Done } else { Changed::NotRunning })
}

/// How the command of a build ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// The outcome of a build.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How the command ended.
    pub exit: Exit,
    /// It was ended because it ran too long.
    pub timed_out: bool,
    /// How long it ran.
    pub duration: Duration,
    /// How long ago it ended: the receiver may have been away.
    pub ended_ago: Duration,
    /// What a person should know.
    pub note: Option<String>,
}

/// Records how a build ended. May be repeated: the first outcome stays.
pub async fn finish(database: &Database, build_id: i64, outcome: &Outcome) -> Result<Changed, DatabaseError> {
    let (code, signal) = match outcome.exit {
        Exit::Code(code) => (Some(code), None),
        Exit::Signal(signal) => (None, Some(signal)),
    };
    let duration_ms = i64::try_from(outcome.duration.as_millis()).unwrap_or(i64::MAX);
    let session = database.session().await?;
    let changed = session
        .execute(
            "UPDATE inbox_builds
                SET state = 'finished', exit_code = $2, exit_signal = $3, timed_out = $4, duration_ms = $5, note = $6,
                    finished_at = greatest(started_at, now() - make_interval(secs => $7))
              WHERE build_id = $1 AND state = 'running'",
            &[
                &build_id,
                &code,
                &signal,
                &outcome.timed_out,
                &duration_ms,
                &outcome.note,
                &outcome.ended_ago.as_secs_f64(),
            ],
        )
        .await?;
    Ok(if changed == 1 { Changed::Done } else { Changed::NotRunning })
}

/// Gives a build up, with the reason. May be repeated.
pub async fn lose(database: &Database, build_id: i64, note: &str) -> Result<Changed, DatabaseError> {
    let session = database.session().await?;
    let changed = session
        .execute(
            "UPDATE inbox_builds SET state = 'lost', finished_at = greatest(started_at, now()), note = $2
              WHERE build_id = $1 AND state = 'running'",
            &[&build_id, &note],
        )
        .await?;
    Ok(if changed == 1 { Changed::Done } else { Changed::NotRunning })
}

/// A build as it is shown to people.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Build {
    /// Its number.
    pub build_id: i64,
    /// queued, running, finished or lost.
    pub state: String,
    /// Exit code of the command; 0 is success.
    pub exit_code: Option<i32>,
    /// The signal that ended the command.
    pub exit_signal: Option<i32>,
    /// It was ended because it ran too long.
    pub timed_out: bool,
    /// How often it was started.
    pub attempt: i32,
    /// The idempotency key of its delivery.
    pub webhook_id: String,
    /// The event that the delivery tells of.
    pub event_id: Option<String>,
    /// The name of the repository.
    pub repository: Option<String>,
    /// The ref that moved.
    #[serde(rename = "ref")]
    pub ref_name: String,
    /// Object id before the push.
    pub before: String,
    /// Object id after the push.
    pub after: String,
    /// The head commit.
    pub commit: Option<String>,
    /// When the delivery was recorded.
    pub received_at: Timestamp,
    /// When the newest attempt began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// How long the command ran, in milliseconds.
    pub duration_ms: Option<i64>,
    /// What a person should know of the outcome.
    pub note: Option<String>,
    /// Where its output is, on the machine of the receiver; `None` while it is queued.
    pub log: Option<PathBuf>,
}

const BUILD_COLUMNS: &str = "build_id, state, exit_code, exit_signal, timed_out, attempt, webhook_id, event_id, repository, ref, \
     before_sha, after_sha, commit_sha, received_at, started_at, finished_at, duration_ms, note, folder";

impl Build {
    fn read(row: &Row) -> Self {
        let folder: Option<Vec<u8>> = row.get(18);
        Self {
            build_id: row.get(0),
            state: row.get(1),
            exit_code: row.get(2),
            exit_signal: row.get(3),
            timed_out: row.get(4),
            attempt: row.get(5),
            webhook_id: row.get(6),
            event_id: row.get(7),
            repository: row.get(8),
            ref_name: row.get(9),
            before: row.get(10),
            after: row.get(11),
            commit: row.get(12),
            received_at: row.get(13),
            started_at: row.get(14),
            finished_at: row.get(15),
            duration_ms: row.get(16),
            note: row.get(17),
            log: folder.map(|folder| PathBuf::from(OsString::from_vec(folder)).join("log")),
        }
    }
}

/// The newest builds first, at most `limit`.
pub async fn list(database: &Database, limit: i64) -> Result<Vec<Build>, DatabaseError> {
    let session = database.session().await?;
    let statement = format!("SELECT {BUILD_COLUMNS} FROM inbox_builds ORDER BY build_id DESC LIMIT $1");
    Ok(session.query(&statement, &[&limit]).await?.iter().map(Build::read).collect())
}

/// One build by its number.
pub async fn find(database: &Database, build_id: i64) -> Result<Option<Build>, DatabaseError> {
    let session = database.session().await?;
    let statement = format!("SELECT {BUILD_COLUMNS} FROM inbox_builds WHERE build_id = $1");
    Ok(session.query_opt(&statement, &[&build_id]).await?.as_ref().map(Build::read))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a long history and a long queue of one repository, the claim reads neither.
    #[tokio::test]
    async fn the_claim_reads_the_heads_of_the_repositories_only() {
        let test_database = surehook_testkit::postgres::empty_database().await;
        let database = Database::connect(test_database.url(), "test", 1).unwrap();
        surehook_outbox::store::migrate::migrate(&database, "inbox", INBOX).await.unwrap();
        let session = database.session().await.unwrap();
        session
            .batch_execute(
                "INSERT INTO inbox_builds (webhook_id, body_hash, payload, repository_key, ref, before_sha, after_sha, state,
                                           attempt, receiver_id, folder, started_at, finished_at, exit_code, duration_ms)
                 SELECT 'old' || n, sha256(''), '', n % 100, 'r', repeat('0', 40), repeat('1', 40), 'finished',
                        1, gen_random_uuid(), '/', now(), now(), 0, 1 FROM generate_series(1, 20000) AS n;
                 INSERT INTO inbox_builds (webhook_id, body_hash, payload, repository_key, ref, before_sha, after_sha)
                 SELECT 'new' || n, sha256(''), '', 'busy', 'r', repeat('0', 40), repeat('1', 40) FROM generate_series(1, 20000) AS n;
                 ANALYZE inbox_builds",
            )
            .await
            .unwrap();
        let explain = format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) {CLAIM}");
        let explain = explain.replace("$1", "gen_random_uuid()").replace("$2", "'/'");
        let plan: Vec<String> = session.query(&explain, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
        let plan = plan.join("\n");
        assert!(!plan.contains("Seq Scan"), "{plan}");
        let rows = plan.split("rows=").skip(1).map(|rest| rest.split([' ', '.', ')']).next().unwrap().parse::<u64>());
        assert!(rows.map(Result::unwrap).max().is_some_and(|rows_max| rows_max < 10), "{plan}");
        drop(session);
        let taken = claim(&database, Uuid::new_v4(), Path::new("/builds")).await.unwrap();
        // EXPLAIN ANALYZE has taken the first of the queue, so nothing more of that repository is to be had.
        assert!(taken.is_none(), "{taken:?}");
    }
}
