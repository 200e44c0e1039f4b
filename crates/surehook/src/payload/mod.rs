//! What an event says: renders transitions into webhook bodies.
