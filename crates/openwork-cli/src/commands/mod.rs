//! One file for each command.

pub mod completions;
pub mod eval;
pub mod families;
pub mod generate;
pub mod inspect;

use crate::args::{Args, Command};
use crate::failure::Failure;

/// Runs the command that `args` asks for.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Completions(command) => command.run(),
        Command::Eval(command) => command.run(&args.global),
        Command::Families(command) => command.run(&args.global),
        Command::Generate(command) => command.run(&args.global),
        Command::Inspect(command) => command.run(&args.global),
    }
}
