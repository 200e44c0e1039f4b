//! The native format: what an event says, as the bytes that every attempt sends. Pure.
//!
//! A payload that would be longer than its limit is shortened, step by step and with flags, and never dropped: first the file
//! lists and messages of all commits, then the oldest commits.

use base64::Engine;
use gix::ObjectId;
use serde::Serialize;
use uuid::Uuid;

use super::facts::{Commit, Facts, Limits, Person};
use super::text::{shortened, text};

/// The event type of all that is rendered here.
pub const EVENT_TYPE: &str = "RepositoryPushed";
/// Push options that are told at most, and the bytes of each.
const OPTIONS_MAX: usize = 100;
const OPTION_BYTES_MAX: usize = 1024;

/// A step as it is told, but for the numbers that are known under the repository's lock only.
#[derive(Clone, Copy, Debug)]
pub struct Push<'a> {
    /// The repository.
    pub repository_id: Uuid,
    /// The branch that its HEAD names.
    pub default_branch: Option<&'a [u8]>,
    /// Full ref name, as bytes.
    pub name: &'a [u8],
    /// Value before; zeros for a creation.
    pub before: ObjectId,
    /// Value after; zeros for a deletion.
    pub after: ObjectId,
    /// Whether the step was bridged rather than read from the log.
    pub reconstructed: bool,
    /// What git says.
    pub facts: &'a Facts,
    /// Who pushed.
    pub pusher: Option<&'a Person>,
    /// The options of the push, as bytes.
    pub push_options: &'a [Vec<u8>],
}

/// What is known under the lock only.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a> {
    /// The event's id.
    pub event_id: Uuid,
    /// Gap-free number of the event in its repository.
    pub sequence: i64,
    /// What the number may be compared within.
    pub sequence_epoch: Uuid,
    /// The repository's name.
    pub repository_name: &'a str,
}

/// The event id: a name-based UUID (version 5) in the namespace of the repository's id, so that telling the same step again
/// gives the same id. The name is the per-ref number, the two values with their lengths, and the ref: no two can be confused.
pub fn event_id(repository_id: Uuid, name: &[u8], seq: i64, before: ObjectId, after: ObjectId) -> Uuid {
    let mut bytes = seq.to_be_bytes().to_vec();
    for value in [before, after] {
        bytes.push(u8::try_from(value.as_slice().len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(value.as_slice());
    }
    bytes.extend_from_slice(name);
    Uuid::new_v5(&repository_id, &bytes)
}

/// Renders a step. The same input gives the same bytes.
pub fn render(push: &Push<'_>, numbers: &Numbers<'_>, limits: &Limits) -> Vec<u8> {
    let mut best = Vec::new();
    for level in LEVELS {
        best = serialise(push, numbers, &level);
        if best.len() <= limits.payload_bytes_max {
            break;
        }
    }
    best
}

/// How far a payload is shortened.
struct Level {
    commits_max: usize,
    files_per_commit_max: usize,
    message_bytes_max: usize,
}

const fn level(commits_max: usize, files_per_commit_max: usize, message_bytes_max: usize) -> Level {
    Level { commits_max, files_per_commit_max, message_bytes_max }
}

const LEVELS: [Level; 8] = [
    level(usize::MAX, usize::MAX, usize::MAX),
    level(usize::MAX, 300, 16 * 1024),
    level(usize::MAX, 30, 4 * 1024),
    level(usize::MAX, 0, 1024),
    level(100, 0, 256),
    level(30, 0, 256),
    level(5, 0, 128),
    level(0, 0, 64),
];

#[derive(Serialize)]
struct Event<'a> {
    event_type: &'static str,
    event_id: Uuid,
    sequence: i64,
    sequence_epoch: Uuid,
    repository: Repository<'a>,
    #[serde(rename = "ref")]
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ref_base64: Option<String>,
    before: String,
    after: String,
    created: bool,
    deleted: bool,
    forced: bool,
    reconstructed: bool,
    incomplete: Vec<&'a str>,
    total_commits: u64,
    commits_truncated: bool,
    commits: Vec<CommitBody<'a>>,
    head_commit: Option<CommitBody<'a>>,
    pusher: Option<&'a Person>,
    push_options: Vec<String>,
}

#[derive(Serialize)]
struct Repository<'a> {
    id: Uuid,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    default_branch: Option<String>,
}

#[derive(Serialize)]
struct CommitBody<'a> {
    id: String,
    tree_id: String,
    parents: Vec<String>,
    message: &'a str,
    message_truncated: bool,
    timestamp: Option<&'a str>,
    author: &'a Person,
    committer: &'a Person,
    added: &'a [String],
    removed: &'a [String],
    modified: &'a [String],
    files_truncated: bool,
}

fn serialise(push: &Push<'_>, numbers: &Numbers<'_>, level: &Level) -> Vec<u8> {
    let facts = push.facts;
    let from = facts.commits.len().saturating_sub(level.commits_max);
    let commits = &facts.commits[from..];
    let is_utf8 = std::str::from_utf8(push.name).is_ok();
    let mut incomplete: Vec<&str> = facts.incomplete.iter().map(String::as_str).collect();
    let option = |bytes: &Vec<u8>| shortened(&text(bytes), OPTION_BYTES_MAX).0.to_owned();
    if push.push_options.len() > OPTIONS_MAX || push.push_options.iter().any(|option| option.len() > OPTION_BYTES_MAX) {
        incomplete.push("push_options are shortened");
    }
    let event = Event {
        event_type: EVENT_TYPE,
        event_id: numbers.event_id,
        sequence: numbers.sequence,
        sequence_epoch: numbers.sequence_epoch,
        repository: Repository {
            id: push.repository_id,
            name: numbers.repository_name,
            default_branch: push.default_branch.map(text),
        },
        name: text(push.name),
        ref_base64: (!is_utf8).then(|| base64::engine::general_purpose::STANDARD.encode(push.name)),
        before: push.before.to_string(),
        after: push.after.to_string(),
        created: push.before.is_null(),
        deleted: push.after.is_null(),
        forced: facts.forced,
        reconstructed: push.reconstructed,
        incomplete,
        total_commits: facts.total_commits,
        commits_truncated: facts.total_commits > commits.len() as u64,
        commits: commits.iter().map(|commit| body(commit, level)).collect(),
        head_commit: facts.head_commit.as_ref().map(|commit| body(commit, level)),
        pusher: push.pusher,
        push_options: push.push_options.iter().take(OPTIONS_MAX).map(option).collect(),
    };
    serde_json::to_vec(&event).unwrap_or_else(|error| unreachable!("strings and numbers always serialise: {error}"))
}

fn body<'a>(commit: &'a Commit, level: &Level) -> CommitBody<'a> {
    let (message, shortened_now) = shortened(&commit.message, level.message_bytes_max);
    let mut left = level.files_per_commit_max;
    let mut cut_now = false;
    let mut take = |paths: &'a [String]| {
        let count = paths.len().min(left);
        left -= count;
        cut_now |= count < paths.len();
        &paths[..count]
    };
    let (added, removed, modified) = (take(&commit.added), take(&commit.removed), take(&commit.modified));
    CommitBody {
        id: commit.id.to_string(),
        tree_id: commit.tree.to_string(),
        // An octopus may have thousands of arms.
        parents: commit.parents.iter().take(100).map(ToString::to_string).collect(),
        message,
        message_truncated: commit.message_truncated || shortened_now,
        timestamp: commit.timestamp.as_deref(),
        author: &commit.author,
        committer: &commit.committer,
        added,
        removed,
        modified,
        files_truncated: commit.files_truncated || cut_now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(number: u8, message_bytes: usize, files: usize) -> Commit {
        let person = Person { name: "é\0".into(), email: Some(String::new()) };
        Commit {
            id: ObjectId::from_bytes_or_panic(&[number; 20]),
            tree: ObjectId::from_bytes_or_panic(&[7; 20]),
            parents: Vec::new(),
            message: "m".repeat(message_bytes),
            message_truncated: false,
            timestamp: None,
            author: person.clone(),
            committer: person,
            added: (0..files).map(|number| format!("folder/{number}")).collect(),
            removed: Vec::new(),
            modified: Vec::new(),
            files_truncated: false,
        }
    }

    fn rendered(facts: &Facts, name: &[u8]) -> (usize, serde_json::Value) {
        let id = ObjectId::from_bytes_or_panic(&[1; 20]);
        let push = Push {
            repository_id: Uuid::nil(),
            default_branch: Some(b"main"),
            name,
            before: id.kind().null(),
            after: id,
            reconstructed: false,
            facts,
            pusher: None,
            push_options: &[b"a\xff".to_vec()],
        };
        let numbers =
            Numbers { event_id: Uuid::nil(), sequence: 1, sequence_epoch: Uuid::nil(), repository_name: "team/app" };
        let bytes = render(&push, &numbers, &Limits::default());
        (bytes.len(), serde_json::from_slice(&bytes).unwrap())
    }

    #[test]
    fn every_size_stays_under_the_limit_with_its_flags() {
        for (count, message, files) in
            [(1, 10, 3), (100, 60_000, 3000), (100, 8_000, 0), (3, 10, 40_000), (100, 900, 100)]
        {
            let commits: Vec<_> = (0..count).map(|number| commit(number, message, files)).collect();
            let facts =
                Facts { total_commits: 2000, head_commit: commits.last().cloned(), commits, ..Facts::default() };
            let (bytes, event) = rendered(&facts, b"refs/heads/main");
            assert!(bytes <= 1024 * 1024, "{bytes} bytes");
            let shown = event["commits"].as_array().unwrap();
            assert_eq!(event["total_commits"], 2000);
            assert_eq!(event["commits_truncated"], true);
            assert_eq!(shown.last().unwrap()["id"], facts.commits.last().unwrap().id.to_string());
            let last = shown.last().unwrap();
            assert_eq!(last["message_truncated"] == true, last["message"].as_str().unwrap().len() < message);
            assert_eq!(last["files_truncated"] == true, last["added"].as_array().unwrap().len() < files);
            assert_eq!(event["head_commit"]["id"], last["id"]);
        }
    }

    #[test]
    fn a_name_that_is_no_utf8_is_given_whole_beside() {
        let (_, event) = rendered(&Facts::default(), b"refs/heads/caf\xe9");
        assert_eq!(event["ref"], "refs/heads/caf\u{fffd}");
        assert_eq!(event["ref_base64"], "cmVmcy9oZWFkcy9jYWbp");
        assert_eq!(event["push_options"][0], "a\u{fffd}");
        assert_eq!(rendered(&Facts::default(), b"refs/heads/x").1.get("ref_base64"), None);
    }

    #[test]
    fn event_ids_differ_in_every_part_and_repeat() {
        let (a, b) = (ObjectId::from_bytes_or_panic(&[1; 20]), ObjectId::from_bytes_or_panic(&[2; 20]));
        let id = |name: &[u8], seq, before, after| event_id(Uuid::nil(), name, seq, before, after);
        let first = id(b"refs/heads/x", 1, a, b);
        assert_eq!(first, id(b"refs/heads/x", 1, a, b));
        for other in [id(b"refs/heads/y", 1, a, b), id(b"refs/heads/x", 2, a, b), id(b"refs/heads/x", 1, b, a)] {
            assert_ne!(first, other);
        }
        assert_ne!(first, event_id(Uuid::max(), b"refs/heads/x", 1, a, b));
        assert_eq!(first.get_version_num(), 5);
    }
}
