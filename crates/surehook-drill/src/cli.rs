//! The command line: parse, run, print, exit code.
#![expect(clippy::disallowed_methods, reason = "it looks for surehook on PATH")]

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand, ValueEnum as _};
use surehook_drill::against::{Against, hook, textbook};
use surehook_drill::plan::Plan;
use surehook_drill::report::{html, table};
use surehook_drill::run::{Choice, Outcome, run};
use surehook_drill::scenario::Scenario;
use surehook_testkit::dice::fresh_seed;

/// Something was found, or it could not run.
const FAILED: u8 = 1;
/// It ran, and has tried nothing.
const VOID: u8 = 3;

/// Push for real while everything fails, then compare the books.
#[derive(Debug, Parser)]
#[command(
    name = "surehook-drill",
    version,
    max_term_width = 110,
    args_conflicts_with_subcommands = true,
    after_help = "Scenarios:\n  \
        acceptance       100 pushes at once while half of all requests time out: into 100 repositories, then into one\n  \
        acceptance-spread, acceptance-one     one of the two alone\n  \
        outage           the receiver is away for 2 s and for 2 min\n  \
        flaky            resets, lost and late answers, 5xx, garbage, a slow drip\n  \
        kill-git         processes of git are killed, of clients and of the host\n  \
        kill-server      serve is killed, alone and with its gits\n  \
        kill-worker      workers are killed and made to stand still\n  \
        kill-receiver    the receiver and its database are killed\n  \
        kill-postgres    PostgreSQL is killed, stopped, made to stand still, its sessions ended, its disk filled\n  \
        restart-storm    serve is restarted softly, again and again\n  \
        mirror           pushes of a thousand refs\n  \
        race             many clients on one ref\n  \
        race-deletions   the same, and they delete it too, and with it the log of what the others did\n  \
        imported         pushes past the server, over SSH and file://\n  \
        everything       all of it at once\n  \
        all              every one of these that must pass, one after another\n\n\
        Examples:\n  \
        surehook-drill\n  \
        surehook-drill everything --duration 10m --report drill.html\n  \
        surehook-drill acceptance --against naive\n\n\
        Exit codes: 0 nothing is wrong, 1 something is, or it could not run, 2 wrong usage, 3 it ran and proves nothing."
)]
struct Cli {
    #[command(subcommand)]
    inner: Option<Inner>,
    /// What fails; see below
    #[arg(value_name = "SCENARIO", default_value = "acceptance", value_parser = scenarios)]
    scenarios: Scenarios,
    /// The same as an option
    #[arg(long = "scenario", value_name = "SCENARIO", value_parser = scenarios)]
    scenario_option: Option<Scenarios>,
    /// What the plan is made from: the same seed gives the same plan. Default: a fresh one, which is printed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How long pushes and faults go on (90s, 10m) [default: by scenario]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// End after so many pushes; of the acceptance run: how many there are
    #[arg(long, value_name = "N")]
    pushes: Option<usize>,
    /// What sends the webhooks
    #[arg(long, value_enum, default_value_t = Against::Surehook, value_name = "SENDER")]
    against: Against,
    /// Write a report that a browser shows
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print JSON: one array with an object for each run
    #[arg(long)]
    json: bool,
    /// Print what would be done when, and do nothing
    #[arg(long)]
    plan: bool,
    /// The program to try [default: surehook beside this one, else on PATH]
    #[arg(long, value_name = "PROGRAM")]
    surehook: Option<PathBuf>,
    /// Use the small fault proxy of this program also where Toxiproxy could be had
    #[arg(long)]
    builtin_proxy: bool,
    /// How long to wait for the last delivery when all faults are over
    #[arg(long, value_name = "TIME", default_value = "6m", value_parser = duration)]
    settle: Duration,
    /// Leave repositories, logs and the receiver's folders
    #[arg(long)]
    keep: bool,
}

/// What other programs of a run are started with.
#[derive(Debug, Subcommand)]
enum Inner {
    /// A post-receive hook
    #[command(hide = true)]
    Hook(hook::HookArgs),
    /// A worker of the textbook
    #[command(hide = true)]
    TextbookWorker(textbook::WorkerArgs),
}

#[derive(Clone, Debug)]
struct Scenarios(Vec<Scenario>);

fn scenarios(text: &str) -> Result<Scenarios, String> {
    match text {
        "acceptance" => Ok(Scenarios(vec![Scenario::AcceptanceSpread, Scenario::AcceptanceOne])),
        "all" => Ok(Scenarios(Scenario::ALL.to_vec())),
        name => Scenario::from_str(name, false)
            .map(|scenario| Scenarios(vec![scenario]))
            .map_err(|_| "no such scenario; --help lists them".into()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time; write 90s, 10m or 1h");
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    Ok(Duration::from_secs(number.checked_mul(seconds).ok_or_else(wrong)?))
}

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = runtime.context("no threads could be started").and_then(|runtime| {
        runtime.block_on(async {
            tokio::select! {
                result = dispatch(cli) => result,
                // Dropping the run ends all that it started.
                _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
            }
        })
    });
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(FAILED)
    })
}

async fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.inner {
        Some(Inner::Hook(args)) => return hook::run(args).await.map(|()| ExitCode::SUCCESS),
        Some(Inner::TextbookWorker(args)) => return textbook::work(args).await.map(|()| ExitCode::SUCCESS),
        None => {}
    }
    let seed = cli.seed.unwrap_or_else(fresh_seed);
    let scenarios = cli.scenario_option.clone().unwrap_or(cli.scenarios.clone()).0;
    if cli.plan {
        return print_plans(&cli, &scenarios, seed);
    }
    let surehook = find_surehook(cli.surehook.as_deref())?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for scenario in scenarios {
        let choice = Choice {
            scenario,
            seed,
            duration: cli.duration,
            pushes: cli.pushes,
            against: cli.against,
            surehook: surehook.clone(),
            builtin_proxy: cli.builtin_proxy,
            keep: cli.keep,
            settle_within: cli.settle,
            progress: !cli.json && std::io::stderr().is_terminal(),
        };
        eprintln!("{} with seed {seed}", scenario.name());
        let outcome = run(&choice).await.with_context(|| format!("{} with seed {seed}", scenario.name()))?;
        if !cli.json {
            println!("{}", table::one(&outcome));
        }
        outcomes.push(outcome);
        if let Some(report) = &cli.report {
            // After each run, so that a long series can be looked at before its end.
            std::fs::write(report, html::page(&outcomes))
                .with_context(|| format!("the report {} cannot be written", report.display()))?;
        }
    }
    if cli.json {
        println!("{}", serde_json::to_string(&outcomes)?);
    } else if outcomes.len() > 1 {
        println!("{}", table::all(&outcomes));
    }
    let wrong = outcomes.iter().any(|outcome| !outcome.wrong.is_empty());
    let void = outcomes.iter().any(|outcome| outcome.void.is_some());
    Ok(match (wrong, void) {
        (true, _) => ExitCode::from(FAILED),
        (false, true) => ExitCode::from(VOID),
        (false, false) => ExitCode::SUCCESS,
    })
}

fn print_plans(cli: &Cli, scenarios: &[Scenario], seed: u64) -> anyhow::Result<ExitCode> {
    let plan = |scenario: &Scenario| {
        let duration = cli.duration.unwrap_or(Duration::from_secs(scenario.shape().duration_s));
        Plan::new(*scenario, seed, u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    };
    let plans: Vec<Plan> = scenarios.iter().map(plan).collect();
    if cli.json {
        println!("{}", serde_json::to_string(&plans)?);
    } else {
        plans.iter().for_each(|plan| println!("{}", table::plan(plan)));
    }
    Ok(ExitCode::SUCCESS)
}

/// As named, or beside this program, or on PATH.
fn find_surehook(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(named) = named {
        if !named.is_file() {
            bail!("{} is no program", named.display());
        }
        return Ok(std::path::absolute(named)?);
    }
    let itself = std::env::current_exe().context("this program's own file cannot be found")?;
    let beside = itself.parent().map(|folder| folder.join("surehook"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("surehook"));
    let found = beside.into_iter().chain(on_path).find(|file| file.is_file());
    found.context("surehook is neither beside this program nor on PATH; build it with: cargo build --package surehook")
}
