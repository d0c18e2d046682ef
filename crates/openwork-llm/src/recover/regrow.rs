//! Masks that move during training: at intervals the weakest kept blocks are dropped, and as
//! many are grown in the same scopes ([`openwork::dynamic`]).
//!
//! ```text
//! drop   the blocks of least  sum of w^2          grow   those of largest  sum of m^2
//! ```
//!
//! where `m` is Adam's running mean of the gradient, which pruned weights have too: it is
//! less noisy than the gradient of one step. Every scope keeps its number of blocks. A zero
//! weight is one that was pruned, so a grown weight starts at the smallest number instead.

use crate::model::{Layer, Parameter};
use openwork::Spec;
use openwork::blocks::Blocks;
use openwork::dynamic::{Schedule, update};
use openwork::sparse::Encoding;

/// Linear layers of a layer that share a pattern.
#[derive(Clone, Debug)]
pub struct PatternGroup {
    /// Their indices in the layer, in the order of the spec's tensors.
    pub linears: Vec<usize>,
    /// The pattern; without levels, if blocks are to move.
    pub spec: Spec,
    /// The codes that the run rounded their weights to; such blocks do not move.
    pub encoding: Option<Encoding>,
}

/// Blocks move in this share of the steps; then the mask stays.
const MOVING: f64 = 0.75;

/// Blocks whose gradient is smaller do not grow: the square of what Adam adds to its root.
const LEAST_GROWTH: f64 = 1e-16;

/// When blocks move, in a training of `steps` steps.
pub(super) fn schedule(fraction: f64, every: usize, steps: usize) -> Schedule {
    Schedule { fraction, every: every as u64, end: (MOVING * steps as f64) as u64 }
}

/// Moves at most the share `fraction` of each group's kept blocks, given the mean gradients
/// of the layer's parameters, in the order of [`Parameter::all`]. Groups that are not
/// trained have none and stay. Returns the number of blocks that moved.
pub(super) fn move_blocks(
    layer: &mut Layer,
    groups: &[PatternGroup],
    means: &[Vec<f32>],
    fraction: f64,
) -> usize {
    let mut weights: Vec<&mut [f32]> = layer
        .parameters_mut()
        .filter(|(parameter, _)| matches!(parameter, Parameter::Weight(_)))
        .map(|(_, numbers)| numbers)
        .collect();
    groups.iter().map(|group| group.move_blocks(&mut weights, means, fraction)).sum()
}

impl PatternGroup {
    /// Moves blocks, given the weights of all linear layers and their mean gradients.
    fn move_blocks(&self, weights: &mut [&mut [f32]], means: &[Vec<f32>], fraction: f64) -> usize {
        let Self { linears, spec, .. } = self;
        if linears.iter().any(|&linear| means[linear].len() != weights[linear].len()) {
            return 0;
        }
        let blocks = Blocks::new(spec);
        let square = |x: f32| f64::from(x) * f64::from(x);
        let saliency =
            blocks.fold(0.0, |sum, e| sum + square(weights[linears[e.tensor]][e.offset]));
        let mut growth =
            blocks.fold(0.0, |sum, e| sum + square(means[linears[e.tensor]][e.offset]));
        let before: Vec<bool> = saliency.iter().map(|&size| size > 0.0).collect();
        // A block that was dropped is preferred to one without a gradient, which could not
        // be trained.
        let kept = growth.iter_mut().zip(&before).filter(|(_, kept)| **kept);
        kept.for_each(|(growth, _)| *growth = growth.max(LEAST_GROWTH));
        let mut stays = before.clone();
        let moved = update(spec, &mut stays, &saliency, &growth, fraction);
        for (tensor, &linear) in linears.iter().enumerate() {
            blocks.update(tensor, weights[linear], |block, w| {
                match (before[block], stays[block]) {
                    (true, false) => *w = 0.0,
                    (false, true) => *w = f32::MIN_POSITIVE,
                    _ => {}
                }
            });
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openwork::Pattern;
    use openwork::dynamic::{numbers, random};
    use openwork::spec::PRESETS;

    /// Kept blocks of each scope.
    fn kept(spec: &Spec, weights: &[Vec<f32>]) -> Vec<usize> {
        let any = Blocks::new(spec).fold(false, |any, e| any || weights[e.tensor][e.offset] != 0.0);
        any.chunks(spec.blocks_per_scope())
            .map(|scope| scope.iter().filter(|&&kept| kept).count())
            .collect()
    }

    #[test]
    fn every_scope_keeps_its_number_of_blocks_and_the_largest_weights() {
        let presets = PRESETS
            .iter()
            .map(|preset| preset.example.parse::<Pattern>().unwrap().bind(preset.shape).unwrap());
        let coupled = "blocks a: block (1,_) & b perm (1,0): block (_,1) scope (4,1) keep 2";
        let coupled: Pattern = coupled.parse().unwrap();
        let coupled = coupled.bind_all(&[("a", &[8, 3]), ("b", &[3, 8])]).unwrap();
        for spec in presets.chain([coupled]).filter(|spec| !spec.has_levels()) {
            let stays = random(&spec, 3);
            let mut weights: Vec<Vec<f32>> = Vec::new();
            let mut means = Vec::new();
            for (i, tensor) in spec.tensors().iter().enumerate() {
                let some = |seed| numbers(seed, tensor.size()).into_iter().map(|x| x as f32 + 0.01);
                let mut own: Vec<f32> = some(i as u64).collect();
                Blocks::new(&spec).update(i, &mut own, |block, w| {
                    if !stays[block] {
                        *w = 0.0;
                    }
                });
                weights.push(own);
                means.push(some(100 + i as u64).collect());
            }
            let before = weights.clone();
            let linears = (0..weights.len()).collect();
            let group = PatternGroup { linears, spec, encoding: None };
            let mut slices: Vec<&mut [f32]> = weights.iter_mut().map(Vec::as_mut_slice).collect();
            let moved = group.move_blocks(&mut slices, &means, 0.3);
            assert_eq!(kept(&group.spec, &weights), kept(&group.spec, &before));
            assert_eq!(moved > 0, weights != before);
            let pairs = weights.iter().flatten().zip(before.iter().flatten());
            for (now, then) in pairs {
                let as_before = now == then;
                let dropped = *now == 0.0;
                let grown = *then == 0.0 && *now == f32::MIN_POSITIVE;
                assert!(as_before || dropped || grown, "{now} from {then}");
            }
            // Without gradients nothing moves.
            let mut slices: Vec<&mut [f32]> = weights.iter_mut().map(Vec::as_mut_slice).collect();
            let flat: Vec<Vec<f32>> = slices.iter().map(|own| vec![0.0; own.len()]).collect();
            assert_eq!(group.move_blocks(&mut slices, &flat, 0.3), 0);
            // Parameters that are not trained have no mean gradients.
            let mut slices: Vec<&mut [f32]> = weights.iter_mut().map(Vec::as_mut_slice).collect();
            let untrained = vec![Vec::new(); slices.len()];
            assert_eq!(group.move_blocks(&mut slices, &untrained, 0.3), 0);
        }
    }
}
