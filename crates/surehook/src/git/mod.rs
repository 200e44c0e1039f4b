//! Git over smart HTTP, and the git processes behind it.
//!
//! [`http`] serves clones, fetches and pushes; who may do what, and what happens after a push, it asks a
//! [`backend::GitBackend`]. [`command`] is the only door to git processes, [`hosted`] makes and removes repositories on
//! disk, [`stale`] removes what killed ones left there, [`imported`] changes what must be changed in those of others. [`name`],
//! [`pktline`], [`push_request`] and [`push_answer`] are pure.

pub mod backend;
pub mod command;
pub mod hosted;
pub mod http;
pub mod imported;
pub mod lock;
pub mod name;
pub mod network_disk;
pub mod pktline;
pub mod presence;
mod process;
pub mod push_answer;
pub mod push_request;
pub mod stale;
