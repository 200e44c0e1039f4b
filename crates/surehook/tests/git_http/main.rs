//! Git over smart HTTP against the real git: what clients see, what the backend is told, what is left on disk.
//! Starts git, binds a port of its own, touches temporary folders only.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod clients;
mod faults;
mod limits;
mod pushes;
mod raw;
mod server;
