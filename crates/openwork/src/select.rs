//! Selection: keeps exactly k blocks of a scope by score, with ties broken by index.

use crate::mask::Mask;
use crate::spec::{Element, Spec, Walker};
use rayon::prelude::*;
use std::cmp::Ordering;

/// The blocks dropped when the `keep` of highest score are kept, in ascending order.
/// Of equal scores the lower index is kept; blocks for which `padding` holds are kept
/// only after all others. NaN ranks below every number; zeros of either sign are
/// equal.
///
/// ```
/// use openwork::select::dropped;
/// assert_eq!(dropped(&[1.0, 3.0, 3.0, 3.0], |_| false, 2), [0, 3]);
/// ```
///
/// # Panics
///
/// If `keep` exceeds the number of scores.
pub fn dropped(scores: &[f64], padding: impl Fn(usize) -> bool, keep: usize) -> Vec<usize> {
    assert!(keep <= scores.len(), "keep {keep} of {} blocks", scores.len());
    let mut ranked: Vec<Rank> = Vec::new();
    ranked.extend(
        scores.iter().enumerate().map(|(block, &score)| Rank::new(score, padding(block), block)),
    );
    drop_lowest(&mut ranked, keep).iter().map(|rank| rank.block).collect()
}

/// The sort key of a block.
#[derive(Clone, Copy)]
struct Rank {
    padding: bool,
    score: f64,
    block: usize,
}

impl Rank {
    fn new(score: f64, padding: bool, block: usize) -> Self {
        // Adding +0 turns -0 into 0.
        Self { padding, score: if score.is_nan() { f64::NEG_INFINITY } else { score + 0.0 }, block }
    }

    fn stays_before(&self, other: &Self) -> Ordering {
        let by_padding = self.padding.cmp(&other.padding);
        by_padding
            .then_with(|| other.score.total_cmp(&self.score))
            .then_with(|| self.block.cmp(&other.block))
    }
}

/// The dropped blocks by ascending index; the rest of `ranked` is unordered.
fn drop_lowest(ranked: &mut [Rank], keep: usize) -> &[Rank] {
    if keep < ranked.len() {
        ranked.select_nth_unstable_by(keep, Rank::stays_before);
    }
    let dropped = &mut ranked[keep..];
    dropped.sort_unstable_by_key(|rank| rank.block);
    dropped
}

/// The score of a padding block, for [`keep_best`].
pub(crate) const PADDING: f64 = -1.0;

/// Marks the kept blocks of a scope by the rules of [`dropped`]; optimized for many
/// small scopes. Scores are at least zero, NaN, or [`PADDING`].
pub(crate) fn keep_best(scores: &mut [f64], keep: usize, stays: &mut [bool], order: &mut Vec<u32>) {
    /// Up to this size, counting the better blocks is faster than sorting.
    const FEW: usize = 16;
    // NaN ranks between padding and the numbers.
    scores.iter_mut().for_each(|score| *score = if score.is_nan() { -0.5 } else { *score });
    if scores.len() <= FEW {
        for (b, stays) in stays.iter_mut().enumerate() {
            let (before, score, after) = (&scores[..b], scores[b], &scores[b + 1..]);
            let rank = before.iter().map(|&s| usize::from(s >= score)).sum::<usize>()
                + after.iter().map(|&s| usize::from(s > score)).sum::<usize>();
            *stays = rank < keep;
        }
        return;
    }
    order.clear();
    order.extend(0..scores.len() as u32);
    if keep < order.len() {
        order.select_nth_unstable_by(keep, |&a, &b| {
            scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b))
        });
    }
    stays.fill(false);
    order[..keep].iter().for_each(|&b| stays[b as usize] = true);
}

/// Scopes per parallel task.
const CHUNK: usize = 1024;

/// Selects masks for one spec repeatedly.
pub struct Selector<'a> {
    spec: &'a Spec,
    walker: Walker<'a>,
}

impl<'a> Selector<'a> {
    /// A selector for a spec.
    pub fn new(spec: &'a Spec) -> Self {
        Self { spec, walker: Walker::new(spec) }
    }

    /// Keeps exactly the `keep` blocks of highest score in every scope, where the score of
    /// a block is the sum over its elements; ties by index, padding last. The mask does
    /// not depend on the number of threads.
    pub fn select(&self, score: impl Fn(Element) -> f64 + Sync) -> Mask {
        let spec = self.spec;
        let chunks: Vec<Vec<Element>> = (0..spec.scopes().div_ceil(CHUNK))
            .into_par_iter()
            .map(|chunk| {
                let scopes = chunk * CHUNK..((chunk + 1) * CHUNK).min(spec.scopes());
                let (mut scratch, mut gone) = (Scratch::default(), Vec::new());
                for scope in scopes {
                    self.decide(scope, &mut scratch, &score, |element| gone.push(element));
                }
                gone
            })
            .collect();
        let mut mask = Mask::full(spec);
        for element in chunks.into_iter().flatten() {
            mask.set(element, false);
        }
        mask
    }

    /// Decides one scope as [`Selector::select`] does, and visits the dropped elements.
    pub(crate) fn decide(
        &self,
        scope: usize,
        scratch: &mut Scratch,
        mut score: impl FnMut(Element) -> f64,
        mut gone: impl FnMut(Element),
    ) {
        let Scratch { bases, ranked } = scratch;
        self.walker.enter(scope, bases);
        ranked.clear();
        for block in 0..self.spec.blocks_per_scope() {
            let (mut sum, mut real) = (0.0, false);
            self.walker.visit(scope, bases, block, |element| {
                sum += score(element);
                real = true;
            });
            ranked.push(Rank::new(sum, !real, block));
        }
        for rank in drop_lowest(ranked, self.spec.keep()) {
            self.walker.visit(scope, bases, rank.block, &mut gone);
        }
    }

    /// Visits every element of a scope with its block, in ascending order of blocks.
    pub(crate) fn visit(
        &self,
        scope: usize,
        scratch: &mut Scratch,
        mut visit: impl FnMut(usize, Element),
    ) {
        self.walker.enter(scope, &mut scratch.bases);
        for block in 0..self.spec.blocks_per_scope() {
            self.walker.visit(scope, &scratch.bases, block, |element| visit(block, element));
        }
    }
}

/// Buffers reused from scope to scope.
#[derive(Default)]
pub(crate) struct Scratch {
    bases: Vec<usize>,
    ranked: Vec<Rank>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn selection_is_a_stable_sort(scores in prop::collection::vec(-1i32..5, 0..40), share in 0.0f64..=1.0) {
            // -1 stands for a NaN, which ranks below every number.
            let nan = |score: i32| if score < 0 { f64::NAN } else { f64::from(score) };
            let order = scores;
            let mut scores: Vec<f64> = order.iter().map(|&score| nan(score)).collect();
            let keep = (scores.len() as f64 * share) as usize;
            let mut sorted: Vec<usize> = (0..scores.len()).collect();
            sorted.sort_by_key(|&block| -order[block]);
            let mut want = sorted[keep..].to_vec();
            want.sort_unstable();
            prop_assert_eq!(dropped(&scores, |_| false, keep), &want[..]);
            let mut stays = vec![true; scores.len()];
            keep_best(&mut scores, keep, &mut stays, &mut Vec::new());
            let gone: Vec<usize> = (0..scores.len()).filter(|&block| !stays[block]).collect();
            prop_assert_eq!(gone, want);
        }
    }

    #[test]
    fn padding_is_never_kept_before_a_real_block() {
        assert_eq!(dropped(&[0.0, 9.0, 0.0, 9.0], |block| block == 1, 2), [1, 2]);
        assert_eq!(dropped(&[0.0, 9.0, 0.0, 9.0], |block| block % 2 == 1, 3), [3]);
    }

    #[test]
    fn minus_zero_is_no_less_than_zero() {
        assert_eq!(dropped(&[-0.0, 0.0], |_| false, 1), [1]);
    }
}
