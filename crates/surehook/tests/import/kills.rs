//! Random kills around an imported repository: clients push over SSH and `file://` at once, and clients, what they started on
//! the other side, and the server are ended by SIGKILL. What refs and reflogs say in the end is what must have been told.
//!
//! `SUREHOOK_SEED` repeats what was chosen at random; what the machine does in between is different every time.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use surehook_testkit::dice::Dice;
use surehook_testkit::ledger::{self, Tries};
use surehook_testkit::pusher::{Habit, Host, Pusher, Target};
use surehook_testkit::sshd::{self, SshServer};
use surehook_testkit::try_eventually;
use tokio::sync::{RwLock, RwLockReadGuard};

use super::support::Elsewhere;
use super::world::Running;

const CLIENTS: usize = 4;
/// After so many kills the owner looks after his repository: nothing of the dead stays locked for ever.
const KILLS_BETWEEN_CARE: usize = 5;
/// What is to be done when all is over must be done within.
const IN_THE_END: Duration = Duration::from_secs(60);
/// Programs that may be killed, if their command line names the folder of the test.
const VICTIMS: [&str; 4] = ["git", "ssh", "sshd", "sh"];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn forty_random_kills_over_ssh_and_file_lose_and_invent_nothing() {
    storm(40).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes some minutes: ./test --long"]
async fn three_hundred_random_kills_over_ssh_and_file_lose_and_invent_nothing() {
    storm(300).await;
}

/// What clients and the one who kills share.
struct Scene {
    there: Elsewhere,
    /// None: OpenSSH is not installed, and all push by `file://`.
    ssh: Option<SshServer>,
    /// Held by each push; alone by the owner who looks after the repository.
    quiet: RwLock<()>,
    tries: Mutex<Tries>,
    over: AtomicBool,
    pushes: AtomicUsize,
    succeeded: AtomicUsize,
}

async fn storm(kills: usize) {
    let mut dice = Dice::from_environment();
    let there = Elsewhere::new().await;
    there.import(&there.bare("storm.git").await, &[]);
    let ssh = sshd::is_installed().then(|| SshServer::start(&there.path("ssh")));
    ssh.iter().for_each(SshServer::allow_git_shell);
    let mut server = there.world.serve();
    let scene = Scene {
        there,
        ssh,
        quiet: RwLock::default(),
        tries: Mutex::default(),
        over: AtomicBool::new(false),
        pushes: AtomicUsize::new(0),
        succeeded: AtomicUsize::new(0),
    };
    let scene_of_all = &scene;
    let client = async |number: usize, dice: Dice| {
        let git = &scene_of_all.there.world.git;
        Pusher::new(git, scene_of_all, number, dice, &scene_of_all.tries).await.push_until_it_is_over().await;
    };
    let clients = (0..CLIENTS).map(|number| client(number, dice.split())).collect::<Vec<_>>();
    let killing = async {
        let mut killed = BTreeMap::<&str, usize>::new();
        for n in 1..=kills {
            let victim = kill_somebody(&scene, &mut server, &mut dice).await;
            *killed.entry(victim).or_default() += 1;
            if n % KILLS_BETWEEN_CARE == 0 {
                look_after(&scene, &mut dice).await;
            }
        }
        scene.over.store(true, Ordering::SeqCst);
        killed
    };
    let (killed, _) = tokio::join!(killing, futures_util::future::join_all(clients));
    look_after(&scene, &mut dice).await;
    let begun = Instant::now();
    agreed(&scene).await;
    let events = scene.there.world.count("SELECT count(*) FROM outbox_events").await;
    let (pushes, succeeded) = (scene.pushes.load(Ordering::SeqCst), scene.succeeded.load(Ordering::SeqCst));
    println!(
        "killed {killed:?}, {pushes} pushes, {succeeded} heard that they succeeded, {events} events; all told {:?} after the end",
        begun.elapsed()
    );
    assert!(succeeded > kills / 4 && events > 0, "too little happened between the kills to prove anything");
    drop(server);
}

/// Waits until what was told is what happened.
async fn agreed(scene: &Scene) {
    let path = scene.there.path("storm.git");
    let bare = scene.there.world.git.at(&path);
    let refs = ledger::refs(&bare).await;
    let mut reason = String::new();
    let agreed = try_eventually(IN_THE_END, async || {
        let told = ledger::told(&scene.there.world.sql, "storm").await;
        match ledger::disagreement(&path, &refs, &told, &scene.tries.lock().unwrap()) {
            None => Some(()),
            Some(found) => {
                reason = found;
                None
            }
        }
    })
    .await;
    if agreed.is_none() {
        let log = std::fs::read_to_string(scene.there.world.data().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        panic!("{reason}\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
    }
}

/// Waits for a moment of chance and kills the server, or something that has to do with a push.
async fn kill_somebody(scene: &Scene, server: &mut Running, dice: &mut Dice) -> &'static str {
    let longest = Duration::from_millis(10 + dice.below(300));
    let pushes = scene.pushes.load(Ordering::SeqCst) + 1 + dice.below(6) as usize;
    // Not met: then it is time alone that decides.
    let _ = try_eventually(longest, async || (scene.pushes.load(Ordering::SeqCst) >= pushes).then_some(())).await;
    if dice.one_in(3) {
        server.signal("KILL");
        server.ended().await;
        *server = scene.there.world.serve();
        return "server";
    }
    // Somebody is at work most of the time.
    let victims = try_eventually(Duration::from_millis(500), async || {
        let found = processes_of(scene);
        (!found.is_empty()).then_some(found)
    })
    .await
    .unwrap_or_default();
    if victims.is_empty() {
        return "nobody";
    }
    let (process, is_client) = victims[dice.below(victims.len() as u64) as usize];
    // It may have ended by itself.
    let _ = Pid::from_raw(process).map(|pid| kill_process(pid, Signal::KILL));
    if is_client { "client side" } else { "repository side" }
}

/// The running programs whose command line names the folder of this test: nobody else's. True: on the client's side.
fn processes_of(scene: &Scene) -> Vec<(i32, bool)> {
    let folder = scene.there.path("").to_str().unwrap().to_owned();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        let is_victim = VICTIMS.contains(&name.trim()) || name.starts_with("git-");
        if is_victim && line.contains(folder.trim_end_matches('/')) {
            found.push((process, line.contains("push") || name.trim() == "ssh"));
        }
    }
    found
}

/// What the owner does when nobody pushes: removes the locks of the dead, since surehook does not, and tidies up.
async fn look_after(scene: &Scene, dice: &mut Dice) {
    let _alone = scene.quiet.write().await;
    // What outlives its client ends by itself.
    let quiet = try_eventually(Duration::from_secs(20), async || processes_of(scene).is_empty().then_some(())).await;
    assert!(quiet.is_some(), "something is still at work: {:?}", processes_of(scene));
    let path = scene.there.path("storm.git");
    let bare = scene.there.world.git.at(&path);
    let mut sweep = std::process::Command::new("find");
    // A git that was killed while it packed leaves this one, too.
    sweep.arg(&path).args(["(", "-name", "*.lock", "-o", "-name", "packed-refs.new", ")", "-print", "-delete"]);
    assert!(sweep.output().unwrap().status.success());
    match dice.below(4) {
        0 => drop(bare.ok(["pack-refs", "--all", "--prune"]).await),
        1 => drop(bare.ok(["gc", "--quiet"]).await),
        2 => drop(bare.ok(["reflog", "expire", "--all"]).await),
        _ => {}
    }
}

impl Host for Scene {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn target(&self, number: usize) -> Target {
        let path = self.there.path("storm.git");
        match &self.ssh {
            Some(ssh) if number.is_multiple_of(2) => {
                Target { url: ssh.url(path.to_str().unwrap()), settings: vec![ssh.client_setting()] }
            }
            _ => Target { url: format!("file://{}", path.display()), settings: Vec::new() },
        }
    }

    fn habits(&self) -> &[Habit] {
        &[
            Habit::StepForward,
            Habit::StepForward,
            Habit::StepForward,
            Habit::Rewrite,
            Habit::Delete,
            Habit::Tag,
            Habit::Many(12),
            Habit::MoveShared,
        ]
    }

    fn deletes_freely(&self) -> bool {
        false
    }

    async fn entered(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let quiet = self.quiet.read().await;
        self.pushes.fetch_add(1, Ordering::SeqCst);
        Some(quiet)
    }

    async fn ended(&self, _target: &Target, succeeded: bool) {
        self.succeeded.fetch_add(usize::from(succeeded), Ordering::SeqCst);
    }

    /// A deletion takes the log with it, and with it what nobody has looked at yet: so first all of the log must have been
    /// told. Neither what the client believes nor the value is enough: a push that was cut off after git's verdict got through,
    /// and a branch that goes back to an older value looks as if nothing had happened.
    async fn may_delete(&self, branch: &str) -> bool {
        let bare = self.there.world.git.at(self.there.path("storm.git"));
        let log = bare.path().join("logs").join(branch);
        let sql = "SELECT FROM repository_refs WHERE ref = $1 AND value = decode($2, 'hex') AND log_offset = $3";
        let told = try_eventually(Duration::from_secs(10), async || {
            let output = bare.run(["rev-parse", "--verify", "--quiet", branch]).await;
            let value = String::from_utf8(output.stdout).unwrap().trim().to_owned();
            let length = std::fs::metadata(&log).map_or(0, |log| log.len().cast_signed());
            let rows = self.there.world.sql.query(sql, &[&branch.as_bytes(), &value, &length]).await.unwrap();
            (!rows.is_empty() || self.is_over()).then_some(())
        })
        .await;
        told.is_some() && !self.is_over()
    }
}
