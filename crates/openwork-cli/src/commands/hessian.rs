//! `openwork hessian`: computes a Hessian from inputs, to reuse in many runs.

use crate::args::Global;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::tensor_path::Named;
use openwork::hessian::Hessian;
use openwork::prune::Monitor;
use openwork_llm::format::align_columns;
use openwork_llm::output::OutputFile;
use openwork_llm::tensors::{TensorFile, hessian};
use serde_json::json;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  openwork hessian x.safetensors --out h.safetensors
  openwork hessian qkv=x.safetensors:attn_in o=x.safetensors:attn_out --out h.safetensors

Inputs are [samples, columns] in f32, f16 or bf16; with more axes, the last one gives the
columns. A third of the samples is also summed separately, so that pruning can choose its
damping by held-out error. docs/formats.md describes the file.";

/// The default name of a Hessian.
const NAME: &str = "hessian";

/// Compute the Hessian H = X'X/n of inputs X and write it
#[derive(Debug, clap::Args)]
#[command(name = "hessian", after_help = EXAMPLES)]
pub struct MakeHessian {
    /// Inputs; NAME is the Hessian's name in the output file, `hessian` if omitted
    #[arg(required = true, value_name = "[NAME=]FILE[:TENSOR]")]
    inputs: Vec<String>,
    /// Output safetensors file
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
}

impl MakeHessian {
    /// Computes, writes, prints.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let inputs: Vec<Named> = self.inputs.iter().map(|text| Named::parse(text)).collect();
        let paths: Vec<&Path> = inputs.iter().map(|input| input.path.file.as_path()).collect();
        let out = OutputFile::new(&self.out, &paths, self.force)?;
        let mut hessians: Vec<(String, Hessian)> = Vec::new();
        for Named { name, path } in inputs {
            let name = name.unwrap_or(NAME.to_string());
            if hessians.iter().any(|(known, _)| *known == name) {
                let message = format!("two Hessians are called `{name}`; write NAME=FILE:TENSOR");
                return Err(Failure::Input(message));
            }
            let file = TensorFile::open(&path.file).map_err(Failure::input)?;
            let tensor = file.choose(path.tensor.as_deref()).map_err(Failure::input)?;
            let progress = Progress::start(global, &format!("inputs {tensor}"));
            let h = hessian::sum_inputs(&file, &tensor, None, &|share| progress.progress(share));
            progress.end();
            hessians.push((name, h.map_err(Failure::input)?));
        }
        let named: Vec<(&str, &Hessian)> =
            hessians.iter().map(|(name, h)| (name.as_str(), h)).collect();
        let written = hessian::save(out.target(), &named).map_err(Failure::running)?;
        global.wrote(out.path(), written.bytes);
        if global.json {
            let rows: Vec<_> = hessians
                .iter()
                .map(|(name, h)| {
                    json!({
                        "name": name,
                        "columns": h.columns(),
                        "samples": h.samples(),
                        "held_out_samples": h.held_out().map(|(_, n)| n),
                        "dead_columns": h.dead_columns().len(),
                    })
                })
                .collect();
            return crate::print::line(json!({"hessians": rows}));
        }
        let mut rows = vec![["name", "columns", "samples", "held out", "dead"].map(String::from)];
        for (name, h) in &hessians {
            rows.push([
                name.clone(),
                h.columns().to_string(),
                h.samples().unwrap_or(0).to_string(),
                h.held_out().map_or(0, |(_, n)| n).to_string(),
                h.dead_columns().len().to_string(),
            ]);
        }
        crate::print::text(&align_columns(&rows, [false, true, true, true, true]))
    }
}
