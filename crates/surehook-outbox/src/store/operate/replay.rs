//! Sends a dead letter again: appended to its lane under the same id, with the bytes kept in `outbox_dlq`.

use uuid::Uuid;

use super::dead_letters::{DeadLetter, DeadLetterState, show_dead_letter};
use super::head::revive_head;
use crate::crash::point;
use crate::store::{Database, DatabaseError, Transaction};

/// Reads from a payload what it is about, so that an older message about the same thing is not sent after a newer one:
/// for a push, the ref. None: it is about nothing that another message could outdate.
pub type SubjectOf = fn(&[u8]) -> Option<String>;

/// What [`replay`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// It is the newest delivery of its lane now and goes out in its turn.
    Appended {
        /// How many deliveries go out before it.
        ahead: i64,
    },
    /// Its lane had stopped at it and goes on with it, in its old place.
    Revived,
    /// Nothing was changed: a replay of it is on its way.
    AlreadyReplaying,
    /// Nothing was changed: a replay of it got through.
    AlreadyDelivered,
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

/// How many newer deliveries of the lane are compared at most, the newest of them.
pub const COMPARED_MAX: i64 = 1_000;
/// Payloads are read so many at once, so that a lane of large ones does not fill the memory.
const PAGE: i64 = 20;

/// Replays a dead letter. With `subject_of`, it is refused if a newer delivery of its lane about the same subject was
/// published or waits to be; None replays anyway, also what was delivered meanwhile.
///
/// Ok: what was done, committed. Err: nothing was changed. Repeating it after an unclear end gives `AlreadyReplaying` if it
/// had been done. A receiver that knows the id answers 409 and does nothing; the sender counts that as delivered.
pub async fn replay(
    database: &Database,
    delivery_id: Uuid,
    subject_of: Option<SubjectOf>,
) -> Result<Replayed, DatabaseError> {
    let Some((letter, body)) = show_dead_letter(database, delivery_id).await? else {
        return Ok(Replayed::Unknown);
    };
    let Some(body) = body else { return Ok(Replayed::BodyMissing) };
    // Looked at before the lane is locked, since it may read many payloads: a newer delivery that arrives in between is
    // one that could as well have arrived just after the replay.
    if let Some(subject_of) = subject_of
        && letter.state == DeadLetterState::Dead
        && let Some(outdated) = newer_about_same(database, &letter, &body, subject_of).await?
    {
        return Ok(outdated);
    }
    point("replay.chosen");
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let done = append(&transaction, &letter, subject_of.is_none()).await?;
    if matches!(done, Replayed::Appended { .. } | Replayed::Revived) {
        point("replay.written");
        transaction.commit().await?;
        point("replay.committed");
    }
    Ok(done)
}

/// The lane is locked before the dead letter, as a worker that records does it.
async fn append(transaction: &Transaction<'_>, letter: &DeadLetter, anyway: bool) -> Result<Replayed, DatabaseError> {
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
            "SELECT state, lane_id, seq FROM outbox_dlq WHERE delivery_id = $1 FOR UPDATE",
            &[&letter.delivery_id],
        )
        .await?;
    let Some(state) = state else { return Ok(Replayed::Unknown) };
    match state.try_get("state")? {
        DeadLetterState::Replaying => return Ok(Replayed::AlreadyReplaying),
        DeadLetterState::Delivered if !anyway => return Ok(Replayed::AlreadyDelivered),
        DeadLetterState::Delivered | DeadLetterState::Dead => {}
    }
    transaction
        .execute(
            "UPDATE outbox_dlq SET state = 'replaying', replays = replays + 1, updated_at = clock_timestamp() WHERE delivery_id = $1",
            &[&letter.delivery_id],
        )
        .await?;
    let (lane_id, last_seq, done_seq): (i64, i64, i64) =
        (lane.try_get("lane_id")?, lane.try_get("last_seq")?, lane.try_get("done_seq")?);
    let died_at: (i64, i64) = (state.try_get("lane_id")?, state.try_get("seq")?);
    if lane.try_get("blocked")? && died_at == (lane_id, done_seq + 1) {
        revive_head(transaction, lane_id).await?;
        return Ok(Replayed::Revived);
    }
    transaction
        .execute(
            "INSERT INTO outbox_deliveries (lane_id, seq, delivery_id, event_id, event_created_at, webhook_name, aggregate_id, replay, created_at)
             SELECT $2, $3, q.delivery_id, q.event_id, q.event_created_at, q.webhook_name, q.aggregate_id, true, clock_timestamp()
               FROM outbox_dlq AS q WHERE q.delivery_id = $1",
            &[&letter.delivery_id, &lane_id, &(last_seq + 1)],
        )
        .await?;
    transaction
        .execute(
            "UPDATE outbox_lanes SET last_seq = last_seq + 1, ready_at = coalesce(ready_at, clock_timestamp()) WHERE lane_id = $1",
            &[&lane_id],
        )
        .await?;
    Ok(Replayed::Appended { ahead: last_seq - done_seq })
}

/// Compares with what came after the letter in its lane, newest first. Replays are not counted by their place: one that
/// was appended is as old as its first place says.
async fn newer_about_same(
    database: &Database,
    letter: &DeadLetter,
    body: &[u8],
    subject_of: SubjectOf,
) -> Result<Option<Replayed>, DatabaseError> {
    let session = database.session().await?;
    let payload: Option<Vec<u8>> = session
        .query_opt(
            "SELECT payload FROM outbox_events WHERE event_id = $1 AND created_at = $2",
            &[&letter.event_id, &letter.event_created_at],
        )
        .await?
        .map(|row| row.try_get(0))
        .transpose()?;
    let Some(subject) = subject_of(payload.as_deref().unwrap_or(body)) else { return Ok(None) };
    let later = session
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
        let rows = session
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
