//! News for other processes: what was enqueued or made due here may be work for a worker elsewhere. Tells them after the commit and
//! hears what they tell, by NOTIFY without a payload.
//!
//! It only makes things sooner. A notification is lost where nobody listens at that moment, so every worker polls as well, and
//! is woken whenever listening has begun anew. It is sent in a transaction of its own, at most once in `TELL_AT_MOST_EVERY`:
//! in the transaction that enqueues it would make commits wait for each other.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::deliver::chain;
use crate::store::listen::{self, Heard, Hearing, Speaking};
use crate::store::{Database, DatabaseError, Pooler};
use crate::wake::Wake;

/// However much is enqueued, others are told no more often.
const TELL_AT_MOST_EVERY: Duration = Duration::from_millis(20);
/// How long after a lost connection the next is tried: at first, and at most.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_AT_MOST: Duration = Duration::from_secs(5);
/// How long after others could not be told that is tried again.
const TELL_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What is told to an observer, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewsSeen {
    /// News of others is heard from now on; `again` if it was before.
    Listening {
        /// Whether this is not the first time.
        again: bool,
    },
    /// It is not heard any more, for the moment.
    Deaf,
}

/// Told of every [`NewsSeen`].
pub type NewsObserver = Arc<dyn Fn(NewsSeen) + Send + Sync>;

/// Tells others once that there may be work: for a program that commits something and ends. Err: they will find it by themselves.
pub async fn tell(database: &Database) -> Result<(), DatabaseError> {
    listen::tell(&database.session().await?).await
}

/// Tells others what `wake` says, and wakes it when they tell something, until stopped. One for each process, whatever number of
/// workers share the [`Wake`]. Listens over a connection of its own, beside the pool; behind a pooler in transaction mode
/// nothing can be heard, and it only tells.
pub async fn run(database: Database, wake: Wake, observer: Option<NewsObserver>, stop: CancellationToken) {
    let mut teller = Teller { owes: false, not_before: Instant::now() };
    if database.pooler() == Pooler::Transaction {
        while !stop.is_cancelled() {
            tokio::select! {
                () = teller.turn(&wake, || tell(&database)) => {}
                () = stop.cancelled() => {}
            }
        }
        return;
    }
    let observe = |seen| {
        if let Some(observer) = &observer {
            observer(seen);
        }
    };
    let (mut again, mut retry_after) = (false, RETRY_FIRST);
    while !stop.is_cancelled() {
        let opened = tokio::select! {
            opened = listen::listen(&database) => opened,
            () = stop.cancelled() => return,
        };
        match opened {
            Ok((speaking, hearing)) => {
                observe(NewsSeen::Listening { again });
                (again, retry_after) = (true, RETRY_FIRST);
                // What was told in between was not heard.
                wake.wake_here();
                hear(&speaking, &hearing, &wake, &mut teller, &stop).await;
                observe(NewsSeen::Deaf);
            }
            Err(error) => {
                retry_after = (retry_after * 2).min(RETRY_AT_MOST);
                tracing::debug!(error = %chain(&error), "news of other processes cannot be heard; work is found by looking");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(retry_after) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Until the connection ends, or all does.
async fn hear(speaking: &Speaking, hearing: &Hearing, wake: &Wake, teller: &mut Teller, stop: &CancellationToken) {
    loop {
        tokio::select! {
            heard = hearing.next() => match heard {
                Heard::News => wake.wake_here(),
                Heard::End => return,
            },
            () = teller.turn(wake, || speaking.tell()) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Tells at most so often, and again what could not be told.
struct Teller {
    owes: bool,
    not_before: Instant,
}

impl Teller {
    /// Waits until there is something to tell, and for its turn, and tells it. May be dropped at any moment.
    async fn turn<Told>(&mut self, wake: &Wake, tell: impl FnOnce() -> Told)
    where
        Told: Future<Output = Result<(), DatabaseError>>,
    {
        if !self.owes {
            wake.news().await;
            self.owes = true;
        }
        tokio::time::sleep_until(self.not_before).await;
        self.not_before = Instant::now() + TELL_AT_MOST_EVERY;
        // What is committed from here on leaves a wake-up of its own.
        match tell().await {
            Ok(()) => self.owes = false,
            Err(error) => {
                tracing::debug!(error = %chain(&error), "others could not be told of work; told again in a moment");
                self.not_before = Instant::now() + TELL_AGAIN_AFTER;
            }
        }
    }
}
