//! `surehook-drill`: real git clients push while networks, processes and databases fail; afterwards four records that do not know
//! each other are compared. Proves that surehook loses nothing and invents nothing, and, against other senders, that it could
//! have found out.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
