//! What the user typed, as text; the commands turn it into checked values.

use crate::failure::Failure;
use crate::print;
use clap::{Args as ClapArgs, Parser, Subcommand};

/// Prunes neural networks to structured sparse patterns that hardware likes.
#[derive(Debug, Parser)]
#[command(name = "openwork", version, propagate_version = true, arg_required_else_help = true)]
pub struct Args {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command takes.
#[derive(Clone, Debug, ClapArgs)]
pub struct Global {
    /// Print exactly one JSON object on stdout
    #[arg(long, global = true)]
    pub json: bool,
    /// No progress and no notes on stderr
    #[arg(long, global = true)]
    pub quiet: bool,
    /// Threads to use; all cores if not given
    #[arg(long, global = true, value_name = "N")]
    pub threads: Option<usize>,
}

impl Global {
    /// Tells the user what they may want to know, on stderr.
    pub fn note(&self, notes: &[String]) {
        if !self.quiet {
            notes.iter().for_each(|note| print::aside(format!("note: {note}")));
        }
    }

    /// Sizes the pool that every parallel loop runs in.
    pub fn set_threads(&self) -> Result<(), Failure> {
        match self.threads {
            None => Ok(()),
            Some(n) if (1..=1024).contains(&n) => rayon::ThreadPoolBuilder::new()
                .num_threads(n)
                .build_global()
                .map_err(Failure::running),
            Some(n) => Err(Failure::Input(format!("--threads {n}: give a number from 1 to 1024"))),
        }
    }
}

/// One variant for each file in `commands/`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Prune the built-in model with several methods and compare them
    Demo(crate::commands::demo::Demo),
    /// Show what a spec means on tensors, in facts and as a drawing
    Show(crate::commands::show::Show),
    /// List every preset with its text and one line
    Presets(crate::commands::presets::Presets),
    /// Layout algebra as a calculator
    Layout(crate::commands::layout::Layout),
    /// Prune one matrix, or several that are coupled
    Tensor(crate::commands::tensor::Tensor),
    /// Prune a model layer by layer
    Prune(Box<crate::commands::prune::Prune>),
    /// Leave out of a pruned model the heads and channels that do nothing
    Shrink(crate::commands::shrink::Shrink),
    /// Sum inputs into a Hessian, once for many runs
    Hessian(crate::commands::hessian::MakeHessian),
    /// List the pruning methods and their options
    Methods(crate::commands::methods::Methods),
    /// Show what is in a model: its config, and each tensor's shape, type and density
    Inspect(crate::commands::inspect::Inspect),
    /// Make a page of one or more runs: charts, tables, notes
    Report(crate::commands::report::Report),
    /// Print a completion script for a shell
    Completions(crate::commands::completions::Completions),
    /// Measure a model's perplexity on a text
    Eval(crate::commands::eval::Eval),
    /// List the families of models
    Families(crate::commands::families::Families),
    /// Continue a prompt
    Generate(crate::commands::generate::Generate),
    /// Store only what stays of a pruned model
    Pack(crate::commands::pack::Pack),
    /// Write a packed model as a dense one again
    Unpack(crate::commands::pack::Unpack),
    /// List the packed formats
    Formats(crate::commands::formats::Formats),
    /// Compare dense and packed generation
    Bench(crate::commands::bench::Bench),
}
