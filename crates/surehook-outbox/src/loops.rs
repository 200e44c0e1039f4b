//! Loops that must never end: one that panics, ends or stands still is noticed, reported, and begun again. May run tasks, and
//! joins them.
//!
//! A panic ends a task and not the process, so that everything may look healthy while nothing is done. Each loop therefore shows
//! when a turn of it begins and when it rests; a turn that lasts too long is one that will not end.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How often is looked at a loop.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a loop that is given up may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
/// The first and the longest wait before a loop is begun again.
const AGAIN_FIRST: Duration = Duration::from_millis(500);
const AGAIN_LONGEST: Duration = Duration::from_secs(30);
/// A loop that ran for so long is well: the next fault is a new one.
const IS_WELL_AFTER: Duration = Duration::from_secs(60);

/// A loop's sign of life. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Pulse {
    born: Instant,
    /// When the present turn began, in milliseconds since `born`, and one; 0: it rests.
    began: Arc<AtomicU64>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { born: Instant::now(), began: Arc::default() }
    }
}

impl Pulse {
    /// A turn begins.
    pub fn works(&self) {
        let now = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.began.store(now + 1, Ordering::Relaxed);
    }

    /// It waits for something, for however long.
    pub fn rests(&self) {
        self.began.store(0, Ordering::Relaxed);
    }

    /// How long the present turn has lasted; zero while it rests.
    pub fn busy_for(&self) -> Duration {
        match self.began.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            began => self.born.elapsed().saturating_sub(Duration::from_millis(began - 1)),
        }
    }
}

/// How a loop came to its end although nobody had asked it to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It panicked, with these words.
    Panicked(String),
    /// It returned.
    Ended,
    /// A turn of it has lasted this long.
    StandsStill(Duration),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Panicked(words) => write!(f, "it panicked: {words}"),
            Self::Ended => write!(f, "it ended"),
            Self::StandsStill(for_how_long) => write!(f, "it has stood still for {} s", for_how_long.as_secs()),
        }
    }
}

/// Told of every loop that is begun again, by its name.
pub type LoopObserver = Arc<dyn Fn(&'static str) + Send + Sync>;

/// The loops of a process. Cloning shares them.
#[derive(Clone, Default)]
pub struct Loops {
    observer: Option<LoopObserver>,
    /// Loops that are down at this moment, with what happened to them.
    down: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

impl std::fmt::Debug for Loops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loops").field("down", &self.down).finish_non_exhaustive()
    }
}

impl Loops {
    /// No loops yet.
    pub fn new(observer: LoopObserver) -> Self {
        Self { observer: Some(observer), down: Arc::default() }
    }

    /// The loops that do not run at this moment, and why, by name.
    pub fn down(&self) -> Vec<(&'static str, String)> {
        self.lock().iter().map(|(name, fault)| (*name, fault.clone())).collect()
    }

    /// Notes that a loop has died and is about to be begun again.
    pub(crate) fn died(&self, name: &'static str, fault: &Fault) {
        tracing::error!(loop_name = name, %fault, "a loop of this process has died; it is begun again (a defect: please report it)");
        self.lock().insert(name, fault.to_string());
        if let Some(observer) = &self.observer {
            observer(name);
        }
    }

    /// Shows a loop as down.
    pub(crate) fn shows_down(&self, name: &'static str, why: String) {
        self.lock().insert(name, why);
    }

    /// Notes that it runs again.
    pub(crate) fn runs(&self, name: &'static str) {
        self.lock().remove(name);
    }

    /// Runs what `begin` makes until `stop`, and begins it anew when it panics, returns, or takes more than `still_after` for a
    /// turn (None: a turn may take as long as it likes). What it makes must stand being cut off at any point. Once stopped, it is
    /// waited for.
    pub async fn keep<Run>(
        &self,
        name: &'static str,
        still_after: Option<Duration>,
        stop: CancellationToken,
        begin: impl Fn(Pulse) -> Run,
    ) where
        Run: Future<Output = ()> + Send + 'static,
    {
        let mut again = Again::default();
        while !stop.is_cancelled() {
            let pulse = Pulse::default();
            let mut task = JoinSet::new();
            task.spawn(caught(begin(pulse.clone())));
            again.begins();
            self.runs(name);
            let fault = loop {
                tokio::select! {
                    ended = task.join_next() => break ended.and_then(Result::ok).unwrap_or(Fault::Ended),
                    () = tokio::time::sleep(LOOK_EVERY) => {
                        let busy_for = pulse.busy_for();
                        if still_after.is_some_and(|limit| busy_for > limit) && !stop.is_cancelled() {
                            break Fault::StandsStill(busy_for);
                        }
                    }
                }
            };
            if stop.is_cancelled() && !matches!(fault, Fault::Panicked(_)) {
                return;
            }
            self.died(name, &fault);
            task.abort_all();
            // One that does not even give way to its end is left behind: it can do no more than it does already.
            if tokio::time::timeout(ENDS_WITHIN, async { while task.join_next().await.is_some() {} }).await.is_err() {
                task.detach_all();
            }
            again.wait(&stop).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.down.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a loop to its end, which it should not have.
pub(crate) async fn caught(run: impl Future<Output = ()>) -> Fault {
    match AssertUnwindSafe(run).catch_unwind().await {
        Ok(()) => Fault::Ended,
        Err(panic) => Fault::Panicked(words(panic.as_ref())),
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a word".into())
}

/// How long is waited before the next beginning: longer each time, until it went well for a while.
#[derive(Debug)]
pub(crate) struct Again {
    wait: Duration,
    began: Instant,
}

impl Default for Again {
    fn default() -> Self {
        Self { wait: AGAIN_FIRST, began: Instant::now() }
    }
}

impl Again {
    pub(crate) fn begins(&mut self) {
        self.began = Instant::now();
    }

    pub(crate) async fn wait(&mut self, stop: &CancellationToken) {
        if self.began.elapsed() > IS_WELL_AFTER {
            self.wait = AGAIN_FIRST;
        }
        tokio::select! {
            () = tokio::time::sleep(self.wait) => {}
            () = stop.cancelled() => {}
        }
        self.wait = (self.wait * 2).min(AGAIN_LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Runs a loop whose first two beginnings go wrong as `fault` does, and returns the names that were told.
    async fn kept<Run>(still_after: Option<Duration>, fault: fn(Pulse) -> Run) -> (Vec<&'static str>, usize)
    where
        Run: Future<Output = ()> + Send + 'static,
    {
        let told = Arc::new(Mutex::new(Vec::new()));
        let (seen, began) = (Arc::clone(&told), Arc::new(AtomicUsize::new(0)));
        let loops = Loops::new(Arc::new(move |name| seen.lock().unwrap().push(name)));
        let stop = CancellationToken::new();
        let (stopping, counted) = (stop.clone(), Arc::clone(&began));
        loops
            .keep("tested", still_after, stop.clone(), |pulse| {
                let nth = counted.fetch_add(1, Ordering::SeqCst);
                let stop = stopping.clone();
                async move {
                    if nth < 2 {
                        return fault(pulse).await;
                    }
                    stop.cancel();
                }
            })
            .await;
        assert!(loops.down().is_empty());
        let told = told.lock().unwrap().clone();
        (told, began.load(Ordering::SeqCst))
    }

    #[tokio::test]
    async fn whoever_panics_ends_or_stands_still_is_begun_again() {
        assert_eq!(kept(None, |_| async { panic!("no") }).await, (vec!["tested"; 2], 3));
        assert_eq!(kept(None, |_| async {}).await, (vec!["tested"; 2], 3));
        let short = Some(Duration::from_millis(1));
        let stands = |pulse: Pulse| async move {
            pulse.works();
            std::future::pending::<()>().await;
        };
        assert_eq!(kept(short, stands).await, (vec!["tested"; 2], 3));
        let pulse = Pulse::default();
        pulse.works();
        pulse.rests();
        assert_eq!(pulse.busy_for(), Duration::ZERO, "who rests may rest for long");
    }
}
