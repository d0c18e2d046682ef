//! One file for each command.

pub mod completions;
pub mod inspect;

use crate::args::{Args, Command};
use crate::failure::Failure;

/// Runs the command that `args` asks for.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Completions(command) => command.run(),
        Command::Inspect(command) => command.run(&args.global),
    }
}
