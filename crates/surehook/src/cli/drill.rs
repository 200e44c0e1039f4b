//! `surehook drill`: hands over to `surehook-drill`, a program of its own that is no part of this one. Starts it.
#![expect(clippy::disallowed_methods, reason = "it becomes another program, for the person at the terminal")]

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;

use super::{CliError, Globals};

const PROGRAM: &str = "surehook-drill";

/// What is handed over.
#[derive(Clone, Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "Everything after `drill` is handed to the program surehook-drill; `surehook drill --help` is its help."
)]
pub struct DrillArgs {
    /// Arguments of surehook-drill
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Becomes the program; returns only if there is none.
pub(super) fn run(globals: &Globals, args: &DrillArgs) -> Result<ExitCode, CliError> {
    let program = find().ok_or_else(|| {
        CliError::new(
            "The program surehook-drill is neither beside this one nor on PATH.",
            "In the checkout `./run drill` builds and starts it, or: cargo build --package surehook-drill",
        )
    })?;
    let mut command = Command::new(&program);
    // An option that every command understands is taken before it gets here.
    command.args(globals.json.then_some("--json")).args(&args.arguments);
    let error = command.exec();
    Err(CliError::new(format!("{} cannot be started: {error}.", program.display()), "Build it again."))
}

fn find() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok()?.with_file_name(PROGRAM);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join(PROGRAM));
    std::iter::once(beside).chain(on_path).find(|file| file.is_file())
}
