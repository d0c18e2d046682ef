//! The `openwork` command.

mod memory;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: memory::ExitOnFailure = memory::ExitOnFailure;

fn main() -> ExitCode {
    ExitCode::from(openwork_cli::run(std::env::args_os()))
}
