//! Compares the records. Pure: the same records give the same verdict.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::records::{Arrival, Records, Repository, Status, Step, Told, ZEROS};
use crate::verdict::{Kind, Verdict};

/// What is wrong with the records, if anything.
pub fn audit(records: &Records) -> Verdict {
    let mut verdict = Verdict { events: records.told.len(), replayed: records.replayed.len(), ..Verdict::default() };
    let mut told: BTreeMap<&str, Vec<&Told>> = BTreeMap::new();
    for event in &records.told {
        told.entry(&event.repository).or_default().push(event);
    }
    for (name, repository) in &records.repositories {
        told_is_what_happened(name, repository, told.get(name.as_str()).map_or(&[], Vec::as_slice), &mut verdict);
    }
    for (name, events) in told.iter().filter(|(name, _)| !records.repositories.contains_key(**name)) {
        verdict.find(Kind::Invented, events.len(), || format!("events of {name}, which is not there"));
    }
    arrived_is_what_was_told(records, &mut verdict);
    order_of_arrival(records, &mut verdict);
    built_is_what_arrived(records, &mut verdict);
    verdict
}

/// Clients and disk against events.
fn told_is_what_happened(repository: &str, happened: &Repository, told: &[&Told], verdict: &mut Verdict) {
    let lost_before = verdict.lost;
    let mut chains: BTreeMap<&str, Vec<&Told>> = BTreeMap::new();
    let mut ordered = told.to_vec();
    ordered.sort_by_key(|event| event.sequence);
    for event in ordered {
        chains.entry(&event.name).or_default().push(event);
    }
    let mut happenings: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for ((name, value), count) in sure_steps(happened) {
        happenings.entry(name).or_default().insert(value, count);
        verdict.transitions += count;
    }
    let names: HashSet<&str> = chains.keys().chain(happenings.keys()).copied().collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    for name in names {
        let chain = chains.get(name).map_or(&[][..], Vec::as_slice);
        let missing = missing_values(happenings.get(name), chain);
        verdict.find(Kind::Lost, missing.values().sum(), || format!("{repository} {name}: not told: {missing:?}"));
        let unheard = chain.iter().filter(|event| never_happened(happened, event)).count();
        verdict.find(Kind::Invented, unheard, || {
            format!("{repository} {name}: told of values that nobody pushed, or that were refused")
        });
        let breaks = breaks(chain);
        let ends_elsewhere = chain.last().is_some_and(|last| last.after != on_disk(happened, name));
        // Where something is missing, or never was, the rest cannot join on.
        if missing.is_empty() && unheard == 0 {
            verdict.find(Kind::OutOfOrder, breaks, || format!("{repository} {name}: its events do not join on"));
            if breaks == 0 && ends_elsewhere {
                verdict.find(Kind::Lost, 1, || format!("{repository} {name}: told to be elsewhere than on disk"));
            } else if breaks == 0 {
                let surplus = surplus(happened, name, chain);
                verdict.find(Kind::Invented, surplus, || format!("{repository} {name}: its log knows fewer steps"));
            }
        }
    }
    // Numbers that nobody was given stand for events that are gone, also those of refs that are gone.
    let gaps = gaps(told).saturating_sub(verdict.lost - lost_before);
    verdict.find(Kind::Lost, gaps, || format!("{repository}: numbers of events are missing"));
}

/// What surely happened, and how often: what a client was told, or what a log has.
fn sure_steps(happened: &Repository) -> BTreeMap<(&str, &str), usize> {
    let mut heard: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (name, value) in &happened.accepted {
        *heard.entry((name, value)).or_default() += 1;
    }
    // Several clients may each hear that they deleted a ref, and one of them did.
    heard.iter_mut().filter(|((_, value), _)| *value == ZEROS).for_each(|(_, count)| *count = 1);
    let mut logged: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (name, path) in &happened.paths {
        for value in path.iter().skip(1) {
            *logged.entry((name, value)).or_default() += 1;
        }
    }
    for (step, count) in logged {
        let known = heard.entry(step).or_default();
        *known = count.max(*known);
    }
    heard
}

fn missing_values<'a>(happened: Option<&BTreeMap<&'a str, usize>>, chain: &[&Told]) -> BTreeMap<&'a str, usize> {
    let mut missing = happened.cloned().unwrap_or_default();
    for event in chain {
        if let Some(count) = missing.get_mut(event.after.as_str()) {
            *count = count.saturating_sub(1);
        }
    }
    missing.retain(|_, count| *count > 0);
    missing
}

/// Nobody asked for it, or everybody who asked for it was refused.
fn never_happened(happened: &Repository, event: &Told) -> bool {
    let step: Step = (event.name.clone(), event.after.clone());
    let Some(asked) = happened.attempted.get(&step) else { return true };
    let is_logged = happened.paths.get(&event.name).is_some_and(|path| path.contains(&event.after));
    !is_logged && happened.refused.iter().filter(|refused| **refused == step).count() >= *asked
}

/// How often an event does not begin where the one before it ended.
fn breaks(chain: &[&Told]) -> usize {
    let mut value = ZEROS;
    let mut breaks = 0;
    for event in chain {
        breaks += usize::from(event.before != value || event.after == event.before);
        value = &event.after;
    }
    breaks
}

fn on_disk<'a>(happened: &'a Repository, name: &str) -> &'a str {
    happened.refs.get(name).map_or(ZEROS, String::as_str)
}

/// Steps that a ref that is there was told to have made since its log begins, and that the log does not have.
fn surplus(happened: &Repository, name: &str, chain: &[&Told]) -> usize {
    let Some(path) = happened.paths.get(name) else { return 0 };
    let mut told = vec![ZEROS];
    told.extend(chain.iter().map(|event| event.after.as_str()));
    let agrees = path.len() <= told.len() && told[told.len() - path.len()..].iter().eq(path.iter());
    usize::from(!agrees)
}

/// Numbers below the highest that no event has, over all epochs.
fn gaps(told: &[&Told]) -> usize {
    let mut numbers: HashMap<&str, HashSet<i64>> = HashMap::new();
    for event in told {
        numbers.entry(&event.epoch).or_default().insert(event.sequence);
    }
    let missing = |numbers: &HashSet<i64>| {
        let highest = numbers.iter().max().copied().unwrap_or_default();
        let lowest = numbers.iter().min().copied().unwrap_or_default().min(1);
        usize::try_from(highest - lowest + 1).unwrap_or_default().saturating_sub(numbers.len())
    };
    numbers.values().map(missing).sum()
}

/// Events against deliveries and arrivals.
fn arrived_is_what_was_told(records: &Records, verdict: &mut Verdict) {
    let told: HashMap<&str, &Told> = records.told.iter().map(|event| (event.event_id.as_str(), event)).collect();
    let mut arrivals: HashMap<&str, Vec<&Arrival>> = HashMap::new();
    for arrival in &records.arrivals {
        arrivals.entry(&arrival.event_id).or_default().push(arrival);
    }
    let sent: HashMap<&str, Status> =
        records.deliveries.iter().map(|delivery| (delivery.event_id.as_str(), delivery.status)).collect();
    let known: HashSet<&str> = records.deliveries.iter().map(|delivery| delivery.delivery_id.as_str()).collect();
    for event in &records.told {
        let name = || format!("event {} of {} ({})", event.sequence, event.repository, event.event_id);
        let status = sent.get(event.event_id.as_str());
        if let Some(came) = arrivals.get(event.event_id.as_str()) {
            verdict.find(Kind::BuiltTwice, came.len() - 1, || format!("{} came under several ids", name()));
            let changed = came.iter().filter(|arrival| arrival.body_hash != event.body_hash).count();
            verdict.find(Kind::Changed, changed, name);
            verdict.find(Kind::Pending, usize::from(status == Some(&Status::Pending)), name);
            continue;
        }
        match status {
            Some(Status::Pending) => verdict.find(Kind::Pending, 1, name),
            Some(Status::Dead) => verdict.find(Kind::Dead, 1, name),
            Some(Status::Published) => verdict.find(Kind::Lost, 1, || format!("{} is published", name())),
            None => verdict.find(Kind::Lost, 1, || format!("{} has no delivery", name())),
        }
    }
    for arrival in &records.arrivals {
        let unknown = !told.contains_key(arrival.event_id.as_str())
            || !records.deliveries.is_empty() && !known.contains(arrival.webhook_id.as_str());
        verdict.find(Kind::Invented, usize::from(unknown), || {
            format!("{} arrived, and nobody sent it", arrival.webhook_id)
        });
    }
}

/// First arrivals of a repository against the numbers of its events.
fn order_of_arrival(records: &Records, verdict: &mut Verdict) {
    let told: HashMap<&str, &Told> = records.told.iter().map(|event| (event.event_id.as_str(), event)).collect();
    let mut newest: HashMap<(&str, &str), i64> = HashMap::new();
    let mut seen = HashSet::new();
    for arrival in &records.arrivals {
        let Some(event) = told.get(arrival.event_id.as_str()) else { continue };
        if records.replayed.contains(&event.event_id) || !seen.insert(event.event_id.as_str()) {
            continue;
        }
        let newest = newest.entry((&event.repository, &event.epoch)).or_insert(i64::MIN);
        let late = event.sequence < *newest;
        verdict.find(Kind::OutOfOrder, usize::from(late), || {
            format!("event {} of {} arrived after {newest}", event.sequence, event.repository)
        });
        *newest = event.sequence.max(*newest);
    }
}

/// Arrivals against the results of builds.
fn built_is_what_arrived(records: &Records, verdict: &mut Verdict) {
    let mut builds: HashMap<&str, usize> = HashMap::new();
    for built in &records.builds {
        *builds.entry(&built.webhook_id).or_default() += 1;
        let early = usize::from(!built.found_commit);
        verdict.find(Kind::BuiltEarly, early, || format!("{}: its commit was not there", built.webhook_id));
    }
    for arrival in &records.arrivals {
        let id = &arrival.webhook_id;
        match builds.remove(id.as_str()) {
            None if arrival.is_finished => {
                verdict.find(Kind::Lost, 1, || format!("{id} is said to be built, and left no result"));
            }
            Some(1) if arrival.is_finished => verdict.delivered += 1,
            Some(times) if times > 1 => {
                verdict.find(Kind::BuiltTwice, times - 1, || format!("{id} was built {times} times"));
            }
            _ => verdict.find(Kind::Pending, 1, || format!("{id} arrived and is not built")),
        }
    }
    verdict.find(Kind::Invented, builds.len(), || format!("builds of what did not arrive: {builds:?}"));
}
