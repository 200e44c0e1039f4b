//! SQL of retention: whose turn it is, which weeks there are, and how it stands. What holds a week: [`pins`]; how one goes:
//! [`removal`]; what goes row by row: [`rows`].

pub mod pins;
pub mod removal;
pub mod rows;

use jiff::Timestamp;
use uuid::Uuid;

use super::{DatabaseError, Session};
use pins::{Pin, Why};

/// How long a turn is held without being renewed.
const HELD_S: i32 = 300;

/// The time between two bounds of partitions: a week, unless an operator made others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Week {
    /// Its first moment.
    pub starts_at: Timestamp,
    /// The first moment after it.
    pub ends_at: Timestamp,
}

/// A partition of one of the large tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The table that it is a part of.
    pub parent: String,
    /// Its name, quoted where that is needed.
    pub name: String,
    /// Its bounds.
    pub week: Week,
}

/// Whether a turn may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is the caller's, until it is not renewed for some minutes.
    Mine,
    /// Another's is under way.
    HeldByOther,
}

/// Takes the turn for `turn`, or renews it. May be repeated. It is no lock of a session, so it holds behind a pooler too; a turn
/// that was overtaken does no harm, since each of its steps looks first.
pub async fn hold(session: &Session, turn: Uuid) -> Result<Taken, DatabaseError> {
    let held = session
        .execute(
            "UPDATE outbox_retention SET held_by = $1, held_until = clock_timestamp() + $2 * interval '1 second'
              WHERE held_by = $1 OR held_until IS NULL OR held_until < clock_timestamp()",
            &[&turn, &f64::from(HELD_S)],
        )
        .await?;
    Ok(if held == 0 { Taken::HeldByOther } else { Taken::Mine })
}

/// Ends the turn and notes how it went; None: well. `finished`: whether it came to its end.
pub async fn release(
    session: &Session,
    turn: Uuid,
    published_days: u16,
    finished: bool,
    error: Option<&str>,
) -> Result<(), DatabaseError> {
    session
        .execute(
            "UPDATE outbox_retention
                SET held_by = NULL, held_until = NULL, published_days = $2,
                    succeeded_at = CASE WHEN $3 THEN clock_timestamp() ELSE succeeded_at END,
                    failed_at = CASE WHEN $4::text IS NOT NULL THEN clock_timestamp() END, error = $4
              WHERE held_by = $1",
            &[&turn, &i32::from(published_days), &finished, &error],
        )
        .await?;
    Ok(())
}

/// The moments that a turn goes by, by the database's clock at its beginning.
#[derive(Clone, Copy, Debug)]
pub struct Horizons {
    /// What ended before then may go.
    pub published: Timestamp,
    /// Weeks that end by then may go: the same, but never the present week or the last one.
    pub weeks: Timestamp,
    /// Answers from before then go.
    pub answers: Timestamp,
}

/// Reads the clock.
pub async fn horizons(session: &Session, published_days: u16, answers_days: u16) -> Result<Horizons, DatabaseError> {
    let row = session
        .query_one(
            "SELECT now() - $1 * interval '1 day' AS published, now() - $2 * interval '1 day' AS answers,
                    least(now() - $1 * interval '1 day', (date_trunc('week', now() AT TIME ZONE 'UTC') - interval '7 days') AT TIME ZONE 'UTC') AS weeks",
            &[&f64::from(published_days), &f64::from(answers_days)],
        )
        .await?;
    Ok(Horizons {
        published: row.try_get("published")?,
        weeks: row.try_get("weeks")?,
        answers: row.try_get("answers")?,
    })
}

/// The partitions that are attached and end by `until`, oldest week first.
pub async fn partitions(session: &Session, until: Timestamp) -> Result<Vec<Partition>, DatabaseError> {
    let rows = session
        .query(
            "SELECT parent, partition, starts_at, ends_at FROM outbox_partitions
              WHERE NOT detach_pending AND starts_at < ends_at AND ends_at <= $1 ORDER BY starts_at, ends_at, partition",
            &[&until],
        )
        .await?;
    rows.iter()
        .map(|row| {
            let week = Week { starts_at: row.try_get("starts_at")?, ends_at: row.try_get("ends_at")? };
            Ok(Partition { parent: row.try_get("parent")?, name: row.try_get("partition")?, week })
        })
        .collect()
}

/// How retention stands, as people and metrics are told.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Standing {
    /// How long the oldest week that nothing holds should have been gone; 0: none.
    pub lag_s: f64,
    /// The setting of the last turn, in days.
    pub published_days: Option<i32>,
    /// When a turn last came to its end.
    pub succeeded_at: Option<Timestamp>,
    /// Why the last turn failed, if it did.
    pub error: Option<String>,
    /// Weeks that are old enough and stay.
    pub weeks_pinned: i64,
}

/// Reads the catalogue and the notes of the last turn; the lag is that of this moment, whether turns are made or not. A read.
pub async fn standing(session: &Session) -> Result<Standing, DatabaseError> {
    let row = session
        .query_one(
            "SELECT greatest(0, extract(epoch FROM greatest(
                        (SELECT max(now() - r.days - p.ends_at) FROM outbox_partitions AS p
                          WHERE NOT EXISTS (SELECT FROM outbox_retention_pins AS pin WHERE pin.starts_at = p.starts_at AND pin.ends_at = p.ends_at)),
                        (SELECT max(now() - n.leaving_since) FROM outbox_partition_notes AS n))))::float8 AS lag_s,
                    r.published_days, r.succeeded_at, r.error,
                    (SELECT count(DISTINCT starts_at) FROM outbox_retention_pins) AS weeks_pinned
               FROM (SELECT *, coalesce(published_days, 30) * interval '1 day' AS days FROM outbox_retention) AS r",
            &[],
        )
        .await?;
    Ok(Standing {
        lag_s: row.try_get::<_, Option<f64>>("lag_s")?.unwrap_or(0.0),
        published_days: row.try_get("published_days")?,
        succeeded_at: row.try_get("succeeded_at")?,
        error: row.try_get("error")?,
        weeks_pinned: row.try_get("weeks_pinned")?,
    })
}

/// The number of weeks that stay by why and by the name of the endpoint that holds them. A read.
pub async fn held_weeks(session: &Session) -> Result<Vec<(String, String, i64)>, DatabaseError> {
    let rows = session
        .query(
            "SELECT p.why, coalesce(e.name, p.endpoint_id::text), count(*)
               FROM outbox_retention_pins AS p LEFT JOIN endpoints AS e ON e.endpoint_id = p.endpoint_id GROUP BY 1, 2 ORDER BY 1, 2",
            &[],
        )
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))).collect()
}

/// What holds weeks, as the last turn found it, with the names of the endpoints: oldest week first, at most `limit`. A read.
pub async fn pinned(session: &Session, limit: i64) -> Result<Vec<(Pin, String)>, DatabaseError> {
    let rows = session
        .query(
            "SELECT p.starts_at, p.ends_at, p.why, p.endpoint_id, p.found, coalesce(e.name, p.endpoint_id::text) AS name
               FROM outbox_retention_pins AS p LEFT JOIN endpoints AS e ON e.endpoint_id = p.endpoint_id
              ORDER BY p.starts_at, p.why = 'older_week', p.found DESC, name LIMIT $1",
            &[&limit],
        )
        .await?;
    rows.iter()
        .map(|row| {
            let why: Why = row.try_get("why")?;
            let week = Week { starts_at: row.try_get("starts_at")?, ends_at: row.try_get("ends_at")? };
            let pin = Pin { week, why, endpoint_id: row.try_get("endpoint_id")?, found: row.try_get("found")? };
            Ok((pin, row.try_get("name")?))
        })
        .collect()
}
