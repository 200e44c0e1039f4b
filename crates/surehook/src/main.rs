//! The program: parse, run, print, exit code.

use std::process::ExitCode;

use clap::Parser as _;

#[derive(clap::Parser)]
enum Program {
    /// Runs one build of the receiver; started by it.
    #[command(hide = true)]
    ReceiveRunner(surehook::receive::runner::RunnerArgs),
}

fn main() -> ExitCode {
    let Program::ReceiveRunner(args) = Program::parse();
    surehook::receive::runner::main(args)
}
