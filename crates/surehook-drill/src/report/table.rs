//! Tables for the terminal.

use comfy_table::{ContentArrangement, Table};

use super::{command, rows, seconds, word};
use crate::plan::Plan;
use crate::run::Outcome;

fn table() -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table
}

/// One run.
pub fn one(outcome: &Outcome) -> String {
    let mut table = table();
    table.set_header([outcome.plan.scenario.name(), word(outcome).to_owned()]);
    for (name, value) in rows(outcome) {
        table.add_row([name.to_owned(), value]);
    }
    table.add_row(["fault proxy".to_owned(), outcome.proxy.clone()]);
    table.add_row(["faults".to_owned(), outcome.happened.len().to_string()]);
    let mut text = table.to_string();
    for wrong in &outcome.wrong {
        text.push_str(&format!("\nwrong: {wrong}"));
    }
    for example in &outcome.verdict.examples {
        text.push_str(&format!("\n  {example}"));
    }
    if let Some(void) = &outcome.void {
        text.push_str(&format!("\nvoid: {void}"));
    }
    if let Some(kept) = &outcome.kept {
        text.push_str(&format!("\nleft in {}", kept.display()));
    }
    text.push_str(&format!("\nagain: {}\n", command(outcome)));
    text
}

/// All runs of a series, a line each.
pub fn all(outcomes: &[Outcome]) -> String {
    let mut table = table();
    table.set_header([
        "scenario",
        "pushes",
        "changes",
        "events",
        "lost",
        "invented",
        "out of order",
        "built",
        "built twice",
        "pending",
        "dead",
        "failed %",
        "drained",
        "",
    ]);
    for outcome in outcomes {
        let verdict = &outcome.verdict;
        table.add_row([
            outcome.plan.scenario.name(),
            outcome.pushes.to_string(),
            verdict.transitions.to_string(),
            verdict.events.to_string(),
            verdict.lost.to_string(),
            verdict.invented.to_string(),
            verdict.out_of_order.to_string(),
            verdict.delivered.to_string(),
            verdict.built_twice.to_string(),
            verdict.pending.to_string(),
            verdict.dead.to_string(),
            format!("{:.0}", outcome.failed_percent),
            seconds(outcome.drained_ms),
            word(outcome).to_owned(),
        ]);
    }
    table.to_string()
}

/// What is going to happen.
pub fn plan(plan: &Plan) -> String {
    let mut table = table();
    table.set_header(["at", "for", &format!("{} with seed {}", plan.scenario.name(), plan.seed)]);
    for step in &plan.steps {
        let lasts = step.fault.lasts_ms();
        let lasts = if lasts == 0 { String::new() } else { seconds(lasts) };
        table.add_row([seconds(step.at_ms), lasts, step.fault.words()]);
    }
    table.to_string()
}
