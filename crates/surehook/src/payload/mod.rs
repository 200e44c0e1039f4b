//! What an event says: reads from git what a step brought ([`facts`], slow) and renders it ([`native`], pure and fast).

pub mod facts;
pub mod files;
pub mod native;
pub mod object;
pub mod objects;
pub mod range;
pub mod subject;
pub mod text;
