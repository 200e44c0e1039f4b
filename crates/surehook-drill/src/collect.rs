//! Reads the four sides after a run, and waits until nothing moves any more.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use surehook_testkit::ledger::{self, Tries};
use surehook_testkit::postgres::try_connect;

use crate::against::{Against, textbook};
use crate::audit::audit;
use crate::records::{Built, Records, Repository, Told, ZEROS};
use crate::stack::Stack;
use crate::store::{self, Attempts};
use crate::verdict::Verdict;

/// Between two looks at the books.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Where nothing has changed for so long, nothing will.
const STILL: Duration = Duration::from_secs(20);

/// What the books say in the end.
#[derive(Clone, Debug)]
pub struct Settled {
    /// What the audit found.
    pub verdict: Verdict,
    /// What the sender has written down of its requests.
    pub attempts: Attempts,
}

/// Audits until all is well or nothing changes any more, at most for `within`.
pub async fn settle(
    stack: &Stack,
    tries: &[Tries],
    within: Duration,
    say: impl Fn(&Verdict),
) -> anyhow::Result<Settled> {
    let begun = Instant::now();
    let mut replayed = HashSet::new();
    let mut last_change = Instant::now();
    let mut seen = String::new();
    loop {
        replayed.extend(replay_suspects(stack).await?);
        let (records, attempts) = collect(stack, tries, &replayed).await?;
        let verdict = audit(&records);
        say(&verdict);
        let now = format!("{:?} {attempts:?}", verdict.wrong());
        if now != seen {
            (seen, last_change) = (now, Instant::now());
        }
        for (place, tries) in stack.places.iter().zip(tries) {
            let diary = stack.folder().join(format!("diary-{}.txt", place.name));
            // For a person who looks at what was left; the verdict does not depend on it.
            let _ = std::fs::write(diary, tries.diary.join("\n"));
        }
        let still = last_change.elapsed() > STILL && verdict.pending == 0;
        if verdict.is_clean() && verdict.dead == 0 || still || begun.elapsed() > within {
            return Ok(Settled { verdict, attempts });
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A delivery with which three workers in a row vanished is held to be the reason, and waits for a person. Chance can do that
/// too: then this is the person. What is dead for another reason stays dead. Gives the events.
async fn replay_suspects(stack: &Stack) -> anyhow::Result<HashSet<String>> {
    if stack.against != Against::Surehook {
        return Ok(HashSet::new());
    }
    let sender = try_connect(&stack.sender_url()).await?;
    let (suspects, others) = store::dead(&sender).await?;
    sender.close().await;
    if suspects.is_empty() || others > 0 {
        return Ok(HashSet::new());
    }
    stack.surehook(&["dlq", "replay", "--all", "--anyway"]).await?;
    Ok(suspects)
}

async fn collect(stack: &Stack, tries: &[Tries], replayed: &HashSet<String>) -> anyhow::Result<(Records, Attempts)> {
    let mut records = Records { replayed: replayed.clone(), ..Records::default() };
    for (place, tries) in stack.places.iter().zip(tries) {
        records.repositories.insert(place.name.clone(), repository(stack, &place.path, tries).await);
    }
    let receiver = try_connect(&stack.receiver_url()).await?;
    let arrivals = store::arrivals(&receiver).await?;
    receiver.close().await;
    let sender = try_connect(&stack.sender_url()).await?;
    let attempts;
    (records.told, records.deliveries, attempts) = match stack.against {
        Against::Surehook => {
            (store::told(&sender).await?, store::deliveries(&sender).await?, store::attempts(&sender).await?)
        }
        // It keeps no books: what arrived is all that it can have told.
        Against::Naive => (arrivals.iter().map(|(_, told)| told.clone()).collect(), Vec::new(), requests(stack)),
        Against::Textbook => textbook::books(&sender).await?,
    };
    sender.close().await;
    if stack.against != Against::Surehook {
        renumber(&mut records.told);
    }
    records.arrivals = arrivals.into_iter().map(|(arrival, _)| arrival).collect();
    records.builds = builds(&stack.results);
    Ok((records, attempts))
}

/// What the front door saw, of one that counts nothing itself.
fn requests(stack: &Stack) -> Attempts {
    let passed = stack.gate.passed();
    let requests = i64::try_from(passed.requests).unwrap_or(i64::MAX);
    Attempts { requests, failed: 0, known: i64::try_from(passed.suppressed).unwrap_or(i64::MAX) }
}

/// Numbers of all repositories together become numbers of each.
fn renumber(told: &mut [Told]) {
    let mut newest: HashMap<String, i64> = HashMap::new();
    for event in told {
        let number = newest.entry(event.repository.clone()).or_default();
        *number += 1;
        event.sequence = *number;
    }
}

/// What disk and clients say of a repository.
async fn repository(stack: &Stack, path: &Path, tries: &Tries) -> Repository {
    let refs = ledger::refs(&stack.git.at(path)).await;
    let paths = refs.iter().map(|(name, value)| (name.clone(), path_to(path, name, value))).collect();
    Repository {
        attempted: tries.attempted.clone(),
        accepted: tries.accepted.clone(),
        refused: tries.refused.clone(),
        refs,
        paths,
    }
}

fn path_to(git_dir: &Path, name: &str, value: &str) -> Vec<String> {
    let mut path = ledger::path_to(git_dir, name, value);
    // Repeated lines of a value that stays are no steps.
    path.dedup();
    if path.is_empty() {
        path.push(ZEROS.to_owned());
    }
    path
}

/// Lines that builds left: an id, and whether the commit was there.
fn builds(results: &Path) -> Vec<Built> {
    let lines = std::fs::read_to_string(results).unwrap_or_default();
    let built = |line: &str| {
        let (webhook_id, found) = line.split_once(' ')?;
        Some(Built { webhook_id: webhook_id.to_owned(), found_commit: found == "yes" })
    };
    lines.lines().filter_map(built).collect()
}
