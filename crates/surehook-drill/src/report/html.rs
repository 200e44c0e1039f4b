//! A page that a browser shows, in one file, with nothing from elsewhere.

use std::fmt::Write as _;

use super::{command, rows, seconds, svg, word};
use crate::run::Outcome;

/// Faults that are listed in words; a run can have thousands.
const LISTED_MAX: usize = 200;

const STYLE: &str = "
:root { --ink: #1b1f24; --paper: #fff; --faint: #d8dde3; --soft: #f4f6f8; --events: #1f6feb; --built: #1a7f37; --backlog: #f5a623; --fault: #c9372c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ed; --paper: #14171b; --faint: #343b44; --soft: #1d2127; --events: #6cb0ff; --built: #57c26f; --backlog: #d08a1d; --fault: #ff7b72; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 980px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { border-bottom: 1px solid var(--faint); padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; }
td:last-child { font-variant-numeric: tabular-nums; } code { background: var(--soft); padding: .1rem .3rem; border-radius: 4px; }
.passed { color: var(--built); } .FAILED, .wrong { color: var(--fault); font-weight: 600; } .VOID { color: var(--backlog); }
svg { width: 100%; height: auto; background: var(--soft); border-radius: 8px; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .row { text-anchor: end; } svg .time { text-anchor: middle; } svg .grid { stroke: var(--faint); }
svg .events { fill: none; stroke: var(--events); stroke-width: 2; } svg .built { fill: none; stroke: var(--built); stroke-width: 2; }
svg .backlog { fill: var(--backlog); fill-opacity: .45; } svg rect.events { fill: var(--events); } svg rect.built { fill: var(--built); }
svg .fault { fill: var(--fault); fill-opacity: .75; }
";

/// The page of these runs.
pub fn page(outcomes: &[Outcome]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>surehook drill</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\n<h1>surehook drill</h1>\n\
         <p>Real git clients pushed while the faults below were brought about. Then all faults ended, what waited was delivered, \
         and four records were compared that do not know each other: what each client heard and what the refs and their logs on \
         disk say; the events; the deliveries; the receiver's table and the results of its builds.</p>\n"
    );
    for outcome in outcomes {
        // Cannot fail: it is memory.
        let _ = write!(page, "{}", section(outcome));
    }
    page.push_str("</body></html>\n");
    page
}

fn section(outcome: &Outcome) -> String {
    let word = word(outcome);
    let name = outcome.plan.scenario.name();
    let mut section = format!("<h2>{name}: <span class=\"{word}\">{word}</span></h2>\n");
    for wrong in outcome.wrong.iter().chain(&outcome.void) {
        let _ = writeln!(section, "<p class=\"wrong\">{}</p>", escaped(wrong));
    }
    let _ = write!(
        section,
        "<p>The picture goes from left to right, from the first push to the end. Blue: events that were committed; green: those that \
         the receiver has built; between them, orange: what waited for it. Where a curve has a gap, its database was away. Red, below: \
         the faults, from their beginning until they were made good; a pointer over one tells its times.</p>\n{}",
        svg::picture(outcome)
    );
    section.push_str("<table>\n");
    for (name, value) in rows(outcome) {
        let _ = writeln!(section, "<tr><td>{name}</td><td>{}</td></tr>", escaped(&value));
    }
    let _ = writeln!(section, "<tr><td>fault proxy</td><td>{}</td></tr>", escaped(&outcome.proxy));
    let _ = writeln!(section, "<tr><td>again</td><td><code>{}</code></td></tr>", escaped(&command(outcome)));
    section.push_str("</table>\n");
    if !outcome.verdict.examples.is_empty() {
        section.push_str("<h3>What was found</h3>\n<ul>\n");
        for example in &outcome.verdict.examples {
            let _ = writeln!(section, "<li>{}</li>", escaped(example));
        }
        section.push_str("</ul>\n");
    }
    section.push_str(
        "<details><summary>What happened when</summary>\n<table>\n<tr><th>from</th><th>until</th><th>what</th></tr>\n",
    );
    for happened in outcome.happened.iter().take(LISTED_MAX) {
        let (from, until) = (seconds(happened.from_ms), seconds(happened.until_ms));
        let note = if happened.note.is_empty() { String::new() } else { format!(" ({})", happened.note) };
        let words = escaped(&format!("{}{note}", happened.fault.words()));
        let _ = writeln!(section, "<tr><td>{from}</td><td>{until}</td><td>{words}</td></tr>");
    }
    section.push_str("</table>\n");
    let more = outcome.happened.len().saturating_sub(LISTED_MAX);
    if more > 0 {
        let _ = writeln!(section, "<p>And {more} more; <code>--json</code> has them all.</p>");
    }
    section.push_str("</details>\n");
    section
}

/// Text that stays text.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
