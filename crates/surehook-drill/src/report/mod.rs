//! What came of runs, for people: a table for the terminal, a page for a browser with a picture of each run. Pure.

pub mod html;
pub mod svg;
pub mod table;

use crate::run::Outcome;

/// A time for people.
fn seconds(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        10_000..120_000 => format!("{} s", ms / 1000),
        _ => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1000),
    }
}

/// The verdict in a word.
fn word(outcome: &Outcome) -> &'static str {
    match (outcome.wrong.is_empty(), &outcome.void) {
        (false, _) => "FAILED",
        (true, Some(_)) => "VOID",
        (true, None) => "passed",
    }
}

/// The rows of the verdict, as they stand in every kind of report.
fn rows(outcome: &Outcome) -> Vec<(&'static str, String)> {
    let (verdict, door) = (&outcome.verdict, &outcome.front_door);
    vec![
        ("pushes, accepted", format!("{}, {}", outcome.pushes, outcome.pushes_accepted)),
        ("changes of refs", verdict.transitions.to_string()),
        ("events", verdict.events.to_string()),
        ("lost", verdict.lost.to_string()),
        ("invented", verdict.invented.to_string()),
        ("out of order", verdict.out_of_order.to_string()),
        ("changed bodies", verdict.changed.to_string()),
        ("delivered and built", verdict.delivered.to_string()),
        ("built twice", verdict.built_twice.to_string()),
        ("built before the commit was there", verdict.built_early.to_string()),
        ("still pending", verdict.pending.to_string()),
        ("dead, replayed", format!("{}, {}", verdict.dead, verdict.replayed)),
        (
            "requests, failed",
            format!("{}, {} ({:.0} %)", outcome.attempts.requests, outcome.attempts.failed, outcome.failed_percent),
        ),
        ("repeated on the wire, answered 409", format!("{}, {}", door.repeated, door.suppressed)),
        ("all delivered and built after", seconds(outcome.drained_ms)),
    ]
}

/// How to do it again.
fn command(outcome: &Outcome) -> String {
    let against = match outcome.against {
        crate::against::Against::Surehook => "",
        crate::against::Against::Naive => " --against naive",
        crate::against::Against::Textbook => " --against textbook",
    };
    let plan = &outcome.plan;
    let duration = plan.duration_ms.div_ceil(1000);
    format!("./run drill {} --seed {} --duration {duration}s{against}", plan.scenario.name(), plan.seed)
}
