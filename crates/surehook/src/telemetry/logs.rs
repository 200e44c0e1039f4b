//! Log lines on standard error: for people, or one JSON object a line. `SUREHOOK_LOG` says how much
//! (`info`, `surehook=debug`, …).

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging; `filter` is that of `SUREHOOK_LOG`, default `info`. A second call changes nothing. Err: the filter
/// cannot be read.
pub fn start(style: Style, filter: Option<&str>) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter.unwrap_or("info")).map_err(|error| error.to_string())?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // An embedding program may have set up its own logging: that stands.
    let _ = match style {
        Style::Text => lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        Style::Json => lines.json().flatten_event(true).try_init(),
    };
    Ok(())
}
