//! `surehook receive` as a process, killed at random moments while deliveries come in and builds run: alone, so that its
//! runners go on and the next receiver adopts them, or with all that it has started. Each push ends in one result; a build
//! that was killed too is run again, and says so. `SUREHOOK_SEED` repeats a run as far as moments can be repeated.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, start programs and look at the clock"
)]

#[expect(dead_code, reason = "shared with the tests that need all of it")]
mod receiver_world;

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use receiver_world::{PATIENCE, Request, SECRET, World, body};
use surehook::store::inbox;
use surehook_testkit::eventually;
use uuid::Uuid;

/// Says when it begins and when it ends, each in one write to a file that only grows.
const BUILD: &str = "echo \"begin $SUREHOOK_WEBHOOK_ID $SUREHOOK_ATTEMPT\" >>$HERE/book
    sleep 0.$(($SUREHOOK_BUILD % 4))
    echo \"end $SUREHOOK_WEBHOOK_ID $SUREHOOK_ATTEMPT\" >>$HERE/book";
const REPOSITORIES: usize = 7;
const JOBS: usize = 3;

/// Splitmix64: enough to choose moments.
struct Chance(u64);

impl Chance {
    fn new() -> Self {
        let seed = std::env::var("SUREHOOK_SEED")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 % 1_000_000);
        println!("SUREHOOK_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

struct Receiving {
    child: Child,
    address: SocketAddr,
}

fn start(world: &World) -> Receiving {
    let mut child = Command::new(env!("CARGO_BIN_EXE_surehook"))
        .args(["receive", "--listen", "127.0.0.1:0", "--secret", SECRET])
        .arg(format!("--jobs={JOBS}"))
        .args(["--exec", &BUILD.replace("$HERE", &world.folder.path().display().to_string())])
        .arg("--data")
        .arg(world.folder.path())
        .args(["--database-url", &world.url])
        .env("SUREHOOK_LOG", "warn")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit("http://").next().unwrap().parse();
    Receiving { child, address: address.unwrap_or_else(|_| panic!("the receiver said {line:?}")) }
}

impl Receiving {
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processes whose command line or environment names the data directory: receiver, runners, builds.
fn processes(world: &World) -> Vec<rustix::process::Pid> {
    let named = world.folder.path().as_os_str().as_encoded_bytes();
    let ours = std::process::id().to_string();
    let names_it = |entry: &std::fs::DirEntry, file: &str| {
        let text = std::fs::read(entry.path().join(file)).unwrap_or_default();
        text.windows(named.len()).any(|window| window == named)
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let found = entries
        .filter(|entry| entry.file_name() != *ours && (names_it(entry, "cmdline") || names_it(entry, "environ")));
    found.filter_map(|entry| rustix::process::Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Kills all of them; again, until none is left that was started meanwhile.
async fn kill_everything(world: &World, receiver: &mut Receiving) {
    receiver.kill();
    eventually(PATIENCE, async || {
        let found = processes(world);
        for process in &found {
            let _ = rustix::process::kill_process(*process, rustix::process::Signal::KILL);
        }
        found.is_empty().then_some(())
    })
    .await;
}

/// Sends as surehook does: until somebody says that it is there.
fn deliver(id: Uuid, nth: usize, address: &Mutex<SocketAddr>, over: &AtomicBool) {
    let body = body(&format!(r#","repository":{{"id":"{}"}}"#, nth % REPOSITORIES));
    while !over.load(Ordering::SeqCst) {
        let current = *address.lock().unwrap();
        if let Some(202 | 409) = Request::signed(id, body.as_bytes()).try_send(current).map(|answer| answer.status) {
            return;
        }
        std::thread::yield_now();
    }
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

async fn kills(rounds: usize) {
    let mut chance = Chance::new();
    let world = World::new().await;
    let mut receiver = start(&world);
    let address = Mutex::new(receiver.address);
    let (accepted, goal, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let ids = Mutex::new(Vec::new());
    let mut runners_killed_max = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                let nth = accepted.load(Ordering::SeqCst);
                if nth >= goal.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                    continue;
                }
                let id = Uuid::new_v4();
                ids.lock().unwrap().push(id);
                deliver(id, nth, &address, &over);
                accepted.fetch_add(1, Ordering::SeqCst);
            }
        });
        let _ends_the_sender = SetOnDrop(&over);
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                for _ in 0..rounds {
                    let more = 2 + usize::try_from(chance.below(6)).unwrap();
                    goal.fetch_add(more, Ordering::SeqCst);
                    // The last ones are on their way when the receiver dies.
                    let wanted = goal.load(Ordering::SeqCst) - 1 - usize::try_from(chance.below(2)).unwrap();
                    eventually(PATIENCE, async || (accepted.load(Ordering::SeqCst) >= wanted).then_some(())).await;
                    for _ in 0..chance.below(200_000) {
                        std::hint::spin_loop();
                    }
                    if chance.below(3) == 0 {
                        kill_everything(&world, &mut receiver).await;
                        runners_killed_max += JOBS;
                    } else {
                        receiver.kill();
                    }
                    receiver = start(&world);
                    *address.lock().unwrap() = receiver.address;
                    // The queue is kept short, so that kills meet builds and not only a backlog.
                    let backlog_is_short = async || {
                        let builds = inbox::list(&world.database, 10_000).await.unwrap();
                        (builds.iter().filter(|build| build.finished_at.is_none()).count() < 10).then_some(())
                    };
                    eventually(PATIENCE, backlog_is_short).await;
                }
                let all_sent = async || (accepted.load(Ordering::SeqCst) >= goal.load(Ordering::SeqCst)).then_some(());
                eventually(PATIENCE, all_sent).await;
            });
        });
    });
    let ids = ids.into_inner().unwrap();
    check(&world, &ids, runners_killed_max).await;
    kill_everything(&world, &mut receiver).await;
}

async fn check(world: &World, ids: &[Uuid], runners_killed_max: usize) {
    let builds = eventually(PATIENCE, async || {
        let builds = inbox::list(&world.database, 100_000).await.unwrap();
        (builds.len() >= ids.len() && builds.iter().all(|build| build.finished_at.is_some())).then_some(builds)
    })
    .await;
    let results: HashMap<&str, &inbox::Build> = builds.iter().map(|build| (build.webhook_id.as_str(), build)).collect();
    assert_eq!((builds.len(), results.len()), (ids.len(), ids.len()), "one build for each push");
    let book = world.text("book");
    let mut runs: HashMap<&str, Vec<(&str, i32)>> = HashMap::new();
    for line in book.lines() {
        let [what, id, attempt] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
        runs.entry(id).or_default().push((what, attempt.parse().unwrap()));
    }
    let mut again = 0;
    for id in ids {
        let build = results[id.to_string().as_str()];
        assert_eq!((build.state.as_str(), build.exit_code), ("finished", Some(0)), "{build:?}");
        let runs = &runs[id.to_string().as_str()];
        // In order and never two at once: each attempt begins after the one before, and the last one has ended.
        let begun: Vec<i32> = runs.iter().filter(|(what, _)| *what == "begin").map(|(_, attempt)| *attempt).collect();
        assert!(begun.windows(2).all(|pair| pair[0] < pair[1]), "{id}: {runs:?}");
        assert_eq!(runs.last(), Some(&("end", build.attempt)), "{id}: {runs:?}");
        for (what, attempt) in runs {
            let ends = runs.iter().filter(|run| **run == ("end", *attempt)).count();
            assert!(ends <= 1 && (*what == "begin" || ends == 1), "{id}: {runs:?}");
        }
        // An attempt whose receiver was killed before it had started a runner never began.
        again += begun.len() - 1;
    }
    println!("{} pushes, {} builds run again, at most {runners_killed_max} runners killed", ids.len(), again);
    assert!(again <= runners_killed_max, "only a build whose runner was killed runs again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_killed_at_random_builds_each_push_to_one_result() {
    kills(15).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; `./test --long` runs it"]
async fn a_receiver_killed_two_hundred_times_builds_each_push_to_one_result() {
    kills(200).await;
}
