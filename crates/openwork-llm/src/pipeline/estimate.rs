//! Estimates the memory, disk and time of a run before it starts.

use super::plan::{LayerPlan, Plan, TaskPlan};
use super::run::Job;
use super::states::chunk_windows;
use crate::model::backward::Activations;
use crate::model::{BATCH_TOKENS, Config, LayerInfo, Model, Site, split_layer_name};
use crate::recover::{StageOptions, USUAL_TRIALS, Unit, pass_bytes, trial_steps};
use openwork::linalg::{Threads, gemm};
use openwork::prune::Needs;
use openwork::{Matrix, MatrixRef};
use std::collections::BTreeSet;
use std::time::Instant;

/// Bytes of the program itself.
const BASE: u64 = 64 << 20;
/// Bytes of the tokenizer per token of its vocabulary.
const PER_TOKEN: u64 = 1 << 10;
/// Bytes of tokenizing per byte of text.
const PER_BYTE: u64 = 40;

/// Bytes of Python and Ray in a worker.
const WORKER: u64 = 160 << 20;

/// Workers that compute the stages of a run.
#[derive(Clone, Copy, Debug)]
pub struct Workers {
    /// Number of workers.
    pub count: usize,
    /// Threads per worker.
    pub threads: usize,
}

/// The resources of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimate {
    /// Memory of one process with all hidden states in memory, in bytes.
    pub memory: u64,
    /// Memory with the hidden states in a file, in bytes.
    pub memory_spilled: u64,
    /// Bytes of hidden states that spill to a file.
    pub spilled: u64,
    /// Bytes of the output.
    pub disk: u64,
    /// Seconds of forward passes and sums of X'X.
    pub forward_seconds: f64,
    /// Seconds of pruning, within a factor of about two.
    pub prune_seconds: f64,
    /// Seconds of recovery training.
    pub recovery_seconds: f64,
}

impl Estimate {
    /// The resources of this run followed by another.
    pub fn and(&self, other: &Self) -> Self {
        Self {
            memory: self.memory.max(other.memory),
            memory_spilled: self.memory_spilled.max(other.memory_spilled),
            spilled: self.spilled.max(other.spilled),
            disk: self.disk.max(other.disk),
            forward_seconds: self.forward_seconds + other.forward_seconds,
            prune_seconds: self.prune_seconds + other.prune_seconds,
            recovery_seconds: self.recovery_seconds + other.recovery_seconds,
        }
    }

    /// The resources of each worker, if its threads are as fast as those here. Those of a
    /// recovery are [`recovery`]'s.
    pub fn among(self, workers: Workers) -> Self {
        let count = workers.count.max(1);
        let here = rayon::current_num_threads() as f64;
        let slower = here / (count * workers.threads.max(1)) as f64;
        let spilled = self.spilled.div_ceil(count as u64);
        let memory_spilled = self.memory_spilled + WORKER;
        Self {
            memory: memory_spilled + spilled,
            memory_spilled,
            spilled,
            disk: self.disk,
            forward_seconds: self.forward_seconds * slower,
            prune_seconds: self.prune_seconds * slower,
            recovery_seconds: self.recovery_seconds,
        }
    }
}

/// Estimates what a pass needs on this machine; takes a fraction of a second.
pub fn estimate(job: &Job, plan: &Plan, model: &Model<'_>) -> Estimate {
    let c = model.config();
    let tokens = job.calibration.tokens() as u64;
    let seq_len = job.calibration.seq_len();
    let chunk = (chunk_windows(seq_len) * seq_len) as u64;
    let float = size_of::<f32>() as u64;

    let states = job.calibration.state_bytes(c);
    let infos: Vec<LayerInfo> = (0..c.layers).map(|index| LayerInfo::new(c, index)).collect();
    let weights = infos.iter().map(LayerInfo::weights).max().unwrap_or(0) as u64;
    // One chunk within a layer: its hidden states before, after and inside.
    let ff = (0..c.layers).filter_map(|index| c.mlp_width(index)).max().unwrap_or(0).max(c.ff);
    let wide = (4 * c.hidden + 2 * c.q_width() + 2 * c.kv_width() + 2 * ff) as u64;
    let batch = (seq_len as u64).max(chunk.min(BATCH_TOKENS as u64));
    let working = chunk * 3 * c.hidden as u64 * float + batch * wide * float;
    let statistics = most(plan, |index, tasks| statistics(&infos[index], tasks));
    let pruning = most(plan, |_, tasks| {
        tasks.iter().map(|task| 4 * task.weights() as u64 * float).sum::<u64>() + curvature(tasks)
    });
    // Logits of a group of tokens, and a panel of the head, when perplexity is measured.
    let head = job.evaluation.as_ref().map_or(0, |_| (64 << 20) + 1024 * c.vocab as u64 * float);
    let text = job.calibration.text_bytes + job.evaluation.as_ref().map_or(0, |e| e.scored.bytes);
    let base = BASE + PER_TOKEN * c.vocab as u64 + PER_BYTE * text as u64;
    // Mapped pages of the files: everything outside the layers, and one layer.
    let in_layers = |name: &str| split_layer_name(name).is_some();
    let (inside, outside) = model.checkpoint().tensors().fold((0, 0), |(inside, outside), t| {
        let bytes = t.stored_bytes() as u64;
        if in_layers(t.name()) { (inside + bytes, outside) } else { (inside, outside + bytes) }
    });
    let mapped = outside + inside / c.layers.max(1) as u64;
    let fixed = base + mapped + weights * float + working + (statistics + pruning).max(head);

    let rate = gemm_rate();
    let per_token: f64 = forward_flops(c, seq_len);
    let passes = if plan.sequential { 2.7 } else { 2.0 };
    let total = c.layers as f64 * tokens as f64;
    let sums: f64 = plan.layers.iter().zip(&infos).map(|(layer, info)| sums(layer, info, c)).sum();
    let evaluations = job.evaluation.as_ref().map_or(0.0, |evaluation| {
        let every = evaluation.every.map_or(0, |n| c.layers / n.max(1));
        let scored = evaluation.scored.tokens as f64;
        (2 + every) as f64
            * scored
            * (c.layers as f64 * per_token + 2.0 * (c.vocab * c.hidden) as f64)
    });
    let compared: usize = job.sentences.iter().flat_map(|texts| &texts.tokens).map(Vec::len).sum();
    let evaluations = evaluations + 2.0 * compared as f64 * c.layers as f64 * per_token;
    let forward = total * passes * per_token + tokens as f64 * 1.3 * sums + evaluations;
    let prune: f64 = plan.layers.iter().flat_map(|layer| &layer.tasks).map(prune_flops).sum();

    let names = model.checkpoint().tensors();
    let disk = names.map(|t| (t.len() * job.dtype.block_bytes()) as u64).sum();
    Estimate {
        memory: fixed + states,
        memory_spilled: fixed,
        spilled: states,
        disk,
        forward_seconds: forward / (0.75 * rate),
        prune_seconds: prune / (0.4 * rate),
        recovery_seconds: 0.0,
    }
}

/// Estimates what a recovery needs in this process and in each worker. A window costs a
/// forward and a backward pass, which is about three forward passes. Layers are trained in
/// this process, the windows of a batch of the whole model by the workers, if there are any.
pub fn recovery(job: &Job, model: &Model<'_>, workers: Option<Workers>) -> Estimate {
    let Some(plan) = &job.recovery else { return Estimate::default() };
    let c = model.config();
    let layer = LayerInfo::new(c, c.layers - 1).weights() as u64;
    let (layers, float) = (c.layers as u64, size_of::<f32>() as u64);
    let head = (c.vocab * c.hidden) as u64;
    let rate = 0.75 * gemm_rate();
    let stage = |stage: &StageOptions| -> Estimate {
        let (t, trained, weights) = match stage.unit {
            Unit::Model => {
                let trials = if stage.lr.is_none() { USUAL_TRIALS } else { 0 };
                let steps = stage.steps + trials * trial_steps(stage.steps);
                (stage.window(c.max_positions), steps * stage.batch, layers * layer)
            }
            Unit::Block | Unit::Half => {
                (job.calibration.seq_len(), stage.epochs * job.calibration.windows.len(), layer)
            }
        };
        let tokens = (trained * t) as f64;
        let mut flops = 3.0 * forward_flops(c, t) * c.layers as f64;
        // Weights, gradients, both moments of Adam, and a copy of the best weights; in a worker,
        // weights and gradients as they are, as they are sent, and in Ray's store.
        let mut memory = 5 * weights * float;
        memory += match stage.unit {
            Unit::Model => pass_bytes(c, t),
            Unit::Block | Unit::Half => Activations::bytes(c, t),
        };
        // Gradients inside a layer.
        memory += (t * (3 * c.hidden + 3 * c.ff)) as u64 * float;
        if stage.unit == Unit::Model {
            // Three products with the head, and the dense model.
            flops += 8.0 * head as f64 + forward_flops(c, t) * c.layers as f64;
            if stage.states > 0.0 {
                memory += weights * float + layers * (t * c.hidden) as u64 * float;
            }
            memory += 2 * head * float + 2 * tokens as u64 * c.hidden as u64 * float / 2;
        }
        let slower = match workers.filter(|_| stage.unit == Unit::Model) {
            Some(Workers { count, threads }) => {
                let threads = count.min(stage.batch).max(1) * threads.max(1);
                rayon::current_num_threads() as f64 / threads as f64
            }
            None => 1.0,
        };
        let recovery_seconds = tokens * flops / rate * slower;
        Estimate { memory, memory_spilled: memory, recovery_seconds, ..Estimate::default() }
    };
    let stages = plan.recovery.stages.iter().map(stage);
    stages.reduce(|all, one| all.and(&one)).unwrap_or_default()
}

/// The most that any capture of any layer takes.
fn most(plan: &Plan, bytes: impl Fn(usize, &[&TaskPlan]) -> u64) -> u64 {
    let captures = plan.layers.iter().enumerate().flat_map(|(index, layer)| {
        layer.captures.iter().map(move |sites| {
            let fed = |task: &&TaskPlan| task.sites().iter().all(|site| sites.contains(site));
            (index, layer.tasks.iter().filter(fed).collect::<Vec<_>>())
        })
    });
    captures.map(|(index, tasks)| bytes(index, &tasks)).max().unwrap_or(0)
}

/// Operations per token for the sums of a layer; an expert sees a share of the tokens.
fn sums(layer: &LayerPlan, info: &LayerInfo, c: &Config) -> f64 {
    let share = |site: &Site| match (&c.experts, site.expert) {
        (Some(experts), Some(_)) => experts.active as f64 / experts.count as f64,
        _ => 1.0,
    };
    let sites = layer.captures.iter().flatten();
    sites.map(|site| share(site) * (info.width(*site) as f64).powi(2)).sum()
}

/// X'X of the sites in f64: half matrices of the total and of a chunk, each in
/// two parts, then two full ones.
fn statistics(info: &LayerInfo, tasks: &[&TaskPlan]) -> u64 {
    let sites: BTreeSet<_> = tasks.iter().flat_map(|task| task.sites()).collect();
    sites.iter().map(|&&site| 8 * (info.width(site) as u64).pow(2) * 4).sum()
}

/// Factors and inverses of H while the widest tasks are pruned, and what each
/// thread of a search holds.
fn curvature(tasks: &[&TaskPlan]) -> u64 {
    tasks
        .iter()
        .filter(|task| task.method.needs() == Needs::Hessian)
        .map(|task| {
            let k = task.spec.tensors().iter().map(|t| t.matrix().1 as u64).max().unwrap_or(0);
            let searches = if task.method.to_string().contains("+swap") {
                3 * rayon::current_num_threads()
            } else {
                0
            };
            (8 + searches as u64) * k * k * 4
        })
        .sum()
}

/// Operations of one token through one layer.
fn forward_flops(c: &Config, seq_len: usize) -> f64 {
    // A token uses only a few of a layer's experts.
    let weights: usize =
        (0..c.layers).map(|index| LayerInfo::new(c, index).active_weights(c)).sum();
    2.0 * weights as f64 / c.layers as f64 + 2.0 * (seq_len * c.q_width()) as f64
}

/// Operations that pruning a task takes, roughly.
fn prune_flops(task: &TaskPlan) -> f64 {
    let method = task.method.to_string();
    let (m, k) =
        task.linears.iter().zip(task.spec.tensors()).fold((0.0, 0.0f64), |(m, k), (_, t)| {
            let (rows, cols) = t.matrix();
            (m + rows as f64, k.max(cols as f64))
        });
    let base = match method.split(['[', '+']).next().unwrap_or_default() {
        "sparsegpt" => m * k * k,
        "s-obs" => m * k.powi(3) / 6.0,
        "admm" => 60.0 * m * k * k + 4.0 * k.powi(3),
        _ => 0.0,
    };
    let factors = if task.method.needs() == Needs::Hessian { 12.0 * k.powi(3) } else { 0.0 };
    // A product for the gradient and about three steps.
    let refit = if method.contains("+refit") { 10.0 * m * k * k } else { 0.0 };
    // The search itself takes about 3 M K^3, its kicks the rest.
    let swap = if method.contains("+swap") { 8.0 * m * k.powi(3) } else { 0.0 };
    base + factors + refit + swap
}

/// Operations per second of a product of matrices, on all threads.
fn gemm_rate() -> f64 {
    const N: usize = 512;
    // Numbers that use the full mantissa: some machines multiply short ones faster.
    let a = Matrix::from_fn(N, N, |i, j| ((i * 7 + j) % 13) as f32 / 13.0);
    let mut c = Matrix::zeros(N, N);
    let view = MatrixRef::new(a.data(), N, N);
    let best = (0..4)
        .map(|_| {
            let started = Instant::now();
            gemm(0.0, c.view_mut(), 1.0, view, view, Threads::All);
            started.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    2.0 * (N as f64).powi(3) / best.max(1e-9)
}

/// Peak memory of this process, in bytes; 0 if the system does not report it.
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib =
        line.and_then(|line| line.split_whitespace().next()).and_then(|n| n.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
