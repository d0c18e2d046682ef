//! `openwork recover PRUNED --reference MODEL --calib TEXT --out DIR`.

use super::prune::options::RecoverOptions;
use super::prune::{execute, failure, options, reading};
use crate::args::Global;
use crate::failure::Failure;
use openwork_llm::pipeline::OptionValue;
use openwork_llm::{Checkpoint, output};
use std::path::PathBuf;

/// The stages if none are given.
const STAGES: &str = "blocks+model";

/// Train the kept weights of a pruned model towards the dense model
///
/// Zero weights stay zero. `blocks` trains each decoder layer towards the dense model's
/// output of that layer, `halves` trains attention and MLP separately, and `model` trains
/// all layers together towards the dense model's token distribution. Some windows are
/// held out; a stage that does not lower their loss changes nothing. `openwork methods`
/// lists the options of the stages.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  openwork recover pruned --reference smollm2.gguf --calib c4.jsonl --out recovered
  openwork recover pruned --reference MODEL --recover model[steps=200] \\
      --calib c4.jsonl --eval wikitext2.txt --out recovered
  openwork recover pruned --reference MODEL --calib c4.jsonl --out recovered --resume")]
pub struct Recover {
    /// Pruned model: an output folder of `openwork prune`, or any model with zeros
    pruned: PathBuf,
    /// Dense model from which it was pruned
    #[arg(long, value_name = "MODEL")]
    reference: PathBuf,
    #[command(flatten)]
    options: RecoverOptions,
}

impl Recover {
    /// Checks everything, then trains.
    pub fn run(mut self, global: &Global) -> Result<(), Failure> {
        let given = &mut self.options.0;
        if given.iter().all(|(name, _)| *name != "recover") {
            given.push(("recover", OptionValue::Text(STAGES.into())));
        }
        let options = options(self.options.0, &self.pruned, global)?;
        self.pruned = global.model(&self.pruned)?;
        self.reference = global.model(&self.reference)?;
        output::check_folder(&options.out, &[&self.reference])?;
        let source = options.open(&self.pruned).map_err(failure)?;
        let reference = Checkpoint::open(&self.reference).map_err(Failure::input)?;
        let run = reading(&options, global, || options.prepare_recovery(&source, &reference))?;
        execute(&run, &options, global)
    }
}
