//! An endpoint as the worker sees it: where to send, with which secrets, under which limits. Plain data.

use std::sync::OnceLock;
use std::time::Duration;

use surehook_webhook::secret::Secret;
use uuid::Uuid;

use crate::retry::Policy;
use crate::send::Route;

/// The format whose body is the payload of the event itself; all others were rendered beside it.
pub const NATIVE: &str = "native";

/// Where deliveries go, read anew at each claim.
#[derive(Clone, Debug)]
pub struct Target {
    /// The endpoint.
    pub endpoint_id: Uuid,
    /// Its name, for people.
    pub name: String,
    /// Absolute URL.
    pub url: String,
    /// Signs; the second one signs too during a rotation. Err: what is wrong with the stored one.
    pub secrets: Result<Vec<Secret>, String>,
    /// Further headers that the administrator set.
    pub headers: Vec<(String, String)>,
    /// Which rendering it gets.
    pub format: String,
    /// Loopback and private addresses are wanted.
    pub allow_private: bool,
    /// Deadline of one attempt.
    pub timeout: Duration,
    /// Requests at once from this process, at most.
    pub in_flight_max: usize,
    /// Requests per second from this process.
    pub rate_max_per_s: Option<u32>,
    /// A dead head stops its lane.
    pub block_on_dead: bool,
    /// When to retry and when to give up.
    pub policy: Policy,
    /// Made of the above at the first request.
    pub route: Prepared,
}

/// What [`send`](crate::send) makes of a target, once.
#[derive(Clone, Debug, Default)]
pub struct Prepared(OnceLock<Result<Route, String>>);

impl Target {
    /// Err: what is wrong with its settings, in words for a person.
    pub(crate) fn route(&self) -> Result<&Route, String> {
        self.route.0.get_or_init(|| Route::new(self)).as_ref().map_err(Clone::clone)
    }
}
