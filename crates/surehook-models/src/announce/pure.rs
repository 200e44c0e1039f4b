//! The pure heart of capture as the product has it: `reflog::Log::read`, `transitions::derive` and `trim::keep_from` are called
//! here, and not mirrored. Translates the model's small values for them, and remembers what they said.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use gix::ObjectId;
use sha2::{Digest, Sha256};
use surehook::capture::reflog;
use surehook::capture::transitions;
pub use surehook::capture::transitions::Evidence;
use surehook::capture::trim::{Told, keep_from};

use super::disk::{Line, Place, Value};

const KIND: gix::hash::Kind = gix::hash::Kind::Sha1;

/// What was announced of a ref; `transitions::Cursor`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// The value.
    pub value: Value,
    /// Up to where its log is told.
    pub place: Place,
    /// How many steps were announced.
    pub seq: u8,
}

/// One step of a ref; `transitions::Transition`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The value before.
    pub before: Value,
    /// The value after.
    pub after: Value,
    /// How well it is known.
    pub evidence: Evidence,
    /// Where the cursor stands once it is announced.
    pub place: Place,
}

impl Hash for Step {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.before, self.after, self.evidence as u8, self.place).hash(state);
    }
}

/// What `derive` says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Derived {
    /// What is to be told.
    pub steps: Vec<Step>,
    /// Where the cursor should stand although nothing is told.
    pub moved: Option<Place>,
}

type Question = (Cursor, Value, Option<Vec<Line>>);

thread_local! {
    static ANSWERS: RefCell<HashMap<Question, Derived>> = RefCell::default();
}

/// Reads the log with the cursor's place, and derives what is to be told.
pub fn derive(cursor: Cursor, disk: Value, log: Option<&[Line]>) -> Derived {
    // The number of steps told so far changes nothing in the answer.
    let question = (Cursor { seq: 0, ..cursor }, disk, log.map(<[Line]>::to_vec));
    ANSWERS.with_borrow_mut(|answers| {
        answers.entry(question).or_insert_with(|| ask(cursor, disk, log.unwrap_or_default(), log.is_some())).clone()
    })
}

/// How many lines `trim` takes off the beginning of a log.
pub fn lines_to_trim(cursor: Cursor, lines: &[Line]) -> usize {
    let bytes = bytes(lines);
    let from = keep_from(&bytes, Told::Before(there(cursor.place)), i64::MAX, KIND).unwrap_or(0);
    usize::try_from(from).unwrap_or(0) / line_bytes()
}

fn ask(cursor: Cursor, disk: Value, lines: &[Line], is_there: bool) -> Derived {
    let real =
        transitions::Cursor { value: id(cursor.value), place: Some(there(cursor.place)), seq: cursor.seq.into() };
    let log = if is_there {
        reflog::Log::read(bytes(lines).as_slice(), real.place, KIND).unwrap_or(reflog::Log::EMPTY)
    } else {
        reflog::Log::EMPTY
    };
    let known: Vec<Line> = lines.iter().copied().chain(cursor.place.line).chain(cursor.place.birth).collect();
    let derived = transitions::derive(&real, id(disk), &log);
    let step = |step: &transitions::Transition| Step {
        before: value(step.before),
        after: value(step.after),
        evidence: step.evidence,
        place: back(step.place, &known),
    };
    Derived {
        steps: derived.transitions.iter().map(step).collect(),
        moved: derived.moved.map(|place| back(place, &known)),
    }
}

fn id(value: Value) -> ObjectId {
    ObjectId::from_bytes_or_panic(&[value; 20])
}

fn value(id: ObjectId) -> Value {
    id.as_slice()[0]
}

fn text(line: &Line) -> String {
    format!("{} {} n <e@x> {} +0000\tpush", id(line.old), id(line.new), line.second)
}

/// All lines are equally long: the seconds have one digit.
fn line_bytes() -> usize {
    text(&Line { old: 0, new: 0, second: 0 }).len() + 1
}

fn bytes(lines: &[Line]) -> Vec<u8> {
    lines.iter().flat_map(|line| format!("{}\n", text(line)).into_bytes()).collect()
}

fn hash(line: Line) -> [u8; 32] {
    Sha256::digest(text(&line)).into()
}

fn there(place: Place) -> reflog::Place {
    reflog::Place {
        offset: u64::from(place.lines) * line_bytes() as u64,
        line_hash: place.line.map(hash),
        birth_hash: place.birth.map(hash),
    }
}

fn back(place: reflog::Place, known: &[Line]) -> Place {
    let find = |wanted: [u8; 32]| known.iter().copied().find(|line| hash(*line) == wanted);
    Place {
        lines: u8::try_from(place.offset / line_bytes() as u64).unwrap_or(u8::MAX),
        line: place.line_hash.and_then(find),
        birth: place.birth_hash.and_then(find),
    }
}
