//! The pure heart of capture: from what was announced of a ref, its value on disk and its reflog, derive what to tell.
//!
//! The walk goes back from the value on disk: a line whose `new` is that value produced it, and its `old` is the value before.
//! Git appends the line before it renames the ref, so a line that does not join on is a push that is still at work or never
//! happened. The cursor's place is the end of the line that produced the announced value and never moves over such lines: it
//! would lose the push whose line is there already and whose rename is not.

use std::collections::BTreeMap;

use gix::ObjectId;

use super::reflog::{Begins, Identity, Log, Place};

/// What was last announced of a ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The value; zeros for a ref that is gone or was never there.
    pub value: ObjectId,
    /// Up to where its log is told; `None` if that is not known.
    pub place: Option<Place>,
    /// How many transitions of it were announced.
    pub seq: i64,
}

impl Cursor {
    /// A ref of which nothing was ever announced.
    pub fn new(kind: gix::hash::Kind) -> Self {
        Self { value: kind.null(), place: Some(Place::START), seq: 0 }
    }
}

/// How well a transition is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The log has a line for it.
    Exact,
    /// It bridges a gap that the log shows: both values are true, what lay between is lost.
    Reconstructed,
    /// The log says nothing about it. Believed only when a second full read of the refs says the same.
    Unexplained,
}

/// One step of a ref.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The value before; zeros for a creation.
    pub before: ObjectId,
    /// The value after; zeros for a deletion.
    pub after: ObjectId,
    /// How well it is known.
    pub evidence: Evidence,
    /// Where the cursor stands once this is announced.
    pub place: Place,
    /// When, by the clock of whoever wrote the line.
    pub seconds: Option<i64>,
    /// Who, by the line.
    pub identity: Option<Identity>,
}

/// What is to be told of one ref.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// The steps, oldest first; empty if nothing is to be told.
    pub transitions: Vec<Transition>,
    /// Where the cursor should stand, if that differs from its place although nothing is told.
    pub moved: Option<Place>,
}

/// Derives the steps from the cursor to `disk` (zeros: the ref is not there). `log` must be read with the cursor's place, and
/// belong to the same moment as `disk`.
pub fn derive(cursor: &Cursor, disk: ObjectId, log: &Log) -> Derived {
    let walk = walk_back(cursor, disk, log);
    let found = match log.begins {
        Begins::AfterPlace(place) => Some(place),
        Begins::AtFirstLine => None,
    };
    let mut transitions = Vec::with_capacity(walk.lines.len() + 1);
    if walk.reached != cursor.value {
        let (evidence, place) = match walk.bridge {
            Some(place) => (Evidence::Reconstructed, place),
            None if walk.lines.is_empty() => {
                (Evidence::Unexplained, found.unwrap_or_else(|| baseline_place(disk, log)))
            }
            None => (Evidence::Reconstructed, found.unwrap_or(Place::START)),
        };
        transitions.push(Transition {
            before: cursor.value,
            after: walk.reached,
            evidence,
            place,
            seconds: None,
            identity: None,
        });
    }
    for index in walk.lines.iter().rev() {
        let line = &log.lines[*index];
        if let Some(update) = &line.update {
            transitions.push(Transition {
                before: update.old,
                after: update.new,
                evidence: Evidence::Exact,
                place: line.place,
                seconds: Some(update.seconds),
                identity: update.identity.clone(),
            });
        }
    }
    let stand = found.unwrap_or_else(|| baseline_place(disk, log));
    let moved = (transitions.is_empty() && cursor.place != Some(stand)).then_some(stand);
    Derived { transitions, moved }
}

/// A branch that has become a symbolic ref is told as deleted; what its log says from then on is told at its target.
pub fn derive_symbolic(cursor: &Cursor, log: &Log) -> Derived {
    let place = match (log.lines.last(), log.begins) {
        (Some(line), _) => line.place,
        (None, Begins::AfterPlace(place)) => place,
        (None, Begins::AtFirstLine) => Place::START,
    };
    let transitions = if cursor.value.is_null() {
        Vec::new()
    } else {
        vec![Transition {
            before: cursor.value,
            after: cursor.value.kind().null(),
            evidence: Evidence::Unexplained,
            place,
            seconds: None,
            identity: None,
        }]
    };
    let moved = (transitions.is_empty() && cursor.place != Some(place)).then_some(place);
    Derived { transitions, moved }
}

/// Where the cursor of a ref stands whose present value counts as announced, without anything being told.
pub fn baseline_place(disk: ObjectId, log: &Log) -> Place {
    producer(log, disk).unwrap_or_else(|| boundary(log, disk))
}

struct Walk {
    /// Indices of the lines that join on, newest first.
    lines: Vec<usize>,
    /// The value that the oldest of them begins with.
    reached: ObjectId,
    /// Set if the walk ended at a line that says where a log was taken from elsewhere.
    bridge: Option<Place>,
}

fn walk_back(cursor: &Cursor, disk: ObjectId, log: &Log) -> Walk {
    let mut walk = Walk { lines: Vec::new(), reached: disk, bridge: None };
    let mut newest_occurrence = None;
    for (index, line) in log.lines.iter().enumerate().rev() {
        if walk.reached == cursor.value && newest_occurrence.is_none() {
            newest_occurrence = Some(walk.lines.len());
        }
        let Some(update) = line.update.as_ref().filter(|update| update.new == walk.reached) else { continue };
        if update.old == update.new {
            // A rename or a copy: what stands before it happened to another ref.
            walk.bridge = Some(line.place);
            break;
        }
        walk.lines.push(index);
        walk.reached = update.old;
    }
    if log.begins == Begins::AtFirstLine {
        cut_to_what_is_new(&mut walk, newest_occurrence, cursor, disk, log);
    }
    walk
}

/// With its place, everything up to the place is new, even where the value comes by the cursor's on the way. Without it, that
/// must be judged by how the log begins.
fn cut_to_what_is_new(walk: &mut Walk, newest_occurrence: Option<usize>, cursor: &Cursor, disk: ObjectId, log: &Log) {
    let Some(first) = log.lines.first() else { return };
    let birth_hash = cursor.place.and_then(|place| place.birth_hash);
    let is_same_log = birth_hash.is_some() && birth_hash == first.place.line_hash;
    let is_creation = first.update.as_ref().is_some_and(|update| update.old.is_null());
    if cursor.place.is_some() && is_creation && !is_same_log {
        // The ref was made again: this is the whole story of its second life.
        return;
    }
    if birth_hash.is_some() && !is_same_log && walk.bridge.is_none() && walk.reached == cursor.value {
        // The log lost its beginning, up to the very line of the announced value.
        return;
    }
    if let Some(count) = newest_occurrence {
        // What lies before the newest occurrence of the announced value may have been told.
        walk.lines.truncate(count);
        walk.reached = cursor.value;
        walk.bridge = None;
    } else if is_same_log && walk.reached != cursor.value {
        // The log was thinned out, and the announced line with it: what is left of it may have been told long ago.
        walk.lines.clear();
        walk.reached = disk;
        walk.bridge = None;
    }
}

/// The end of the newest line that produced this value.
fn producer(log: &Log, value: ObjectId) -> Option<Place> {
    let produced = |line: &&super::reflog::Line| line.update.as_ref().is_some_and(|update| update.new == value);
    log.lines.iter().rfind(produced).map(|line| line.place)
}

/// The end of the newest line that is surely past: the lines at the end that set out from this value may be pushes at work.
fn boundary(log: &Log, value: ObjectId) -> Place {
    let may_be_at_work = |line: &&super::reflog::Line| line.update.as_ref().is_some_and(|update| update.old == value);
    log.lines.iter().rev().find(|line| !may_be_at_work(line)).map_or(Place::START, |line| line.place)
}

/// A step with the ref that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefTransition {
    /// Full name of the ref, as bytes.
    pub name: Vec<u8>,
    /// The step.
    pub transition: Transition,
}

/// Puts the steps of many refs into one order: by the time of their lines, each ref's own order kept, by name where times are
/// equal. A step without a time stands right before the next of its ref that has one, and at the end where none follows; a
/// deletion that makes room for another ref (`a` for `a/b`, or the reverse) stands at the front.
pub fn merge(chains: BTreeMap<Vec<u8>, Vec<Transition>>) -> Vec<RefTransition> {
    let created: Vec<Vec<u8>> = chains
        .iter()
        .filter(|(_, chain)| chain.iter().any(|step| step.before.is_null()))
        .map(|(name, _)| name.clone())
        .collect();
    let mut heads: std::collections::BinaryHeap<std::cmp::Reverse<(i64, Vec<u8>)>> =
        std::collections::BinaryHeap::new();
    let mut rest: BTreeMap<Vec<u8>, std::collections::VecDeque<Transition>> = BTreeMap::new();
    let next_time = |name: &[u8], chain: &std::collections::VecDeque<Transition>| {
        let timed = chain.iter().find_map(|step| step.seconds);
        timed.unwrap_or_else(|| {
            let makes_room = chain.back().is_some_and(|step| step.after.is_null()) && makes_room(name, &created);
            if makes_room { i64::MIN } else { i64::MAX }
        })
    };
    for (name, chain) in chains {
        let chain: std::collections::VecDeque<_> = chain.into();
        if !chain.is_empty() {
            heads.push(std::cmp::Reverse((next_time(&name, &chain), name.clone())));
            rest.insert(name, chain);
        }
    }
    let mut merged = Vec::new();
    while let Some(std::cmp::Reverse((_, name))) = heads.pop() {
        let Some(chain) = rest.get_mut(&name) else { continue };
        if let Some(transition) = chain.pop_front() {
            merged.push(RefTransition { name: name.clone(), transition });
        }
        if !chain.is_empty() {
            heads.push(std::cmp::Reverse((next_time(&name, chain), name)));
        }
    }
    merged
}

fn makes_room(name: &[u8], created: &[Vec<u8>]) -> bool {
    let below =
        |short: &[u8], long: &[u8]| long.len() > short.len() && long.starts_with(short) && long[short.len()] == b'/';
    // A parent's name sorts before its children, but not directly: `a-b` stands between `a` and `a/b`.
    let from = created.partition_point(|other| other.as_slice() < [name, b"/"].concat().as_slice());
    created.get(from).is_some_and(|other| below(name, other))
        || name
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .any(|(at, _)| created.binary_search_by(|other| other.as_slice().cmp(&name[..at])).is_ok())
}

/// Whether so many refs are gone at once that the disk is doubted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disappearance {
    /// As many as happens on an ordinary day.
    Ordinary,
    /// More than half of twenty or more.
    Mass {
        /// How many were announced as present.
        known: usize,
        /// How many of these are gone.
        gone: usize,
    },
}

/// Judges the disappearance of refs: `known` were announced as present, `gone` of them are not there.
pub fn judge_disappearance(known: usize, gone: usize) -> Disappearance {
    if known >= 20 && gone * 2 > known { Disappearance::Mass { known, gone } } else { Disappearance::Ordinary }
}

#[cfg(test)]
#[path = "transitions_tests.rs"]
mod tests;
