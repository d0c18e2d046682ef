//! Any other spec: kept weights in the order of the tensor, and a code per scope for
//! its kept blocks.
//!
//! In a file, the code of a scope is the bit mask of its blocks or, if that is
//! shorter, the [rank](super::rank) of the combination. Codes follow each other without
//! gaps, lowest bit first, in the order of the scopes; those of the levels inside `then` and
//! inside `else` follow, each beginning with a byte. In memory the index is a
//! [bit mask](super::bitmask) over all weights. Weights outside the domain are always
//! kept.

use super::bitmask::BitMask;
use super::kept::Kept;
use super::rank::Ranks;
use super::{Format, IndexStorage, PartsError, Shape};
use crate::mask::{Bits, Choice};
use crate::spec::{Coupling, Side, Spec};
use std::ops::Range;

/// Everything else.
pub(super) const FORMAT: Format = Format {
    name: "general",
    summary: "any other spec: values in order, and a bit mask or a rank per scope",
    example: "channel",
    kernels: "AVX-512, AVX2 (bit mask)",
    storage: IndexStorage::ScopeCodes,
    fits: |_, rows, cols| Some(Shape::BitMask(BitMask::unchecked(rows, cols))),
};

/// What limits the speed of patterns of low density.
pub(super) const SLOW: &str = "no kernel for this pattern: products read a bit mask and compute with all columns, so they gain little below density 1/4";

/// How the kept blocks of a scope are coded.
enum Code {
    Mask,
    Rank(Ranks),
}

/// Largest number of mask bytes that a stored byte may expand to: keeping 1 of 1000
/// channels, say, needs 60.
const MAX_EXPANSION: usize = 256;
/// Bytes of mask that are always allowed.
const ALLOWED_MASK: usize = 1 << 20;

/// The code of a scope, its bits, and the blocks it describes.
fn code(spec: &Spec, tensor: usize) -> (Code, usize, Range<usize>) {
    let (blocks, keep) = (spec.blocks_per_scope(), spec.keep());
    if spec.coupling() == Coupling::Scopes && spec.tensors().len() > 1 {
        // A tensor may keep any number of a scope's blocks.
        let own = spec.own_blocks(tensor);
        return (Code::Mask, own.len(), own);
    }
    match Ranks::new(blocks, keep) {
        Some(ranks) if ranks.bits() < blocks => {
            let bits = ranks.bits();
            (Code::Rank(ranks), bits, 0..blocks)
        }
        _ => (Code::Mask, blocks, 0..blocks),
    }
}

/// The codes of all scopes of every level.
pub(super) fn codes(kept: &Kept<'_>) -> Vec<u8> {
    let mut bytes = level_codes(kept.spec, kept.tensor, kept.choice.kept());
    for level in Side::BOTH.into_iter().filter_map(|side| kept.level(side)) {
        bytes.extend(codes(&level));
    }
    bytes
}

/// The codes of all scopes of one level, from a bit per block.
fn level_codes(spec: &Spec, tensor: usize, stay: &Bits) -> Vec<u8> {
    let (code, bits, own) = code(spec, tensor);
    let mut bytes = vec![0u8; (spec.scopes() * bits).div_ceil(8)];
    let mut set = |at: usize| bytes[at / 8] |= 1 << (at % 8);
    for scope in 0..spec.scopes() {
        let stays = |block: usize| stay.get(scope * spec.blocks_per_scope() + block);
        match &code {
            Code::Mask => own
                .clone()
                .filter(|&block| stays(block))
                .for_each(|block| set(scope * bits + block - own.start)),
            Code::Rank(ranks) => {
                let rank = ranks.rank(stays);
                (0..bits).filter(|i| rank >> i & 1 == 1).for_each(|i| set(scope * bits + i));
            }
        }
    }
    bytes
}

/// Bytes of the codes of all scopes of every level.
fn code_bytes(spec: &Spec, tensor: usize) -> usize {
    let own = (spec.scopes() * code(spec, tensor).1).div_ceil(8);
    let inner = Side::BOTH.into_iter().filter_map(|side| spec.level(side));
    own + inner.map(|level| code_bytes(level.spec(), 0)).sum::<usize>()
}

/// The kept blocks of every level, from the codes of all scopes; blocks of other tensors of
/// coupled scopes are clear.
pub(super) fn decode(spec: &Spec, tensor: usize, bytes: &[u8]) -> Result<Choice, PartsError> {
    let expected = code_bytes(spec, tensor);
    if bytes.len() != expected {
        return Err(PartsError::Index { expected, found: bytes.len() });
    }
    let (own, mut rest) = bytes.split_at((spec.scopes() * code(spec, tensor).1).div_ceil(8));
    let kept = decode_level(spec, tensor, own)?;
    let mut inner = [None, None];
    for (side, choice) in Side::BOTH.into_iter().zip(&mut inner) {
        let Some(level) = spec.level(side) else { continue };
        let (own, after) = rest.split_at(code_bytes(level.spec(), 0));
        *choice = Some(decode(level.spec(), 0, own)?);
        rest = after;
    }
    Ok(Choice::from_levels(kept, inner))
}

/// A bit per block of one level.
fn decode_level(spec: &Spec, tensor: usize, bytes: &[u8]) -> Result<Bits, PartsError> {
    let (code, bits, own) = code(spec, tensor);
    let get = |at: usize| bytes[at / 8] >> (at % 8) & 1 == 1;
    if (spec.scopes() * bits..bytes.len() * 8).any(get) {
        return Err(PartsError::Damaged("bits after the last scope are set".to_string()));
    }
    let free = own.len() < spec.blocks_per_scope();
    let mut stay = Bits::zeros(spec.blocks());
    for scope in 0..spec.scopes() {
        let first = scope * spec.blocks_per_scope();
        let mut count = 0;
        let mut keep = |block: usize| {
            stay.set(first + block, true);
            count += 1;
        };
        match &code {
            Code::Mask => {
                own.clone().filter(|b| get(scope * bits + b - own.start)).for_each(&mut keep);
            }
            Code::Rank(ranks) => {
                let rank =
                    (0..bits).fold(0, |rank, i| rank | u64::from(get(scope * bits + i)) << i);
                if !ranks.unrank(rank, &mut keep) {
                    return Err(PartsError::Damaged(format!(
                        "the rank {rank} of scope {scope} exceeds the number of combinations"
                    )));
                }
            }
        }
        if count > spec.keep() || (!free && count < spec.keep()) {
            return Err(PartsError::Damaged(format!(
                "scope {scope} keeps {count} blocks, expected {}",
                spec.keep()
            )));
        }
    }
    Ok(stay)
}

/// Refuses a tensor that is implausibly large for its stored bytes.
pub(super) fn plausible(weights: usize, stored: usize) -> Result<(), PartsError> {
    match weights / 8 <= ALLOWED_MASK.max(stored.saturating_mul(MAX_EXPANSION)) {
        true => Ok(()),
        false => Err(PartsError::Sparse { weights, bytes: stored }),
    }
}
