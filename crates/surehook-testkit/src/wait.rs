//! Waiting on a condition. The only place of the repository that sleeps: between two looks, never instead of one.

use std::time::{Duration, Instant};

const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Looks at `condition` until it gives something, at most for `deadline`; panics after that.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use std::time::Duration;
/// let mut looks = 0;
/// let third = surehook_testkit::eventually(Duration::from_secs(5), async || {
///     looks += 1;
///     (looks == 3).then_some(looks)
/// })
/// .await;
/// assert_eq!(third, 3);
/// # });
/// ```
#[track_caller]
pub fn eventually<T, C>(deadline: Duration, condition: C) -> impl Future<Output = T>
where
    C: AsyncFnMut() -> Option<T>,
{
    let caller = std::panic::Location::caller();
    async move {
        match try_eventually(deadline, condition).await {
            Some(found) => found,
            None => panic!("the condition at {caller} did not come true within {deadline:?}"),
        }
    }
}

/// Like [`eventually`], but gives `None` when the deadline has passed. The condition is looked at at least once, and a
/// look that hangs is given up at the deadline.
pub async fn try_eventually<T>(deadline: Duration, mut condition: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + deadline;
    loop {
        let left = end.saturating_duration_since(Instant::now()).max(BETWEEN_LOOKS);
        match tokio::time::timeout(left, condition()).await {
            Ok(Some(found)) => return Some(found),
            Err(_) => return None,
            Ok(None) if Instant::now() >= end => return None,
            Ok(None) => tokio::time::sleep(BETWEEN_LOOKS).await,
        }
    }
}

/// The scripted slowness of a server in a test. Not for waiting on anything.
pub(crate) async fn be_slow(for_how_long: Duration) {
    tokio::time::sleep(for_how_long).await;
}
