//! The auditor finds each kind of defect: honest records pass, and records with one thing changed do not.

use std::collections::BTreeMap;

use surehook_drill::audit::audit;
use surehook_drill::records::{Arrival, Built, Delivery, Records, Repository, Status, Told, ZEROS};
use surehook_drill::verdict::Verdict;
use surehook_testkit::dice::Dice;

const REPOSITORIES: [&str; 2] = ["left", "right"];
const REFS: [&str; 3] = ["refs/heads/main", "refs/heads/topic", "refs/tags/v1"];

/// What honest clients, disk, sender and receiver would have written down.
fn honest(seed: u64) -> Records {
    let mut dice = Dice::new(seed);
    let mut records = Records::default();
    let mut next = 0;
    for name in REPOSITORIES {
        let mut repository = Repository::default();
        let mut standing: BTreeMap<&str, String> = BTreeMap::new();
        let steps = 20 + dice.below(20);
        for sequence in 1..=i64::try_from(steps).expect("a small number") {
            let ref_name = *dice.pick(&REFS);
            let before = standing.get(ref_name).cloned().unwrap_or_else(|| ZEROS.into());
            next += 1;
            let is_deletion = before != ZEROS && dice.one_in(5);
            let after = if is_deletion { ZEROS.to_owned() } else { format!("{next:040x}") };
            let step = (ref_name.to_owned(), after.clone());
            *repository.attempted.entry(step.clone()).or_default() += 1;
            // Some clients died before they heard of it.
            if !dice.one_in(4) {
                repository.accepted.push(step);
            }
            match after.as_str() {
                ZEROS => drop((repository.paths.remove(ref_name), repository.refs.remove(ref_name))),
                value => {
                    let path = repository.paths.entry(ref_name.into()).or_insert_with(|| vec![before.clone()]);
                    path.push(value.into());
                    repository.refs.insert(ref_name.into(), value.into());
                }
            }
            standing.insert(ref_name, after.clone());
            let (event_id, webhook_id) = (format!("event-{next}"), format!("webhook-{next}"));
            let (repository, body_hash) = (name.to_owned(), format!("hash-{next}"));
            records.told.push(Told {
                event_id: event_id.clone(),
                repository: repository.clone(),
                name: ref_name.into(),
                before,
                after,
                sequence,
                epoch: "epoch".into(),
                body_hash: body_hash.clone(),
            });
            records.deliveries.push(Delivery {
                delivery_id: webhook_id.clone(),
                event_id: event_id.clone(),
                status: Status::Published,
            });
            records.builds.push(Built { webhook_id: webhook_id.clone(), found_commit: true });
            records.arrivals.push(Arrival { webhook_id, event_id, repository, body_hash, is_finished: true });
        }
        // One push was refused, and its client heard it.
        let refused = (REFS[0].to_owned(), "f".repeat(40));
        repository.attempted.insert(refused.clone(), 1);
        repository.refused.push(refused);
        records.repositories.insert(name.into(), repository);
    }
    records
}

/// Changes honest records of many seeds and says what the auditor finds.
fn each(change: impl Fn(&mut Records, &mut Dice), check: impl Fn(&Verdict)) {
    for seed in 0..200 {
        let mut records = honest(seed);
        change(&mut records, &mut Dice::new(seed + 1000));
        let verdict = audit(&records);
        check(&verdict);
    }
}

fn any(dice: &mut Dice, count: usize) -> usize {
    usize::try_from(dice.below(count as u64)).expect("a place in memory")
}

#[test]
fn honest_records_pass() {
    each(
        |_, _| (),
        |verdict| {
            assert!(verdict.is_clean(), "{verdict:?}");
            assert_eq!((verdict.dead, verdict.delivered), (0, verdict.events));
        },
    );
}

#[test]
fn an_event_that_was_never_told_is_lost() {
    each(
        |records, dice| {
            let at = any(dice, records.told.len());
            let id = records.told.remove(at).event_id;
            records.deliveries.retain(|delivery| delivery.event_id != id);
            let gone = records.arrivals.iter().position(|arrival| arrival.event_id == id).expect("it arrived");
            let webhook_id = records.arrivals.remove(gone).webhook_id;
            records.builds.retain(|built| built.webhook_id != webhook_id);
        },
        // Even where neither a client nor a log speaks of it: its number is missing, or its chain broken.
        |verdict| assert!(verdict.lost + verdict.out_of_order > 0 && !verdict.is_clean(), "{verdict:?}"),
    );
}

#[test]
fn a_delivery_that_is_called_published_and_did_not_arrive_is_lost() {
    each(
        |records, dice| {
            let at = any(dice, records.arrivals.len());
            let webhook_id = records.arrivals.remove(at).webhook_id;
            records.builds.retain(|built| built.webhook_id != webhook_id);
        },
        |verdict| assert_eq!(verdict.lost, 1, "{verdict:?}"),
    );
}

#[test]
fn an_event_of_a_push_that_was_refused_is_invented() {
    each(
        |records, dice| {
            let name = *dice.pick(&REPOSITORIES);
            let mut event = records.told.iter().rfind(|event| event.repository == name).expect("an event").clone();
            event.event_id = "invented".into();
            event.name = REFS[0].into();
            event.after = "f".repeat(40);
            event.sequence += 1;
            records.told.push(event);
        },
        |verdict| assert!(verdict.invented > 0, "{verdict:?}"),
    );
}

#[test]
fn an_arrival_that_nobody_sent_is_invented() {
    each(
        |records, dice| {
            let mut arrival = records.arrivals[any(dice, records.arrivals.len())].clone();
            arrival.webhook_id = "stranger".into();
            arrival.event_id = "stranger".into();
            records.builds.push(Built { webhook_id: "stranger".into(), found_commit: true });
            records.arrivals.push(arrival);
        },
        |verdict| assert_eq!(verdict.invented, 1, "{verdict:?}"),
    );
}

#[test]
fn two_arrivals_swapped_are_out_of_order() {
    each(
        |records, dice| {
            // The last arrival of a repository is never the first of it.
            let at = 1 + any(dice, 10);
            records.arrivals.swap(at - 1, at);
        },
        |verdict| assert_eq!(verdict.out_of_order, 1, "{verdict:?}"),
    );
}

#[test]
fn a_second_result_of_one_id_is_a_build_too_many() {
    each(
        |records, dice| {
            let built = records.builds[any(dice, records.builds.len())].clone();
            records.builds.push(built);
        },
        |verdict| assert_eq!(verdict.built_twice, 1, "{verdict:?}"),
    );
}

#[test]
fn an_event_under_a_second_id_is_built_twice() {
    each(
        |records, dice| {
            let mut again = records.arrivals[any(dice, records.arrivals.len())].clone();
            again.webhook_id = "again".into();
            records.deliveries.push(Delivery {
                delivery_id: "again".into(),
                event_id: again.event_id.clone(),
                status: Status::Published,
            });
            records.builds.push(Built { webhook_id: "again".into(), found_commit: true });
            records.arrivals.push(again);
        },
        |verdict| assert_eq!(verdict.built_twice, 1, "{verdict:?}"),
    );
}

#[test]
fn what_stays_on_its_way_is_pending_and_what_was_given_up_is_dead() {
    let stays = |status| {
        move |records: &mut Records, dice: &mut Dice| {
            let at = any(dice, records.arrivals.len());
            let arrival = records.arrivals.remove(at);
            records.builds.retain(|built| built.webhook_id != arrival.webhook_id);
            let delivery = records.deliveries.iter_mut().find(|delivery| delivery.event_id == arrival.event_id);
            delivery.expect("a delivery").status = status;
        }
    };
    each(stays(Status::Pending), |verdict| assert_eq!((verdict.pending, verdict.lost), (1, 0), "{verdict:?}"));
    each(stays(Status::Dead), |verdict| assert_eq!((verdict.dead, verdict.lost), (1, 0), "{verdict:?}"));
}

#[test]
fn a_build_that_never_ends_is_pending_and_one_without_a_result_is_lost() {
    each(
        |records, dice| {
            let at = any(dice, records.arrivals.len());
            records.arrivals[at].is_finished = false;
            let id = records.arrivals[at].webhook_id.clone();
            records.builds.retain(|built| built.webhook_id != id);
        },
        |verdict| assert_eq!((verdict.pending, verdict.lost), (1, 0), "{verdict:?}"),
    );
    each(
        |records, dice| drop(records.builds.remove(any(dice, records.builds.len()))),
        |verdict| assert_eq!(verdict.lost, 1, "{verdict:?}"),
    );
}

#[test]
fn a_changed_body_is_found() {
    each(
        |records, dice| {
            let at = any(dice, records.arrivals.len());
            records.arrivals[at].body_hash = "other".into();
        },
        |verdict| assert_eq!(verdict.changed, 1, "{verdict:?}"),
    );
}

#[test]
fn a_build_whose_commit_was_not_there_is_found() {
    each(
        |records, dice| {
            let at = any(dice, records.builds.len());
            records.builds[at].found_commit = false;
        },
        |verdict| assert_eq!(verdict.built_early, 1, "{verdict:?}"),
    );
}
