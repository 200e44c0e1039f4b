//! surehook's own PostgreSQL, run from the installed binaries.
