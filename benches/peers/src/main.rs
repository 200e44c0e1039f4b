//! Measures surehook's delivery engine beside other workers over PostgreSQL: the same server, the same receiver, the same
//! payload, in rounds that take turns. `cargo run --release -- --help` says what can be measured.
//!
//! The processes: this one, which measures; one contender at a time; the receiver; PostgreSQL. All end with this one.

mod child;
mod cli;
mod clock;
mod contender;
mod cpu;
mod load;
mod pool;
mod post;
mod report;
mod scenario;
mod server;
mod sink;

use anyhow::Result;
use clap::Parser as _;

use crate::cli::{Hidden, Options};

fn main() -> Result<()> {
    // The processes that this one starts of its own program are asked for by these two words, which no scenario has.
    match std::env::args().nth(1).as_deref() {
        Some("sink" | "contender") => match Hidden::parse() {
            Hidden::Sink { endpoints } => sink::main(endpoints),
            Hidden::Contender { name, setup } => contender::main(&name, setup),
        },
        _ => {
            let options = Options::parse();
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(scenario::run(&options))
        }
    }
}
