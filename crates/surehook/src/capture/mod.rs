//! Refs on disk become events: read the refs, derive the transitions, announce them.
//!
//! The refs on disk are the truth; the database holds per ref what was last announced. [`transitions`] is the pure heart,
//! [`reflog`] its parser, [`refs`] and [`snapshot`] read the disk, [`folder`] knows the repository beside its refs, [`prepare`]
//! is the blocking half of an announce, and [`announce`] puts them together. [`trim`] shortens
//! logs, [`unchanged`] spares a look.

pub mod announce;
pub mod folder;
pub mod prepare;
pub mod reflog;
pub mod refs;
mod run;
pub mod snapshot;
pub mod storage;
pub mod transitions;
pub mod trim;
pub mod turns;
pub mod unchanged;
