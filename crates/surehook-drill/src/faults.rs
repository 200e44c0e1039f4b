//! Brings the faults of a plan about, each at its time, and makes them good again.

use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::json;
use surehook_testkit::dice::Dice;
use tokio::time::{Instant, sleep, sleep_until};

use crate::against::Against;
use crate::load::Load;
use crate::plan::{Fault, Plan};
use crate::stack::Stack;
use crate::stack::process::{Seen, descendants, processes, send};
use crate::timeline::{Happened, Timeline};

/// A soft stop must come to its end within this time: two seconds of grace, and a machine that is busy.
const SOFT_STOP_WITHIN: Duration = Duration::from_secs(30);
const LOOK_FOR_END_EVERY: Duration = Duration::from_millis(100);

/// Carries a plan out; ends when the last fault is made good. Where the load ends earlier, what is left is left out.
pub async fn carry_out(plan: &Plan, stack: &Stack, load: &Load, timeline: &Timeline) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut dice = Dice::new(plan.seed ^ 0x5eed);
    let steps = plan.steps.iter().map(|step| {
        let mut dice = dice.split();
        async move {
            let due = begun + Duration::from_millis(step.at_ms);
            if !until(due, load).await {
                return Ok(());
            }
            let from_ms = timeline.now_ms();
            let note = bring_about(step.fault, stack, load, &mut dice).await?;
            let until_ms = timeline.now_ms();
            timeline.note(Happened { from_ms, until_ms, fault: step.fault, note });
            anyhow::Ok(())
        }
    });
    join_all(steps.collect::<Vec<_>>()).await.into_iter().collect()
}

/// Waits, but not longer than the load goes on. Whether it is due.
async fn until(due: Instant, load: &Load) -> bool {
    while Instant::now() < due {
        if load.is_over() {
            return false;
        }
        sleep_until(due.min(Instant::now() + LOOK_FOR_END_EVERY)).await;
    }
    !load.is_over()
}

async fn last(for_ms: u64, load: &Load) {
    until(Instant::now() + Duration::from_millis(for_ms), load).await;
}

async fn bring_about(fault: Fault, stack: &Stack, load: &Load, dice: &mut Dice) -> anyhow::Result<String> {
    let mut note = String::new();
    match fault {
        Fault::ReceiverAway { for_ms } => {
            stack.proxy.enable(false).await?;
            last(for_ms, load).await;
            stack.proxy.enable(true).await?;
        }
        Fault::Timeouts { percent, for_ms } => {
            silence(stack, percent).await?;
            last(for_ms, load).await;
            speak(stack).await?;
        }
        Fault::Resets { percent, for_ms } => {
            toxic_for(stack, "reset_peer", percent, json!({"timeout": 0}), for_ms, load).await?;
        }
        Fault::Slow { by_ms, for_ms } => {
            toxic_for(stack, "latency", 100, json!({"latency": by_ms}), for_ms, load).await?;
        }
        Fault::FrontDoor { for_ms } => {
            stack.gate.fail(true);
            last(for_ms, load).await;
            stack.gate.fail(false);
        }
        Fault::KillGit => note = kill_git(stack, dice),
        Fault::KillServer { tree } => note = kill_host(stack, tree).await?,
        Fault::RestartServer => {
            if let Some(server) = stack.take_server().await {
                let ended = server.stop(SOFT_STOP_WITHIN).await;
                note = if ended { String::new() } else { "it did not end by itself, and was killed".into() };
                stack.start_server().await?;
            }
        }
        Fault::KillWorker => match stack.take_worker().await {
            Some(worker) => {
                worker.kill().await;
                stack.start_worker().await?;
            }
            None => "there is none".clone_into(&mut note),
        },
        Fault::FreezeWorker { for_ms } => match stack.take_worker().await {
            Some(worker) => {
                worker.signal(Signal::STOP);
                last(for_ms, load).await;
                worker.signal(Signal::CONT);
                stack.return_worker(worker).await;
            }
            None => "there is none".clone_into(&mut note),
        },
        Fault::KillReceiver => {
            if let Some(receiver) = stack.take_receiver().await {
                // Its builds go on.
                receiver.kill().await;
                stack.start_receiver().await?;
            }
        }
        Fault::KillPostgres => {
            stack.sender.kill().await;
            stack.sender.resume().await;
        }
        Fault::StopPostgres { for_ms } => {
            stack.sender.stop().await;
            last(for_ms, load).await;
            stack.sender.resume().await;
        }
        Fault::FreezePostgres { for_ms } => {
            stack.sender.pause();
            last(for_ms, load).await;
            stack.sender.go_on().await;
        }
        Fault::CutSessions => stack.sender.cut_sessions("surehook").await,
        Fault::KillReceiverPostgres => {
            stack.receiving.kill().await;
            stack.receiving.resume().await;
        }
        Fault::FillDisk { for_ms } => match &stack.volume {
            Some(volume) => {
                volume.fill()?;
                last(for_ms, load).await;
                volume.empty()?;
                stack.sender.resume().await;
            }
            None => "left out: no small volume can be mounted here".clone_into(&mut note),
        },
    }
    Ok(note)
}

/// Half of those that get no answer are not heard; the answers of the other half are not heard.
pub async fn silence(stack: &Stack, percent: u64) -> anyhow::Result<()> {
    #[expect(clippy::cast_precision_loss, reason = "it is at most 100")]
    let share = percent as f64;
    stack.proxy.add("timeout", "upstream", share / 2.0, json!({"timeout": 0})).await?;
    let rest = 100.0 * (share / 2.0) / (100.0 - share / 2.0);
    stack.proxy.add("timeout", "downstream", rest, json!({"timeout": 0})).await
}

/// Ends what [`silence`] began.
pub async fn speak(stack: &Stack) -> anyhow::Result<()> {
    stack.proxy.remove("timeout", "upstream").await?;
    stack.proxy.remove("timeout", "downstream").await
}

async fn toxic_for(
    stack: &Stack,
    toxic: &str,
    percent: u64,
    attributes: serde_json::Value,
    for_ms: u64,
    load: &Load,
) -> anyhow::Result<()> {
    #[expect(clippy::cast_precision_loss, reason = "it is at most 100")]
    stack.proxy.add(toxic, "downstream", percent as f64, attributes).await?;
    last(for_ms, load).await;
    stack.proxy.remove(toxic, "downstream").await
}

/// Kills one of the processes that a push consists of, on either side.
fn kill_git(stack: &Stack, dice: &mut Dice) -> String {
    let victims: Vec<Seen> = processes().into_iter().filter(|seen| is_push(stack, seen)).collect();
    if victims.is_empty() {
        return "nobody was at work".into();
    }
    let victim = dice.pick(&victims);
    send(victim.id, Signal::KILL);
    victim.name.clone()
}

/// Whether a process is part of a push to a repository of this run.
fn is_push(stack: &Stack, seen: &Seen) -> bool {
    let is_git = seen.name == "git" || seen.name.starts_with("git-");
    let folder = stack.folder();
    let of_host = seen.folder.starts_with(folder) || seen.line.contains(&*folder.to_string_lossy());
    // Clients also make commits, which are none of our business.
    let of_client = seen.line.contains("push") && seen.line.contains(stack.mark_of_clients())
        || seen.name.starts_with("git-remote") && seen.line.contains(stack.mark_of_clients());
    // A build asks for its commit.
    is_git && (of_host || of_client) && !seen.line.contains("cat-file")
}

/// Kills the server; where there is none, the host's side of all pushes.
async fn kill_host(stack: &Stack, tree: bool) -> anyhow::Result<String> {
    if stack.against != Against::Surehook {
        let mut victims: Vec<Seen> = processes();
        victims.retain(|seen| is_push(stack, seen) || seen.line.contains("post-receive"));
        victims.iter().for_each(|victim| send(victim.id, Signal::KILL));
        return Ok(format!("{} processes", victims.len()));
    }
    let Some(server) = stack.take_server().await else { return Ok("it was just being started".into()) };
    let below = server.id().filter(|_| tree).map(descendants).unwrap_or_default();
    server.kill().await;
    below.iter().for_each(|id| send(*id, Signal::KILL));
    // A moment for a client to notice, now and then, that nobody is there.
    sleep(LOOK_FOR_END_EVERY).await;
    stack.start_server().await?;
    Ok(if tree { format!("with {} gits", below.len()) } else { String::new() })
}
