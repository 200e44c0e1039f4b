//! Runs the command of one build in a process of its own that outlives the receiver. Starts processes: the runner, and
//! within it the command. The runner itself touches nothing but the folder of its build.
//!
//! The lock on the folder tells whether a runner lives. The receiver takes it *before* it starts the runner and hands it
//! over as the runner's standard input, so there is no moment in which a build runs and its lock is free. The command
//! gets another standard input: a process that it leaves behind does not hold the lock.
#![expect(clippy::disallowed_methods, reason = "this is the door for the processes of builds")]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use surehook_outbox::crash::point;
use uuid::Uuid;

use super::folder::{BuildFolder, RunResult};
use super::leftovers;

/// Between the request to end and the end by force.
const TERMINATE_GRACE: Duration = Duration::from_secs(10);
/// How often the length of the log is looked at.
const LOG_LOOK_EVERY: Duration = Duration::from_secs(1);
/// See [`hesitate`].
const SHUTDOWN_HESITATION: Duration = Duration::from_millis(500);

/// The variable by which the processes of a build are known.
pub(super) const RUN_KEY: &str = "SUREHOOK_RUN_KEY";

/// How the receiver starts a runner: a program that calls [`main`] with [`RunnerArgs`] parsed from what follows
/// `arguments`.
#[derive(Clone, Debug)]
pub struct RunnerCommand {
    /// The program, normally this one.
    pub program: PathBuf,
    /// What comes before the runner's own arguments.
    pub arguments: Vec<OsString>,
}

impl RunnerCommand {
    /// `program receive-runner …`
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), arguments: vec!["receive-runner".into()] }
    }

    /// This program.
    pub fn current_exe() -> io::Result<Self> {
        Ok(Self::new(std::env::current_exe()?))
    }
}

/// The arguments of the hidden subcommand `receive-runner`.
#[derive(Clone, Debug, clap::Args)]
pub struct RunnerArgs {
    /// The folder of the build.
    #[arg(long)]
    folder: PathBuf,
    /// What the result repeats.
    #[arg(long)]
    run_key: Uuid,
    /// Which start of this build it is, from 1.
    #[arg(long)]
    attempt: i32,
    /// End the command after this many milliseconds.
    #[arg(long)]
    timeout_ms: Option<u64>,
    /// End the command when its log is longer than this.
    #[arg(long)]
    log_bytes_max: u64,
    /// What `sh -c` gets.
    #[arg(long)]
    exec: OsString,
}

/// What one start of a build needs.
#[derive(Debug)]
pub(super) struct Start<'b> {
    pub(super) folder: &'b BuildFolder,
    pub(super) run_key: Uuid,
    pub(super) attempt: i32,
    pub(super) payload: &'b [u8],
    pub(super) environment: Vec<(&'static str, OsString)>,
    pub(super) exec: &'b OsStr,
    pub(super) timeout: Option<Duration>,
    pub(super) log_bytes_max: u64,
}

/// Starts a runner, which takes the lock over. Err: nothing runs, and the lock is free.
///
/// The command inherits the receiver's environment but for `SUREHOOK_*`, which could hold secrets of the receiver.
pub(super) fn start(runner: &RunnerCommand, start: Start<'_>, lock: File) -> io::Result<tokio::process::Child> {
    if start.attempt > 1 {
        leftovers::end_all(start.run_key);
    }
    let log = start.folder.prepare(start.attempt, start.payload)?;
    let mut command = Command::new(&runner.program);
    command.args(&runner.arguments);
    command.arg("--folder").arg(start.folder.path());
    command.arg(format!("--run-key={}", start.run_key)).arg(format!("--attempt={}", start.attempt));
    if let Some(timeout) = start.timeout {
        command.arg(format!("--timeout-ms={}", timeout.as_millis()));
    }
    let mut exec = OsString::from("--exec=");
    exec.push(start.exec);
    command.arg(format!("--log-bytes-max={}", start.log_bytes_max)).arg(exec);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"SUREHOOK_") {
            command.env_remove(name);
        }
    }
    command.envs(start.environment).env(RUN_KEY, start.run_key.to_string());
    command.stdin(Stdio::from(lock)).stdout(log.try_clone()?).stderr(log);
    tokio::process::Command::from(command).spawn()
}

/// The runner: runs the command, leaves its result in the folder, and ends; the lock goes with it. What goes wrong is
/// written to the standard error, which is the log of the build. Success means that a result was left.
pub fn main(args: RunnerArgs) -> ExitCode {
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("surehook: the build cannot be run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &RunnerArgs) -> io::Result<()> {
    // A session of its own: the end of the receiver's terminal, and Ctrl-C there, do not reach the build. It fails only
    // if this process leads one already.
    let _ = rustix::process::setsid();
    let folder = BuildFolder::new(&args.folder);
    demand_lock(&folder)?;
    if args.attempt > 1 {
        eprintln!("surehook: attempt {}: the runner of the one before vanished without a result", args.attempt);
    }
    point("runner.begun");
    let begun = Instant::now();
    let mut result = RunResult {
        run_key: args.run_key,
        attempt: args.attempt,
        exit_code: None,
        exit_signal: None,
        timed_out: false,
        duration_ms: 0,
        note: None,
    };
    let mut command = Command::new("sh");
    command.arg("-c").arg(&args.exec).stdin(File::open(folder.payload())?).process_group(0);
    match command.spawn() {
        Ok(child) => {
            let end = supervise(child, args, &folder)?;
            result.exit_code = end.status.code();
            result.exit_signal = end.status.signal();
            result.timed_out = end.reason == Some(EndReason::Timeout);
            result.note = end.reason.map(|reason| reason.note(args));
        }
        Err(error) if error.kind() == ErrorKind::NotFound || error.kind() == ErrorKind::ArgumentListTooLong => {
            eprintln!("surehook: sh cannot be started: {error}");
            result.exit_code = Some(127);
            result.note = Some(format!("sh cannot be started: {error}"));
        }
        // Anything else, such as a full process table, passes: without a result the build is run again.
        Err(error) => return Err(error),
    }
    result.duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    if result.note.is_none() {
        hesitate(result.exit_signal);
    }
    point("runner.command_ended");
    folder.write_result(&result)?;
    point("runner.result_left");
    Ok(())
}

/// The standard input must be the locked file of the folder: else somebody started the runner by hand.
fn demand_lock(folder: &BuildFolder) -> io::Result<()> {
    let given = rustix::fs::fstat(io::stdin().as_fd())?;
    let wanted = rustix::fs::stat(folder.lock_path())?;
    if (given.st_dev, given.st_ino) != (wanted.st_dev, wanted.st_ino) {
        return Err(io::Error::other("a runner is started by `surehook receive`, with the lock of its build"));
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndReason {
    Timeout,
    LogTooLong,
}

impl EndReason {
    fn note(self, args: &RunnerArgs) -> String {
        match self {
            Self::Timeout => {
                format!("ended after {} ms, the longest time allowed", args.timeout_ms.unwrap_or_default())
            }
            Self::LogTooLong => format!("ended because its log grew over {} bytes", args.log_bytes_max),
        }
    }
}

struct End {
    status: ExitStatus,
    reason: Option<EndReason>,
}

/// Waits for the command, and ends it when it has run too long or written too much.
fn supervise(mut child: std::process::Child, args: &RunnerArgs, folder: &BuildFolder) -> io::Result<End> {
    let group = Pid::from_child(&child);
    let deadline = args.timeout_ms.map(|timeout_ms| Instant::now() + Duration::from_millis(timeout_ms));
    let (ended, end) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || ended.send(child.wait()));
        let mut reason = None;
        let mut force_at: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let next_look = [deadline.filter(|_| reason.is_none()), force_at, Some(now + LOG_LOOK_EVERY)];
            let wait = next_look.into_iter().flatten().min().map_or(LOG_LOOK_EVERY, |at| at.duration_since(now));
            match end.recv_timeout(wait) {
                Ok(status) => return Ok(End { status: status?, reason }),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the command cannot be waited for"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if force_at.is_some_and(|at| at <= Instant::now()) {
                leftovers::end_all(args.run_key);
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
                force_at = Some(Instant::now() + TERMINATE_GRACE);
            }
            if reason.is_none() {
                reason = if deadline.is_some_and(|at| at <= Instant::now()) {
                    Some(EndReason::Timeout)
                } else if std::fs::metadata(folder.log()).is_ok_and(|log| log.len() > args.log_bytes_max) {
                    Some(EndReason::LogTooLong)
                } else {
                    None
                };
                if let Some(reason) = reason {
                    eprintln!("surehook: {}", reason.note(args));
                    let _ = rustix::process::kill_process_group(group, Signal::TERM);
                    force_at = Some(Instant::now() + TERMINATE_GRACE);
                }
            }
        }
    })
}

/// A machine that goes down ends the command and this runner at about the same time. The build is then interrupted, not
/// finished, and must run again; so before a command that was ended from outside is called finished, the runner gives
/// its own signal the time to arrive.
fn hesitate(exit_signal: Option<i32>) {
    let from_outside = [Signal::TERM, Signal::KILL, Signal::HUP, Signal::INT, Signal::QUIT];
    if exit_signal.is_some_and(|number| from_outside.iter().any(|signal| signal.as_raw() == number)) {
        std::thread::sleep(SHUTDOWN_HESITATION);
    }
}
