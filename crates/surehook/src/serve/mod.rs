//! Puts the parts together: serve and worker.
