//! Refs on disk become events: read the refs, derive the transitions, announce them.
