//! The table `repository_refs`, and the one transaction in which an announce takes effect.

use std::collections::BTreeMap;

use gix::ObjectId;
use surehook_outbox::crash::point;
use surehook_outbox::store::enqueue::{NewEvent, enqueue_many};
use surehook_outbox::store::{DatabaseError, Sql, Transaction};
use uuid::Uuid;

use super::repositories::RepositoryState;
use crate::capture::folder::HighWater;
use crate::capture::reflog::Place;
use crate::capture::transitions::Cursor;
use crate::payload::facts::Limits;
use crate::payload::native::{EVENT_TYPE, Numbers, Push, event_id, render};

/// A row of `repository_refs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefRow {
    /// What was announced.
    pub cursor: Cursor,
    /// Why the ref could not be announced, if it could not.
    pub set_aside: Option<String>,
}

/// A step to announce.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// What is told.
    pub push: Push<'a>,
    /// The number of the step in its ref: one more than that of the step before.
    pub seq: i64,
    /// Where the cursor stands afterwards.
    pub place: Place,
}

/// What [`accept_push`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Everything is written; it takes effect with the caller's commit.
    Written {
        /// The newest number given, and its epoch.
        high_water: HighWater,
        /// The ids of the events, in the order of the steps.
        event_ids: Vec<Uuid>,
    },
    /// Another announce came first; nothing was written.
    Raced,
    /// The repository is in a state in which nothing is announced; nothing was written.
    Refused(RepositoryState),
}

/// The cursors of a repository.
pub async fn read_refs(client: &impl Sql, repository_id: Uuid) -> Result<BTreeMap<Vec<u8>, RefRow>, DatabaseError> {
    let rows = client
        .query(
            "SELECT ref, value, seq, log_offset, log_line_hash, log_birth_hash, set_aside FROM repository_refs WHERE repository_id = $1",
            &[&repository_id],
        )
        .await?;
    let mut refs = BTreeMap::new();
    for row in rows {
        let value: &[u8] = row.try_get(1)?;
        let value = ObjectId::try_from(value)
            .map_err(|_| DatabaseError::Unsuitable("a ref's value has an unknown length".into()))?;
        let offset: Option<i64> = row.try_get(3)?;
        let hash = |column: usize| -> Result<Option<[u8; 32]>, tokio_postgres::Error> {
            Ok(row.try_get::<_, Option<&[u8]>>(column)?.and_then(|hash| hash.try_into().ok()))
        };
        let (line_hash, birth_hash) = (hash(4)?, hash(5)?);
        let place =
            offset.and_then(|offset| u64::try_from(offset).ok()).map(|offset| Place { offset, line_hash, birth_hash });
        let cursor = Cursor { value, place, seq: row.try_get(2)? };
        refs.insert(row.try_get(0)?, RefRow { cursor, set_aside: row.try_get(6)? });
    }
    Ok(refs)
}

/// Bounds how long a statement of this transaction waits for a lock that somebody else holds; then it fails with SQLSTATE
/// 55P03, and nothing was changed.
pub async fn bound_lock_waits(transaction: &Transaction<'_>) -> Result<(), DatabaseError> {
    transaction.batch_execute("SET LOCAL lock_timeout = '10s'").await
}

/// Whether the statement failed because of what others did at the same time: the same call may succeed later.
pub fn is_contention(error: &DatabaseError) -> bool {
    error.sqlstate().is_some_and(|code| code.starts_with("40") || code == "55P03")
}

/// Locks the row of a repository until the transaction ends: from then on only this transaction numbers its events.
pub async fn lock(transaction: &Transaction<'_>, repository_id: Uuid) -> Result<(), DatabaseError> {
    transaction
        .execute("SELECT FROM repositories WHERE repository_id = $1 FOR NO KEY UPDATE", &[&repository_id])
        .await?;
    Ok(())
}

/// Announces steps of one repository in the caller's transaction: numbers, ids and bytes of the events, the outbox, the
/// cursors of the refs, and the repository's row. Steps of one ref must follow each other.
///
/// Ok(Written): all of it takes effect with the commit, or nothing. Any other result and Err: roll back.
pub async fn accept_push(
    transaction: &Transaction<'_>,
    repository_id: Uuid,
    steps: &[Step<'_>],
    high_water: Option<HighWater>,
    limits: &Limits,
) -> Result<Accepted, DatabaseError> {
    let row = transaction
        .query_one(
            "SELECT name, state, last_sequence, sequence_epoch FROM repositories WHERE repository_id = $1 FOR NO KEY UPDATE",
            &[&repository_id],
        )
        .await?;
    point("accept_push.locked");
    let state: &str = row.try_get(1)?;
    match RepositoryState::parse(state) {
        Some(state) if !state.is_followed() => return Ok(Accepted::Refused(state)),
        _ => {}
    }
    let (name, last_sequence, mut epoch): (&str, i64, Uuid) = (row.try_get(0)?, row.try_get(2)?, row.try_get(3)?);
    if high_water.is_some_and(|mark| mark.epoch != epoch || mark.sequence > last_sequence) {
        // The disk knows of numbers that the database does not: it was restored, and would give them a second time.
        epoch = Uuid::new_v4();
    }
    let mut sequence = last_sequence;
    let mut ids = Vec::with_capacity(steps.len());
    let mut payloads = Vec::with_capacity(steps.len());
    for step in steps {
        let push = &step.push;
        sequence += 1;
        let id = event_id(repository_id, push.name, step.seq, push.before, push.after);
        let numbers = Numbers { event_id: id, sequence, sequence_epoch: epoch, repository_name: name };
        payloads.push(render(push, &numbers, limits));
        ids.push(id);
    }
    if advance_refs(transaction, repository_id, steps).await? == Advanced::Raced {
        return Ok(Accepted::Raced);
    }
    point("accept_push.cursors_moved");
    let aggregate_id = repository_id.to_string();
    let events: Vec<NewEvent<'_>> = ids
        .iter()
        .zip(&payloads)
        .map(|(id, payload)| NewEvent {
            event_type: EVENT_TYPE,
            aggregate_id: &aggregate_id,
            payload,
            event_id: Some(*id),
            aggregate_name: Some(name),
            ..NewEvent::default()
        })
        .collect();
    enqueue_many(transaction, &events, &[], &[]).await?;
    let newest = |step: &&Step<'_>| !step.push.after.is_null() && step.push.facts.head_id.is_some();
    let commit = steps.iter().rfind(newest).and_then(|step| step.push.facts.head_id).map(|id| id.to_string());
    transaction
        .execute(
            "UPDATE repositories SET last_sequence = $2, sequence_epoch = $3, last_commit_sha = coalesce($4, last_commit_sha),
                    last_pushed_at = CASE WHEN $4::text IS NULL THEN last_pushed_at ELSE now() END, updated_at = now()
             WHERE repository_id = $1",
            &[&repository_id, &sequence, &epoch, &commit],
        )
        .await?;
    Ok(Accepted::Written { high_water: HighWater { sequence, epoch }, event_ids: ids })
}

#[derive(PartialEq, Eq)]
enum Advanced {
    All,
    Raced,
}

/// Moves the cursors of the refs of these steps, each only if it still stands where the steps begin.
async fn advance_refs(
    transaction: &Transaction<'_>,
    repository_id: Uuid,
    steps: &[Step<'_>],
) -> Result<Advanced, DatabaseError> {
    let mut first: BTreeMap<&[u8], &Step<'_>> = BTreeMap::new();
    let mut last: BTreeMap<&[u8], &Step<'_>> = BTreeMap::new();
    for step in steps {
        first.entry(step.push.name).or_insert(step);
        last.insert(step.push.name, step);
    }
    let names: Vec<&[u8]> = last.keys().copied().collect();
    let read: Vec<i64> = first.values().map(|step| step.seq - 1).collect();
    let before: Vec<&[u8]> = first.values().map(|step| step.push.before.as_slice()).collect();
    let values: Vec<&[u8]> = last.values().map(|step| step.push.after.as_slice()).collect();
    let seqs: Vec<i64> = last.values().map(|step| step.seq).collect();
    let Places { offsets, hashes, births } = places(last.values().map(|step| step.place));
    // A ref without a row counts as one at zeros with the number 0.
    let advanced = transaction
        .execute(
            "WITH step AS (
                 SELECT * FROM unnest($2::bytea[], $3::bigint[], $4::bytea[], $5::bytea[], $6::bigint[], $7::bigint[], $8::bytea[], $9::bytea[])
                     AS s (ref, read_seq, before, value, seq, log_offset, log_line_hash, log_birth_hash)
             ), moved AS (
                 UPDATE repository_refs AS r
                    SET value = s.value, seq = s.seq, log_offset = s.log_offset, log_line_hash = s.log_line_hash, log_birth_hash = s.log_birth_hash,
                        set_aside = NULL, updated_at = now()
                   FROM step AS s
                  WHERE r.repository_id = $1 AND r.ref = s.ref AND r.seq = s.read_seq AND r.value = s.before
                 RETURNING r.ref
             ), made AS (
                 INSERT INTO repository_refs (repository_id, ref, value, seq, log_offset, log_line_hash, log_birth_hash)
                 SELECT $1, s.ref, s.value, s.seq, s.log_offset, s.log_line_hash, s.log_birth_hash FROM step AS s
                  WHERE s.read_seq = 0
                    AND NOT EXISTS (SELECT FROM repository_refs AS r WHERE r.repository_id = $1 AND r.ref = s.ref)
                 ON CONFLICT (repository_id, ref) DO NOTHING
                 RETURNING ref
             )
             SELECT ref FROM moved UNION ALL SELECT ref FROM made",
            &[&repository_id, &names, &read, &before, &values, &seqs, &offsets, &hashes, &births],
        )
        .await?;
    Ok(if advanced == names.len() as u64 { Advanced::All } else { Advanced::Raced })
}

/// Places as columns.
#[derive(Default)]
struct Places {
    offsets: Vec<i64>,
    hashes: Vec<Option<Vec<u8>>>,
    births: Vec<Option<Vec<u8>>>,
}

fn places(places: impl Iterator<Item = Place>) -> Places {
    let mut columns = Places::default();
    for place in places {
        columns.offsets.push(i64::try_from(place.offset).unwrap_or(i64::MAX));
        columns.hashes.push(place.line_hash.map(|hash| hash.to_vec()));
        columns.births.push(place.birth_hash.map(|hash| hash.to_vec()));
    }
    columns
}

/// Writes where the announced lines stand now in logs that were rewritten. A cursor that has moved meanwhile is left alone.
pub async fn move_places(
    client: &impl Sql,
    repository_id: Uuid,
    moved: &[(&[u8], i64, Place)],
) -> Result<(), DatabaseError> {
    let names: Vec<&[u8]> = moved.iter().map(|(name, _, _)| *name).collect();
    let seqs: Vec<i64> = moved.iter().map(|(_, seq, _)| *seq).collect();
    let Places { offsets, hashes, births } = places(moved.iter().map(|(_, _, place)| *place));
    client
        .execute(
            "UPDATE repository_refs AS r SET log_offset = s.log_offset, log_line_hash = s.log_line_hash, log_birth_hash = s.log_birth_hash
               FROM unnest($2::bytea[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bytea[]) AS s (ref, seq, log_offset, log_line_hash, log_birth_hash)
              WHERE r.repository_id = $1 AND r.ref = s.ref AND r.seq = s.seq",
            &[&repository_id, &names, &seqs, &offsets, &hashes, &births],
        )
        .await?;
    Ok(())
}

/// Records that a ref could not be announced, so that the others go on without it.
pub async fn set_aside(
    client: &impl Sql,
    repository_id: Uuid,
    name: &[u8],
    zeros: ObjectId,
    reason: &str,
) -> Result<(), DatabaseError> {
    client
        .execute(
            "INSERT INTO repository_refs (repository_id, ref, value, log_offset, set_aside) VALUES ($1, $2, $3, 0, $4)
             ON CONFLICT (repository_id, ref) DO UPDATE SET set_aside = excluded.set_aside, updated_at = now()",
            &[&repository_id, &name, &zeros.as_slice(), &reason],
        )
        .await?;
    Ok(())
}

/// Lets the present refs count as announced: each with its value and place. Refs that have a row keep it.
pub async fn insert_baseline(
    client: &impl Sql,
    repository_id: Uuid,
    baseline: &BTreeMap<Vec<u8>, (ObjectId, Place)>,
) -> Result<u64, DatabaseError> {
    let names: Vec<&[u8]> = baseline.keys().map(Vec::as_slice).collect();
    let values: Vec<&[u8]> = baseline.values().map(|(value, _)| value.as_slice()).collect();
    let Places { offsets, hashes, births } = places(baseline.values().map(|(_, place)| *place));
    let inserted = client
        .execute(
            "INSERT INTO repository_refs (repository_id, ref, value, log_offset, log_line_hash, log_birth_hash)
             SELECT $1, s.ref, s.value, s.log_offset, s.log_line_hash, s.log_birth_hash
               FROM unnest($2::bytea[], $3::bytea[], $4::bigint[], $5::bytea[], $6::bytea[]) AS s (ref, value, log_offset, log_line_hash, log_birth_hash)
             ON CONFLICT (repository_id, ref) DO NOTHING",
            &[&repository_id, &names, &values, &offsets, &hashes, &births],
        )
        .await?;
    Ok(inserted)
}
