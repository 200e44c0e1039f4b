//! Announcing against a real git and a real PostgreSQL: what was pushed is told, once, in order, and nothing else.
#![expect(clippy::disallowed_methods, reason = "the tests look into the database")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod faults;
mod payloads;
mod pushes;
mod support;
