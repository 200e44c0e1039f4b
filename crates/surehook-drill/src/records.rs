//! What is known after a run, from four sides that do not know each other: git's clients and the refs on disk; the events; the
//! deliveries; the receiver's table and the results of its builds. Plain values, no I/O.

use std::collections::{BTreeMap, HashMap, HashSet};

/// The object id of nothing.
pub const ZEROS: &str = "0000000000000000000000000000000000000000";

/// The four sides.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// Clients and disk, by the name of the repository.
    pub repositories: BTreeMap<String, Repository>,
    /// What was told, in the order of the teller.
    pub told: Vec<Told>,
    /// What became of the deliveries.
    pub deliveries: Vec<Delivery>,
    /// What the receiver believed, in the order of arrival.
    pub arrivals: Vec<Arrival>,
    /// What its builds left, in the order of their ends.
    pub builds: Vec<Built>,
    /// Events that a person let out again after they had died: their place in the order is lost, as the manual says.
    pub replayed: HashSet<String>,
}

/// A ref and a value that it got, or was to get.
pub type Step = (String, String);

/// What happened to a repository, as its clients and its disk say.
#[derive(Clone, Debug, Default)]
pub struct Repository {
    /// What clients asked for, and how often.
    pub attempted: HashMap<Step, usize>,
    /// What git told clients had happened.
    pub accepted: Vec<Step>,
    /// What git told clients had been refused.
    pub refused: Vec<Step>,
    /// The refs on disk.
    pub refs: BTreeMap<String, String>,
    /// The values of each ref since its log begins, oldest first; the first is what the ref was before.
    pub paths: BTreeMap<String, Vec<String>>,
}

/// An event.
#[derive(Clone, Debug)]
pub struct Told {
    /// Its id.
    pub event_id: String,
    /// The name of the repository.
    pub repository: String,
    /// The ref.
    pub name: String,
    /// Where it stood.
    pub before: String,
    /// Where it went.
    pub after: String,
    /// Its number in the repository.
    pub sequence: i64,
    /// Within what the number counts.
    pub epoch: String,
    /// SHA-256 of its bytes, hex.
    pub body_hash: String,
}

/// A delivery as the sender sees it.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// What is sent as `X-Webhook-Id`.
    pub delivery_id: String,
    /// The event.
    pub event_id: String,
    /// Where it stands.
    pub status: Status,
}

/// Where a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The sender believes that it arrived.
    Published,
    /// The sender still tries.
    Pending,
    /// The sender has given it up.
    Dead,
}

/// A row of the receiver's table.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// `X-Webhook-Id`.
    pub webhook_id: String,
    /// The event that the body names.
    pub event_id: String,
    /// The repository that the body names.
    pub repository: String,
    /// SHA-256 of the body, hex.
    pub body_hash: String,
    /// Whether the receiver says that the build has ended.
    pub is_finished: bool,
}

/// What one run of a build left.
#[derive(Clone, Debug)]
pub struct Built {
    /// What it was for.
    pub webhook_id: String,
    /// Whether the commit was there to be built.
    pub found_commit: bool,
}
