//! Listens for rings and announces the repository that each names. The scan finds what no ring told of, so a ring that is
//! lost only delays.
//!
//! Whoever may ring can do little with it: an id that is no imported repository is dropped, the rings for one repository share
//! one announce, and between two of these lies a rest that grows with what the last one took. Rings cost the server at most
//! a fifth of a processor per repository, however many there are.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use surehook_outbox::Database;
use tokio::net::UnixDatagram;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::capture::announce::{Announcer, Hints};
use crate::doorbell::{Bell, parse_ring, socket_path};
use crate::hosting::Storage;
use crate::store::repositories::{self, Origin};

/// No ring is longer than an id.
const RING_BYTES_MAX: usize = 64;
/// Announces that rings have begun and that run at once.
const ANNOUNCES_MAX: usize = 4;
/// The rest after an announce, as a multiple of what it took, and at least this.
const REST_FACTOR: u32 = 4;
const REST_MIN: Duration = Duration::from_millis(20);
/// How often an unknown id makes us ask the database which there are.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Hangs the doorbell and listens until stopped. Without it the server works too: then the scan finds everything.
pub(super) async fn run(storage: Storage, announcer: Arc<Announcer>, database: Database, stop: CancellationToken) {
    let path = socket_path(&storage.root, storage.storage_id);
    let hung = Bell::hang(&path).and_then(|bell| Ok((UnixDatagram::from_std(bell.socket()?)?, bell)));
    match hung {
        Ok((socket, bell)) => {
            tracing::info!(path = %bell.path().display(), "listening for rings of imported repositories");
            let storage_id = storage.storage_id;
            let known = HashSet::new();
            Listener { bell, database, storage_id, announcer, known, looked_at: None }.run(socket, stop).await;
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "no doorbell: pushes to imported repositories are told by the scan alone");
            stop.cancelled().await;
        }
    }
}

struct Listener {
    bell: Bell,
    database: Database,
    storage_id: Uuid,
    announcer: Arc<Announcer>,
    known: HashSet<Uuid>,
    looked_at: Option<Instant>,
}

/// Whether it rang again for a repository while its announce ran or rested.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rang {
    Once,
    Again,
}

impl Listener {
    async fn run(mut self, socket: UnixDatagram, stop: CancellationToken) {
        let mut busy: HashMap<Uuid, Rang> = HashMap::new();
        let mut running: JoinSet<Uuid> = JoinSet::new();
        let slots = Arc::new(Semaphore::new(ANNOUNCES_MAX));
        let mut bytes = [0; RING_BYTES_MAX];
        loop {
            let begin = tokio::select! {
                received = socket.recv(&mut bytes) => match received {
                    Ok(length) => self.heard(&bytes[..length]).await,
                    Err(error) => {
                        tracing::warn!(path = %self.bell.path().display(), %error, "the doorbell cannot be heard any more");
                        return;
                    }
                },
                Some(Ok(id)) = running.join_next() => busy.remove(&id).filter(|rang| *rang == Rang::Again).map(|_| id),
                () = stop.cancelled() => break,
            };
            let Some(id) = begin else { continue };
            if let Some(rang) = busy.get_mut(&id) {
                *rang = Rang::Again;
                continue;
            }
            busy.insert(id, Rang::Once);
            running.spawn(answer(Arc::clone(&self.announcer), id, Arc::clone(&slots)));
        }
        // Abandoning an announce is safe: the next start finds what it had not committed.
        running.shutdown().await;
    }

    /// The imported repository that a ring is about.
    async fn heard(&mut self, ring: &[u8]) -> Option<Uuid> {
        let id = parse_ring(ring)?;
        if !self.known.contains(&id) && self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            self.looked_at = Some(Instant::now());
            match repositories::list_of_storage(&self.database, self.storage_id).await {
                Ok(rows) => {
                    let imported = rows.into_iter().filter(|row| row.origin == Origin::Imported);
                    self.known = imported.map(|row| row.repository_id).collect();
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "a ring could not be answered; the scan will find what moved");
                }
            }
        }
        self.known.contains(&id).then_some(id)
    }
}

/// Announces, and rests.
async fn answer(announcer: Arc<Announcer>, repository_id: Uuid, slots: Arc<Semaphore>) -> Uuid {
    // It is never closed.
    let slot = slots.acquire().await;
    let begun = Instant::now();
    if let Err(error) = announcer.announce(repository_id, Hints::default()).await {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(%repository_id, error, "this repository could not be announced");
    }
    let took = begun.elapsed();
    drop(slot);
    tokio::time::sleep((took * REST_FACTOR).max(REST_MIN)).await;
    repository_id
}
