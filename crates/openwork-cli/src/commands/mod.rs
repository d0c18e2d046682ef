//! The commands, one file each.

pub mod bench;
pub mod completions;
pub mod demo;
pub mod embed;
pub mod eval;
pub mod families;
pub mod formats;
pub mod frontier;
pub mod generate;
pub mod hessian;
pub mod inspect;
pub mod layout;
pub mod methods;
pub mod pack;
pub mod presets;
pub mod prune;
pub mod recover;
pub mod report;
pub mod show;
pub mod shrink;
pub mod studio;
pub mod tensor;

use crate::args::{Args, Command};
use crate::failure::Failure;

/// Runs the parsed command.
pub fn run(args: Args) -> Result<(), Failure> {
    let global = args.global;
    match args.command {
        Command::Demo(command) => command.run(&global),
        Command::Show(command) => command.run(&global),
        Command::Studio(command) => command.run(&global),
        Command::Presets(command) => command.run(&global),
        Command::Layout(command) => command.run(global.json),
        Command::Tensor(command) => command.run(&global),
        Command::Prune(command) => command.run(&global),
        Command::Report(command) => command.run(&global),
        Command::Recover(command) => command.run(&global),
        Command::Shrink(command) => command.run(&global),
        Command::Hessian(command) => command.run(&global),
        Command::Methods(command) => command.run(&global),
        Command::Completions(command) => command.run(),
        Command::Inspect(command) => command.run(&global),
        Command::Embed(command) => command.run(&global),
        Command::Eval(command) => command.run(&global),
        Command::Families(command) => command.run(&global),
        Command::Generate(command) => command.run(&global),
        Command::Pack(command) => command.run(&global),
        Command::Unpack(command) => command.run(&global),
        Command::Formats(command) => command.run(&global),
        Command::Bench(command) => command.run(&global),
        Command::Frontier(command) => command.run(&global),
    }
}
