//! What the tests of back-fills share: numbered events, jobs that are worked on, and what an endpoint was told.

use std::collections::BTreeMap;

use jiff::Timestamp;
use surehook_outbox::endpoint::{EndpointChange, Scope};
use surehook_outbox::jobs::{self, JobSettings};
use surehook_outbox::store::endpoints::NewEndpoint;
use surehook_outbox::store::jobs::{Backfill, Job, Stepped, count_backfill, create_backfill, find, release_lane, step};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::common::{Outbox, SOON};

/// Nobody waits for the rate.
pub(crate) const RATE: i32 = 100_000;

impl Outbox {
    /// Each of these aggregates gets events from `from` to `to`, which say their aggregate and number.
    pub(crate) async fn numbered(&self, aggregates: &[&str], from: usize, to: usize) {
        for n in from..to {
            for aggregate in aggregates {
                self.tell_quietly(aggregate, format!("{aggregate} {n}").as_bytes()).await;
            }
        }
    }

    pub(crate) async fn now(&self) -> Timestamp {
        self.sql.query_one("SELECT clock_timestamp()", &[]).await.unwrap().get(0)
    }

    pub(crate) async fn backfill(&self, endpoint: Uuid, since: Timestamp) -> Job {
        create_backfill(&self.database, endpoint, &Backfill { since, rate: RATE }).await.unwrap()
    }

    /// How many deliveries a back-fill would make.
    pub(crate) async fn missing(&self, endpoint: Uuid, since: Timestamp) -> i64 {
        count_backfill(&self.database, endpoint, since).await.unwrap().iter().map(|count| count.items).sum()
    }

    pub(crate) async fn one_step(&self, job: &Job) -> Stepped {
        step(&self.database, Some(job.job_id), |_| None, "test").await.unwrap()
    }

    /// Works on a job until it has ended, and says how it stands.
    pub(crate) async fn work_to_the_end(&self, job: &Job) -> Job {
        surehook_testkit::eventually(SOON, async || {
            loop {
                match self.one_step(job).await {
                    Stepped::Did { ended: true, .. } => return Some(()),
                    Stepped::Did { .. } => {}
                    Stepped::Nothing { .. } => return None,
                    failed @ Stepped::Failed { .. } => panic!("{failed:?}"),
                }
            }
        })
        .await;
        self.job(job).await
    }

    pub(crate) async fn job(&self, job: &Job) -> Job {
        find(&self.database, job.job_id).await.unwrap().unwrap()
    }

    /// Lets go of every lane that no job holds; returns how many deliveries that made.
    pub(crate) async fn released(&self) -> i64 {
        let mut sum = 0;
        while let Some(deliveries) = release_lane(&self.database).await.unwrap() {
            sum += deliveries;
        }
        sum
    }

    pub(crate) async fn held(&self) -> i64 {
        self.count("SELECT count(*) FROM outbox_lanes WHERE held_since IS NOT NULL").await
    }

    /// What was enqueued for an endpoint: the numbers of each aggregate, in the order of its lane.
    pub(crate) async fn enqueued(&self, endpoint: Uuid) -> BTreeMap<String, Vec<usize>> {
        let rows = self
            .sql
            .query(
                "SELECT convert_from(e.payload, 'UTF8') FROM outbox_lanes AS l JOIN outbox_deliveries AS d USING (lane_id)
                   JOIN outbox_events AS e ON e.event_id = d.event_id WHERE l.endpoint_id = $1 ORDER BY d.lane_id, d.seq",
                &[&endpoint],
            )
            .await
            .unwrap();
        by_aggregate(rows.iter().map(|row| row.get::<_, String>(0)))
    }

    pub(crate) fn service(&self, node: &str) -> (CancellationToken, tokio::task::JoinHandle<()>) {
        let stop = CancellationToken::new();
        let settings = JobSettings { subject_of: |_| None, node: node.into(), observer: None };
        let running = jobs::run(self.database.clone(), self.wake.clone(), settings, stop.clone());
        (stop, tokio::spawn(running))
    }
}

/// An endpoint of everything.
pub(crate) fn new_endpoint(name: &str, url: &str) -> NewEndpoint {
    let settings = EndpointChange { allow_private: Some(true), ..EndpointChange::default() };
    NewEndpoint { settings, ..NewEndpoint::new(name, url, Scope::All) }
}

pub(crate) fn by_aggregate(payloads: impl Iterator<Item = String>) -> BTreeMap<String, Vec<usize>> {
    let mut told: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for payload in payloads {
        let (aggregate, n) = payload.split_once(' ').unwrap();
        told.entry(aggregate.to_owned()).or_default().push(n.parse().unwrap());
    }
    told
}

/// Each of these aggregates with all numbers below `to`, in order.
pub(crate) fn all(aggregates: &[&str], to: usize) -> BTreeMap<String, Vec<usize>> {
    aggregates.iter().map(|aggregate| ((*aggregate).to_owned(), (0..to).collect())).collect()
}
