//! The `openwork` command: collects text, calls one library function, prints.

mod args;
mod commands;
mod failure;
mod files;
mod print;
mod progress;
mod write;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = args::Args::parse();
    if let Err(failure) = args.global.set_threads().and_then(|()| commands::run(args)) {
        print::aside(format!("error: {}", failure.message()));
        return failure.code();
    }
    ExitCode::SUCCESS
}
