//! The command line: global options, the list of commands, the top-level help.

use crate::failure::Failure;
use crate::{flag_hints, print};
use clap::error::ErrorKind;
use clap::{Args as ClapArgs, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::num::NonZeroUsize;

/// What follows the lists of commands and options in `openwork help`.
const AFTER_HELP: &str = "\
MODEL is a Hugging Face folder (config.json, tokenizer.json, safetensors), a .gguf file, a
name on the Hugging Face Hub (`org/name`, `org/name@revision` or `org/name/file.gguf`), or
`demo`, the built-in model. TEXT is a .txt file, a .jsonl file with a `text` field, a file of
a dataset on the Hub (`datasets:org/name/file.jsonl`), or `demo`.

Downloads are stored in the cache of the huggingface_hub package. HF_HOME, HF_ENDPOINT and
HF_TOKEN have their usual meanings.

Examples:
  openwork demo
  openwork show 2:4 --shape 8,16
  openwork prune SmolLM2-135M --spec 2:4 --calib c4.jsonl --out pruned
  openwork eval pruned --text wikitext2.txt
  openwork pack pruned --out packed
  openwork generate packed 'The capital of France is'

Exit codes:
  0  success
  1  failed while running (the output cannot be written, out of memory, a check that did
     not pass)
  2  wrong input (bad option, missing or damaged file, impossible plan, an output that
     exists or is an input); nothing was written

Run `openwork COMMAND --help` for the options of a command, with examples.";

/// The commands under their headings in `openwork help`.
const COMMAND_GROUPS: &[(&str, &[&str])] = &[
    ("Pruning", &["demo", "prune", "recover", "tensor", "hessian", "shrink"]),
    (
        "Models",
        &["inspect", "eval", "embed", "generate", "pack", "unpack", "bench", "frontier", "report"],
    ),
    ("Patterns", &["show", "studio", "presets", "layout"]),
    ("Reference", &["methods", "formats", "families", "completions", "help"]),
];

/// Prune neural networks to hardware-friendly sparse patterns
#[derive(Debug, Parser)]
#[command(
    name = "openwork",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = AFTER_HELP
)]
pub struct Args {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Parses the command line; prints help, or what is wrong with it, and gives
/// the exit code.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Args, u8> {
    let matches = command().try_get_matches_from(arguments);
    matches.and_then(|matches| Args::from_arg_matches(&matches)).map_err(|mut error| {
        use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
        match error.kind() {
            DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand | DisplayVersion => {
                // Nothing can be done if the terminal is gone.
                let _ = error.print();
            }
            _ => {
                flag_hints::improve(&mut error);
                print::aside(error.render().to_string().trim_end());
            }
        }
        error.exit_code() as u8
    })
}

/// The command line as clap knows it, its commands grouped in the help.
pub fn command() -> clap::Command {
    let mut command = Args::command();
    command.build();
    let heading = command.get_styles().get_header();
    let literal = command.get_styles().get_literal();
    let mut groups = String::new();
    for (title, names) in COMMAND_GROUPS {
        groups += &format!("{heading}{title}:{heading:#}\n");
        for name in *names {
            let about = command.find_subcommand(name).and_then(|found| found.get_about());
            let about = about.map(ToString::to_string).unwrap_or_default();
            groups += &format!("  {literal}{name:11}{literal:#}  {about}\n");
        }
        groups.push('\n');
    }
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}{heading}Global options:{heading:#}\n{{options}}{{after-help}}"
    );
    Args::command().help_template(template)
}

/// Reads a count that must not be zero.
pub fn positive(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "give a whole number of at least 1".to_string())
}

/// Options of every command.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Print the result as one JSON object
    #[arg(long, global = true)]
    pub json: bool,
    /// Print no progress and no notes
    #[arg(long, global = true)]
    pub quiet: bool,
    /// Number of threads [default: all cores]
    #[arg(long, global = true, value_name = "N")]
    pub threads: Option<usize>,
    /// Do not access the network; use only the Hugging Face Hub cache
    #[arg(long, global = true)]
    pub offline: bool,
}

impl Global {
    /// Prints notes on stderr, unless `--quiet`.
    pub fn note(&self, notes: &[String]) {
        if !self.quiet {
            notes.iter().for_each(|note| print::aside(format!("note: {note}")));
        }
    }

    /// Sets the size of the global thread pool, and checks the variables that choose kernels.
    pub fn set_threads(&self) -> Result<(), Failure> {
        openwork::sparse::kernel().map_err(Failure::Input)?;
        openwork::sparse::activations().map_err(Failure::Input)?;
        if let Some(n) = self.threads.filter(|n| !(1..=1024).contains(n)) {
            return Err(Failure::Input(format!("--threads {n}: give a number from 1 to 1024")));
        }
        // Also for the default, zero: the first parallel loop would panic instead.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads.unwrap_or(0));
        pool.build_global().map_err(|error| {
            Failure::running(format!(
                "cannot start the threads: {error}; give fewer with --threads"
            ))
        })
    }
}

/// The commands, one per file in `commands/`. A summary here replaces all of a command's own
/// description, so those with more to say have none.
#[allow(missing_docs)]
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Prune the built-in model with several methods and compare them
    Demo(crate::commands::demo::Demo),
    /// Explain and draw what a spec means for a tensor
    Show(crate::commands::show::Show),
    Studio(crate::commands::studio::Studio),
    /// List the preset patterns
    Presets(crate::commands::presets::Presets),
    /// Compute with CuTe layouts
    Layout(crate::commands::layout::Layout),
    /// Prune one matrix, or several coupled ones
    Tensor(crate::commands::tensor::Tensor),
    Prune(Box<crate::commands::prune::Prune>),
    Recover(Box<crate::commands::recover::Recover>),
    Shrink(crate::commands::shrink::Shrink),
    /// Compute a Hessian from inputs, to reuse in many runs
    Hessian(crate::commands::hessian::MakeHessian),
    /// List the pruning methods and their options
    Methods(crate::commands::methods::Methods),
    /// List a model's tensors: shape, type, density, pattern
    Inspect(crate::commands::inspect::Inspect),
    /// Write an HTML report of one or more runs
    Report(crate::commands::report::Report),
    /// Print a shell completion script
    Completions(crate::commands::completions::Completions),
    /// Measure a model's perplexity on a text, and its accuracy on tasks
    Eval(crate::commands::eval::Eval),
    /// Compute sentence embeddings with an encoder
    Embed(crate::commands::embed::Embed),
    /// List the supported model families
    Families(crate::commands::families::Families),
    /// Generate text from a prompt
    Generate(crate::commands::generate::Generate),
    Pack(crate::commands::pack::Pack),
    /// Convert a packed model back to dense weights
    Unpack(crate::commands::pack::Unpack),
    /// List the packed formats
    Formats(crate::commands::formats::Formats),
    Bench(crate::commands::bench::Bench),
    Frontier(Box<crate::commands::frontier::FrontierArgs>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_help_lists_every_command_once() {
        let mut listed: Vec<&str> =
            COMMAND_GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        listed.sort_unstable();
        let command = Args::command();
        let mut all: Vec<&str> = command.get_subcommands().map(|c| c.get_name()).collect();
        all.push("help");
        all.sort_unstable();
        assert_eq!(listed, all);
        for subcommand in command.get_subcommands() {
            assert!(subcommand.get_about().is_some(), "{}", subcommand.get_name());
        }
    }
}
