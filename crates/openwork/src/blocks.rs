//! Operations on all blocks of a spec: scores, which blocks are kept, and updates of their
//! weights. Blocks are numbered scope by scope.

use crate::select::{PADDING, dropped, keep_best};
use crate::spec::{Element, Spec, Walker};
use rayon::prelude::*;

/// Scopes per parallel task.
const CHUNK: usize = 1024;
/// The longest table of a scope's offsets.
const MAX_TABLE: usize = 1 << 16;

/// The blocks of a spec, prepared for fast visits. Block `b` of scope `s` has number
/// `s * blocks_per_scope + b`.
///
/// ```
/// use openwork::{Pattern, blocks::Blocks};
/// let spec = "1:2".parse::<Pattern>().unwrap().bind(&[1, 4]).unwrap();
/// let blocks = Blocks::new(&spec);
/// let mut w = [3.0f32, -1.0, 0.5, 2.0];
/// let stays = blocks.kept(|e| f64::from(w[e.offset]).powi(2));
/// blocks.update(0, &mut w, |block, w| if !stays[block] { *w = 0.0 });
/// assert_eq!(w, [3.0, 0.0, 0.0, 2.0]);
/// ```
pub struct Blocks<'a> {
    spec: &'a Spec,
    walker: Walker<'a>,
    table: Option<Table>,
}

impl<'a> Blocks<'a> {
    /// The blocks of a spec.
    pub fn new(spec: &'a Spec) -> Self {
        Self { spec, walker: Walker::new(spec), table: Table::new(spec) }
    }

    /// Keeps exactly the `keep` blocks of highest score in every scope, where the score of a
    /// block is the sum over its elements, at least zero. Of ties the lower index is kept;
    /// NaN ranks below every number, and padding below NaN.
    pub fn kept(&self, score: impl Fn(Element) -> f64 + Sync) -> Vec<bool> {
        let (count, keep) = (self.spec.blocks_per_scope(), self.spec.keep());
        let mut stays = vec![true; self.spec.blocks()];
        stays.par_chunks_mut(CHUNK * count).enumerate().for_each(|(chunk, stays)| {
            let (mut scores, mut order, mut bases) = (vec![PADDING; count], Vec::new(), Vec::new());
            for (at, stays) in stays.chunks_exact_mut(count).enumerate() {
                scores.fill(PADDING);
                self.visit(chunk * CHUNK + at, &mut bases, |block, element| {
                    let sum = &mut scores[block];
                    *sum = score(element) + if *sum == PADDING { 0.0 } else { *sum };
                });
                keep_best(&mut scores, keep, stays, &mut order);
            }
        });
        stays
    }

    /// The same for given scores, one per block.
    ///
    /// # Panics
    ///
    /// If there is not one score per block.
    pub fn kept_by(&self, scores: &[f64]) -> Vec<bool> {
        assert_eq!(scores.len(), self.spec.blocks(), "a score for every block");
        let count = self.spec.blocks_per_scope();
        let mut stays = vec![true; scores.len()];
        stays.par_chunks_mut(count).zip(scores.par_chunks(count)).enumerate().for_each(
            |(scope, (stays, scores))| {
                let padding = |block: usize| self.spec.is_padding(scope, block);
                for block in dropped(scores, padding, self.spec.keep()) {
                    stays[block] = false;
                }
            },
        );
        stays
    }

    /// Folds the elements of each block with `step`, starting from `start`.
    pub fn fold<A: Copy + Send + Sync>(
        &self,
        start: A,
        step: impl Fn(A, Element) -> A + Sync,
    ) -> Vec<A> {
        let count = self.spec.blocks_per_scope();
        let mut folded = vec![start; self.spec.blocks()];
        folded.par_chunks_mut(CHUNK * count).enumerate().for_each(|(chunk, folded)| {
            let mut bases = Vec::new();
            for (at, folded) in folded.chunks_exact_mut(count).enumerate() {
                self.visit(chunk * CHUNK + at, &mut bases, |block, element| {
                    folded[block] = step(folded[block], element);
                });
            }
        });
        folded
    }

    /// Updates every weight of one tensor's domain, given the number of its block.
    ///
    /// # Panics
    ///
    /// If the tensor does not have the size in the spec.
    pub fn update<T: Send>(
        &self,
        tensor: usize,
        weights: &mut [T],
        change: impl Fn(usize, &mut T) + Sync,
    ) {
        let size = self.spec.tensors()[tensor].size();
        assert_eq!(weights.len(), size, "the spec has {size} weights");
        let shared = &Shared(weights.as_mut_ptr());
        let count = self.spec.blocks_per_scope();
        (0..self.spec.scopes().div_ceil(CHUNK)).into_par_iter().for_each(|chunk| {
            let mut bases = Vec::new();
            for scope in chunk * CHUNK..((chunk + 1) * CHUNK).min(self.spec.scopes()) {
                self.visit(scope, &mut bases, |block, element| {
                    if element.tensor == tensor {
                        // SAFETY: the offset lies within the tensor, whose length was checked
                        // above; every element is in one block only (a spec's first invariant),
                        // and every block is visited by one thread, so no other reference to
                        // this weight exists.
                        let weight = unsafe { &mut *shared.0.add(element.offset) };
                        change(scope * count + block, weight);
                    }
                });
            }
        });
    }

    /// Keeps exactly the `keep` blocks of highest L2 norm in every scope of a spec over one
    /// tensor and writes zeros to the others: [`Blocks::kept`] and [`Blocks::update`] in one
    /// pass. `wide` converts a weight to a number.
    ///
    /// # Panics
    ///
    /// If the spec has several tensors, or the tensor does not have the size in the spec.
    pub fn threshold<T: Weight>(&self, weights: &mut [T], wide: impl Fn(T) -> f32 + Sync) {
        let square = |w: T| f64::from(wide(w)) * f64::from(wide(w));
        let [tensor] = self.spec.tensors() else { panic!("the spec is over several tensors") };
        assert_eq!(weights.len(), tensor.size(), "the spec has {} weights", tensor.size());
        let Some(Table { offsets, size }) = &self.table else {
            let stays = self.kept(|e| square(weights[e.offset]));
            self.update(0, weights, |block, w| {
                if !stays[block] {
                    *w = T::from_bits(T::Bits::default());
                }
            });
            return;
        };
        let shared = &Shared(weights.as_mut_ptr().cast::<T::Bits>());
        let (count, keep) = (self.spec.blocks_per_scope(), self.spec.keep());
        (0..self.spec.scopes().div_ceil(CHUNK)).into_par_iter().for_each(|chunk| {
            let bases = tensor.scope_offsets(chunk * CHUNK).take(CHUNK);
            let wide = |bits| wide(T::from_bits(bits));
            // SAFETY: bases and offsets add up to places within the tensor, whose length was
            // checked above; every element is in one scope only (a spec's first invariant), and
            // every scope is visited by one thread, so no other reference to these weights
            // exists. Weights and bits have one size and alignment (`Weight`).
            unsafe {
                match (offsets.len(), *size) {
                    (2, 1) => few::<_, 2>(shared, bases, offsets, keep, &wide),
                    (4, 1) => few::<_, 4>(shared, bases, offsets, keep, &wide),
                    (8, 1) => few::<_, 8>(shared, bases, offsets, keep, &wide),
                    (16, 1) => few::<_, 16>(shared, bases, offsets, keep, &wide),
                    _ => many(shared, bases, (offsets, count), keep, &|bits| {
                        square(T::from_bits(bits))
                    }),
                }
            }
        });
    }

    /// Visits the elements of a scope with their blocks, in ascending order of blocks.
    #[inline]
    fn visit(&self, scope: usize, bases: &mut Vec<usize>, mut visit: impl FnMut(usize, Element)) {
        let count = self.spec.blocks_per_scope();
        if let Some(Table { offsets, size }) = &self.table {
            let base = self.spec.tensors()[0].scope_offset(scope);
            for (block, offsets) in offsets.chunks_exact(*size).enumerate() {
                for offset in offsets {
                    visit(block, Element { tensor: 0, offset: base + offset });
                }
            }
            return;
        }
        self.walker.enter(scope, bases);
        for block in 0..count {
            self.walker.visit(scope, bases, block, |element| visit(block, element));
        }
    }
}

/// The offsets of a scope's elements from its first, if there is one tensor, its view is
/// strided, and the table is short.
struct Table {
    /// Concatenated over blocks.
    offsets: Vec<usize>,
    /// The elements of a block.
    size: usize,
}

impl Table {
    fn new(spec: &Spec) -> Option<Self> {
        let [tensor] = spec.tensors() else { return None };
        let size = tensor.blocks().tile_size();
        let short = spec.blocks_per_scope().checked_mul(size).is_some_and(|n| n <= MAX_TABLE);
        if !short || !tensor.is_direct() || tensor.is_padded() {
            return None;
        }
        let base = tensor.scope_offset(0);
        let blocks = 0..spec.blocks_per_scope();
        let offsets = blocks.flat_map(|b| spec.elements(0, b).map(|e| e.offset - base)).collect();
        Some(Self { offsets, size })
    }
}

/// A weight in memory, and the integer of its bits. Weights that may become zero are moved
/// as integers: selecting between two integers compiles to no branch, whereas selecting
/// between floats does, and 2:4 would mispredict half of them (4 ns per scope, not 21).
///
/// # Safety
///
/// `Bits` has the size and alignment of the weight, and any bits are a weight.
pub unsafe trait Weight: Copy + Send + Sync {
    /// Its bits; their default is zero.
    type Bits: Copy + Default + Send + Sync;
    /// The weight of these bits.
    fn from_bits(bits: Self::Bits) -> Self;
}

/// Implements [`Weight`] for a type.
macro_rules! weight {
    ($weight:ty, $bits:ty, $of:expr) => {
        // SAFETY: both are plain numbers of the same size and alignment.
        unsafe impl Weight for $weight {
            type Bits = $bits;
            #[inline]
            fn from_bits(bits: $bits) -> Self {
                $of(bits)
            }
        }
    };
}

weight!(f32, u32, f32::from_bits);
weight!(f64, u64, f64::from_bits);
// The bits of an f16 or bf16.
weight!(u16, u16, |bits| bits);

/// Thresholds scopes of `N` single weights in registers. Magnitudes have the order of
/// their squares, which f64 represents exactly.
///
/// # Safety
///
/// There are `N` offsets, and every base plus every offset is an index into the tensor that
/// no other thread accesses.
unsafe fn few<B: Copy + Default, const N: usize>(
    shared: &Shared<B>,
    bases: impl Iterator<Item = usize>,
    offsets: &[usize],
    keep: usize,
    wide: &impl Fn(B) -> f32,
) {
    let offsets: [usize; N] = offsets.try_into().expect("the caller's promise");
    for base in bases {
        // SAFETY: guaranteed by the caller.
        let weights = offsets.map(|offset| unsafe { *shared.0.add(base + offset) });
        // NaN becomes -1, below every magnitude.
        let sizes = weights.map(|w| wide(w).abs().max(-1.0));
        for b in 0..N {
            let mut better = 0;
            for o in 0..N {
                // Of ties the lower index is kept.
                better += u32::from(if o < b { sizes[o] >= sizes[b] } else { sizes[o] > sizes[b] });
            }
            let stays = (better as usize) < keep;
            // SAFETY: guaranteed by the caller.
            unsafe {
                *shared.0.add(base + offsets[b]) = if stays { weights[b] } else { B::default() };
            }
        }
    }
}

/// Thresholds scopes of any blocks, given the offsets of their weights, concatenated over
/// blocks, and the number of blocks.
///
/// # Safety
///
/// As for [`few`].
unsafe fn many<B: Copy + Default>(
    shared: &Shared<B>,
    bases: impl Iterator<Item = usize>,
    (offsets, count): (&[usize], usize),
    keep: usize,
    score: &impl Fn(B) -> f64,
) {
    let (mut scores, mut stays, mut order) = (vec![0.0; count], vec![false; count], Vec::new());
    for base in bases {
        let blocks = || offsets.chunks_exact(offsets.len() / count);
        for (sum, block) in scores.iter_mut().zip(blocks()) {
            // SAFETY: guaranteed by the caller.
            *sum = block.iter().map(|&o| score(unsafe { *shared.0.add(base + o) })).sum();
        }
        keep_best(&mut scores, keep, &mut stays, &mut order);
        for (block, _) in blocks().zip(&stays).filter(|(_, stays)| !**stays) {
            // SAFETY: guaranteed by the caller.
            block.iter().for_each(|&o| unsafe { *shared.0.add(base + o) = B::default() });
        }
    }
}

/// A tensor that several threads write to, each to its own weights.
struct Shared<T>(*mut T);

// SAFETY: threads touch disjoint elements; see `Blocks::update`.
unsafe impl<T: Send> Sync for Shared<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dynamic::numbers;
    use crate::spec::PRESETS;
    use crate::{Mask, Pattern};
    use proptest::prelude::*;

    /// Specs beyond the presets; see [`cases`].
    const OTHERS: &[(&str, &[usize])] = &[
        ("2:4", &[5, 12]),
        ("1:2", &[2100, 4]),
        ("3:8", &[6, 16]),
        ("5:16", &[3, 32]),
        ("scope (1,4) keep 0", &[3, 8]),
        ("scope (4,1) keep 1", &[8, 5]),
        ("2:6", &[6, 24]),
        ("2:4@8", &[3, 32]),
        ("rows16", &[32, 32]),
        ("block(2,4)", &[4, 16]),
        ("unstructured(30%)", &[7, 11]),
        ("filter", &[4, 2, 3, 3]),
        ("pad (1,4) scope (1,4) keep 2", &[3, 10]),
        ("in (1,2)+(2,4) scope (1,4) keep 2", &[4, 10]),
        ("in ~((0,0)+(2,2) | (2,2)+(2,2)) scope (4) keep 2", &[4, 4]),
    ];

    /// Every preset, and the others.
    fn cases() -> Vec<(&'static str, &'static [usize])> {
        let presets = PRESETS.iter().map(|preset| (preset.example, preset.shape));
        presets.chain(OTHERS.iter().copied()).collect()
    }

    /// The fast visit selects, folds and updates as the definition does.
    #[test]
    fn blocks_are_those_of_the_spec() {
        for (text, dims) in cases() {
            let spec = text.parse::<Pattern>().unwrap().bind(dims).unwrap();
            let blocks = Blocks::new(&spec);
            let mut w: Vec<f32> =
                (0..spec.tensors()[0].size()).map(|i| ((i * 37 + 11) % 17) as f32 - 8.0).collect();
            let square = |e: Element| f64::from(w[e.offset]).powi(2);
            let sum = |s, b| spec.elements(s, b).map(square).sum::<f64>();
            let sums = blocks.fold(0.0, |a, e| a + square(e));
            let count = spec.blocks_per_scope();
            for s in 0..spec.scopes() {
                for b in 0..count {
                    assert_eq!(sums[s * count + b], sum(s, b), "{text}");
                }
            }
            let (mask, stays) = (Mask::select(&spec, sum), blocks.kept(square));
            assert_eq!(stays, blocks.kept_by(&sums), "{text}");
            let (mut wanted, mut walked) = (w.clone(), w.clone());
            mask.apply(0, &mut wanted);
            blocks.threshold(&mut walked, |w| w);
            assert_eq!(walked, wanted, "{text}");
            blocks.update(0, &mut w, |block, w| {
                if !stays[block] {
                    *w = 0.0;
                }
            });
            assert_eq!(w, wanted, "{text}");
        }
    }

    /// Extreme values, most of them twice in a scope.
    const EDGES: &[f32] = &[
        0.0,
        -0.0,
        1.0,
        -1.0,
        1e-40,
        -1e-40,
        f32::MAX,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];

    proptest! {
        /// For all values and storage types, thresholding leaves the bits that the definition
        /// leaves.
        #[test]
        fn a_threshold_keeps_what_the_definition_keeps(case in 0..cases().len(), seed in any::<u64>()) {
            let (text, dims) = cases()[case];
            let spec = text.parse::<Pattern>().unwrap().bind(dims).unwrap();
            let any = |chance: f64| EDGES[(chance * EDGES.len() as f64) as usize];
            let w: Vec<f32> = numbers(seed, spec.tensors()[0].size()).into_iter().map(any).collect();
            let sum = |s, b| spec.elements(s, b).map(|e| f64::from(w[e.offset]).powi(2)).sum::<f64>();
            let mut wanted = w.clone();
            Mask::select(&spec, sum).apply(0, &mut wanted);
            let blocks = Blocks::new(&spec);
            let mut single = w.clone();
            blocks.threshold(&mut single, |w| w);
            let mut double: Vec<f64> = w.iter().map(|&w| f64::from(w)).collect();
            blocks.threshold(&mut double, |w| w as f32);
            for ((single, double), wanted) in single.iter().zip(&double).zip(&wanted) {
                prop_assert_eq!(single.to_bits(), wanted.to_bits(), "{}", text);
                prop_assert_eq!((*double as f32).to_bits(), wanted.to_bits(), "{}", text);
            }
        }
    }
}
