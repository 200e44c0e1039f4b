//! The idempotent receiver: inbox, runner, HTTP.
