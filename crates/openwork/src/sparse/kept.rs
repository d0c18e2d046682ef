//! Kept blocks of a tensor, found from its weights.

use super::error::PackError;
use crate::mask::{Bits, Breach, Choice};
use crate::spec::{Element, Side, Spec, Walker};

/// The blocks of a tensor that every level of its spec keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept<'a> {
    pub spec: &'a Spec,
    pub tensor: usize,
    pub choice: &'a Choice,
}

impl<'a> Kept<'a> {
    /// A bit per weight: set outside the domain, and where all levels keep it.
    pub fn mask(&self) -> Bits {
        match self.spec.has_levels() {
            true => self.choice.mask(self.spec).tensors()[0].clone(),
            false => self.outermost(),
        }
    }

    /// The same for the outermost level alone.
    pub fn outermost(&self) -> Bits {
        mask(self.spec, self.tensor, self.choice.kept())
    }

    /// The level inside a side, on the compacted tensor.
    pub fn level(&self, side: Side) -> Option<Self> {
        let spec = self.spec.level(side)?.spec();
        Some(Self { spec, tensor: 0, choice: self.choice.level(side)? })
    }
}

/// What packing has to know about a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// All bits clear: what a dropped weight unpacks to.
    Zero,
    /// -0.0.
    NegativeZero,
    /// Anything else.
    Number,
}

/// The kept blocks, exactly `keep` per scope: a bit per block, at
/// `scope * blocks_per_scope + block`.
///
/// Blocks with a nonzero weight are kept. If they are fewer than `keep`, zero blocks of
/// the lowest numbers join them, padding last.
pub(super) fn kept(spec: &Spec, kind: impl Fn(Element) -> Kind) -> Result<Bits, PackError> {
    let (blocks, keep) = (spec.blocks_per_scope(), spec.keep());
    let mut stay = Bits::zeros(spec.blocks());
    let walker = Walker::new(spec);
    let mut bases = Vec::new();
    let padded = spec.tensors().iter().any(|tensor| tensor.is_padded());
    for scope in 0..spec.scopes() {
        walker.enter(scope, &mut bases);
        let first = scope * blocks;
        let (mut count, mut numbers) = (0, 0);
        for block in 0..blocks {
            let (mut any, mut number) = (false, false);
            walker.visit(scope, &bases, block, |element| {
                let kind = kind(element);
                any |= kind != Kind::Zero;
                number |= kind == Kind::Number;
            });
            if any {
                stay.set(first + block, true);
            }
            count += usize::from(any);
            numbers += usize::from(number);
        }
        if count > keep {
            return Err(breach(spec, scope, numbers, &kind));
        }
        for padding in [false, true] {
            for block in 0..blocks {
                if count == keep {
                    break;
                }
                let free = !stay.get(first + block)
                    && (!padded || padding == spec.is_padding(scope, block));
                if free {
                    stay.set(first + block, true);
                    count += 1;
                }
            }
        }
    }
    Ok(stay)
}

/// The error for a scope with more than `keep` blocks, `numbers` of them with a number.
fn breach(spec: &Spec, scope: usize, numbers: usize, kind: &impl Fn(Element) -> Kind) -> PackError {
    let has = |block: usize, wanted: Kind| {
        spec.elements(scope, block).find(|&element| kind(element) == wanted)
    };
    let only_negative = (0..spec.blocks_per_scope())
        .filter(|&block| has(block, Kind::Number).is_none())
        .find_map(|block| has(block, Kind::NegativeZero));
    match only_negative {
        Some(at) if numbers <= spec.keep() => PackError::NegativeZero {
            scope,
            expected: spec.keep(),
            tensor: spec.tensors()[at.tensor].name().to_string(),
            offset: at.offset,
        },
        _ => PackError::Breach {
            spec: spec.text().to_string(),
            breach: Breach::Count { scope, expected: spec.keep(), found: numbers },
        },
    }
}

/// A bit per weight of tensor `tensor`: set outside the domain and in kept blocks.
fn mask(spec: &Spec, tensor: usize, stay: &Bits) -> Bits {
    let mut mask = Bits::ones(spec.tensors()[tensor].size());
    let walker = Walker::new(spec);
    let mut bases = Vec::new();
    for scope in 0..spec.scopes() {
        walker.enter(scope, &mut bases);
        for block in 0..spec.blocks_per_scope() {
            if !stay.get(scope * spec.blocks_per_scope() + block) {
                walker.visit(scope, &bases, block, |element| {
                    if element.tensor == tensor {
                        mask.set(element.offset, false);
                    }
                });
            }
        }
    }
    mask
}
