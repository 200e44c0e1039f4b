//! The program: parse, run, print, exit code.

fn main() {}
