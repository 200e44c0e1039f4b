//! The slow, blocking half of an announce: look at the disk, derive the steps, read what git says about them. Writes nothing
//! but makes lasting what it has read.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use gix::ObjectId;
use uuid::Uuid;

use super::folder::{self, HighWater};
use super::snapshot::{self, Found};
use super::transitions::{Cursor, Disappearance, RefTransition, merge};
use crate::payload::facts::{self, Facts, Limits};
use crate::payload::objects::Objects;

/// Steps that are announced in one transaction at most.
const STEPS_MAX: usize = 500;
/// Bytes of facts, roughly, that are announced in one transaction.
const FACTS_BYTES: usize = 32 * 1024 * 1024;

/// Facts by (ref, before, after): a repeated announce does not read them again.
pub type FactsCache = Arc<Mutex<HashMap<(Vec<u8>, ObjectId, ObjectId), Arc<Facts>>>>;

/// What is asked of the disk.
pub struct Question<'a> {
    /// The repository's folder.
    pub git_dir: &'a Path,
    /// The id that it must have.
    pub repository_id: Uuid,
    /// `sha1` or `sha256`, as it was registered.
    pub object_format: &'a str,
    /// What was announced.
    pub cursors: &'a BTreeMap<Vec<u8>, Cursor>,
    /// The refs to leave out; or, if `only` is set, the one to look at.
    pub aside: &'a [Vec<u8>],
    /// One ref alone.
    pub only: Option<&'a [u8]>,
    /// Refs that a push asked to delete.
    pub deletions: &'a [Vec<u8>],
    /// Whether an operator has confirmed that many refs may be gone.
    pub confirmed: bool,
}

/// A step with what git says about it.
#[derive(Clone, Debug)]
pub struct PreparedStep {
    /// The step and its ref.
    pub step: RefTransition,
    /// Its number within its ref.
    pub seq: i64,
    /// What git says.
    pub facts: Arc<Facts>,
}

/// What was found on disk.
#[derive(Debug, Default)]
pub struct Prepared {
    /// The steps, in the order in which they are told.
    pub steps: Vec<PreparedStep>,
    /// Whether there are more than these.
    pub more: bool,
    /// The rest of what was found: places that moved, what was unknown or unsettled.
    pub found: Found,
    /// The high-water mark beside the refs.
    pub high_water: Option<HighWater>,
    /// The branch that HEAD names.
    pub default_branch: Option<Vec<u8>>,
}

/// Why nothing can be announced now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The folder is not there, not readable, or another repository.
    Unavailable(String),
    /// So many refs are gone that an operator must confirm it.
    Held(String),
}

/// Looks at the disk. The identity of the repository is checked before and after, so that a volume that goes away in between
/// is noticed.
pub fn prepare(question: &Question<'_>, limits: &Limits, cache: &FactsCache) -> Result<Prepared, Doubt> {
    let repository = open(question)?;
    let kind = repository.object_hash();
    let mut found = snapshot::look(question.git_dir, kind, question.cursors, question.deletions);
    open(question)?;
    if let Some(reason) = found.unreadable {
        return Err(Doubt::Unavailable(format!("its refs cannot be read: {reason}")));
    }
    if let Some(Disappearance::Mass { known, gone }) = found.disappearance
        && !question.confirmed
    {
        return Err(Doubt::Held(format!("{gone} of {known} refs are gone at once")));
    }
    let mut chains = std::mem::take(&mut found.chains);
    chains.retain(|name, _| match question.only {
        Some(only) => name == only,
        None => !question.aside.contains(name),
    });
    let mut prepared = Prepared {
        high_water: folder::read_high_water(question.git_dir),
        default_branch: folder::default_branch(question.git_dir),
        found,
        ..Prepared::default()
    };
    read_facts(&repository, question, merge(chains), limits, cache, &mut prepared);
    let names = prepared.steps.iter().map(|prepared| prepared.step.name.as_slice());
    if !prepared.steps.is_empty() {
        folder::make_lasting(question.git_dir, names)
            .map_err(|error| Doubt::Unavailable(format!("the refs cannot be made lasting: {error}")))?;
    }
    Ok(prepared)
}

/// Reads the present refs and their places, to let them count as announced.
pub fn baseline(question: &Question<'_>) -> Result<BTreeMap<Vec<u8>, (ObjectId, super::reflog::Place)>, Doubt> {
    let repository = open(question)?;
    snapshot::baseline(question.git_dir, repository.object_hash()).map_err(Doubt::Unavailable)
}

fn open(question: &Question<'_>) -> Result<gix::Repository, Doubt> {
    let repository = folder::open(question.git_dir, question.repository_id).map_err(Doubt::Unavailable)?;
    let format = repository.object_hash().to_string();
    if format != question.object_format {
        return Err(Doubt::Unavailable(format!(
            "{} has object format {format}, not {}",
            question.git_dir.display(),
            question.object_format
        )));
    }
    Ok(repository)
}

fn read_facts(
    repository: &gix::Repository,
    question: &Question<'_>,
    steps: Vec<RefTransition>,
    limits: &Limits,
    cache: &FactsCache,
    prepared: &mut Prepared,
) {
    let mut objects = Objects::new(repository);
    // What the refs have had so far, in the order of the steps: a new branch brings only what none of them had.
    let mut known: Vec<ObjectId> =
        question.cursors.values().map(|cursor| cursor.value).filter(|value| !value.is_null()).collect();
    known.sort_unstable();
    known.dedup();
    let mut seqs: HashMap<Vec<u8>, i64> = HashMap::new();
    let mut bytes = 0;
    let count = steps.len();
    for step in steps {
        if prepared.steps.len() >= STEPS_MAX || bytes > FACTS_BYTES {
            break;
        }
        let (before, after) = (step.transition.before, step.transition.after);
        let key = (step.name.clone(), before, after);
        let cached = cache.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let facts = cached.unwrap_or_else(|| {
            let asked = facts::Step { name: &step.name, before, after, known: &known };
            let facts = Arc::new(facts::read(&mut objects, asked, limits));
            cache.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&facts));
            facts
        });
        bytes += facts.bytes();
        known.extend([before, after].into_iter().filter(|value| !value.is_null()));
        let announced = question.cursors.get(&step.name).map_or(0, |cursor| cursor.seq);
        let seq = seqs.entry(step.name.clone()).or_insert(announced);
        *seq += 1;
        prepared.steps.push(PreparedStep { seq: *seq, facts, step });
    }
    prepared.more = prepared.steps.len() < count;
}
