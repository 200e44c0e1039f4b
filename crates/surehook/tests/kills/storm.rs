//! The storm: clients push, somebody kills. Then the books are compared.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use surehook_testkit::dice::Dice;
use surehook_testkit::ledger::{self, Told, Tries};
use surehook_testkit::pusher::{HABITS_OF_PEOPLE, Habit, Host, Pusher, Target};
use surehook_testkit::receiver::{Answer, Receiver};
use surehook_testkit::{eventually, try_eventually};
use tokio::sync::RwLockReadGuard;

use super::world::{Running, World, script};

const REPOSITORIES: [&str; 2] = ["left", "right"];
const CLIENTS_PER_REPOSITORY: usize = 3;
/// What is to be done when all is over must be done within.
const IN_THE_END: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forty_random_kills_lose_and_invent_nothing() {
    storm(40).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes some minutes: ./test --long"]
async fn three_hundred_random_kills_lose_and_invent_nothing() {
    storm(300).await;
}

/// Where the server is at present, and what became of the pushes.
struct Shop {
    address: Mutex<String>,
    token: String,
    over: AtomicBool,
    pushes: AtomicUsize,
    succeeded: AtomicUsize,
}

/// One of its repositories.
struct Hosted<'a> {
    shop: &'a Shop,
    repository: &'a str,
}

impl Host for Hosted<'_> {
    fn is_over(&self) -> bool {
        self.shop.over.load(Ordering::SeqCst)
    }

    fn target(&self, _number: usize) -> Target {
        let address = self.shop.address.lock().unwrap();
        let url = format!("http://ci:{}@{address}/{}.git", self.shop.token, self.repository);
        Target { url, settings: Vec::new() }
    }

    fn habits(&self) -> &[Habit] {
        &HABITS_OF_PEOPLE
    }

    async fn entered(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.shop.pushes.fetch_add(1, Ordering::SeqCst);
        None
    }

    async fn ended(&self, target: &Target, succeeded: bool) {
        if succeeded {
            self.shop.succeeded.fetch_add(1, Ordering::SeqCst);
        } else {
            // Most likely the server is gone: the next one is elsewhere.
            let moved = async || (self.target(0) != *target).then_some(());
            let _ = try_eventually(Duration::from_millis(100), moved).await;
        }
    }
}

fn bare(world: &World, repository: &str) -> PathBuf {
    world.data().join(format!("repositories/{repository}.git"))
}

async fn storm(kills: usize) {
    let mut dice = Dice::from_environment();
    let world = World::new().await;
    let mut server = world.serve();
    let mut answers = dice.split();
    let receiver = Receiver::start(move |_| match answers.below(20) {
        0 | 1 => Answer::status(503),
        2 => Answer::Reset,
        _ => Answer::status(200),
    })
    .await;
    for repository in REPOSITORIES {
        world.run(&["repo", "create", repository]);
        let hooks = bare(&world, repository).join("hooks");
        std::fs::create_dir_all(&hooks).unwrap();
        script(&hooks, "update", "#!/bin/sh\ncase $1 in refs/heads/refused-*) exit 1 ;; esac\n");
    }
    let patient = ["--retry-max-delay", "100ms", "--max-attempts", "1000", "--max-unanswered", "1000"];
    world.endpoint("ci", "*", &receiver.url("/"), &patient);
    let shop = Shop {
        address: Mutex::new(server.address.clone()),
        token: world.json(&["token", "create", "--admin"])["token"].as_str().unwrap().to_owned(),
        over: AtomicBool::new(false),
        pushes: AtomicUsize::new(0),
        succeeded: AtomicUsize::new(0),
    };
    let tries: [Mutex<Tries>; 2] = Default::default();
    let hosts = REPOSITORIES.map(|repository| Hosted { shop: &shop, repository });
    let server = tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            for at in 0..REPOSITORIES.len() {
                for n in 0..CLIENTS_PER_REPOSITORY {
                    let (dice, tries, host, git) = (dice.split(), &tries[at], &hosts[at], &world.git);
                    let number = at * CLIENTS_PER_REPOSITORY + n;
                    scope.spawn(move || {
                        alone(async {
                            Pusher::new(git, host, number, dice, tries).await.push_until_it_is_over().await;
                        });
                    });
                }
            }
            // Also when this panics, the clients must come to their end.
            let _ends = EndOfTheStorm(&shop.over);
            alone(async {
                for _ in 0..kills {
                    server = kill_and_restart(&world, server, &shop, &receiver, &mut dice).await;
                }
                // On a slow machine the kills may have let too little through to prove anything: then a little more goes on after them.
                let through = || shop.succeeded.load(Ordering::SeqCst);
                eventually(IN_THE_END, async || (through() > kills / 4).then_some(())).await;
                server
            })
        })
    });
    let tries = tries.map(|tries| tries.into_inner().unwrap());
    compare(&world, &receiver, &tries).await;
    let (pushes, succeeded) = (shop.pushes.load(Ordering::SeqCst), shop.succeeded.load(Ordering::SeqCst));
    let events = world.count("SELECT count(*) FROM outbox_events").await;
    println!(
        "{kills} kills, {pushes} pushes, {succeeded} of them succeeded, {events} events, {} requests",
        receiver.requests().len()
    );
    assert!(events > 0, "nothing happened between the kills");
    drop(server);
}

/// Runs this on a runtime of its own, in this thread.
fn alone<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

struct EndOfTheStorm<'a>(&'a AtomicBool);

impl Drop for EndOfTheStorm<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Waits for a moment of chance, kills, and starts the next server.
async fn kill_and_restart(
    world: &World,
    mut server: Running,
    shop: &Shop,
    receiver: &Receiver,
    dice: &mut Dice,
) -> Running {
    // Counted in what happens, so that as much of it happens on a slow machine; or a time of chance, sometimes long enough
    // for the next worker to notice the dead one and to take over what it had in hand.
    let counted = dice.below(4);
    let happened = || match counted {
        0 => shop.pushes.load(Ordering::SeqCst),
        1 => shop.succeeded.load(Ordering::SeqCst),
        2 => receiver.requests().len(),
        _ => 0,
    };
    let enough = happened() + usize::try_from(1 + dice.below(8)).unwrap();
    let time = Duration::from_millis(if dice.one_in(3) { dice.below(5000) } else { 20 + dice.below(600) });
    // After a long time without anything to count it is time to kill all the same.
    let longest = if counted < 3 { Duration::from_secs(10) } else { time };
    let _ = try_eventually(longest, async || (happened() >= enough).then_some(())).await;
    let tree = if dice.one_in(2) { descendants(server.id()) } else { Vec::new() };
    server.signal("KILL");
    for process in tree {
        // It may have ended by itself.
        let _ = Pid::from_raw(process.cast_signed()).map(|pid| kill_process(pid, Signal::KILL));
    }
    server.ended().await;
    let server = world.serve();
    shop.address.lock().unwrap().clone_from(&server.address);
    server
}

/// The processes below this one.
fn descendants(root: u32) -> Vec<u32> {
    let mut parents: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((head, rest)) = stat.rsplit_once(") ") else { continue };
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<u32>().ok());
        if let (Some(process), Some(parent)) = (number(head.split(' ').next()), number(rest.split(' ').nth(1))) {
            parents.entry(parent).or_default().push(process);
        }
    }
    let mut found = vec![root];
    let mut at = 0;
    while let Some(process) = found.get(at) {
        found.extend(parents.get(process).into_iter().flatten().copied().collect::<Vec<_>>());
        at += 1;
    }
    found.split_off(1)
}

/// When everything has come to rest: transitions are events, and events have arrived.
async fn compare(world: &World, receiver: &Receiver, tries: &[Tries; 2]) {
    for repository in REPOSITORIES {
        let lock = std::fs::File::open(bare(world, repository).join("surehook.lock")).unwrap();
        eventually(IN_THE_END, async || flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()).await;
    }
    world.drained().await;
    let suspects = replay_the_suspects(world).await;
    let mut reason = String::new();
    let agreed = try_eventually(IN_THE_END, async || match not_yet(world, receiver, tries, &suspects).await {
        None => Some(()),
        Some(found) => {
            reason = found;
            None
        }
    })
    .await;
    if agreed.is_none() {
        let log = std::fs::read_to_string(world.data().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        panic!("{reason}\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
    }
}

/// A delivery with which workers vanished three times in a row is held to be the reason, and waits for an operator. Chance can
/// do that too: it hits whatever is in hand. Then this is the operator. Gives the ids of the events.
async fn replay_the_suspects(world: &World) -> HashSet<String> {
    let open = "SELECT event_id::text, reason FROM outbox_dlq WHERE state = 'dead'";
    let dead = world.sql.query(open, &[]).await.unwrap();
    let suspects: HashSet<String> = dead.iter().map(|row| row.get(0)).collect();
    for row in dead {
        assert_eq!(row.get::<_, &str>(1), "crashed_worker", "nothing else is a reason to give up");
    }
    if !suspects.is_empty() {
        println!("{} deliveries were suspected and replayed", suspects.len());
        world.run(&["dlq", "replay", "--all", "--anyway"]);
    }
    suspects
}

async fn not_yet(world: &World, receiver: &Receiver, tries: &[Tries; 2], suspects: &HashSet<String>) -> Option<String> {
    let arrived: Vec<(String, Told)> = receiver
        .requests()
        .iter()
        .map(|request| {
            let payload: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
            (payload["repository"]["name"].as_str().unwrap().to_owned(), Told::parse(&request.body))
        })
        .collect();
    for (repository, tries) in REPOSITORIES.iter().zip(tries) {
        let bare = bare(world, repository);
        let refs = ledger::refs(&world.git.at(&bare)).await;
        let told = ledger::told(&world.sql, repository).await;
        if let Some(wrong) = ledger::disagreement(&bare, &refs, &told, tries) {
            return Some(format!("{repository}: {wrong}"));
        }
        let mut seen = HashSet::new();
        let first = arrived.iter().filter(|(name, event)| name == repository && seen.insert(event.event_id.as_str()));
        let order = |event: &&Told| !suspects.contains(&event.event_id);
        let first: Vec<i64> = first.map(|(_, event)| event).filter(order).map(|event| event.sequence).collect();
        let expected: Vec<i64> = told.iter().filter(order).map(|event| event.sequence).collect();
        if first != expected {
            let at = first.iter().zip(&expected).position(|(first, expected)| first != expected);
            return Some(format!(
                "{repository}: {} of {} arrived, the first of them out of order at {at:?}",
                first.len(),
                expected.len()
            ));
        }
        if let Some(event) = told.iter().find(|event| !seen.contains(event.event_id.as_str())) {
            return Some(format!("{repository}: number {} has not arrived", event.sequence));
        }
    }
    let open = world.count("SELECT count(*) FROM outbox_status WHERE status <> 'published'").await;
    (open > 0).then(|| format!("{open} deliveries are not published"))
}
