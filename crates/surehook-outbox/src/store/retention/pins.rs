//! What holds a week that is old enough: found from the rows that refer to it, by their indexes and page by page, never by
//! reading the week itself.

use std::collections::BTreeMap;

use jiff::Timestamp;
use uuid::Uuid;

use super::Week;
use crate::store::{DatabaseError, Session, Sql, column};
use crate::text_enum::text_enum;

text_enum! {
    /// Why a week stays.
    Why {
        /// Something of it has not arrived yet.
        Undelivered = "undelivered",
        /// A dead letter that nobody settled belongs to it.
        DeadLetter = "dead_letter",
        /// Something of it ended within the retention time.
        EndedLately = "ended_lately",
        /// Its attempts tell how deliveries of an older week ended that stays.
        OlderWeek = "older_week",
        /// A job has still to tell of it.
        Backfill = "backfill",
    }
}

/// What holds a week.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Pin {
    /// The week.
    pub week: Week,
    /// Why it stays.
    pub why: Why,
    /// Whose deliveries these are.
    pub endpoint_id: Uuid,
    /// How many lanes, or dead letters.
    pub found: i64,
}

/// Pins by what they say, with the numbers of all pages.
#[derive(Debug, Default)]
pub struct Pins(BTreeMap<(Week, &'static str, Uuid), Pin>);

impl Pins {
    /// Adds what another page found.
    pub fn add(&mut self, pins: Vec<Pin>) {
        for pin in pins {
            let key = (pin.week, pin.why.as_str(), pin.endpoint_id);
            self.0.entry(key).and_modify(|known| known.found += pin.found).or_insert(pin);
        }
    }

    /// Whether anything holds this week as a whole, not its attempts alone.
    pub fn hold(&self, week: Week) -> bool {
        self.0.values().any(|pin| pin.week == week && pin.why != Why::OlderWeek)
    }

    /// Whether anything holds the attempts of this week.
    pub fn hold_attempts(&self, week: Week) -> bool {
        self.0.values().any(|pin| pin.week == week)
    }
}

/// Of each lane and week: whether something of it has not ended, or ended after `$5`. The places of the week in the lane are one
/// range, so each question is one look into an index; LIMIT keeps the planner from joining whole weeks.
const LANES: &str = "
    SELECT w.starts_at, w.ends_at, p.endpoint_id, x.why, count(*) AS found
      FROM (SELECT lane_id, endpoint_id, done_seq, last_seq, updated_at FROM outbox_lanes WHERE lane_id > $1 AND lane_id <= $2) AS p
     CROSS JOIN unnest($3::timestamptz[], $4::timestamptz[]) AS w (starts_at, ends_at)
     CROSS JOIN LATERAL (VALUES
         ('undelivered', p.last_seq > p.done_seq AND (SELECT true FROM outbox_deliveries AS d
             WHERE d.lane_id = p.lane_id AND d.seq > p.done_seq AND d.created_at >= w.starts_at AND d.created_at < w.ends_at LIMIT 1)),
         ('ended_lately', p.updated_at >= $5 AND (SELECT true FROM outbox_attempts AS a
             WHERE a.lane_id = p.lane_id AND a.ends IS NOT NULL AND a.created_at >= $5
               AND a.seq >= (SELECT d.seq FROM outbox_deliveries AS d WHERE d.lane_id = p.lane_id
                              AND d.created_at >= w.starts_at AND d.created_at < w.ends_at ORDER BY d.seq LIMIT 1)
               AND a.seq <= (SELECT d.seq FROM outbox_deliveries AS d WHERE d.lane_id = p.lane_id
                              AND d.created_at >= w.starts_at AND d.created_at < w.ends_at ORDER BY d.seq DESC LIMIT 1) LIMIT 1))
     ) AS x (why, holds)
     WHERE x.holds GROUP BY 1, 2, 3, 4";

/// Of each lane: whether the attempts of a week tell of deliveries of an older one that stays.
const OLDER_WEEKS: &str = "
    SELECT w.starts_at, w.ends_at, p.endpoint_id, 'older_week' AS why, count(*) AS found
      FROM (SELECT lane_id, endpoint_id FROM outbox_lanes WHERE lane_id > $1 AND lane_id <= $2) AS p
     CROSS JOIN unnest($3::timestamptz[], $4::timestamptz[]) AS w (starts_at, ends_at)
     CROSS JOIN unnest($5::timestamptz[], $6::timestamptz[]) AS k (starts_at, ends_at)
     WHERE k.starts_at < w.starts_at
       AND (SELECT true FROM outbox_attempts AS a
             WHERE a.lane_id = p.lane_id AND a.created_at >= w.starts_at AND a.created_at < w.ends_at
               AND a.seq >= (SELECT d.seq FROM outbox_deliveries AS d WHERE d.lane_id = p.lane_id
                              AND d.created_at >= k.starts_at AND d.created_at < k.ends_at ORDER BY d.seq LIMIT 1)
               AND a.seq <= (SELECT d.seq FROM outbox_deliveries AS d WHERE d.lane_id = p.lane_id
                              AND d.created_at >= k.starts_at AND d.created_at < k.ends_at ORDER BY d.seq DESC LIMIT 1) LIMIT 1)
     GROUP BY 1, 2, 3";

/// Dead letters that somebody may still settle: those of removed endpoints cannot be replayed, and live by their own copy.
const DEAD_LETTERS: &str = "
    SELECT w.starts_at, w.ends_at, q.endpoint_id, 'dead_letter' AS why, count(*) AS found
      FROM (SELECT delivery_id, endpoint_id, event_created_at FROM outbox_dlq
             WHERE delivery_id > $1 AND delivery_id <= $2 AND state <> 'delivered') AS q
      JOIN endpoints AS e ON e.endpoint_id = q.endpoint_id AND e.state <> 'removed'
      JOIN unnest($3::timestamptz[], $4::timestamptz[]) AS w (starts_at, ends_at) ON q.event_created_at < w.ends_at
     WHERE q.event_created_at >= w.starts_at
        OR (SELECT true FROM outbox_deliveries AS d
             WHERE d.delivery_id = q.delivery_id AND d.created_at >= w.starts_at AND d.created_at < w.ends_at LIMIT 1)
     GROUP BY 1, 2, 3";

/// Deliveries that have not ended, of events older than they.
const OLDER_EVENTS: &str = "
    SELECT w.starts_at, w.ends_at, l.endpoint_id, 'undelivered' AS why, count(DISTINCT l.lane_id) AS found
      FROM unnest($1::timestamptz[], $2::timestamptz[]) AS w (starts_at, ends_at)
      JOIN outbox_deliveries AS d ON d.event_created_at >= w.starts_at AND d.event_created_at < w.ends_at AND d.event_created_at < d.created_at
      JOIN outbox_lanes AS l ON l.lane_id = d.lane_id AND d.seq > l.done_seq
     GROUP BY 1, 2, 3";

/// Jobs that have still to tell of these weeks, and lanes that are held, whose events have no delivery yet.
const BACKFILLS: &str = "
    SELECT w.starts_at, w.ends_at, b.endpoint_id, 'backfill' AS why, count(*) AS found
      FROM unnest($1::timestamptz[], $2::timestamptz[]) AS w (starts_at, ends_at)
      JOIN (SELECT endpoint_id, since FROM outbox_jobs WHERE kind = 'backfill' AND state = 'running'
             UNION ALL SELECT endpoint_id, held_since FROM outbox_lanes WHERE held_since IS NOT NULL) AS b ON b.since < w.ends_at
     GROUP BY 1, 2, 3";

/// The end of the page of `size` lanes after `after`; None: there are none.
pub async fn lanes_page(session: &Session, after: i64, size: i64) -> Result<Option<i64>, DatabaseError> {
    let row = session
        .query_one(
            "SELECT max(lane_id) FROM (SELECT lane_id FROM outbox_lanes WHERE lane_id > $1 ORDER BY lane_id LIMIT $2) AS page",
            &[&after, &size],
        )
        .await?;
    Ok(row.try_get(0)?)
}

/// What the lanes after `after`, up to `until`, hold of these weeks. `ended_since`: what ended then or later holds its week.
pub async fn by_lanes(
    session: &Session,
    (after, until): (i64, i64),
    weeks: &[Week],
    ended_since: Timestamp,
) -> Result<Vec<Pin>, DatabaseError> {
    let (starts, ends) = bounds(weeks);
    read(session.query(LANES, &[&after, &until, &starts, &ends, &ended_since]).await?)
}

/// Which of these weeks have attempts that tell of deliveries of older weeks that stay.
pub async fn by_older_weeks(
    session: &Session,
    (after, until): (i64, i64),
    weeks: &[Week],
    staying: &[Week],
) -> Result<Vec<Pin>, DatabaseError> {
    let ((starts, ends), (staying_starts, staying_ends)) = (bounds(weeks), bounds(staying));
    read(session.query(OLDER_WEEKS, &[&after, &until, &starts, &ends, &staying_starts, &staying_ends]).await?)
}

/// The end of the page of `size` dead letters after `after`; None: there are none.
pub async fn letters_page(session: &Session, after: Uuid, size: i64) -> Result<Option<Uuid>, DatabaseError> {
    let row = session
        .query_opt(
            "SELECT delivery_id FROM (SELECT delivery_id FROM outbox_dlq WHERE delivery_id > $1 ORDER BY delivery_id LIMIT $2) AS page
              ORDER BY delivery_id DESC LIMIT 1",
            &[&after, &size],
        )
        .await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// What these dead letters hold.
pub async fn by_letters(
    session: &Session,
    (after, until): (Uuid, Uuid),
    weeks: &[Week],
) -> Result<Vec<Pin>, DatabaseError> {
    let (starts, ends) = bounds(weeks);
    read(session.query(DEAD_LETTERS, &[&after, &until, &starts, &ends]).await?)
}

/// What is held by deliveries that were appended later than their events.
pub async fn by_older_events(session: &impl Sql, weeks: &[Week]) -> Result<Vec<Pin>, DatabaseError> {
    let (starts, ends) = bounds(weeks);
    read(session.query(OLDER_EVENTS, &[&starts, &ends]).await?)
}

/// What is held by back-fills.
pub async fn by_backfills(session: &impl Sql, weeks: &[Week]) -> Result<Vec<Pin>, DatabaseError> {
    let (starts, ends) = bounds(weeks);
    read(session.query(BACKFILLS, &[&starts, &ends]).await?)
}

/// Notes what holds weeks, for people and metrics, in place of what was noted before.
pub async fn note(session: &mut Session, pins: &Pins) -> Result<(), DatabaseError> {
    let pins: Vec<&Pin> = pins.0.values().collect();
    let transaction = session.transaction().await?;
    transaction.execute("DELETE FROM outbox_retention_pins", &[]).await?;
    transaction
        .execute(
            "INSERT INTO outbox_retention_pins (starts_at, ends_at, why, endpoint_id, found)
             SELECT * FROM unnest($1::timestamptz[], $2::timestamptz[], $3::text[], $4::uuid[], $5::bigint[])",
            &[
                &column(&pins, |pin| pin.week.starts_at),
                &column(&pins, |pin| pin.week.ends_at),
                &column(&pins, |pin| pin.why.as_str()),
                &column(&pins, |pin| pin.endpoint_id),
                &column(&pins, |pin| pin.found),
            ],
        )
        .await?;
    transaction.commit().await
}

fn bounds(weeks: &[Week]) -> (Vec<Timestamp>, Vec<Timestamp>) {
    (column(weeks, |week| week.starts_at), column(weeks, |week| week.ends_at))
}

fn read(rows: Vec<tokio_postgres::Row>) -> Result<Vec<Pin>, DatabaseError> {
    rows.iter()
        .map(|row| {
            let week = Week { starts_at: row.try_get("starts_at")?, ends_at: row.try_get("ends_at")? };
            Ok(Pin {
                week,
                why: row.try_get("why")?,
                endpoint_id: row.try_get("endpoint_id")?,
                found: row.try_get("found")?,
            })
        })
        .collect()
}
