//! The limits of the Git server.

use std::time::Duration;

/// Every limit of the Git server, with defaults for a machine that serves a team.
#[derive(Clone, Debug)]
pub struct GitHttpSettings {
    /// git processes for clones and fetches at once.
    pub fetches_max: usize,
    /// git processes for pushes at once; apart, so that clones cannot keep pushes out.
    pub pushes_max: usize,
    /// How long a request waits for its turn before it is told to come back.
    pub slot_wait_max: Duration,
    /// How long a request waits for upkeep that has the repository to itself.
    pub lock_wait_max: Duration,
    /// Largest packfile of one push; git refuses a larger one and the client sees why.
    pub pack_bytes_max: u64,
    /// Largest request of a fetch, after decompression.
    pub fetch_request_bytes_max: u64,
    /// Most ref updates in one push.
    pub refs_per_push_max: usize,
    /// Most bytes of push options in one push.
    pub push_option_bytes_max: usize,
    /// How long a client may send nothing in the middle of a request.
    pub body_idle_max: Duration,
    /// How long a client may read nothing in the middle of an answer.
    pub client_stall_max: Duration,
    /// How long the rest of a request is read after git has stopped listening, so that the client can read the answer.
    pub drain_max: Duration,
    /// How often a waiting push client is sent a sign of life.
    pub keepalive_every: Duration,
    /// How long a push's success is held back for its announcement.
    pub hold_max: Duration,
    /// How long at most a git process may take to end after it was asked to; a quarter of the grace time if that is less.
    pub terminate_wait: Duration,
}

impl Default for GitHttpSettings {
    fn default() -> Self {
        Self {
            fetches_max: 32,
            pushes_max: 32,
            slot_wait_max: Duration::from_secs(30),
            lock_wait_max: Duration::from_secs(30),
            pack_bytes_max: 10 * 1024 * 1024 * 1024,
            fetch_request_bytes_max: 64 * 1024 * 1024,
            refs_per_push_max: 100_000,
            push_option_bytes_max: 64 * 1024,
            body_idle_max: Duration::from_secs(300),
            client_stall_max: Duration::from_secs(300),
            drain_max: Duration::from_secs(120),
            keepalive_every: Duration::from_secs(5),
            hold_max: Duration::from_secs(20),
            terminate_wait: Duration::from_secs(5),
        }
    }
}
