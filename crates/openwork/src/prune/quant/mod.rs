//! `+quant`: rounds the kept weights to codes of 8 or 4 bits, as the packed form stores
//! them, and lets weights that are not yet rounded compensate each error.
//!
//! A kept weight becomes `s c`: a whole number `c` times the scale `s` of its group, which is
//! `group` consecutive kept weights of a strip in packed order. With the damped curvature A
//! and w the weights before pruning, every row q approximately solves
//!
//! ```text
//! minimize (q - w) A (q - w)'   with q_j = s c_j on the support and 0 elsewhere
//! ```
//!
//! 1. Fit: x is the least-squares fit to w on the support, as by `+refit`.
//! 2. Round: columns are rounded in blocks, those of largest curvature first. The scale of a
//!    group is chosen when its first weight is due. An error is made up for within the
//!    block at once ([`block`]), and in the columns after it by another fit of x to w.
//! 3. Compare: a strip takes the nearest codes of the weights it came with if those have
//!    less error.
//! 4. Descend: codes are changed one at a time while that lowers the error ([`descent`]).
//!
//! The weights of the result are the codes' values in f32, so packing them finds the same
//! codes again. A kept weight whose code is zero is written as -0.0, which packing does not
//! mistake for a dropped one.

mod block;
mod descent;

use super::refit::{FINE, STEPS};
use super::{
    Build, MethodInfo, Modifier, Monitor, OptionInfo, Problem, PruneError, Solution, problem,
};
use crate::hessian::{Curvature, Damping};
use crate::linalg::pcg::{self, Stop};
use crate::linalg::{Threads, gemm};
use crate::mask::Bits;
use crate::matrix::Matrix;
use crate::sparse::{CodeBits, EXACT_DIGITS, Encoding, PackedOrder, Quantizer};
use block::Blocks;
use rayon::prelude::*;

/// `+quant`.
pub const METHOD: MethodInfo = MethodInfo {
    name: "quant",
    summary: "rounds the kept weights to 8 or 4 bits and compensates; must come last",
    options: &[
        OptionInfo { name: "bits", values: "4 | 8", default: "4", help: "bits of a code" },
        OptionInfo {
            name: "group",
            values: "32 | 64 | 128",
            default: "32",
            help: "number of kept weights, in packed order, that share a scale",
        },
        OptionInfo {
            name: "scale",
            values: "1 to 8",
            default: "5 (4 bits), 8 (8 bits)",
            help: "significant bits of a scale; with 5, a 4-bit code times its scale is exact in bf16",
        },
        OptionInfo {
            name: "block",
            values: "a whole number",
            default: "512",
            help: "columns rounded before the remaining ones are fitted again",
        },
        OptionInfo {
            name: "sweeps",
            values: "a whole number",
            default: "4",
            help: "number of passes that change single codes to lower the error",
        },
    ],
    damping: Damping::Auto,
    build: Build::Modifier(|settings| {
        let bits = [("4", CodeBits::Four), ("8", CodeBits::Eight)];
        let bits = settings.choice("bits", &bits, CodeBits::Four)?;
        let groups = [("32", 32), ("64", 64), ("128", 128)];
        let digits = match bits {
            CodeBits::Four => EXACT_DIGITS as usize,
            CodeBits::Eight => 8,
        };
        let digits = settings.count("scale", digits, 1)?;
        if digits > 8 {
            return Err(format!("scale={digits}: a scale is bf16, which has 8 significant bits"));
        }
        Ok(Box::new(Quant {
            bits,
            group: settings.choice("group", &groups, Encoding::DEFAULT_GROUP)?,
            quantizer: Quantizer::new(bits, digits as u32),
            block: settings.count("block", BLOCK, 1)?,
            sweeps: settings.count("sweeps", SWEEPS, 0)?,
        }))
    }),
};

const BLOCK: usize = 512;
const SWEEPS: usize = 4;

/// The stopping rule of fits between blocks: x is near its fit.
const BETWEEN: Stop = Stop { steps: 4, gain: 1e-3 };

struct Quant {
    bits: CodeBits,
    group: usize,
    quantizer: Quantizer,
    block: usize,
    sweeps: usize,
}

impl Modifier for Quant {
    fn encoding(&self) -> Option<Encoding> {
        let name = match self.bits {
            CodeBits::Eight => "int8",
            CodeBits::Four => "int4",
        };
        Encoding::new(name, self.group).ok()
    }

    fn improve(
        &self,
        problem: &Problem<'_>,
        mut solution: Solution,
        monitor: &dyn Monitor,
    ) -> Result<Solution, PruneError> {
        let tensors = solution.weights.len();
        for t in 0..tensors {
            let mask = &solution.mask.tensors()[t];
            let (_, cols) = problem.spec.tensors()[t].matrix();
            let columns: Vec<u32> = (0..cols as u32).collect();
            let curvature = problem.curvature(t, &columns)?;
            let tensor = Tensor {
                curvature: &curvature,
                strips: strips(&PackedOrder::new(problem.spec, t, &solution.mask), self.group),
                cols,
                mask,
                quantizer: self.quantizer,
            };
            let rows: Vec<usize> = (0..problem.weights[t].rows()).collect();
            let target = problem::gather(problem.weights[t], &rows, &columns, &curvature);
            let share = |of_this: f64| monitor.progress((t as f64 + of_this) / tensors as f64);
            let stopped = || monitor.cancelled();
            let note = tensor.round(self, target, &mut solution.weights[t], &share, &stopped)?;
            solution.notes.extend(note);
        }
        Ok(solution)
    }
}

/// Kept weights of the rows of a strip, in packed order, with the scales of their groups.
pub(super) struct Strip {
    /// The rows, of the tensor.
    rows: std::ops::Range<usize>,
    /// Row-major offsets from the first row on.
    offsets: Vec<usize>,
    /// Weights of a group.
    group: usize,
    /// One per group; NaN until it is chosen.
    scales: Vec<f32>,
}

fn strips(order: &PackedOrder, group: usize) -> Vec<Strip> {
    let height = order.strip_rows();
    let strip = |i: usize| {
        let offsets = order.strip(i);
        let scales = vec![f32::NAN; offsets.len().div_ceil(group)];
        Strip { rows: i * height..order.rows().min((i + 1) * height), offsets, group, scales }
    };
    (0..order.strips()).into_par_iter().map(strip).collect()
}

/// A tensor to be rounded. Weights are in units of its curvature, see [`Curvature`].
struct Tensor<'a> {
    curvature: &'a Curvature,
    strips: Vec<Strip>,
    cols: usize,
    mask: &'a Bits,
    quantizer: Quantizer,
}

impl Tensor<'_> {
    /// Rounds `weights`, whose target before pruning is `target`.
    fn round(
        mut self,
        options: &Quant,
        target: Matrix,
        weights: &mut Matrix,
        progress: &dyn Fn(f64),
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<String>, PruneError> {
        let (rows, cols) = (target.rows(), self.cols);
        if rows == 0 || cols == 0 {
            return Ok(None);
        }
        let a = self.curvature.matrix();
        let plain = self.nearest(weights);

        let mut keep =
            Matrix::from_fn(rows, cols, |i, j| f32::from(u8::from(self.mask.get(i * cols + j))));
        let all: Vec<usize> = (0..rows).collect();
        let columns: Vec<u32> = (0..cols as u32).collect();
        let mut x = problem::gather((&*weights).into(), &all, &columns, self.curvature);
        // What is left to fit: w minus the rounded columns.
        let mut left = target.clone();
        let fine = Stop { steps: STEPS, gain: FINE };
        pcg::solve(a.view(), left.view(), keep.view(), x.view_mut(), fine);

        let density = self.mask.count() as f64 / (rows * cols) as f64;
        let blocks = Blocks::new(self.curvature, options.block, density);
        let mut codes = Matrix::zeros(rows, cols);
        for b in 0..blocks.count() {
            if cancelled() {
                return Err(PruneError::Stopped);
            }
            if b > 0 {
                pcg::solve(a.view(), left.view(), keep.view(), x.view_mut(), BETWEEN);
            }
            self.round_block(&blocks, b, &mut x, &mut left, &mut keep, &mut codes);
            progress((b + 1) as f64 / (blocks.count() + 1) as f64);
        }

        let scales: Vec<Vec<f32>> = self.strips.iter().map(|strip| strip.scales.clone()).collect();
        let mut rounded = descent::Rounded { codes, scales, left };
        rounded.take_better(&self, plain, &target);
        rounded.descend(&self, options.sweeps);
        rounded.write(&self, weights);
        progress(1.0);
        Ok(blocks.note())
    }

    /// The nearest codes of some weights, whose scales weigh all errors of a group alike.
    fn nearest(&self, weights: &Matrix) -> (Matrix, Vec<Vec<f32>>) {
        let mut codes = Matrix::zeros(weights.rows(), weights.cols());
        let height = self.strips[0].rows.len() * self.cols;
        let ones = vec![1.0; self.strips[0].group];
        let scales = codes
            .data_mut()
            .par_chunks_mut(height)
            .zip(&self.strips)
            .map(|(codes, strip)| {
                let weights = &weights.data()[strip.rows.start * self.cols..];
                let scale = |group: &[usize]| {
                    let values: Vec<f32> = group.iter().map(|&at| weights[at]).collect();
                    let scale = self.quantizer.scale(&values, &ones[..values.len()]);
                    for (&at, &value) in group.iter().zip(&values) {
                        codes[at] = self.quantizer.code(value, scale);
                    }
                    scale
                };
                strip.offsets.chunks(strip.group).map(scale).collect()
            })
            .collect();
        (codes, scales)
    }

    /// The products of rows in units of the curvature with A.
    fn times_a(&self, rows: &Matrix) -> Matrix {
        let mut product = Matrix::zeros(rows.rows(), rows.cols());
        let a = self.curvature.matrix().view();
        gemm(0.0, product.view_mut(), 1.0, rows.view(), a, Threads::All);
        product
    }
}
