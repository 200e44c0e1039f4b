//! A step of a replay: the next dead letter, in the order of the events.

use jiff::Timestamp;
use uuid::Uuid;

use super::step::Progress;
use super::{Job, JobState};
use crate::store::operate::{DeadLetterReason, HowToReplay, SubjectOf, replay_in};
use crate::store::{DatabaseError, Transaction};

const CURSOR: &str = "
    SELECT coalesce(after_event_at, '0001-01-01 00:00:00+00') AS event_at, coalesce(after_lane_id, 0) AS lane_id, coalesce(after_seq, 0) AS seq,
           coalesce(after_delivery_id, '00000000-0000-0000-0000-000000000000') AS delivery_id
      FROM outbox_jobs WHERE job_id = $1";

/// Only what died before the job was made: what it replays and what dies again is no item of the same job. The cursor comes
/// as values, so that the index gives the order.
const NEXT: &str = "
    SELECT delivery_id, event_created_at, lane_id, seq FROM outbox_dlq
     WHERE state = 'dead' AND ($1::uuid IS NULL OR endpoint_id = $1) AND ($2::text IS NULL OR aggregate_id = $2)
       AND ($3::text IS NULL OR reason = $3) AND ($4::timestamptz IS NULL OR failed_at >= $4) AND failed_at < $5::timestamptz
       AND (event_created_at, lane_id, seq, delivery_id) > ($6::timestamptz, $7::bigint, $8::bigint, $9::uuid)
     ORDER BY event_created_at, lane_id, seq, delivery_id LIMIT 1";

pub(super) async fn work(
    transaction: &Transaction<'_>,
    job: &Job,
    subject_of: SubjectOf,
) -> Result<Progress, DatabaseError> {
    let cursor = transaction.query_one(CURSOR, &[&job.job_id]).await?;
    let next = transaction
        .query_opt(
            NEXT,
            &[
                &job.endpoint_id,
                &job.aggregate_id,
                &job.reason.map(DeadLetterReason::as_str),
                &job.since,
                &job.until,
                &cursor.try_get::<_, Timestamp>("event_at")?,
                &cursor.try_get::<_, i64>("lane_id")?,
                &cursor.try_get::<_, i64>("seq")?,
                &cursor.try_get::<_, Uuid>("delivery_id")?,
            ],
        )
        .await?;
    let mut progress = Progress::default();
    let Some(next) = next else {
        progress.ends = Some(JobState::Done);
        return Ok(progress);
    };
    let delivery_id: Uuid = next.try_get("delivery_id")?;
    let how = HowToReplay { subject_of: (!job.anyway).then_some(subject_of), new_id: job.new_ids };
    match replay_in(transaction, delivery_id, &how).await?.skip_word() {
        None => progress.done = 1,
        Some(reason) => {
            progress.skipped.insert(reason, 1);
        }
    }
    transaction
        .execute(
            "UPDATE outbox_jobs SET after_event_at = $2, after_lane_id = $3, after_seq = $4, after_delivery_id = $5 WHERE job_id = $1",
            &[
                &job.job_id,
                &next.try_get::<_, Timestamp>("event_created_at")?,
                &next.try_get::<_, i64>("lane_id")?,
                &next.try_get::<_, i64>("seq")?,
                &delivery_id,
            ],
        )
        .await?;
    Ok(progress)
}
