//! One file for each command.

pub mod completions;
pub mod layout;
pub mod presets;
pub mod show;

use crate::args::{Args, Command};
use crate::failure::Failure;

/// Runs the command that `args` asks for.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Show(command) => command.run(&args.global),
        Command::Presets(command) => command.run(&args.global),
        Command::Layout(command) => command.run(args.global.json),
        Command::Completions(command) => command.run(),
    }
}
