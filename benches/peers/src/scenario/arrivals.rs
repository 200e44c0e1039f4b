//! What the receiver's notes say: how many, how often the same, in which order, when. Pure.

use std::collections::{HashMap, HashSet};

use crate::sink::Arrival;

/// A summary of arrivals.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Different ids that were accepted.
    pub(crate) accepted: usize,
    /// Accepted arrivals of an id that was accepted before.
    pub(crate) duplicates: usize,
    /// First accepted arrivals that came after a later one of their lane.
    pub(crate) out_of_order: usize,
    /// When the last id was accepted for the first time.
    pub(crate) last_ns: u64,
    /// When each id was accepted first.
    pub(crate) first_ns: HashMap<u32, u64>,
}

impl Summary {
    pub(crate) fn of(arrivals: &[Arrival]) -> Self {
        let mut summary = Self::default();
        let mut reached: HashMap<u32, u32> = HashMap::new();
        let mut seen = HashSet::new();
        for arrival in arrivals.iter().filter(|arrival| arrival.accepted) {
            if !seen.insert(arrival.id) {
                summary.duplicates += 1;
                continue;
            }
            summary.accepted += 1;
            summary.last_ns = arrival.at_ns;
            summary.first_ns.insert(arrival.id, arrival.at_ns);
            let highest = reached.entry(arrival.lane).or_insert(arrival.seq);
            summary.out_of_order += usize::from(arrival.seq < *highest);
            *highest = arrival.seq.max(*highest);
        }
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_and_inversions_are_counted_once_each() {
        let arrival = |at_ns, id, lane, seq, accepted| Arrival { at_ns, id, lane, seq, endpoint: 0, accepted };
        let summary = Summary::of(&[
            arrival(1, 0, 7, 0, false),
            arrival(2, 1, 7, 1, true),
            arrival(3, 0, 7, 0, true),
            arrival(4, 1, 7, 1, true),
            arrival(5, 2, 8, 0, true),
        ]);
        assert_eq!((summary.accepted, summary.duplicates, summary.out_of_order), (3, 1, 1));
        assert_eq!((summary.last_ns, summary.first_ns[&1]), (5, 2));
    }
}
