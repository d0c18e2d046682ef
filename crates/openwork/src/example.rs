//! Example masks: a reproducible mask of any spec, for drawings and for
//! statistics that need some mask of the spec.

use crate::mask::Bits;
use crate::random::{STEP, mix, unit};
use crate::select;
use crate::spec::Spec;
use rayon::prelude::*;
use std::collections::HashMap;

/// Most blocks of a scope that are ranked even if the tensor is larger than
/// [`MAX_BLOCKS`].
const MAX_RANKED: usize = 1 << 14;
/// Most blocks of a spec whose scopes are ranked whatever their size.
const MAX_BLOCKS: usize = 1 << 22;

/// A pseudo-random score in [0, 1) that depends on its arguments only, so a
/// corner of an example mask equals the same corner of the whole.
pub fn score(seed: u64, scope: usize, block: usize) -> f64 {
    let mut z = mix(seed.wrapping_add(STEP));
    z = mix(z.wrapping_add(scope as u64).wrapping_add(STEP));
    z = mix(z.wrapping_add(block as u64).wrapping_add(STEP));
    unit(z)
}

/// The mask that keeps the blocks of highest [`score`], computed for the scopes
/// that are asked about.
#[derive(Debug)]
pub struct ExampleMask<'a> {
    spec: &'a Spec,
    seed: u64,
    /// For each scope met, its dropped blocks in rising order.
    dropped: HashMap<usize, Vec<usize>>,
}

impl<'a> ExampleMask<'a> {
    /// The example mask of `spec` with this seed.
    pub fn new(spec: &'a Spec, seed: u64) -> Self {
        Self { spec, seed, dropped: HashMap::new() }
    }

    /// Whether the mask is one of the spec. Scopes too large to rank keep each
    /// block with a probability of the share kept instead.
    pub fn is_exact(&self) -> bool {
        self.spec.blocks_per_scope() <= MAX_RANKED || self.spec.blocks() <= MAX_BLOCKS
    }

    /// Whether a block of a scope is kept.
    pub fn keeps(&mut self, (scope, block): (usize, usize)) -> bool {
        let (spec, seed) = (self.spec, self.seed);
        if !self.is_exact() {
            return score(seed, scope, block) < spec.block_density();
        }
        let dropped = self.dropped.entry(scope).or_insert_with(|| {
            let blocks = 0..spec.blocks_per_scope();
            let scores: Vec<_> = blocks.map(|block| score(seed, scope, block)).collect();
            select::dropped(&scores, |block| spec.is_padding(scope, block), spec.keep())
        });
        dropped.binary_search(&block).is_err()
    }
}

/// All blocks that the example mask keeps, scope after scope. Ranks every scope, so this is
/// for specs of which most blocks are asked about.
///
/// ```
/// use openwork::example::{ExampleMask, kept_blocks};
/// let spec = "2:4".parse::<openwork::Pattern>().unwrap().bind(&[8, 16]).unwrap();
/// let kept = kept_blocks(&spec, 1);
/// let mut mask = ExampleMask::new(&spec, 1);
/// assert!((0..spec.blocks()).all(|block| kept.get(block) == mask.keeps((block / 4, block % 4))));
/// ```
pub fn kept_blocks(spec: &Spec, seed: u64) -> Bits {
    /// Blocks that one thread ranks at a time.
    const CHUNK: usize = 1 << 14;
    let count = spec.blocks_per_scope();
    let scopes_at_a_time = (CHUNK / count).max(1);
    let chunks: Vec<usize> = (0..spec.scopes()).step_by(scopes_at_a_time).collect();
    let rank = |first: usize| {
        let scopes = first..(first + scopes_at_a_time).min(spec.scopes());
        let mut kept = Bits::zeros(scopes.len() * count);
        let (mut scores, mut order) = (vec![0.0; count], Vec::new());
        let mut stays = vec![false; count];
        for (i, scope) in scopes.enumerate() {
            for (block, of) in scores.iter_mut().enumerate() {
                *of = match spec.is_padding(scope, block) {
                    true => select::PADDING,
                    false => score(seed, scope, block),
                };
            }
            select::keep_best(&mut scores, spec.keep(), &mut stays, &mut order);
            for (block, _) in stays.iter().enumerate().filter(|(_, stays)| **stays) {
                kept.set(i * count + block, true);
            }
        }
        kept
    };
    let ranked: Vec<Bits> = chunks.into_par_iter().map(rank).collect();
    let mut all = Bits::zeros(0);
    ranked.iter().for_each(|bits| all.append(bits));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mask, Pattern};

    #[test]
    fn an_example_is_a_mask_of_the_spec() {
        for (text, dims) in [
            ("2:4@8", &[40, 128][..]),
            ("rows16", &[64, 64]),
            ("unstructured(30%)", &[32, 64]),
            ("pad (1,4) scope (1,4) keep 2", &[5, 10]),
        ] {
            let spec = text.parse::<Pattern>().unwrap().bind(dims).unwrap();
            let mask = Mask::select(&spec, |scope, block| score(7, scope, block));
            let mut example = ExampleMask::new(&spec, 7);
            assert!(example.is_exact());
            let kept = kept_blocks(&spec, 7);
            assert_eq!(kept.len(), spec.blocks());
            for scope in 0..spec.scopes() {
                for block in 0..spec.blocks_per_scope() {
                    let number = scope * spec.blocks_per_scope() + block;
                    assert_eq!(kept.get(number), example.keeps((scope, block)), "{text}");
                    for element in spec.elements(scope, block) {
                        assert_eq!(mask.keeps(element), example.keeps((scope, block)), "{text}");
                    }
                }
            }
        }
    }

    #[test]
    fn scopes_too_large_to_rank_keep_about_the_density() {
        let spec = "unstructured(30%)".parse::<Pattern>().unwrap().bind(&[4096, 4096]).unwrap();
        let mut example = ExampleMask::new(&spec, 1);
        assert!(!example.is_exact());
        let kept = (0..10_000).filter(|&block| example.keeps((0, block))).count();
        assert!((2_800..3_200).contains(&kept), "{kept}");
    }
}
