//! `openwork tensor`: prunes one matrix, or several coupled ones.

mod show;
mod sources;

use crate::args::Global;
use crate::failure::Failure;
use crate::progress::Progress;
use openwork::prune::{Member, Method, PruneError, Pruned, Task, prune, split_list};
use openwork::{Pattern, Spec};
use openwork_llm::checkpoint::write::{self, Data, Part};
use openwork_llm::disk::Written;
use openwork_llm::output::OutputFile;
use sources::{Files, Statistics, Weights};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
TENSOR may be omitted if the file has only one tensor (for a Hessian: only one square
matrix). Weights are f64, f32, f16 or bf16 of any rank; the first axis gives the rows, all
other axes together the columns.

Examples:
  openwork tensor w.safetensors --spec 2:4 --method magnitude --out pruned.safetensors
  openwork tensor w.safetensors --spec 2:4 --method wanda,s-obs --inputs x.safetensors
  openwork tensor layer.safetensors:weight --spec rows16 --method 's-obs[damping=diag:0.1]' \\
      --hessian layer.safetensors:hessian --json
  openwork tensor q=qkvo.safetensors:q o=qkvo.safetensors:o \\
      --hessian q=h.safetensors:qkv --hessian o=h.safetensors:o --method s-obs \\
      --spec 'blocks q: view (h d) k -> h d k, h=9 block (1,_,_)
              & o perm (1,0,2): view k (h d) -> k h d, h=9 block (_,1,_)
              scope (_,1,1) keep 6'

`openwork methods` lists the methods, `openwork presets` the patterns. `openwork hessian`
computes a Hessian from inputs once, to reuse in many runs.";

/// Prune one matrix, or several coupled ones
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Tensor {
    /// Weights; if the spec couples several tensors, name each
    #[arg(required = true, value_name = "[NAME=]FILE[:TENSOR]")]
    weights: Vec<String>,
    /// Sparsity pattern, such as 2:4 or 'scope (1,8) keep 4'
    #[arg(long)]
    spec: String,
    /// Pruning method, such as s-obs or 's-obs[damping=diag:0.1]+swap'; a comma-separated
    /// list compares methods
    #[arg(long)]
    method: String,
    /// Hessian H = X'X/n of the inputs; without NAME, it applies to all weights
    #[arg(long, value_name = "[NAME=]FILE[:TENSOR]")]
    hessian: Vec<String>,
    /// Inputs X, [samples, columns]; without NAME, they apply to all weights
    #[arg(long, value_name = "[NAME=]FILE[:TENSOR]")]
    inputs: Vec<String>,
    /// Write the pruned weights to this safetensors file, in their own type
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace FILE if it exists
    #[arg(long, requires = "out")]
    force: bool,
}

/// The result of one method.
struct Outcome {
    method: String,
    pruned: Pruned,
    conforms: bool,
}

impl Tensor {
    /// Prunes, writes, prints. All input is checked before work starts.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        let methods = methods(&self.method)?;
        let pattern: Pattern = self.spec.parse().map_err(Failure::input)?;
        if self.out.is_some() && methods.len() > 1 {
            let n = methods.len();
            let message = format!("--out needs a single method; {n} were given");
            return Err(Failure::Input(message));
        }
        let weights = sources::named(&self.weights);
        let wanted = Statistics::parse(&self.hessian, &self.inputs)?;
        let files = Files::open(weights.iter().chain(wanted.places()))?;
        let out = match &self.out {
            Some(out) => Some(OutputFile::new(out, &files.paths(), self.force)?),
            None => None,
        };
        let weights = Weights::find(&files, &weights)?;
        let shapes: Vec<(&str, &[usize])> =
            weights.iter().map(|w| (w.label.as_str(), w.entry.shape)).collect();
        let spec = pattern.bind_all(&shapes).map_err(Failure::input)?;
        // In the spec's order; it has exactly these tensors.
        let weights: Vec<&Weights<'_>> = spec
            .tensors()
            .iter()
            .filter_map(|tensor| weights.iter().find(|w| w.label == tensor.name()))
            .collect();
        let hessians = wanted.resolve(&files, &weights)?;
        hessians.suffice(&methods, &spec)?;
        let values: Vec<Vec<f32>> = weights
            .iter()
            .map(|w| w.entry.to_f32().map_err(Failure::input))
            .collect::<Result<_, _>>()?;
        let hessians = hessians.load(&spec, global)?;

        let mut outcomes = Vec::new();
        for method in &methods {
            let members = values
                .iter()
                .enumerate()
                .map(|(t, weights)| Member {
                    weights: weights[..].into(),
                    hessian: hessians.get(t),
                })
                .collect();
            outcomes.push(run_one(method, &spec, members, global)?);
        }
        if let (Some(out), [outcome]) = (&out, outcomes.as_slice()) {
            let written = save(out.target(), &spec, &weights, outcome)?;
            global.wrote(out.path(), written.bytes);
        }
        if global.json {
            crate::print::line(show::json(&spec, &weights, &outcomes))
        } else {
            if !global.quiet {
                show::notes(&outcomes).lines().for_each(crate::print::aside);
            }
            crate::print::text(&show::table(&spec, &weights, &outcomes))
        }
    }
}

/// Parses a comma-separated list of methods.
fn methods(text: &str) -> Result<Vec<Method>, Failure> {
    let parts = split_list(text).map_err(Failure::input)?;
    parts.into_iter().map(|part| part.parse().map_err(Failure::input)).collect()
}

/// Prunes with one method.
fn run_one(
    method: &Method,
    spec: &Spec,
    members: Vec<Member<'_>>,
    global: &Global,
) -> Result<Outcome, Failure> {
    let progress = Progress::start(global, &method.to_string());
    let blind = members.iter().any(|member| member.hessian.is_none());
    let pruned = prune(method, &Task { spec, members, monitor: &progress });
    progress.end();
    let mut pruned = pruned.map_err(|error| match error {
        PruneError::Stopped => Failure::running(error),
        error => Failure::input(error),
    })?;
    if blind {
        let note = "without --hessian or --inputs the error is that of the weights (H = I)";
        pruned.notes.push(note.to_string());
    }
    let conforms = pruned.mask.conforms(spec).is_ok() && zeros_are_exact(&pruned);
    Ok(Outcome { method: method.to_string(), pruned, conforms })
}

/// Whether every pruned weight is zero and every other one finite.
fn zeros_are_exact(pruned: &Pruned) -> bool {
    pruned.weights.iter().zip(pruned.mask.tensors()).all(|(weights, bits)| {
        let mut numbered = weights.data().iter().enumerate();
        numbered.all(|(i, w)| if bits.get(i) { w.is_finite() } else { *w == 0.0 })
    })
}

/// Writes the pruned tensors under their names in the input files, or under the
/// names of the command line if those are not unique.
fn save(
    out: &Path,
    spec: &Spec,
    weights: &[&Weights<'_>],
    outcome: &Outcome,
) -> Result<Written, Failure> {
    let pruned = &outcome.pruned;
    let names: Vec<&str> = weights.iter().map(|w| w.entry.name).collect();
    let unique = names.iter().all(|name| names.iter().filter(|n| *n == name).count() == 1);
    let bytes: Vec<Vec<u8>> = weights
        .iter()
        .zip(&pruned.weights)
        .map(|(w, new)| w.entry.replaced(new.data()).map_err(Failure::running))
        .collect::<Result<_, _>>()?;
    let parts: Vec<Part<'_>> = weights
        .iter()
        .zip(&bytes)
        .map(|(w, bytes)| {
            let name = if unique { w.entry.name } else { &w.label };
            Part::new(name, w.entry.dtype, w.entry.shape, Data::Bytes(bytes))
        })
        .collect();
    let mut metadata = vec![
        ("openwork.version", env!("CARGO_PKG_VERSION").to_string()),
        ("openwork.spec", spec.text().to_string()),
        ("openwork.method", outcome.method.clone()),
        ("openwork.error", pruned.error.to_string()),
    ];
    if let Some(damping) = pruned.damping {
        metadata.push(("openwork.damping", damping.to_string()));
    }
    let metadata: Vec<(&str, &str)> =
        metadata.iter().map(|(key, value)| (*key, value.as_str())).collect();
    write::shard(out, &parts, &metadata).map_err(Failure::running)
}
