//! Events that are produced at a steady rate while a worker runs, and how long each took from its commit to the receiver.

use std::collections::HashMap;

use anyhow::{Context as _, Result};

use super::Bench;
use super::arrivals::Summary;
use crate::child::Contender;
use crate::contender::Command;
use crate::load::Load;
use crate::report::percentile;

/// When each was committed, by id.
pub(crate) type Commits = HashMap<u32, u64>;

/// Has a contender produce; on return all is committed.
pub(crate) async fn produce(contender: &mut Contender, load: Load, per_second: u32) -> Result<Commits> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("commits");
    let log = path.to_str().context("a path that is not UTF-8")?.to_owned();
    contender.tell(&Command::Produce { load, per_second, log }).await?;
    let mut commits = Commits::new();
    for line in std::fs::read_to_string(path)?.lines() {
        let (id, commit_ns) = line.split_once(' ').with_context(|| format!("a commit: {line}"))?;
        commits.insert(id.parse()?, commit_ns.parse()?);
    }
    Ok(commits)
}

/// What all arrivals since the last reset say.
pub(crate) async fn summary(bench: &mut Bench) -> Result<Summary> {
    Ok(Summary::of(&bench.sink.arrivals().await?))
}

/// From commit to arrival, of the ids that are chosen. What has not arrived counts as having taken until `end_ns`.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    ms: Vec<f64>,
    pub(crate) missing: usize,
}

impl Latencies {
    pub(crate) fn of(commits: &Commits, summary: &Summary, end_ns: u64, chosen: impl Fn(u32) -> bool) -> Self {
        let mut latencies = Self::default();
        for (id, commit_ns) in commits.iter().filter(|(id, _)| chosen(**id)) {
            let arrived = summary.first_ns.get(id);
            latencies.missing += usize::from(arrived.is_none());
            // An event may arrive before its producer has been told of the commit.
            latencies.ms.push((*arrived.unwrap_or(&end_ns) as f64 - *commit_ns as f64) / 1e6);
        }
        latencies
    }

    pub(crate) fn percentile(&mut self, share: f64) -> f64 {
        percentile(&mut self.ms, share).unwrap_or(f64::NAN)
    }
}
