//! The `openwork` command: parses arguments, calls the library, prints.

mod args;
mod commands;
mod failure;
mod flag_hints;
mod interrupt;
mod memory;
mod output;
mod print;
mod progress;
mod tensor_path;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: memory::ExitOnFailure = memory::ExitOnFailure;

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
