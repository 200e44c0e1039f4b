//! The program: parse, run, print, exit code.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    surehook::cli::run(surehook::cli::Cli::parse())
}
