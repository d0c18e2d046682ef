//! `openwork bench MODEL`.

use super::pack::ValueArgs;
use crate::args::{Global, positive};
use crate::failure::Failure;
use crate::print;
use openwork_llm::Checkpoint;
use openwork_llm::format::count;
use openwork_llm::model::Model;
use openwork_llm::pack::{Patterns, compare};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Compare the speed of dense and packed generation: tokens/s and bytes per token
///
/// A packed model is compared with its unpacked form. The linear layers of any other
/// model are packed in memory; with --spec, those that do not conform are pruned
/// by magnitude first, which changes the text but not the speed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  openwork bench packed
  openwork bench smollm2.gguf --spec rows16 --threads 2
  openwork bench smollm2.gguf --values int4 --head int8")]
pub struct Bench {
    /// A Hugging Face folder, packed or not, or a .gguf file
    model: PathBuf,
    /// Pattern of all linear layers
    #[arg(long, value_name = "S")]
    spec: Option<String>,
    #[command(flatten)]
    values: ValueArgs,
    /// Tokens to generate per repetition
    #[arg(long, value_name = "N", default_value = "32", value_parser = positive)]
    tokens: NonZeroUsize,
    /// Number of repetitions per model; the fastest counts
    #[arg(long, value_name = "N", default_value = "5", value_parser = positive)]
    turns: NonZeroUsize,
}

impl Bench {
    /// Measures and prints.
    pub fn run(mut self, global: &Global) -> Result<(), Failure> {
        self.model = global.model(&self.model)?;
        let checkpoint = Checkpoint::open(&self.model)?;
        let model = Model::open(&checkpoint)?;
        global.note(&model.config().notes);
        let packed = checkpoint.tensors().any(|tensor| tensor.packing().is_some());
        let choice = self.values.choice()?;
        if packed && (self.spec.is_some() || choice.any()) {
            let why = "the model is packed already; omit --spec, --values and --head, or unpack the model first";
            return Err(Failure::input(why));
        }
        let patterns = match packed {
            true => None,
            false => {
                let patterns = Patterns::choose(self.spec.as_deref(), &choice, &checkpoint);
                Some(patterns.map_err(super::pack::failure)?)
            }
        };
        let choice = choice.with_record(&checkpoint);
        let speed = compare(&model, patterns.as_ref(), choice, self.tokens, self.turns)
            .map_err(super::pack::failure)?;
        if global.json {
            return print::line(serde_json::to_string(&speed).map_err(Failure::running)?);
        }
        match speed.pruned_by_magnitude {
            0 => {}
            n => global.note(&[format!(
                "{} had to be pruned by magnitude to fit the pattern",
                count(n, "linear layer")
            )]),
        }
        let megabytes = |bytes: usize| bytes as f64 / 1e6;
        print::text(&format!(
            "dense   {:8.2} tokens/s  {:8.1} MB read per token\npacked  {:8.2} tokens/s  {:8.1} MB read per token\nspeedup {:.2}x; packed linear layers take {:.4} of their dense size\n",
            speed.dense_tokens_per_second,
            megabytes(speed.dense_bytes_per_token),
            speed.packed_tokens_per_second,
            megabytes(speed.packed_bytes_per_token),
            speed.speedup,
            speed.share,
        ))
    }
}
