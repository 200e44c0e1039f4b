//! A simulated git that keeps the true sequence of values, and announces in between each of its file steps.
//!
//! Transitions are exact where their line was still in the log when they were told; where git itself had thrown the line away
//! (deletion, rename, gc) they may be bridged, but never with a value that the ref did not have.

use proptest::prelude::*;

use super::super::trim;
use super::*;

const KIND: gix::hash::Kind = gix::hash::Kind::Sha1;
const REFS: usize = 3;

fn value(number: u8) -> ObjectId {
    if number == 0 { KIND.null() } else { ObjectId::from_bytes_or_panic(&[number; 20]) }
}

fn hex(number: u8) -> Vec<u8> {
    value(number).to_string().into_bytes()
}

/// One file step of git, or of its surroundings.
#[derive(Clone, Debug)]
enum Step {
    /// Takes the lock and appends the line of a push; the rename is another step.
    Append { on: usize, to: u8 },
    /// As before, but only half of the line is written so far.
    AppendHalf { on: usize, to: u8 },
    /// What a push, deletion or rename at work does next.
    Continue { on: usize },
    /// Whoever is at work is killed: its lock is removed, what it wrote stays.
    Crash { on: usize },
    /// A deletion removes the log; the ref is removed by another step.
    Delete { on: usize },
    /// `branch -M`: log and value go to another ref, which is replaced.
    Rename { on: usize, to: usize },
    /// gc rewrites the log without its oldest lines.
    Trim { on: usize, keep: usize },
    /// gc rewrites the log without the lines that touch a value which nothing reaches any more.
    Thin { on: usize, out: u8 },
    /// surehook's own upkeep takes off what is old and told. Nothing may be told differently for it.
    Forget { on: usize },
    /// The announce.
    Announce,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let on = 0..REFS;
    let step = prop_oneof![
        6 => (on.clone(), 1..6_u8).prop_map(|(on, to)| Step::Append { on, to }),
        1 => (on.clone(), 1..6_u8).prop_map(|(on, to)| Step::AppendHalf { on, to }),
        9 => on.clone().prop_map(|on| Step::Continue { on }),
        2 => on.clone().prop_map(|on| Step::Crash { on }),
        1 => on.clone().prop_map(|on| Step::Delete { on }),
        1 => (on.clone(), on.clone()).prop_map(|(on, to)| Step::Rename { on, to }),
        1 => (on, 0..6_usize).prop_map(|(on, keep)| Step::Trim { on, keep }),
        1 => (0..REFS, 1..6_u8).prop_map(|(on, out)| Step::Thin { on, out }),
        2 => (0..REFS).prop_map(|on| Step::Forget { on }),
        5 => Just(Step::Announce),
    ];
    prop::collection::vec(step, 1..60)
}

#[derive(Clone, Debug)]
enum Work {
    Line { rest: Vec<u8> },
    Rename { to: u8, line: usize },
    RemoveRef,
}

/// A true step, with the number of the line that tells of it, if any does.
#[derive(Clone, Copy, Debug)]
struct Truth {
    before: ObjectId,
    after: ObjectId,
    line: Option<usize>,
}

#[derive(Default, Debug)]
struct Ref {
    value: u8,
    log: Vec<u8>,
    /// The numbers of the lines in the log, oldest first.
    lines: Vec<usize>,
    work: Option<Work>,
    pending_value: u8,
    untold: Vec<Truth>,
    /// Lines up to this one may not be walked over: they came from another ref.
    taken_over: Option<usize>,
    /// What gc did since the last announce.
    trimmed: bool,
    thinned: bool,
}

struct Git {
    refs: Vec<Ref>,
    cursors: Vec<Cursor>,
    clock: usize,
}

impl Git {
    fn new() -> Self {
        Self { refs: (0..REFS).map(|_| Ref::default()).collect(), cursors: vec![Cursor::new(KIND); REFS], clock: 0 }
    }

    fn line(&mut self, old: u8, new: u8) -> Vec<u8> {
        self.clock += 1;
        format!("{} {} n <e@x> {} +0000\tpush\n", value(old), value(new), self.clock).into_bytes()
    }

    fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Append { on, to } if self.refs[on].work.is_none() && self.refs[on].value != to => {
                let line = self.line(self.refs[on].value, to);
                let r = &mut self.refs[on];
                r.log.extend_from_slice(&line);
                r.lines.push(self.clock);
                r.work = Some(Work::Rename { to, line: self.clock });
            }
            Step::AppendHalf { on, to } if self.refs[on].work.is_none() && self.refs[on].value != to => {
                let mut line = self.line(self.refs[on].value, to);
                let rest = line.split_off(line.len() / 2);
                let r = &mut self.refs[on];
                r.log.extend_from_slice(&line);
                r.pending_value = to;
                r.work = Some(Work::Line { rest });
            }
            Step::Continue { on } => self.go_on(on),
            Step::Crash { on } => match self.refs[on].work {
                // Short lines are written at once; half of one is seen, but does not stay.
                Some(Work::Line { .. }) => self.go_on(on),
                _ => self.refs[on].work = None,
            },
            Step::Delete { on } if self.refs[on].work.is_none() && self.refs[on].value != 0 => {
                let r = &mut self.refs[on];
                (r.log, r.lines, r.taken_over) = (Vec::new(), Vec::new(), None);
                r.work = Some(Work::RemoveRef);
            }
            Step::Rename { on, to } => self.rename(on, to),
            Step::Forget { on } if self.refs[on].work.is_none() => self.forget(on),
            Step::Trim { on, keep } if self.refs[on].work.is_none() && !self.refs[on].thinned => {
                let r = &mut self.refs[on];
                r.trimmed = true;
                let from = r.lines.len().saturating_sub(keep);
                let ends: Vec<usize> =
                    r.log.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(i, _)| i + 1).collect();
                r.log.drain(..if from == 0 { 0 } else { ends[from - 1] });
                r.lines.drain(..from);
            }
            // Of both kinds of gc in between, nothing could tell what of the rest was told; without the line of a rename, nothing
            // could tell that what stands before it happened to another ref.
            Step::Thin { on, out } if self.refs[on].work.is_none() && !self.refs[on].trimmed => {
                let r = &mut self.refs[on];
                let touched = hex(out);
                let lines: Vec<&[u8]> = r.log.split_inclusive(|byte| *byte == b'\n').collect();
                let kept: Vec<bool> = lines.iter().map(|line| !line.windows(40).any(|id| id == touched)).collect();
                let of_rename = r.lines.iter().position(|line| Some(*line) == r.taken_over);
                let keeps_rename = of_rename.is_none_or(|at| kept[at]);
                if out != r.value && kept.first() == Some(&true) && kept.contains(&false) && keeps_rename {
                    r.thinned = true;
                    r.log = lines
                        .iter()
                        .zip(&kept)
                        .filter(|(_, kept)| **kept)
                        .flat_map(|(line, _)| *line)
                        .copied()
                        .collect();
                    let mut kept = kept.iter();
                    r.lines.retain(|_| kept.next() == Some(&true));
                }
            }
            Step::Announce => {
                for on in 0..REFS {
                    self.announce(on)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn go_on(&mut self, on: usize) {
        let clock = self.clock;
        let r = &mut self.refs[on];
        match r.work.take() {
            Some(Work::Line { rest }) => {
                r.log.extend_from_slice(&rest);
                r.lines.push(clock);
                r.work = Some(Work::Rename { to: r.pending_value, line: clock });
            }
            Some(Work::Rename { to, line }) => {
                r.untold.push(Truth { before: value(r.value), after: value(to), line: Some(line) });
                r.value = to;
            }
            Some(Work::RemoveRef) => {
                r.untold.push(Truth { before: value(r.value), after: KIND.null(), line: None });
                r.value = 0;
            }
            None => {}
        }
    }

    fn rename(&mut self, on: usize, to: usize) {
        let free = on != to && self.refs[on].work.is_none() && self.refs[to].work.is_none();
        if !free || self.refs[on].value == 0 {
            return;
        }
        let moved = self.refs[on].value;
        let line = self.line(moved, moved);
        let source = std::mem::take(&mut self.refs[on].log);
        let lines = std::mem::take(&mut self.refs[on].lines);
        self.refs[on].untold.push(Truth { before: value(moved), after: KIND.null(), line: None });
        (self.refs[on].value, self.refs[on].taken_over) = (0, None);
        let target = &mut self.refs[to];
        if target.value != 0 {
            target.untold.push(Truth { before: value(target.value), after: KIND.null(), line: None });
        }
        target.untold.push(Truth { before: KIND.null(), after: value(moved), line: None });
        target.value = moved;
        (target.log, target.lines) = (source, lines);
        target.log.extend_from_slice(&line);
        target.lines.push(self.clock);
        target.taken_over = Some(self.clock);
    }

    fn announce(&mut self, on: usize) -> Result<(), TestCaseError> {
        let (told, again) = self.tell(on);
        prop_assert!(again.transitions.is_empty(), "telling twice told twice: {:?}", again);
        let r = &mut self.refs[on];
        let truth = std::mem::take(&mut r.untold);
        // Where gc took lines out, a push that failed may stand in for one that is gone: its value is a true one all the same.
        let thinned = std::mem::take(&mut r.thinned);
        let cursor = self.cursors[on];
        let start = truth.first().map_or(value(r.value), |step| step.before);
        let mut at = start;
        for step in &told {
            prop_assert_eq!(step.before, at, "the chain is broken");
            at = step.after;
        }
        prop_assert_eq!(at, value(r.value), "the chain does not end at the value on disk");
        prop_assert_eq!(cursor.value, value(r.value));

        // Each told step is a true one, in order; a bridge ends at a true value.
        let mut from = 0;
        for step in &told {
            let found = truth[from..].iter().position(|t| {
                t.after == step.after
                    && (step.evidence != Evidence::Exact || thinned || t.before == step.before && t.line.is_some())
            });
            prop_assert!(found.is_some(), "invented {step:?}; the truth is {truth:?}");
            from += found.unwrap() + 1;
        }
        // Each true step whose line is still there is told exactly.
        let log_cut = truth.iter().rposition(|t| t.line.is_none_or(|line| !r.lines.contains(&line)));
        let certain = &truth[log_cut.map_or(0, |at| at + 1)..];
        // The line of the announced value may be gone too: then only what follows its newest occurrence is sure.
        let deleted_since = log_cut.is_some_and(|at| truth[at].after.is_null());
        let certain = if (log_cut.is_some() && !deleted_since) || r.trimmed {
            let again = certain.iter().rposition(|t| t.after == start).map_or(0, |at| at + 1);
            &certain[again..]
        } else {
            certain
        };
        let exact: Vec<_> =
            told.iter().filter(|s| s.evidence == Evidence::Exact).map(|s| (s.before, s.after)).collect();
        let certain: Vec<_> = certain.iter().map(|t| (t.before, t.after)).collect();
        r.trimmed = false;
        prop_assert!(thinned || exact.ends_with(&certain), "told {told:?}, but the log still had {certain:?}");
        if truth.is_empty() {
            prop_assert!(told.is_empty(), "nothing happened, but told {told:?}");
        }
        Ok(())
    }

    fn forget(&mut self, on: usize) {
        let (Some(place), r) = (self.cursors[on].place, &mut self.refs[on]) else { return };
        let from = trim::keep_from(&r.log, trim::Told::Before(place), i64::MAX, KIND).unwrap();
        let gone = r.log.drain(..usize::try_from(from).unwrap()).filter(|byte| *byte == b'\n').count();
        r.lines.drain(..gone);
    }

    /// Derives, advances the cursor step by step as the database would, and derives again.
    fn tell(&mut self, on: usize) -> (Vec<Transition>, Derived) {
        let r = &self.refs[on];
        let read = |cursor: &Cursor| {
            let log = Log::read(r.log.as_slice(), cursor.place, KIND).unwrap();
            derive(cursor, value(r.value), &log)
        };
        let cursor = &mut self.cursors[on];
        let derived = read(cursor);
        for (index, step) in derived.transitions.iter().enumerate() {
            // Any cut is safe: what is left is derived the same from the new place.
            *cursor = Cursor { value: step.after, place: Some(step.place), seq: cursor.seq + 1 };
            assert_eq!(read(cursor).transitions, derived.transitions[index + 1..], "cut after {index}");
        }
        if let Some(place) = derived.moved {
            cursor.place = Some(place);
        }
        let again = read(cursor);
        assert_eq!(again.moved, None);
        (derived.transitions, again)
    }
}

/// Ten thousand, or as many more as the environment asks for.
fn cases() -> u32 {
    ProptestConfig::default().cases.max(10_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_told_is_what_was(steps in steps()) {
        let mut git = Git::new();
        for step in &steps {
            git.run(step)?;
        }
        for on in 0..REFS {
            git.go_on(on);
            git.go_on(on);
        }
        git.run(&Step::Announce)?;
    }
}

fn log_of(entries: &[(u8, u8)]) -> (Vec<u8>, Vec<Place>) {
    let mut git = Git::new();
    let bytes: Vec<u8> = entries.iter().flat_map(|(old, new)| git.line(*old, *new)).collect();
    let places = Log::read(bytes.as_slice(), None, KIND).unwrap().lines.iter().map(|line| line.place).collect();
    (bytes, places)
}

fn told(cursor: u8, place: Option<Place>, disk: u8, bytes: &[u8]) -> Vec<(ObjectId, ObjectId, Evidence)> {
    let log = Log::read(bytes, place, KIND).unwrap();
    let cursor = Cursor { value: value(cursor), place, seq: 1 };
    let steps = derive(&cursor, value(disk), &log).transitions;
    steps.into_iter().map(|step| (step.before, step.after, step.evidence)).collect()
}

#[test]
fn there_and_back_is_told() {
    let (bytes, places) = log_of(&[(0, 1), (1, 2), (2, 1)]);
    let exact = |old, new| (value(old), value(new), Evidence::Exact);
    assert_eq!(told(1, Some(places[0]), 1, &bytes), [exact(1, 2), exact(2, 1)]);
    assert_eq!(told(1, Some(places[2]), 1, &bytes), []);
    // Seen while the push back has its line, but not yet its rename.
    assert_eq!(told(1, Some(places[0]), 2, &bytes), [exact(1, 2)]);
}

#[test]
fn the_place_stays_before_a_push_at_work() {
    let (bytes, places) = log_of(&[(0, 1), (1, 2)]);
    let log = Log::read(bytes.as_slice(), Some(Place::START), KIND).unwrap();
    let derived = derive(&Cursor::new(KIND), value(1), &log);
    assert_eq!(derived.transitions.last().unwrap().place, places[0]);
    assert_eq!(told(1, Some(places[0]), 2, &bytes), [(value(1), value(2), Evidence::Exact)]);
}

#[test]
fn another_log_than_the_cursor_knew_is_told_whole() {
    let (_, places) = log_of(&[(0, 9), (9, 8), (8, 1)]);
    let (bytes, _) = log_of(&[(0, 1), (1, 2)]);
    assert_eq!(
        told(1, Some(places[2]), 2, &bytes),
        [
            (value(1), value(0), Evidence::Reconstructed),
            (value(0), value(1), Evidence::Exact),
            (value(1), value(2), Evidence::Exact)
        ]
    );
}

#[test]
fn a_log_that_lost_its_beginning_is_told_from_the_cursors_value_or_bridged() {
    let (_, places) = log_of(&[(0, 9), (9, 8), (8, 1)]);
    let (bytes, _) = log_of(&[(5, 1), (1, 2), (2, 3)]);
    let exact = |old, new| (value(old), value(new), Evidence::Exact);
    assert_eq!(told(1, Some(places[2]), 3, &bytes), [exact(1, 2), exact(2, 3)]);
    assert_eq!(
        told(7, Some(places[2]), 3, &bytes),
        [(value(7), value(5), Evidence::Reconstructed), exact(5, 1), exact(1, 2), exact(2, 3)]
    );
}

#[test]
fn without_a_log_there_is_one_step() {
    let (_, places) = log_of(&[(0, 1)]);
    assert_eq!(told(1, Some(places[0]), 2, b""), [(value(1), value(2), Evidence::Unexplained)]);
    assert_eq!(told(1, Some(places[0]), 0, b""), [(value(1), value(0), Evidence::Unexplained)]);
    assert_eq!(told(1, None, 1, b""), []);
}

#[test]
fn a_renamed_branch_begins_with_a_bridge() {
    let (bytes, _) = log_of(&[(0, 1), (1, 2), (2, 2), (2, 3)]);
    assert_eq!(
        told(0, Some(Place::START), 3, &bytes),
        [(value(0), value(2), Evidence::Reconstructed), (value(2), value(3), Evidence::Exact)]
    );
}

#[test]
fn a_push_that_failed_at_the_start_of_what_is_left_hides_nothing() {
    let (_, places) = log_of(&[(0, 2)]);
    let (bytes, _) = log_of(&[(2, 3), (2, 3), (3, 2)]);
    let exact = |old, new| (value(old), value(new), Evidence::Exact);
    assert_eq!(told(2, Some(places[0]), 2, &bytes), [exact(2, 3), exact(3, 2)]);
}

#[test]
fn what_gc_left_of_a_renamed_branch_is_not_told_again() {
    let (_, places) = log_of(&[(0, 2), (2, 2), (2, 1), (1, 3), (3, 1)]);
    let (thinned, _) = log_of(&[(0, 2), (2, 2), (2, 1)]);
    assert_eq!(told(3, Some(places[3]), 1, &thinned), [(value(3), value(1), Evidence::Unexplained)]);
}

fn step(before: u8, after: u8, seconds: Option<i64>) -> Transition {
    let (before, after) = (value(before), value(after));
    Transition { before, after, evidence: Evidence::Exact, place: Place::START, seconds, identity: None }
}

#[test]
fn steps_of_many_refs_come_in_the_order_of_their_times() {
    let chains = BTreeMap::from([
        (b"refs/heads/a".to_vec(), vec![step(0, 1, Some(5)), step(1, 2, Some(3))]),
        (b"refs/heads/b".to_vec(), vec![step(0, 1, Some(4)), step(1, 2, Some(5))]),
        (b"refs/heads/gone".to_vec(), vec![step(1, 0, None)]),
        (b"refs/heads/x".to_vec(), vec![step(1, 0, None)]),
        (b"refs/heads/x/y".to_vec(), vec![step(0, 1, Some(1))]),
    ]);
    let order: Vec<_> = merge(chains)
        .into_iter()
        .map(|step| (String::from_utf8(step.name).unwrap(), step.transition.seconds))
        .collect();
    let expected = [
        ("refs/heads/x", None),
        ("refs/heads/x/y", Some(1)),
        ("refs/heads/b", Some(4)),
        ("refs/heads/a", Some(5)),
        ("refs/heads/a", Some(3)),
        ("refs/heads/b", Some(5)),
        ("refs/heads/gone", None),
    ];
    assert_eq!(order, expected.map(|(name, seconds)| (name.to_owned(), seconds)));
}

#[test]
fn a_mass_disappearance_is_told_from_an_ordinary_one() {
    assert_eq!(judge_disappearance(19, 19), Disappearance::Ordinary);
    assert_eq!(judge_disappearance(20, 10), Disappearance::Ordinary);
    assert_eq!(judge_disappearance(20, 11), Disappearance::Mass { known: 20, gone: 11 });
}
