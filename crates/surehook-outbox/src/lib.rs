//! A transactional outbox on PostgreSQL.
//!
//! Events are recorded in the transaction of the change that they tell of ([`enqueue`]) and delivered as signed webhooks,
//! at least once and in order ([`Worker`]). Nothing in this crate knows of Git.
//!
//! The way of an event: [`store::enqueue`] fans it out to lanes, [`deliver`] claims lanes and sends ([`send`]), [`retry`]
//! judges what came back, [`store::record`] writes it down.

pub mod address;
pub mod clock;
#[doc(hidden)]
pub mod crash;
pub mod deliver;
pub mod endpoint;
pub mod jobs;
pub mod loops;
pub mod news;
pub mod pulse;
pub mod retention;
pub mod retry;
pub mod send;
pub mod store;
pub mod subscriber;
pub mod sweep;
pub mod target;
mod text_enum;
mod tls;
pub mod wake;

pub use deliver::{KeptWorker, Worker, WorkerSettings};
pub use loops::Loops;
pub use pulse::Pulse;
pub use store::enqueue::{Enqueued, NewEvent, Rendering, enqueue, enqueue_many};
pub use store::{Database, DatabaseError, Pooler, Session, Sql, Transaction};
pub use subscriber::Subscribers;
pub use wake::Wake;
