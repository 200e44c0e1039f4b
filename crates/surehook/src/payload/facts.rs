//! Reads from git what the payload of a step needs. Blocking and sometimes slow, so it happens before any transaction.
//!
//! What cannot be read is left out and named in `incomplete`: a payload is never a reason not to tell.

use gix::ObjectId;

use super::object;
use super::objects::{Objects, Unreadable};
use super::text::{Encoding, shortened, text};
use super::{files, range};

/// How much a payload may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Commits in the list; the newest are kept.
    pub commits_max: usize,
    /// Paths per commit.
    pub files_per_commit_max: usize,
    /// Paths in all commits of one event.
    pub files_per_event_max: usize,
    /// Bytes of each message, name or path.
    pub message_bytes_max: usize,
    /// Bytes of the whole payload.
    pub payload_bytes_max: usize,
    /// Commits that are visited to find the list and its total.
    pub visits_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            commits_max: 100,
            files_per_commit_max: 3000,
            files_per_event_max: 20_000,
            message_bytes_max: 64 * 1024,
            payload_bytes_max: 1024 * 1024,
            visits_max: 2_000_000,
        }
    }
}

/// Reasons of incompleteness that are listed at most.
const REASONS_MAX: usize = 20;
/// Bytes of a name or an address.
const NAME_BYTES_MAX: usize = 1024;

/// A name and an address.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Person {
    /// Name.
    pub name: String,
    /// E-mail address, if one is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
}

impl Person {
    /// From bytes, in the given encoding.
    pub fn decode(encoding: Encoding, name: &[u8], email: &[u8]) -> Self {
        let short = |bytes: &[u8]| shortened(&encoding.decode(bytes), NAME_BYTES_MAX).0.to_owned();
        Self { name: short(name), email: Some(short(email)) }
    }
}

/// A commit as a payload tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Its id.
    pub id: ObjectId,
    /// Its tree.
    pub tree: ObjectId,
    /// Its parents.
    pub parents: Vec<ObjectId>,
    /// Its message.
    pub message: String,
    /// Whether the message is longer than that.
    pub message_truncated: bool,
    /// When it was recorded, RFC 3339 with its zone; `None` if no calendar has that time.
    pub timestamp: Option<String>,
    /// Who wrote it.
    pub author: Person,
    /// Who recorded it.
    pub committer: Person,
    /// New files.
    pub added: Vec<String>,
    /// Files that are gone.
    pub removed: Vec<String>,
    /// Changed files.
    pub modified: Vec<String>,
    /// Whether more files changed.
    pub files_truncated: bool,
}

/// What git says about one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The newest commits that the step brought, oldest first.
    pub commits: Vec<Commit>,
    /// How many it brought.
    pub total_commits: u64,
    /// The commit that `after` is or leads to.
    pub head_commit: Option<Commit>,
    /// Its id, which may be known though the commit cannot be read whole.
    pub head_id: Option<ObjectId>,
    /// Whether `before` is no ancestor of `after`; false for creations and deletions.
    pub forced: bool,
    /// What could not be read, in words.
    pub incomplete: Vec<String>,
}

impl Facts {
    /// How much memory they take, roughly.
    pub fn bytes(&self) -> usize {
        let paths = |paths: &[String]| paths.iter().map(String::len).sum::<usize>();
        let commit = |commit: &Commit| {
            512 + commit.message.len() + paths(&commit.added) + paths(&commit.removed) + paths(&commit.modified)
        };
        self.commits.iter().chain(&self.head_commit).map(commit).sum()
    }
}

/// A step, as far as git is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Full ref name.
    pub name: &'a [u8],
    /// Value before; zeros for a creation.
    pub before: ObjectId,
    /// Value after; zeros for a deletion.
    pub after: ObjectId,
    /// For a creation: the values that the repository's refs had before this step, so that only what is new is listed.
    pub known: &'a [ObjectId],
}

/// Reads the facts of a step. Never fails: what cannot be read is named in them.
pub fn read(objects: &mut Objects<'_>, step: Step<'_>, limits: &Limits) -> Facts {
    let mut reading = Reading { objects, limits, files_left: limits.files_per_event_max, facts: Facts::default() };
    if !step.after.is_null() {
        reading.head(step.after);
        reading.commits(step);
    }
    reading.facts
}

struct Reading<'reading, 'repo> {
    objects: &'reading mut Objects<'repo>,
    limits: &'reading Limits,
    files_left: usize,
    facts: Facts,
}

impl Reading<'_, '_> {
    fn head(&mut self, after: ObjectId) {
        match self.objects.peel(after) {
            Ok(head) => self.facts.head_id = head,
            Err(reason) => self.incomplete(format!("after {after} {reason}")),
        }
    }

    fn commits(&mut self, step: Step<'_>) {
        let is_tag = step.name.starts_with(b"refs/tags/");
        let before = self.peeled_before(step.before);
        self.facts.forced = !step.before.is_null();
        let Some(head) = self.facts.head_id else { return };
        let hidden: Vec<ObjectId> = match before {
            Some(before) => vec![before],
            None => step.known.iter().filter_map(|value| self.objects.peel(*value).ok().flatten()).collect(),
        };
        let listed_max = if is_tag { 0 } else { self.limits.commits_max };
        if is_tag && step.before.is_null() {
            self.facts.head_commit = self.commit(head);
            return;
        }
        let found = range::range(self.objects, head, &hidden, before, listed_max, self.limits.visits_max);
        self.facts.forced = !step.before.is_null() && !found.ancestor_reached;
        // The head comes first: its files are the last to be left out where there are too many.
        self.facts.head_commit = self.commit(head);
        if is_tag {
            return;
        }
        for (id, reason) in &found.unreadable {
            self.incomplete(format!("commit {id} {reason}"));
        }
        if found.cut {
            self.incomplete(format!(
                "more than {} commits to look through; total_commits is a part",
                self.limits.visits_max
            ));
        }
        self.facts.total_commits = found.total;
        for id in found.newest {
            let commit = match &self.facts.head_commit {
                Some(head) if head.id == id => Some(head.clone()),
                _ => self.commit(id),
            };
            self.facts.commits.extend(commit);
        }
        self.facts.commits.reverse();
    }

    /// The commit of the value before. Where it is gone from the repository the list goes by the other refs instead.
    fn peeled_before(&mut self, before: ObjectId) -> Option<ObjectId> {
        if before.is_null() {
            return None;
        }
        match self.objects.peel(before) {
            Ok(commit) => commit,
            Err(reason) => {
                self.incomplete(format!("before {before} {reason}"));
                None
            }
        }
    }

    fn commit(&mut self, id: ObjectId) -> Option<Commit> {
        let bytes = match self.objects.commit(id) {
            Ok(bytes) => bytes,
            Err(reason) => {
                self.incomplete(format!("commit {id} {reason}"));
                return None;
            }
        };
        let Some(commit) = object::commit(&bytes) else {
            self.incomplete(format!("commit {id} {}", Unreadable::Damaged));
            return None;
        };
        let encoding = commit.encoding.map_or(Encoding::Utf8, Encoding::named);
        let message = encoding.decode(commit.message);
        let (message, message_truncated) = shortened(&message, self.limits.message_bytes_max);
        let changes = self.changes(id, &commit);
        let paths = |paths: &[Vec<u8>]| paths.iter().map(|path| text(path)).collect();
        Some(Commit {
            id,
            tree: commit.tree,
            message: message.to_owned(),
            message_truncated,
            timestamp: timestamp(commit.committer.seconds, commit.committer.zone_minutes),
            author: Person::decode(encoding, commit.author.name, commit.author.email),
            committer: Person::decode(encoding, commit.committer.name, commit.committer.email),
            added: paths(&changes.added),
            removed: paths(&changes.removed),
            modified: paths(&changes.modified),
            files_truncated: changes.truncated,
            parents: commit.parents,
        })
    }

    fn changes(&mut self, id: ObjectId, commit: &object::Commit<'_>) -> files::Changes {
        let parent_tree = match commit.parents.first() {
            None => None,
            Some(parent) => match self.tree_of(*parent) {
                Ok(tree) => Some(tree),
                Err(reason) => {
                    self.incomplete(format!("files of commit {id}: its parent {parent} {reason}"));
                    return files::Changes::default();
                }
            },
        };
        let files_max = self.limits.files_per_commit_max.min(self.files_left);
        match files::compare(self.objects, parent_tree, Some(commit.tree), files_max) {
            Ok(changes) => {
                self.files_left -= changes.count();
                changes
            }
            Err((tree, reason)) => {
                self.incomplete(format!("files of commit {id}: tree {tree} {reason}"));
                files::Changes::default()
            }
        }
    }

    fn tree_of(&self, id: ObjectId) -> Result<ObjectId, Unreadable> {
        let bytes = self.objects.commit(id)?;
        object::commit(&bytes).map(|commit| commit.tree).ok_or(Unreadable::Damaged)
    }

    fn incomplete(&mut self, reason: String) {
        if self.facts.incomplete.len() < REASONS_MAX && !self.facts.incomplete.contains(&reason) {
            self.facts.incomplete.push(reason);
        }
    }
}

fn timestamp(seconds: i64, zone_minutes: i32) -> Option<String> {
    let offset = jiff::tz::Offset::from_seconds(zone_minutes.checked_mul(60)?).unwrap_or(jiff::tz::Offset::UTC);
    let zoned = jiff::Timestamp::from_second(seconds).ok()?.to_zoned(offset.to_time_zone());
    // RFC 3339 has four digits for the year.
    (0..=9999).contains(&zoned.year()).then(|| zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
}

#[cfg(test)]
mod tests {
    use super::timestamp;

    #[test]
    fn times_keep_their_zone() {
        assert_eq!(timestamp(0, -210).unwrap(), "1969-12-31T20:30:00-03:30");
        assert_eq!(timestamp(1_700_000_000, 60).unwrap(), "2023-11-14T23:13:20+01:00");
        assert_eq!(timestamp(0, 99_999).unwrap(), "1970-01-01T00:00:00+00:00");
        assert_eq!(timestamp(i64::MAX, 0), None);
    }
}
