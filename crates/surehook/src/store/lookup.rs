//! Small reads for people: names to ids, names to choose from, and what `doctor` looks at.

use jiff::Timestamp;
use serde::Serialize;
use surehook_outbox::store::{Database, DatabaseError};
use uuid::Uuid;

/// The repository of a name: the one that has it now, else the newest that had it. None: nobody ever had it.
pub async fn repository_id(database: &Database, name: &str) -> Result<Option<Uuid>, DatabaseError> {
    let session = database.session().await?;
    let row = session
        .query_opt(
            "SELECT repository_id FROM repositories WHERE name = $1
              ORDER BY state NOT IN ('deleted', 'detached') DESC, created_at DESC LIMIT 1",
            &[&name],
        )
        .await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// Names of repositories by id, for endpoints of one repository.
pub async fn repository_names(database: &Database) -> Result<Vec<(Uuid, String)>, DatabaseError> {
    let session = database.session().await?;
    let rows = session
        .query(
            "SELECT repository_id, name FROM repositories WHERE state NOT IN ('deleted', 'detached') ORDER BY name LIMIT 10000",
            &[],
        )
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// A repository that is half made or half removed.
#[derive(Clone, Debug)]
pub struct Unfinished {
    /// Its name.
    pub name: String,
    /// `creating` or `deleting`.
    pub state: String,
}

/// Repositories whose creation or removal has not come to its end for 10 minutes, by name.
pub async fn unfinished_repositories(database: &Database) -> Result<Vec<Unfinished>, DatabaseError> {
    let session = database.session().await?;
    let rows = session
        .query(
            "SELECT name, state FROM repositories WHERE state IN ('creating', 'deleting') AND updated_at < now() - interval '10 min'
              ORDER BY name LIMIT 1000",
            &[],
        )
        .await?;
    rows.iter().map(|row| Ok(Unfinished { name: row.try_get(0)?, state: row.try_get(1)? })).collect()
}

/// A folder that holds repositories.
#[derive(Clone, Debug)]
pub struct Storage {
    /// Its id, also written in the folder.
    pub storage_id: Uuid,
    /// The node that serves it.
    pub node: String,
    /// Where it is on that node.
    pub root: Vec<u8>,
    /// How many repositories lie in it.
    pub repositories: i64,
}

/// Every storage, by node.
pub async fn storages(database: &Database) -> Result<Vec<Storage>, DatabaseError> {
    let session = database.session().await?;
    let rows = session
        .query(
            "SELECT s.storage_id, s.node, s.root,
                    (SELECT count(*) FROM repositories AS r WHERE r.storage_id = s.storage_id AND r.state NOT IN ('deleted', 'detached'))
               FROM storages AS s ORDER BY s.node, s.storage_id LIMIT 1000",
            &[],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Storage {
                storage_id: row.try_get(0)?,
                node: row.try_get(1)?,
                root: row.try_get(2)?,
                repositories: row.try_get(3)?,
            })
        })
        .collect()
}

/// The state of the database, as `doctor` judges it.
#[derive(Clone, Debug)]
pub struct Health {
    /// Version of the server.
    pub server_version: String,
    /// The newest step of the schema.
    pub schema_version: Option<String>,
    /// Names of paused endpoints.
    pub endpoints_paused: Vec<String>,
    /// Dead letters that wait for an operator.
    pub dead_letters: i64,
    /// Deliveries that have not ended.
    pub pending: i64,
    /// When the oldest of them was enqueued (of the heads of 10,000 lanes).
    pub oldest_pending_at: Option<Timestamp>,
    /// Lanes that stopped at a dead head.
    pub lanes_blocked: i64,
    /// Whole weeks for which partitions lie ahead.
    pub weeks_ahead: i32,
    /// Workers whose heartbeat moved in the last 15 s.
    pub workers: i64,
    /// The age of the oldest open transaction of anybody, in seconds.
    pub oldest_transaction_s: f64,
    /// Now, by the database's clock.
    pub now: Timestamp,
}

/// Reads it in one statement. A read: may be repeated.
pub async fn health(database: &Database) -> Result<Health, DatabaseError> {
    let session = database.session().await?;
    let row = session
        .query_one(
            "SELECT current_setting('server_version') AS server_version,
                    (SELECT max(name) FROM surehook_migrations) AS schema_version,
                    ARRAY(SELECT name FROM endpoints WHERE state = 'paused' ORDER BY name LIMIT 100) AS endpoints_paused,
                    (SELECT count(*) FROM outbox_dlq WHERE state = 'dead') AS dead_letters,
                    (SELECT coalesce(sum(last_seq - done_seq), 0)::bigint FROM outbox_lanes WHERE ready_at IS NOT NULL) AS pending,
                    (SELECT min(d.created_at) FROM (SELECT lane_id, done_seq FROM outbox_lanes WHERE ready_at IS NOT NULL LIMIT 10000) AS l
                       JOIN outbox_deliveries AS d ON d.lane_id = l.lane_id AND d.seq = l.done_seq + 1) AS oldest_pending_at,
                    (SELECT count(*) FROM outbox_lanes WHERE ready_at = 'infinity') AS lanes_blocked,
                    (SELECT count(*)::integer FROM generate_series(1, 8) AS w
                      WHERE to_regclass('outbox_deliveries' || to_char(date_trunc('week', now() AT TIME ZONE 'UTC') + w * interval '1 week',
                                                                      '_IYYY\"w\"IW')) IS NOT NULL) AS weeks_ahead,
                    (SELECT count(*) FROM outbox_workers WHERE heartbeat_at > now() - interval '15 s') AS workers,
                    (SELECT coalesce(extract(epoch FROM max(clock_timestamp() - xact_start)), 0)::float8 FROM pg_stat_activity
                      WHERE datname = current_database() AND pid <> pg_backend_pid()) AS oldest_transaction_s,
                    clock_timestamp() AS now",
            &[],
        )
        .await?;
    Ok(Health {
        server_version: row.try_get("server_version")?,
        schema_version: row.try_get("schema_version")?,
        endpoints_paused: row.try_get("endpoints_paused")?,
        dead_letters: row.try_get("dead_letters")?,
        pending: row.try_get("pending")?,
        oldest_pending_at: row.try_get("oldest_pending_at")?,
        lanes_blocked: row.try_get("lanes_blocked")?,
        weeks_ahead: row.try_get("weeks_ahead")?,
        workers: row.try_get("workers")?,
        oldest_transaction_s: row.try_get("oldest_transaction_s")?,
        now: row.try_get("now")?,
    })
}

/// How an endpoint stands. Serialised with these names.
#[derive(Clone, Debug, Serialize)]
pub struct Standing {
    /// Deliveries that have not ended.
    pub pending: i64,
    /// When the oldest of them was enqueued (of the heads of 10,000 lanes).
    pub oldest_pending_at: Option<Timestamp>,
    /// (endpoint, repository) pairs with work.
    pub lanes_with_work: i64,
    /// Of these, those that stopped at a dead letter.
    pub lanes_blocked: i64,
    /// Of these, those whose head was tried in vain.
    pub lanes_failing: i64,
    /// What the head that was tried last met, in words.
    pub last_error: Option<String>,
    /// When that was recorded.
    pub last_error_at: Option<Timestamp>,
    /// When one of these is tried next. None: none waits for a time.
    pub next_try_at: Option<Timestamp>,
    /// Dead letters that nobody has replayed.
    pub dead_letters: i64,
    /// Lanes in which new events wait for older ones that a back-fill has still to enqueue.
    pub lanes_held: i64,
}

/// Reads it in one statement. A read: may be repeated.
pub async fn standing(database: &Database, endpoint_id: Uuid) -> Result<Standing, DatabaseError> {
    let session = database.session().await?;
    let row = session
        .query_one(
            "WITH waiting AS (
                 SELECT * FROM outbox_lanes WHERE endpoint_id = $1 AND ready_at IS NOT NULL
             ), failing AS (
                 SELECT last_error, updated_at FROM waiting WHERE last_error IS NOT NULL ORDER BY updated_at DESC LIMIT 1
             )
             SELECT coalesce(sum(last_seq - done_seq), 0)::bigint AS pending, count(*) AS lanes,
                    count(*) FILTER (WHERE ready_at = 'infinity') AS blocked, count(last_error) AS failing,
                    min(ready_at) FILTER (WHERE attempts > 0 AND owner IS NULL AND ready_at < 'infinity') AS next_try_at,
                    (SELECT min(d.created_at) FROM (SELECT lane_id, done_seq FROM waiting LIMIT 10000) AS l
                       JOIN outbox_deliveries AS d ON d.lane_id = l.lane_id AND d.seq = l.done_seq + 1) AS oldest_pending_at,
                    (SELECT last_error FROM failing) AS last_error, (SELECT updated_at FROM failing) AS last_error_at,
                    (SELECT count(*) FROM outbox_dlq WHERE endpoint_id = $1 AND state = 'dead') AS dead,
                    (SELECT count(*) FROM outbox_lanes WHERE endpoint_id = $1 AND held_since IS NOT NULL) AS held
               FROM waiting",
            &[&endpoint_id],
        )
        .await?;
    Ok(Standing {
        pending: row.try_get("pending")?,
        oldest_pending_at: row.try_get("oldest_pending_at")?,
        lanes_with_work: row.try_get("lanes")?,
        lanes_blocked: row.try_get("blocked")?,
        lanes_failing: row.try_get("failing")?,
        last_error: row.try_get("last_error")?,
        last_error_at: row.try_get("last_error_at")?,
        next_try_at: row.try_get("next_try_at")?,
        dead_letters: row.try_get("dead")?,
        lanes_held: row.try_get("held")?,
    })
}
