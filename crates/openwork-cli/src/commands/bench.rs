//! `openwork bench MODEL`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use openwork_llm::Checkpoint;
use openwork_llm::model::Model;
use openwork_llm::pack::{PackModelError, Patterns, compare};
use std::path::PathBuf;

/// Compare dense and packed generation in one run: tokens/s and bytes per token
///
/// A packed model is measured as it is, against its unpacked self. Of any other
/// the linears are packed in memory; with --spec those that do not conform are
/// cut to the pattern by magnitude first, which changes the text, not the speed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  openwork bench packed
  openwork bench smollm2.gguf --spec rows16 --threads 2")]
pub struct Bench {
    /// A Hugging Face folder, packed or not, or a .gguf file
    model: PathBuf,
    /// The pattern of all linears
    #[arg(long, value_name = "S")]
    spec: Option<String>,
    /// Tokens of a turn
    #[arg(long, value_name = "N", default_value_t = 32)]
    tokens: usize,
    /// Turns of each; the fastest counts
    #[arg(long, value_name = "N", default_value_t = 5)]
    turns: usize,
}

impl Bench {
    /// Measures and prints.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let checkpoint = Checkpoint::open(&self.model).map_err(Failure::input)?;
        let model = Model::open(&checkpoint).map_err(Failure::input)?;
        global.note(&model.config().notes);
        let packed = checkpoint.tensors().any(|tensor| tensor.packing().is_some());
        let patterns = match (&self.spec, packed) {
            (Some(_), true) => {
                let why = "the model is packed already; leave --spec out or unpack it first";
                return Err(Failure::input(why));
            }
            (Some(text), false) => Some(Patterns::all(text).map_err(Failure::input)?),
            (None, true) => None,
            (None, false) => Some(Patterns::of(&checkpoint).map_err(Failure::input)?),
        };
        let speed = compare(&model, patterns.as_ref(), self.tokens, self.turns).map_err(
            |error| match error {
                PackModelError::Write(error) => Failure::running(error),
                error => Failure::input(error),
            },
        )?;
        if global.json {
            return print::line(serde_json::to_string(&speed).map_err(Failure::running)?);
        }
        if speed.cut > 0 {
            let cut = format!("{} linears were cut to the pattern by magnitude", speed.cut);
            global.note(&[cut]);
        }
        let megabytes = |bytes: usize| bytes as f64 / 1e6;
        print::text(&format!(
            "dense   {:8.2} tokens/s  {:8.1} MB read per token\npacked  {:8.2} tokens/s  {:8.1} MB read per token\nspeedup {:.2}x; packed linears are {:.4} of their dense size\n",
            speed.dense_tokens_per_second,
            megabytes(speed.dense_bytes_per_token),
            speed.packed_tokens_per_second,
            megabytes(speed.packed_bytes_per_token),
            speed.speedup,
            speed.share,
        ))
    }
}
