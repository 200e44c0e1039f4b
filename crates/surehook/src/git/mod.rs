//! Git over smart HTTP, and the git processes behind it.
