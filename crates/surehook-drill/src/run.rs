//! One run: a stack, pushes and faults at the same time, then quiet, then the audit.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use surehook_testkit::dice::Dice;

use crate::against::Against;
use crate::collect::settle;
use crate::faults::{carry_out, silence, speak};
use crate::http::exchange;
use crate::load::{Load, many, once};
use crate::plan::{Fault, Plan};
use crate::scenario::Scenario;
use crate::stack::gate::Passed;
use crate::stack::{Stack, Wanted};
use crate::store::Attempts;
use crate::timeline::{Happened, Sample, Timeline};
use crate::verdict::Verdict;

/// Fewer failed requests of a hundred than this, and an acceptance run has tried nothing.
const FAILED_PERCENT_MIN: f64 = 40.0;
/// An acceptance run is to be delivered within this time.
const DELIVERED_WITHIN_MS: u64 = 300_000;
const GET_WITHIN: Duration = Duration::from_secs(10);

/// What a person may choose.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Which kind of faults.
    pub scenario: Scenario,
    /// What the plan is made from.
    pub seed: u64,
    /// How long faults and pushes go on.
    pub duration: Option<Duration>,
    /// How many pushes.
    pub pushes: Option<usize>,
    /// What sends.
    pub against: Against,
    /// The program `surehook`.
    pub surehook: PathBuf,
    /// Take the testkit's fault proxy.
    pub builtin_proxy: bool,
    /// Leave the folder.
    pub keep: bool,
    /// How long to wait for the end of all deliveries.
    pub settle_within: Duration,
    /// Whether a bar moves on standard error.
    pub progress: bool,
}

/// What came of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The plan.
    pub plan: Plan,
    /// What sent.
    pub against: Against,
    /// Which fault proxy it was.
    pub proxy: String,
    /// Pushes begun.
    pub pushes: usize,
    /// Pushes that git called successful.
    pub pushes_accepted: usize,
    /// What the audit found.
    pub verdict: Verdict,
    /// The sender's own count of its requests.
    pub attempts: Attempts,
    /// How many of a hundred requests failed, by the sender's count.
    pub failed_percent: f64,
    /// The count at the receiver's front door.
    pub front_door: Passed,
    /// When the last delivery and the last build had ended, from the first push on.
    pub drained_ms: u64,
    /// Faults that were brought about.
    pub happened: Vec<Happened>,
    /// How far everybody was when.
    pub samples: Vec<Sample>,
    /// Why it proves nothing, if so.
    pub void: Option<String>,
    /// What is wrong; nothing: it passed.
    pub wrong: Vec<String>,
    /// Where everything was left, if it was to be.
    pub kept: Option<PathBuf>,
}

impl Outcome {
    /// Whether nothing is wrong and it proves something.
    pub fn has_passed(&self) -> bool {
        self.wrong.is_empty() && self.void.is_none()
    }
}

/// Runs a plan to its end.
pub async fn run(choice: &Choice) -> anyhow::Result<Outcome> {
    let shape = choice.scenario.shape();
    let duration = choice.duration.unwrap_or(Duration::from_secs(shape.duration_s));
    let plan = Plan::new(choice.scenario, choice.seed, u64::try_from(duration.as_millis())?);
    let bar = bar(choice, duration);
    let mut dice = Dice::new(choice.seed);
    let wanted = Wanted {
        against: choice.against,
        surehook: choice.surehook.clone(),
        scenario: choice.scenario,
        shape: &shape,
        builtin_proxy: choice.builtin_proxy,
    };
    let stack = Stack::start(wanted, dice.split(), |words| bar.set_message(words.to_owned())).await?;
    let load = Load { pushes_max: choice.pushes.filter(|_| shape.clients_each > 0).unwrap_or(0), ..Load::default() };
    let timeline = Timeline::default();
    let show = |sample: &Sample| {
        bar.set_position(timeline.now_ms().min(bar.length().unwrap_or(0)));
        bar.set_message(words(sample, &load));
    };
    let working = async {
        let tries = if shape.clients_each == 0 {
            silence(&stack, 50).await?;
            once(&stack, &load, choice.pushes.unwrap_or(shape.pushes), || timeline.begin()).await
        } else {
            timeline.begin();
            let ending = async {
                tokio::time::sleep(duration).await;
                load.over.store(true, Ordering::SeqCst);
            };
            let pushing = async {
                let tries = many(&stack, &load, &shape, dice.split()).await;
                load.over.store(true, Ordering::SeqCst);
                tries
            };
            // Where the clients are done sooner, the time is over too.
            let pushing = async {
                let (mut ending, mut pushing) = (std::pin::pin!(ending), std::pin::pin!(pushing));
                tokio::select! {
                    () = &mut ending => pushing.await,
                    tries = &mut pushing => tries,
                }
            };
            let (tries, faults) = tokio::join!(pushing, carry_out(&plan, &stack, &load, &timeline));
            faults.context("a fault could not be brought about or made good")?;
            tries
        };
        let settled = settle(&stack, &tries, choice.settle_within, |verdict| {
            bar.set_position(bar.length().unwrap_or(0));
            bar.set_message(format!("settling: {} of {} built", verdict.delivered, verdict.events));
        })
        .await?;
        if choice.scenario.is_acceptance() {
            speak(&stack).await?;
            let fault = Fault::Timeouts { percent: 50, for_ms: plan.duration_ms };
            timeline.note(Happened { from_ms: 0, until_ms: timeline.now_ms(), fault, note: String::new() });
        }
        anyhow::Ok(settled)
    };
    let settled = tokio::select! {
        settled = working => settled,
        never = timeline.watch(&stack, &load, show) => never,
    };
    let settled = match settled {
        Ok(settled) => settled,
        Err(error) => {
            let left = stack.close(true).await;
            let left = left.map(|folder| folder.display().to_string()).unwrap_or_default();
            return Err(error.context(format!("the run broke down; what it left is in {left}")));
        }
    };
    let (happened, samples) = timeline.told();
    let mut outcome = Outcome {
        against: choice.against,
        proxy: stack.proxy.is.clone(),
        pushes: load.pushes.load(Ordering::SeqCst),
        pushes_accepted: load.succeeded.load(Ordering::SeqCst),
        failed_percent: settled.attempts.failed_percent(),
        verdict: settled.verdict,
        attempts: settled.attempts,
        front_door: stack.gate.passed(),
        drained_ms: drained_ms(&samples),
        happened,
        samples,
        void: None,
        wrong: Vec::new(),
        kept: None,
        plan,
    };
    outcome.void = void(&outcome);
    outcome.wrong = wrong(&outcome, &stack).await;
    outcome.kept = stack.close(choice.keep).await;
    bar.finish_and_clear();
    Ok(outcome)
}

fn bar(choice: &Choice, duration: Duration) -> ProgressBar {
    if !choice.progress {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
    let style = ProgressStyle::with_template("{prefix} [{bar:30}] {elapsed_precise} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar.set_prefix(choice.scenario.name());
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

fn words(sample: &Sample, load: &Load) -> String {
    let shown = |value: Option<i64>| value.map_or_else(|| "?".to_owned(), |value| value.to_string());
    let state = if load.is_over() { ", no more pushes" } else { "" };
    format!(
        "{} pushes, {} events, {} pending, {} built{state}",
        sample.pushes,
        shown(sample.events),
        shown(sample.pending),
        shown(sample.built)
    )
}

/// From when on nothing waited any more.
fn drained_ms(samples: &[Sample]) -> u64 {
    let idle = |sample: &Sample| sample.pending == Some(0) && sample.to_build == Some(0);
    let busy = samples.iter().rposition(|sample| !idle(sample));
    let first_idle = busy.map_or(0, |at| at + 1);
    samples.get(first_idle).or(samples.last()).map_or(0, |sample| sample.at_ms)
}

fn void(outcome: &Outcome) -> Option<String> {
    if outcome.verdict.transitions == 0 {
        return Some("nothing was pushed, so nothing was tried".into());
    }
    let share = outcome.failed_percent;
    (outcome.plan.scenario.is_acceptance() && outcome.against != Against::Naive && share < FAILED_PERCENT_MIN).then(
        || format!("only {share:.0} % of the requests failed, under {FAILED_PERCENT_MIN} %: it has tried nothing"),
    )
}

async fn wrong(outcome: &Outcome, stack: &Stack) -> Vec<String> {
    let verdict = &outcome.verdict;
    let mut wrong: Vec<String> = Vec::new();
    for (name, count) in verdict.wrong() {
        if count > 0 {
            wrong.push(format!("{count} {name}"));
        }
    }
    if outcome.plan.scenario.is_acceptance() {
        if verdict.dead + verdict.replayed > 0 {
            wrong.push(format!("{} dead", verdict.dead + verdict.replayed));
        }
        if outcome.pushes_accepted < outcome.pushes {
            wrong.push(format!("{} of {} pushes were accepted", outcome.pushes_accepted, outcome.pushes));
        }
        if outcome.drained_ms > DELIVERED_WITHIN_MS {
            wrong.push(format!("it took {} s to deliver", outcome.drained_ms / 1000));
        }
    }
    let ended = stack.ended_by_themselves().await;
    if !ended.is_empty() {
        wrong.push(format!("ended by itself: {}", ended.join(", ")));
    }
    if stack.against == Against::Surehook {
        let gauge = exchange(&stack.server_address(), "GET", "/metrics", &[], b"", GET_WITHIN).await;
        let gauge = gauge.map(|answer| answer.body);
        if !gauge.is_ok_and(|body| body.lines().any(|line| line == "outbox_pending_count 0")) {
            wrong.push("the gauge outbox_pending_count does not say 0".into());
        }
    }
    wrong
}
