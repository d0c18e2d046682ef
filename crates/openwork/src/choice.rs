//! Choices: which blocks each level of a spec keeps.

use crate::example;
use crate::mask::{Bits, Mask};
use crate::random::{STEP, mix};
use crate::select;
use crate::spec::{Side, Spec};

/// The blocks that every level of a spec keeps. Holds: exactly `keep` of each scope, at
/// every level.
///
/// A mask over the weights does not tell it, because a kept block may be pruned to nothing
/// by the level inside it.
///
/// ```
/// use openwork::{Pattern, mask::Choice};
/// let spec = "scope (1,4) keep 2 then 1:2".parse::<Pattern>().unwrap().bind(&[4, 8]).unwrap();
/// let choice = Choice::example(&spec, 0);
/// let mask = choice.mask(&spec);
/// assert_eq!(mask.density(), 0.25);
/// assert_eq!(mask.conforms(&spec), Ok(()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// By scope, then by block of the scope.
    kept: Bits,
    then: Option<Box<Self>>,
    otherwise: Option<Box<Self>>,
}

impl Choice {
    /// A choice for `spec`: `decide` gives the kept blocks of each level, placed on the
    /// tensor, from the outermost inwards.
    pub(crate) fn new(
        spec: &Spec,
        path: &mut Vec<Side>,
        decide: &mut impl FnMut(&[Side], &Spec) -> Bits,
    ) -> Self {
        let kept = decide(path, spec);
        let [then, otherwise] = Side::BOTH.map(|side| {
            let inside = spec.inside(side, keeps(spec, &kept))?;
            path.push(side);
            let inner = Self::new(&inside, path, decide);
            path.pop();
            Some(Box::new(inner))
        });
        Self { kept, then, otherwise }
    }

    /// A choice of one level with those inside it.
    pub(crate) fn from_levels(kept: Bits, inner: [Option<Self>; 2]) -> Self {
        let [then, otherwise] = inner.map(|choice| choice.map(Box::new));
        Self { kept, then, otherwise }
    }

    /// A pseudo-random choice.
    pub fn example(spec: &Spec, seed: u64) -> Self {
        Self::new(spec, &mut Vec::new(), &mut |path, spec| {
            let step =
                |seed: u64, side: &Side| mix(seed.wrapping_add(STEP).rotate_left(*side as u32));
            let seed = path.iter().fold(seed, step);
            let mut kept = Bits::ones(spec.blocks());
            let count = spec.blocks_per_scope();
            for scope in 0..spec.scopes() {
                let scores: Vec<f64> = (0..count).map(|b| example::score(seed, scope, b)).collect();
                let padding = |block| spec.is_padding(scope, block);
                for block in select::dropped(&scores, padding, spec.keep()) {
                    kept.set(scope * count + block, false);
                }
            }
            kept
        })
    }

    /// The kept blocks of the outermost level, by scope, then by block of the scope.
    pub fn kept(&self) -> &Bits {
        &self.kept
    }

    /// The choice of the level inside a side.
    pub fn level(&self, side: Side) -> Option<&Self> {
        side.pick(self.then.as_deref(), self.otherwise.as_deref())
    }

    /// The weights that all levels keep.
    pub fn mask(&self, spec: &Spec) -> Mask {
        let mut mask = Mask::full(spec);
        self.drop_from(spec, &mut mask);
        mask.with_choice(self.clone())
    }

    fn drop_from(&self, spec: &Spec, mask: &mut Mask) {
        let count = spec.blocks_per_scope();
        if spec.otherwise().is_none() {
            for block in (0..spec.blocks()).filter(|&block| !self.kept.get(block)) {
                mask.drop_block(spec, block / count, block % count);
            }
        }
        for side in Side::BOTH {
            let inside = spec.inside(side, keeps(spec, &self.kept));
            if let (Some(inside), Some(inner)) = (inside, self.level(side)) {
                inner.drop_from(&inside, mask);
            }
        }
    }
}

/// Whether a block is kept, by scope and index in it.
pub(crate) fn keeps(spec: &Spec, kept: &Bits) -> impl Fn(usize, usize) -> bool {
    let count = spec.blocks_per_scope();
    move |scope, block| kept.get(scope * count + block)
}

/// The blocks that a mask of the outermost level of `spec` keeps, filled up with padding.
pub(crate) fn kept_blocks(spec: &Spec, mask: &Mask) -> Bits {
    let count = spec.blocks_per_scope();
    let mut kept = Bits::zeros(spec.blocks());
    for scope in 0..spec.scopes() {
        let (mut padding, mut left) = (Vec::new(), spec.keep());
        for block in 0..count {
            match spec.elements(scope, block).next() {
                None => padding.push(block),
                Some(element) if mask.keeps(element) => {
                    kept.set(scope * count + block, true);
                    left -= 1;
                }
                Some(_) => {}
            }
        }
        padding.iter().take(left).for_each(|block| kept.set(scope * count + block, true));
    }
    kept
}
