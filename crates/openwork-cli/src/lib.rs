//! The `openwork` command as a library: parses arguments, calls `openwork-llm`, prints.
//! The binary and `python -m openwork` are this one function.

mod args;
mod commands;
mod failure;
mod flag_hints;
mod hub;
mod interrupt;
mod output;
mod print;
mod progress;
mod tensor_path;

use std::ffi::OsString;

/// Runs the command with these arguments, of which the first is the program's name; the
/// exit code. To be called once per process, since it starts the thread pool.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let args = match args::parse(arguments) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match args.global.set_threads().and_then(|()| commands::run(args)) {
        Ok(()) => 0,
        Err(failure) => {
            print::aside(format!("error: {}", failure.message()));
            failure.code()
        }
    }
}
