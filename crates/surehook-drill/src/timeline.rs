//! What happened when: faults with their beginnings and ends, and how far everybody was, looked at again and again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use surehook_testkit::postgres::{Client, try_connect};

use crate::against::Against;
use crate::load::Load;
use crate::plan::Fault;
use crate::stack::Stack;
use crate::store;

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A database that does not answer within this time is away.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// A fault that was brought about.
#[derive(Clone, Debug, Serialize)]
pub struct Happened {
    /// When it began, from the first push on.
    pub from_ms: u64,
    /// When it was made good: the process is there again, the network whole.
    pub until_ms: u64,
    /// What.
    #[serde(flatten)]
    pub fault: Fault,
    /// What there was to say of it: who was hit, or why nobody was.
    pub note: String,
}

/// How far everybody was at a moment. None: the database was away.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sample {
    /// When, from the first push on.
    pub at_ms: u64,
    /// Pushes begun.
    pub pushes: usize,
    /// Events committed.
    pub events: Option<i64>,
    /// Deliveries that have not ended.
    pub pending: Option<i64>,
    /// Builds ended.
    pub built: Option<i64>,
    /// Builds that wait or run.
    pub to_build: Option<i64>,
}

/// Written by all, read in the end.
#[derive(Debug)]
pub struct Timeline {
    begun: Mutex<Instant>,
    happened: Mutex<Vec<Happened>>,
    samples: Mutex<Vec<Sample>>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { begun: Mutex::new(Instant::now()), happened: Mutex::default(), samples: Mutex::default() }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Timeline {
    /// Time counts from now on.
    pub fn begin(&self) {
        *locked(&self.begun) = Instant::now();
    }

    /// Time since the beginning.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(locked(&self.begun).elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Writes a fault down.
    pub fn note(&self, happened: Happened) {
        locked(&self.happened).push(happened);
    }

    /// The newest look.
    pub fn newest(&self) -> Sample {
        locked(&self.samples).last().copied().unwrap_or_default()
    }

    /// All of it, in the order of time.
    pub fn told(&self) -> (Vec<Happened>, Vec<Sample>) {
        let mut happened = locked(&self.happened).clone();
        happened.sort_by_key(|happened| happened.from_ms);
        (happened, locked(&self.samples).clone())
    }

    /// Looks at everybody until the future that this runs beside has ended.
    pub async fn watch(&self, stack: &Stack, load: &Load, looked: impl Fn(&Sample)) -> ! {
        let (mut sender, mut receiver) = (None, None);
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tick.tick().await;
            let mut sample =
                Sample { pushes: load.pushes.load(std::sync::atomic::Ordering::SeqCst), ..Sample::default() };
            let (sender_url, receiver_url) = (stack.sender_url(), stack.receiver_url());
            let (standing, builds) = tokio::join!(
                look(&mut sender, &sender_url, async |client| match stack.against {
                    Against::Surehook => store::standing(client).await,
                    Against::Naive => Ok(store::Standing::default()),
                    Against::Textbook => crate::against::textbook::standing(client).await,
                }),
                look(&mut receiver, &receiver_url, async |client| store::builds(client).await)
            );
            sample.at_ms = self.now_ms();
            sample.events = standing.map(|standing| standing.events);
            sample.pending = standing.map(|standing| standing.pending);
            sample.built = builds.map(|(built, _)| built);
            sample.to_build = builds.map(|(_, open)| open);
            locked(&self.samples).push(sample);
            looked(&sample);
        }
    }
}

async fn look<T>(
    client: &mut Option<Client>,
    url: &str,
    ask: impl AsyncFn(&Client) -> Result<T, tokio_postgres::Error>,
) -> Option<T> {
    let looking = async {
        let connected = match client.take() {
            Some(connected) => connected,
            None => try_connect(url).await.ok()?,
        };
        let answer = ask(&connected).await.ok()?;
        *client = Some(connected);
        Some(answer)
    };
    tokio::time::timeout(LOOK_WITHIN, looking).await.ok().flatten()
}
