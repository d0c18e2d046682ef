//! `openwork shrink MODEL --out DIR`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use openwork_llm::format::format_bytes;
use openwork_llm::pipeline::{Start, check_folder};
use openwork_llm::shrink::{ShrinkError, Uneven, shrink};
use openwork_llm::{Checkpoint, output};
use serde_json::json;
use std::path::PathBuf;

/// Leave out of a pruned model the heads and channels that do nothing
///
/// A channel goes if its column of down_proj is zero, a query head if its
/// columns of o_proj are, a key head if all its query heads go. DIR becomes a
/// smaller dense model with the same logits, which transformers loads as it is.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  openwork prune MODEL --spec 'mlp keep 75%' --calib c4.jsonl --out masked
  openwork shrink masked --out smaller
  openwork shrink masked --out smaller --even")]
pub struct Shrink {
    /// A Hugging Face folder or a .gguf file
    model: PathBuf,
    /// The folder to write; it must be empty or new
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Where layers can spare different numbers, remove what all of them can
    #[arg(long)]
    even: bool,
}

impl Shrink {
    /// Writes the smaller model and says what went.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        output::check_folder(&self.out, &[&self.model])?;
        check_folder(&self.out, Start::Fresh).map_err(crate::commands::prune::failure)?;
        let source = Checkpoint::open(&self.model).map_err(Failure::input)?;
        let uneven = if self.even { Uneven::Least } else { Uneven::Refuse };
        let change = shrink(&source, &self.out, None, uneven).map_err(|error| match error {
            ShrinkError::Write(error) => Failure::running(error),
            error => Failure::input(error),
        })?;
        let small = Checkpoint::open(&self.out).map_err(Failure::running)?;
        let bytes = |model: &Checkpoint| -> u64 {
            model.tensors().map(|tensor| tensor.stored_bytes() as u64).sum()
        };
        let (before, after) = (bytes(&source), bytes(&small));
        global.wrote_folder(&self.out);
        if global.json {
            return print::line(json!({
                "out": self.out, "before": change.before, "after": change.after,
                "bytes_before": before, "bytes": after,
            }));
        }
        print::line(format!(
            "from {change}; {} instead of {}",
            format_bytes(after),
            format_bytes(before)
        ))
    }
}
