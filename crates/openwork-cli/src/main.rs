//! The `openwork` command: parses arguments, calls the library, prints.

mod args;
mod commands;
mod failure;
mod files;
mod flag_hints;
mod print;
mod progress;
mod write;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args = match args::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    if let Err(failure) = args.global.set_threads().and_then(|()| commands::run(args)) {
        print::aside(format!("error: {}", failure.message()));
        return failure.code();
    }
    ExitCode::SUCCESS
}
