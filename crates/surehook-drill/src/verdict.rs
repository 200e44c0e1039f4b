//! What the audit found, and whether that is good. Plain values, no I/O.

use serde::Serialize;

/// Examples that are kept of each kind of finding.
const EXAMPLES_MAX: usize = 20;

/// The counts of the table, and some findings in words.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    /// Changes of refs that happened, as clients and disk say.
    pub transitions: usize,
    /// Events that were told.
    pub events: usize,
    /// Changes that nobody was told of, or events that neither arrived nor wait.
    pub lost: usize,
    /// Events of what did not happen; arrivals and builds of what was not sent.
    pub invented: usize,
    /// Events or first arrivals that stand before one that came earlier.
    pub out_of_order: usize,
    /// Arrivals whose bytes are not those of the event.
    pub changed: usize,
    /// Deliveries that arrived and were built.
    pub delivered: usize,
    /// Builds beyond the first of one event.
    pub built_twice: usize,
    /// Builds whose commit was not in the repository yet.
    pub built_early: usize,
    /// What is still on its way, or still to be built.
    pub pending: usize,
    /// Dead letters that nobody has replayed.
    pub dead: usize,
    /// Dead letters that were replayed.
    pub replayed: usize,
    /// The first findings of each kind, for a person.
    pub examples: Vec<String>,
}

/// The kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// See [`Verdict::lost`].
    Lost,
    /// See [`Verdict::invented`].
    Invented,
    /// See [`Verdict::out_of_order`].
    OutOfOrder,
    /// See [`Verdict::changed`].
    Changed,
    /// See [`Verdict::built_twice`].
    BuiltTwice,
    /// See [`Verdict::built_early`].
    BuiltEarly,
    /// See [`Verdict::pending`].
    Pending,
    /// See [`Verdict::dead`].
    Dead,
}

impl Verdict {
    /// Whether nothing is wrong. Dead letters are not wrong by themselves: a person was told of them, and can replay them.
    pub fn is_clean(&self) -> bool {
        self.wrong().iter().all(|(_, count)| *count == 0)
    }

    /// What must be nothing, with its name.
    pub fn wrong(&self) -> [(&'static str, usize); 7] {
        [
            ("lost", self.lost),
            ("invented", self.invented),
            ("out of order", self.out_of_order),
            ("changed bodies", self.changed),
            ("built twice", self.built_twice),
            ("built early", self.built_early),
            ("still pending", self.pending),
        ]
    }

    /// Counts `count` findings of a kind.
    pub fn find(&mut self, kind: Kind, count: usize, words: impl FnOnce() -> String) {
        if count == 0 {
            return;
        }
        let (name, counter) = match kind {
            Kind::Lost => ("lost", &mut self.lost),
            Kind::Invented => ("invented", &mut self.invented),
            Kind::OutOfOrder => ("out of order", &mut self.out_of_order),
            Kind::Changed => ("changed", &mut self.changed),
            Kind::BuiltTwice => ("built twice", &mut self.built_twice),
            Kind::BuiltEarly => ("built early", &mut self.built_early),
            Kind::Pending => ("pending", &mut self.pending),
            Kind::Dead => ("dead", &mut self.dead),
        };
        *counter += count;
        if self.examples.iter().filter(|example| example.starts_with(name)).count() < EXAMPLES_MAX {
            self.examples.push(format!("{name}: {}", words()));
        }
    }
}
