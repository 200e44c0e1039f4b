//! Remembers which deliveries were seen, so that a repeated one counts once. The trait is pure; its PostgreSQL store is
//! behind the feature `postgres`.

use sha2::{Digest as _, Sha256};

#[cfg(feature = "postgres")]
pub mod postgres;

/// SHA-256 of a body.
pub type BodyHash = [u8; 32];

/// The hash that tells whether a repeated delivery carries the same bytes.
pub fn body_hash(body: &[u8]) -> BodyHash {
    Sha256::digest(body).into()
}

/// What became of [`SeenStore::record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Not seen before: do the work, and answer 202 when it is safe.
    New,
    /// Seen before: do nothing, and answer 409, which surehook counts as delivered.
    Seen {
        /// Whether the bytes are those of the first time. After a restore of the sender the same id can come with other
        /// bytes; it is still the same delivery.
        same_body: bool,
    },
}

/// A memory of ids. It must be as durable as the work that a delivery starts, best in the same transaction: an id that
/// is remembered while its work was lost is a delivery lost.
///
/// ```
/// use std::collections::HashMap;
/// use surehook_webhook::{BodyHash, Recorded, SeenStore, body_hash};
///
/// /// Forgets at exit: for tests.
/// #[derive(Default)]
/// struct InMemory(HashMap<String, BodyHash>);
///
/// impl SeenStore for InMemory {
///     type Error = std::convert::Infallible;
///     async fn record(&mut self, webhook_id: &str, hash: &BodyHash) -> Result<Recorded, Self::Error> {
///         Ok(match self.0.get(webhook_id) {
///             Some(known) => Recorded::Seen { same_body: known == hash },
///             None => {
///                 self.0.insert(webhook_id.into(), *hash);
///                 Recorded::New
///             }
///         })
///     }
/// }
/// # fn now<T>(future: impl Future<Output = T>) -> T {
/// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// #     match std::pin::pin!(future).poll(&mut context) { std::task::Poll::Ready(value) => value, _ => unreachable!() }
/// # }
/// let mut store = InMemory::default();
/// assert_eq!(now(store.record("1", &body_hash(b"a")))?, Recorded::New);
/// assert_eq!(now(store.record("1", &body_hash(b"a")))?, Recorded::Seen { same_body: true });
/// assert_eq!(now(store.record("1", &body_hash(b"b")))?, Recorded::Seen { same_body: false });
/// # Ok::<(), std::convert::Infallible>(())
/// ```
pub trait SeenStore {
    /// Why it could not be recorded.
    type Error;

    /// Records an id at its first sight. Of any number of concurrent calls with one id, exactly one is told
    /// [`Recorded::New`]. Err: nothing was recorded; answer 503, the sender will come again.
    fn record(
        &mut self,
        webhook_id: &str,
        body_hash: &BodyHash,
    ) -> impl Future<Output = Result<Recorded, Self::Error>> + Send;
}
