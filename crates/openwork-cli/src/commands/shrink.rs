//! `openwork shrink MODEL --out DIR`.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use openwork_llm::format::format_bytes;
use openwork_llm::shrink::{ShrinkError, Uneven, shrink};
use openwork_llm::staged_folder::StageError;
use openwork_llm::{Checkpoint, output};
use serde_json::json;
use std::path::PathBuf;

/// Remove pruned heads and channels
///
/// A channel is removed if its column of down_proj is zero, a query head if its
/// columns of o_proj are, a key head if all its query heads are removed. DIR becomes
/// a smaller dense model with the same logits that transformers loads unchanged.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  openwork prune MODEL --spec 'mlp keep 75%' --calib c4.jsonl --out masked
  openwork shrink masked --out smaller
  openwork shrink masked --out smaller --even")]
pub struct Shrink {
    /// A Hugging Face folder or a .gguf file
    model: PathBuf,
    /// Folder to write; must be new or empty
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    /// If layers have different numbers of removable channels or heads, remove the
    /// smallest number from every layer
    #[arg(long)]
    even: bool,
}

impl Shrink {
    /// Writes the smaller model and prints the change.
    pub fn run(mut self, global: &Global) -> Result<(), Failure> {
        self.model = global.model(&self.model)?;
        output::check_folder(&self.out, &[&self.model])?;
        let source = Checkpoint::open(&self.model)?;
        let uneven = if self.even { Uneven::Least } else { Uneven::Refuse };
        let change = shrink(&source, &self.out, None, uneven).map_err(|error| match error {
            ShrinkError::Write(error) => Failure::running(error),
            ShrinkError::Stage(error @ StageError::Io { .. }) => Failure::running(error),
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
        print::line(format!("{change}: {}, before {}", format_bytes(after), format_bytes(before)))
    }
}
