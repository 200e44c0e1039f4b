//! Refs on disk become events: read the refs, derive the transitions, announce them.
//!
//! The refs on disk are the truth; the database holds per ref what was last announced. [`transitions`] is the pure heart,
//! [`reflog`] its parser, [`refs`] and [`snapshot`] read the disk, [`folder`] knows the repository beside its refs, and
//! `announce` puts them together.

pub mod folder;
pub mod reflog;
pub mod refs;
pub mod snapshot;
pub mod transitions;
