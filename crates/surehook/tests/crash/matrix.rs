//! The table of the matrix, and the tests that walk through it. One row is one point; each of its cells is one case.

use surehook_testkit::git::{Checkout, Sandbox};

use super::ground::{APP, Ground};

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    /// The process of surehook that stands at the point, or the server above the git that does.
    Surehook,
    /// The git that the server started for the push.
    GitChild,
    /// The postmaster, and with it its sessions; started again at once.
    Postgres,
}

/// What brings a process to the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    Push,
    Replay,
}

/// A row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) point: &'static str,
    pub(crate) victims: &'static [Victim],
    pub(crate) trigger: Trigger,
}

use Trigger::{Push, Replay};
use Victim::{GitChild, Postgres, Surehook};

/// Where no git child lives, there is none to kill.
const BOTH: &[Victim] = &[Surehook, Postgres];
const ALL: &[Victim] = &[Surehook, GitChild, Postgres];

const fn row(point: &'static str, victims: &'static [Victim], trigger: Trigger) -> Row {
    Row { point, victims, trigger }
}

/// The push, up to the refs on disk.
const PUSH: &[Row] = &[
    row("push.git_started", ALL, Push),
    row("git.pack_stored", ALL, Push),
    row("git.refs_locked", ALL, Push),
    row("git.refs_moved", ALL, Push),
    row("git.refs_settled", ALL, Push),
    row("push.git_answers", ALL, Push),
    row("push.git_ended", BOTH, Push),
    row("push.announced", BOTH, Push),
];

/// The announcement.
const ANNOUNCE: &[Row] = &[
    row("announce.cursors_read", BOTH, Push),
    row("announce.disk_read", BOTH, Push),
    row("accept_push.locked", BOTH, Push),
    row("accept_push.cursors_moved", BOTH, Push),
    row("accept_push.written", BOTH, Push),
    row("accept_push.committed", BOTH, Push),
    row("announce.marked", BOTH, Push),
];

/// The delivery.
const DELIVER: &[Row] = &[
    row("claim.chosen", BOTH, Push),
    row("claim.committed", BOTH, Push),
    row("claim.read", BOTH, Push),
    row("send.ready", BOTH, Push),
    row("send.answered", BOTH, Push),
    row("record.gathered", BOTH, Push),
    row("record.written", BOTH, Push),
    row("record.committed", BOTH, Push),
];

/// The replay of a dead letter.
const REPLAY: &[Row] =
    &[row("replay.chosen", BOTH, Replay), row("replay.written", BOTH, Replay), row("replay.committed", BOTH, Replay)];

/// The receiver and its builds.
const RECEIVE: &[Row] = &[
    row("receive.believed", BOTH, Push),
    row("receive.recorded", BOTH, Push),
    row("receive.answering", BOTH, Push),
    row("run.taken", BOTH, Push),
    row("run.started", BOTH, Push),
    row("runner.begun", BOTH, Push),
    row("runner.command_ended", BOTH, Push),
    row("runner.result_left", BOTH, Push),
    row("run.result_found", BOTH, Push),
    row("run.recorded", BOTH, Push),
];

/// All rows, in the order in which a push comes by them.
pub(crate) fn rows() -> impl Iterator<Item = Row> {
    [PUSH, ANNOUNCE, DELIVER, REPLAY, RECEIVE].into_iter().flatten().copied()
}

/// One case: the kill, once or twice in a row, and what must be true afterwards.
async fn case(ground: &mut Ground, work: &Checkout<'_>, row: Row, victim: Victim, kills: usize) {
    let what = format!("{victim:?} killed at {}, {kills} in a row", row.point);
    let by_git = row.point.starts_with("git.");
    if (row.point, victim) == ("runner.command_ended", Surehook) {
        // The command has ended and nobody knows: it is started again, and told so.
        ground.repeats_allowed += kills;
    }
    let (mut pushes, mut replays) = (Vec::new(), Vec::new());
    for _ in 0..kills {
        if row.trigger == Replay {
            ground.dead_letter(work).await;
        }
        // Armed before anything is started again: what the start does by itself may be what comes by first.
        ground.arm(if row.point == BEGINS { AFTER_THE_REFS } else { row.point });
        ground.start_missing();
        match row.trigger {
            Push => pushes.push(ground.push(work, APP).await),
            Replay => replays.push(ground.replay()),
        }
        if row.point == BEGINS {
            ground.reached(AFTER_THE_REFS).await;
            ground.arm(BEGINS);
            ground.release(AFTER_THE_REFS);
        }
        let process = ground.reached(row.point).await;
        match victim {
            Surehook => ground.kill(if by_git { ground.server_id() } else { process }).await,
            GitChild => ground.kill(if by_git { process } else { ground.git_child() }).await,
            Postgres => {
                ground.cluster.kill().await;
                ground.cluster.resume().await;
            }
        }
        if by_git && victim == Surehook {
            // The git of the dead server goes on only when the next server has had its first look.
            ground.start_missing();
        }
        ground.release(row.point);
    }
    ground.start_missing();
    for push in pushes {
        ground.end(push).await;
    }
    for mut replay in replays {
        replay.wait().unwrap();
    }
    if row.trigger == Replay {
        ground.replay().wait().unwrap();
    }
    ground.settle(&what).await;
    ground.restart_all().await;
    let push = ground.push(work, APP).await;
    let output = ground.end(push).await;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("refs/heads/main\t"), "{what}: {said}{}", String::from_utf8_lossy(&output.stderr));
    ground.settle(&format!("{what}, and a restart afterwards")).await;
}

/// Announcements also begin by themselves, so this point is armed when the refs of the push have moved.
const BEGINS: &str = "announce.cursors_read";
const AFTER_THE_REFS: &str = "git.refs_settled";

/// Worlds in which the cases of one test go on side by side: they wait more than they work.
const WORLDS: usize = 3;

/// Walks through all cases of these rows.
fn walk(rows: &'static [Row]) {
    let cases: Vec<(Row, Victim, usize)> = rows
        .iter()
        .flat_map(|row| row.victims.iter().flat_map(move |victim| [1, 2].map(|kills| (*row, *victim, kills))))
        .collect();
    std::thread::scope(|scope| {
        for world in 0..WORLDS {
            let share: Vec<_> = cases.iter().copied().skip(world).step_by(WORLDS).collect();
            scope.spawn(move || {
                let runtime =
                    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
                runtime.block_on(walk_through(&share));
            });
        }
    });
}

/// These cases one after another, in one world.
async fn walk_through(cases: &[(Row, Victim, usize)]) {
    let git = Sandbox::new();
    let work = git.init("work").await;
    let mut ground = Ground::new().await;
    for (row, victim, kills) in cases {
        let begun = std::time::Instant::now();
        case(&mut ground, &work, *row, *victim, *kills).await;
        println!("{:6.1?} {} {victim:?} {kills}", begun.elapsed(), row.point);
    }
}

/// With its ref git removes the log, and with that what nobody had told yet. The second push here deletes what the first
/// has made, before the first is announced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deleted_before_it_was_told_is_told_all_the_same() {
    let git = Sandbox::new();
    let work = git.init("work").await;
    let mut ground = Ground::new().await;
    ground.arm("push.git_ended");
    let first = ground.push(&work, APP).await;
    ground.reached("push.git_ended").await;
    let second = ground.push(&work, APP).await;
    let output = ground.end(second).await;
    assert!(String::from_utf8_lossy(&output.stdout).contains("[deleted]"), "{output:?}");
    ground.release("push.git_ended");
    ground.end(first).await;
    ground.settle("a push deletes what was not told yet").await;
}

#[test]
fn whoever_is_killed_during_a_push_its_refs_are_told_once() {
    walk(PUSH);
}

#[test]
fn whoever_is_killed_during_an_announcement_it_is_made_once() {
    walk(ANNOUNCE);
}

#[test]
fn whoever_is_killed_during_a_delivery_it_arrives_and_counts_once() {
    walk(DELIVER);
}

#[test]
fn whoever_is_killed_during_a_replay_it_arrives_once() {
    walk(REPLAY);
}

#[test]
fn whoever_is_killed_during_a_receipt_or_a_build_it_is_built_once() {
    walk(RECEIVE);
}
