//! Sends a dead letter again: appended to its lane under the same id or a new one, with the bytes kept in `outbox_dlq`.

use uuid::Uuid;

use super::dead_letters::{DeadLetter, DeadLetterState, find_letter};
use super::head::revive_head;
use crate::crash::point;
use crate::store::{Database, DatabaseError, Sql, Transaction};

/// Reads from a payload what it is about, so that an older message about the same thing is not sent after a newer one:
/// for a push, the ref. None: it is about nothing that another message could outdate.
pub type SubjectOf = fn(&[u8]) -> Option<String>;

/// How a dead letter is replayed.
#[derive(Clone, Copy, Debug, Default)]
pub struct HowToReplay {
    /// Refuse it if a newer delivery of its lane about the same subject was published or waits to be. None: replay it
    /// anyway, also if a replay got through before.
    pub subject_of: Option<SubjectOf>,
    /// Under a new delivery id, so that a receiver that knows the old one does its work once more.
    pub new_id: bool,
}

/// What [`replay`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// It is the newest delivery of its lane now and goes out in its turn.
    Appended {
        /// The id that it goes out under.
        delivery_id: Uuid,
        /// How many deliveries go out before it.
        ahead: i64,
    },
    /// Its lane had stopped at it and goes on with it, in its old place.
    Revived {
        /// The id that it goes out under.
        delivery_id: Uuid,
    },
    /// Nothing was changed: a replay of it is on its way.
    AlreadyReplaying,
    /// Nothing was changed: a replay of it got through.
    AlreadyDelivered,
    /// Nothing was changed: it was sent again under another id, and is a dead letter of its own if that died.
    AlreadyReplaced {
        /// The other id.
        by: Option<Uuid>,
    },
    /// Nothing was changed: the receiver has been told, or is about to be told, something newer about the same subject.
    Outdated {
        /// The newer delivery.
        by: Uuid,
        /// Whether that one has arrived already; else it waits and goes out first.
        published: bool,
        /// What both are about.
        subject: String,
    },
    /// Nothing was changed: the endpoint was removed.
    EndpointRemoved,
    /// Nothing was changed: its bytes were lost.
    BodyMissing,
    /// There is no such dead letter.
    Unknown,
}

impl Replayed {
    /// Why it was passed over, in one word; None if it was replayed.
    pub fn skip_word(&self) -> Option<&'static str> {
        match self {
            Self::Appended { .. } | Self::Revived { .. } => None,
            Self::AlreadyReplaying => Some("already_replaying"),
            Self::AlreadyDelivered => Some("already_delivered"),
            Self::AlreadyReplaced { .. } => Some("already_replaced"),
            Self::Outdated { .. } => Some("outdated"),
            Self::EndpointRemoved => Some("endpoint_removed"),
            Self::BodyMissing => Some("body_missing"),
            Self::Unknown => Some("unknown"),
        }
    }
}

/// How many newer deliveries of the lane are compared at most, the newest of them.
pub const COMPARED_MAX: i64 = 1_000;
/// Payloads are read so many at once, so that a lane of large ones does not fill the memory.
const PAGE: i64 = 20;

/// Replays a dead letter.
///
/// Ok: what was done, committed. Err: nothing was changed. Repeating it after an unclear end gives `AlreadyReplaying` if it
/// had been done. A receiver that knows the id answers 409 and does nothing; the sender counts that as delivered.
pub async fn replay(database: &Database, delivery_id: Uuid, how: &HowToReplay) -> Result<Replayed, DatabaseError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let done = replay_in(&transaction, delivery_id, how).await?;
    if done.skip_word().is_none() {
        transaction.commit().await?;
        point("replay.committed");
    }
    Ok(done)
}

/// The same within a transaction, which the caller commits if something was replayed.
pub(in crate::store) async fn replay_in(
    transaction: &Transaction<'_>,
    delivery_id: Uuid,
    how: &HowToReplay,
) -> Result<Replayed, DatabaseError> {
    let Some((letter, body)) = find_letter(transaction, delivery_id).await? else { return Ok(Replayed::Unknown) };
    let Some(body) = body else { return Ok(Replayed::BodyMissing) };
    // Looked at before the lane is locked, since it may read many payloads: a newer delivery that arrives in between is
    // one that could as well have arrived just after the replay.
    if let Some(subject_of) = how.subject_of
        && letter.state == DeadLetterState::Dead
        && let Some(outdated) = newer_about_same(transaction, &letter, &body, subject_of).await?
    {
        return Ok(outdated);
    }
    point("replay.chosen");
    let done = append(transaction, &letter, how).await?;
    if done.skip_word().is_none() {
        point("replay.written");
    }
    Ok(done)
}

/// The lane is locked before the dead letter, as a worker that records does it.
async fn append(
    transaction: &Transaction<'_>,
    letter: &DeadLetter,
    how: &HowToReplay,
) -> Result<Replayed, DatabaseError> {
    // Not locked: a removal at the same moment leaves a delivery that the sweeper cancels.
    let endpoint_lives = transaction
        .query_opt("SELECT 1 FROM endpoints WHERE endpoint_id = $1 AND state <> 'removed'", &[&letter.endpoint_id])
        .await?;
    if endpoint_lives.is_none() {
        return Ok(Replayed::EndpointRemoved);
    }
    // The lane may have been swept away since, being idle; it is made again.
    transaction
        .execute(
            "INSERT INTO outbox_lanes (endpoint_id, ordering_key) VALUES ($1, $2) ON CONFLICT ON CONSTRAINT outbox_lanes_key DO NOTHING",
            &[&letter.endpoint_id, &letter.ordering_key],
        )
        .await?;
    let lane = transaction
        .query_one(
            "SELECT lane_id, last_seq, done_seq, coalesce(ready_at = 'infinity', false) AS blocked
               FROM outbox_lanes WHERE endpoint_id = $1 AND ordering_key = $2 FOR UPDATE",
            &[&letter.endpoint_id, &letter.ordering_key],
        )
        .await?;
    let state = transaction
        .query_opt(
            "SELECT state, lane_id, seq, replaced_by FROM outbox_dlq WHERE delivery_id = $1 FOR UPDATE",
            &[&letter.delivery_id],
        )
        .await?;
    let Some(state) = state else { return Ok(Replayed::Unknown) };
    match state.try_get("state")? {
        DeadLetterState::Replaying => return Ok(Replayed::AlreadyReplaying),
        DeadLetterState::Replaced => return Ok(Replayed::AlreadyReplaced { by: state.try_get("replaced_by")? }),
        DeadLetterState::Delivered if how.subject_of.is_some() => return Ok(Replayed::AlreadyDelivered),
        DeadLetterState::Delivered | DeadLetterState::Dead => {}
    }
    let delivery_id = match how.new_id {
        false => {
            transaction
                .execute(
                    "UPDATE outbox_dlq SET state = 'replaying', replays = replays + 1, updated_at = clock_timestamp() WHERE delivery_id = $1",
                    &[&letter.delivery_id],
                )
                .await?;
            letter.delivery_id
        }
        true => replace(transaction, letter.delivery_id).await?,
    };
    let (lane_id, last_seq, done_seq): (i64, i64, i64) =
        (lane.try_get("lane_id")?, lane.try_get("last_seq")?, lane.try_get("done_seq")?);
    let died_at: (i64, i64) = (state.try_get("lane_id")?, state.try_get("seq")?);
    if lane.try_get("blocked")? && died_at == (lane_id, done_seq + 1) {
        transaction
            .execute(
                "UPDATE outbox_deliveries SET delivery_id = $3 WHERE lane_id = $1 AND seq = $2 AND delivery_id <> $3",
                &[&lane_id, &(done_seq + 1), &delivery_id],
            )
            .await?;
        revive_head(transaction, lane_id).await?;
        return Ok(Replayed::Revived { delivery_id });
    }
    transaction
        .execute(
            "INSERT INTO outbox_deliveries (lane_id, seq, delivery_id, event_id, event_created_at, webhook_name, aggregate_id, replay, created_at)
             SELECT $2, $3, q.delivery_id, q.event_id, q.event_created_at, q.webhook_name, q.aggregate_id, true, clock_timestamp()
               FROM outbox_dlq AS q WHERE q.delivery_id = $1",
            &[&delivery_id, &lane_id, &(last_seq + 1)],
        )
        .await?;
    transaction
        .execute(
            "UPDATE outbox_lanes SET last_seq = last_seq + 1, ready_at = coalesce(ready_at, clock_timestamp()) WHERE lane_id = $1",
            &[&lane_id],
        )
        .await?;
    Ok(Replayed::Appended { delivery_id, ahead: last_seq - done_seq })
}

/// Makes a letter of its own under a new id from a dead letter, with the same bytes; returns the id. The old one says which.
async fn replace(transaction: &Transaction<'_>, delivery_id: Uuid) -> Result<Uuid, DatabaseError> {
    let new_id = Uuid::new_v4();
    transaction
        .execute(
            "INSERT INTO outbox_dlq (delivery_id, endpoint_id, endpoint_name, url, ordering_key, event_id, event_type, aggregate_id,
                    aggregate_name, webhook_name, format, headers, body, reason, attempts, last_status_code, last_error, lane_id, seq,
                    event_created_at, failed_at, state, replays, updated_at)
             SELECT $2, endpoint_id, endpoint_name, url, ordering_key, event_id, event_type, aggregate_id, aggregate_name, webhook_name,
                    format, headers, body, reason, 0, last_status_code, last_error, lane_id, seq, event_created_at, failed_at,
                    'replaying', 1, clock_timestamp()
               FROM outbox_dlq WHERE delivery_id = $1",
            &[&delivery_id, &new_id],
        )
        .await?;
    transaction
        .execute(
            "UPDATE outbox_dlq SET state = 'replaced', replaced_by = $2, updated_at = clock_timestamp() WHERE delivery_id = $1",
            &[&delivery_id, &new_id],
        )
        .await?;
    Ok(new_id)
}

/// Compares with what came after the letter in its lane, newest first. Replays are not counted by their place: one that
/// was appended is as old as its first place says.
async fn newer_about_same(
    client: &impl Sql,
    letter: &DeadLetter,
    body: &[u8],
    subject_of: SubjectOf,
) -> Result<Option<Replayed>, DatabaseError> {
    let payload: Option<Vec<u8>> = client
        .query_opt(
            "SELECT payload FROM outbox_events WHERE event_id = $1 AND created_at = $2",
            &[&letter.event_id, &letter.event_created_at],
        )
        .await?
        .map(|row| row.try_get(0))
        .transpose()?;
    let Some(subject) = subject_of(payload.as_deref().unwrap_or(body)) else { return Ok(None) };
    let later = client
        .query(
            "SELECT d.delivery_id, d.event_id, d.event_created_at
               FROM outbox_lanes AS l JOIN outbox_deliveries AS d ON d.lane_id = l.lane_id
              WHERE l.endpoint_id = $1 AND l.ordering_key = $2 AND NOT d.replay AND d.event_id <> $5
                AND d.seq > coalesce((SELECT min(mine.seq) FROM outbox_deliveries AS mine
                                       WHERE mine.delivery_id = $3 AND mine.lane_id = l.lane_id AND NOT mine.replay), 0)
                AND d.event_created_at >= $4
              ORDER BY d.seq DESC LIMIT $6",
            &[
                &letter.endpoint_id,
                &letter.ordering_key,
                &letter.delivery_id,
                &letter.event_created_at,
                &letter.event_id,
                &COMPARED_MAX,
            ],
        )
        .await?;
    let later: Vec<(Uuid, Uuid, jiff::Timestamp)> = later
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))
        .collect::<Result<_, tokio_postgres::Error>>()?;
    for page in later.chunks(usize::try_from(PAGE).unwrap_or(1)) {
        let deliveries: Vec<Uuid> = page.iter().map(|(delivery_id, ..)| *delivery_id).collect();
        let events: Vec<Uuid> = page.iter().map(|(_, event_id, _)| *event_id).collect();
        let created: Vec<jiff::Timestamp> = page.iter().map(|(.., created_at)| *created_at).collect();
        let rows = client
            .query(
                "SELECT u.delivery_id, e.payload, s.status = 'published'
                   FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) WITH ORDINALITY AS u (delivery_id, event_id, created_at, nth)
                   JOIN outbox_events AS e ON e.event_id = u.event_id AND e.created_at = u.created_at
                   JOIN outbox_status AS s ON s.delivery_id = u.delivery_id AND s.status IN ('published', 'pending')
                  ORDER BY u.nth",
                &[&deliveries, &events, &created],
            )
            .await?;
        for row in rows {
            if subject_of(row.try_get(1)?).as_deref() == Some(subject.as_str()) {
                return Ok(Some(Replayed::Outdated { by: row.try_get(0)?, published: row.try_get(2)?, subject }));
            }
        }
    }
    Ok(None)
}
