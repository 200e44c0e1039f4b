//! Holds what was told of a repository against what happened to it: refs and reflogs on disk, and what clients saw.
#![expect(clippy::disallowed_methods, reason = "tests speak SQL, and note the time of day for a person")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::process::Output;

use crate::git::Checkout;
use crate::postgres::Client;

/// The object id of nothing.
pub const ZEROS: &str = "0000000000000000000000000000000000000000";

/// An event, as its payload says it.
#[derive(Clone, Debug)]
pub struct Told {
    /// Its id.
    pub event_id: String,
    /// The ref.
    pub name: String,
    /// Where the ref stood.
    pub before: String,
    /// Where it went.
    pub after: String,
    /// Its number.
    pub sequence: i64,
    /// Within what the number counts.
    pub epoch: String,
}

impl Told {
    /// Reads a payload of the native format; panics if it is none.
    pub fn parse(payload: &[u8]) -> Self {
        let payload: serde_json::Value = serde_json::from_slice(payload).expect("a payload is JSON");
        let text = |field: &str| payload[field].as_str().unwrap_or_default().to_owned();
        Self {
            event_id: text("event_id"),
            name: text("ref"),
            before: text("before"),
            after: text("after"),
            sequence: payload["sequence"].as_i64().unwrap_or_default(),
            epoch: text("sequence_epoch"),
        }
    }
}

/// What was told of a repository, by number.
pub async fn told(sql: &Client, repository: &str) -> Vec<Told> {
    let events = "SELECT payload FROM outbox_events WHERE aggregate_name = $1";
    let rows = sql.query(events, &[&repository]).await.expect("the events of the repository");
    let mut told: Vec<Told> = rows.iter().map(|row| Told::parse(row.get(0))).collect();
    told.sort_by_key(|told| told.sequence);
    told
}

/// What clients tried, and what they were told that they had done: pairs of ref and value.
#[derive(Debug, Default)]
pub struct Tries {
    /// What was asked for, and how often.
    pub attempted: HashMap<(String, String), usize>,
    /// What git said had happened, as often as it said so.
    pub accepted: Vec<(String, String)>,
    /// What it said had been refused, as often as it said so. Of what stands in neither list nobody knows.
    pub refused: Vec<(String, String)>,
    /// What clients did and heard, in order: read by a person when something is wrong.
    pub diary: Vec<String>,
}

impl Tries {
    /// A push is about to ask for these.
    pub fn attempt(&mut self, wanted: &[(String, String)]) {
        wanted.iter().for_each(|wanted| *self.attempted.entry(wanted.clone()).or_default() += 1);
        self.diary.extend(wanted.iter().map(|(name, value)| format!("{} pushes {name} to {value}", clock())));
    }

    /// What `git push --porcelain` said about the refs that it was asked for.
    pub fn note(&mut self, wanted: &[(String, String)], output: &Output) {
        let said = String::from_utf8_lossy(&output.stdout);
        for line in said.lines() {
            let mut parts = line.split('\t');
            let (Some(flag), Some(refs)) = (parts.next(), parts.next()) else { continue };
            let Some((_, name)) = refs.split_once(':') else { continue };
            self.diary.push(format!("{} hears of {name}: {line}", clock()));
            // git also says "deleted" of a ref that was never there; that is no transition.
            let was_there = flag != "-" || self.accepted.iter().any(|(accepted, _)| accepted == name);
            if matches!(flag, " " | "+" | "-" | "*") && was_there {
                self.accepted.extend(wanted.iter().filter(|(wanted, _)| wanted == name).cloned());
            }
            if flag == "!" && parts.next().is_some_and(|words| words.contains("rejected]")) {
                self.refused.extend(wanted.iter().filter(|(wanted, _)| wanted == name).cloned());
            }
        }
    }
}

/// The time of day, as it stands in the log of the server.
fn clock() -> String {
    jiff::Timestamp::now().to_string()
}

/// All that is known of a ref, for a person.
fn story(git_dir: &Path, name: &str, told: &[Told], tries: &Tries) -> String {
    let events = told.iter().filter(|event| event.name == name);
    let events = events.map(|event| format!("told as {}: {} -> {}", event.sequence, event.before, event.after));
    let diary = tries.diary.iter().filter(|line| line.contains(name)).cloned();
    let log = std::fs::read_to_string(git_dir.join("logs").join(name)).unwrap_or_else(|error| error.to_string());
    format!("{}\nlog: {log}", events.chain(diary).collect::<Vec<_>>().join("\n"))
}

/// The refs of a repository that nobody writes to at the moment.
pub async fn refs(bare: &Checkout<'_>) -> BTreeMap<String, String> {
    let list = bare.ok(["for-each-ref", "--format=%(objectname) %(refname)"]).await;
    list.lines().filter_map(|line| line.split_once(' ')).map(|(id, name)| (name.into(), id.into())).collect()
}

/// What the log of a ref tells of the way to its value: the values, oldest first, the first of them being where the log
/// begins. That is nothing for a ref that was created, and a value where a deletion was cut off: git removes the log
/// before the ref. Lines that do not join on are pushes that were cut off between the line and the ref.
pub fn path_to(git_dir: &Path, name: &str, value: &str) -> Vec<String> {
    let log = std::fs::read_to_string(git_dir.join("logs").join(name)).unwrap_or_default();
    let mut values = Vec::new();
    let mut reached = value;
    for line in log.lines().rev() {
        let mut words = line.split(' ');
        let (old, new) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if new == reached && reached != ZEROS {
            values.push(new.to_owned());
            reached = old;
        }
    }
    values.push(reached.to_owned());
    values.reverse();
    values
}

/// What is wrong with what was told, if anything: each transition once, in order, none that was not.
pub fn disagreement(git_dir: &Path, refs: &BTreeMap<String, String>, told: &[Told], tries: &Tries) -> Option<String> {
    let mut chains: BTreeMap<&str, Vec<&Told>> = BTreeMap::new();
    for (index, event) in told.iter().enumerate() {
        if usize::try_from(event.sequence) != Ok(index + 1) || event.epoch != told[0].epoch {
            return Some(format!("number {} of epoch {} stands at place {index}", event.sequence, event.epoch));
        }
        chains.entry(&event.name).or_default().push(event);
    }
    if let Some(name) = refs.keys().find(|name| !chains.contains_key(name.as_str())) {
        return Some(format!("nothing was told of {name}"));
    }
    for (name, chain) in &chains {
        let mut value = ZEROS;
        for event in chain {
            if event.before != value || event.after == event.before {
                return Some(format!(
                    "{name} is told to go from {} to {}, and stood at {value}",
                    event.before, event.after
                ));
            }
            value = &event.after;
            if !tries.attempted.contains_key(&(event.name.clone(), event.after.clone())) {
                return Some(format!("{name} is told to be at {value}, where nobody ever pushed it"));
            }
        }
        let disk = refs.get(*name).map_or(ZEROS, String::as_str);
        if value != disk {
            return Some(format!("{name} is told to be at {value}, and is at {disk}"));
        }
        if disk == ZEROS {
            continue;
        }
        let mut told_path = vec![ZEROS.to_owned()];
        told_path.extend(chain.iter().map(|event| event.after.clone()));
        if !told_path.ends_with(&path_to(git_dir, name, disk)) {
            return Some(format!("{name} went another way:\n{}", story(git_dir, name, told, tries)));
        }
    }
    let happened: HashSet<(&str, &str)> =
        told.iter().map(|event| (event.name.as_str(), event.after.as_str())).collect();
    let missing = tries.accepted.iter().find(|(name, value)| !happened.contains(&(name.as_str(), value.as_str())));
    missing.map(|(name, value)| {
        let story = story(git_dir, name, told, tries);
        format!("a client was told that {name} is at {value}, and nobody else was:\n{story}")
    })
}
