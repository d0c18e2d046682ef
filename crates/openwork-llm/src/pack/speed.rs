//! Speed of packed generation against dense generation: tokens per second of one
//! model, measured in alternating turns.

use super::{Group, PackModelError, Patterns, ValueChoice, dense_spec};
use crate::model::{Decoder, Model, ModelError, Storage, Weight};
use half::{bf16, f16};
use openwork::Matrix;
use openwork::prune::{Member, Task, prune};
use openwork::sparse::{Encoding, Packed, Values};
use serde::Serialize;
use std::num::NonZeroUsize;
use std::time::Instant;

/// The result of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// Tokens per second, dense: the best turn.
    pub dense_tokens_per_second: f64,
    /// Tokens per second, packed: the best turn.
    pub packed_tokens_per_second: f64,
    /// Packed over dense.
    pub speedup: f64,
    /// Bytes read per token, dense.
    pub dense_bytes_per_token: usize,
    /// Bytes read per token, packed.
    pub packed_bytes_per_token: usize,
    /// Bytes of the packed linears over their dense bytes.
    pub share: f64,
    /// Tokens per turn.
    pub tokens: usize,
    /// Turns of each.
    pub turns: usize,
    /// Linears that did not conform and were pruned by magnitude for the
    /// measurement. This changes the text, not the speed.
    pub pruned_by_magnitude: usize,
}

/// Decodes `tokens` tokens per turn, dense and packed in turn. A packed model is
/// measured as it is; of any other the linears of `patterns` are packed in memory,
/// with values as `choice` says or in the type they are decoded in, after pruning by
/// magnitude those that do not conform.
pub fn compare(
    model: &Model<'_>,
    patterns: Option<&Patterns>,
    choice: ValueChoice,
    tokens: NonZeroUsize,
    turns: NonZeroUsize,
) -> Result<Speed, PackModelError> {
    let mut dense = Decoder::load(model, Storage::Half)?;
    let mut packed = Decoder::load(model, Storage::Half)?;
    let mut pruned_by_magnitude = 0;
    if let Some(patterns) = patterns {
        for group in patterns.groups(model)? {
            let (weights, pruned) = pack_in_memory(&mut dense, &group)?;
            pruned_by_magnitude += if pruned { group.linears.len() } else { 0 };
            for ((&linear, weight), name) in group.linears.iter().zip(weights).zip(&group.names) {
                let weight = choice.convert(name, weight)?;
                let linears = packed.layers_mut()[group.layer].linears_mut();
                linears[linear].set_weight(Weight::Packed(Box::new(weight)));
            }
        }
        let not_pruned = packed.layers_mut().iter_mut().flat_map(|layer| layer.linears_mut());
        for linear in not_pruned {
            if let Some(codes) = encoded(linear.weight(), choice.linears)? {
                linear.set_weight(codes);
            }
        }
        if let Some(codes) = encoded(packed.head_weight(), choice.head)? {
            *packed.head_weight_mut() = codes;
        }
    }
    for layer in dense.layers_mut() {
        for linear in layer.linears_mut() {
            let weight = decoded(linear.weight());
            linear.set_weight(weight);
        }
    }
    let head = decoded(dense.head_weight());
    *dense.head_weight_mut() = head;
    let (mut bytes, mut dense_bytes) = (0, 0);
    let mut count = |dense: &Weight, packed: &Weight| {
        if matches!(packed, Weight::Packed(_)) {
            bytes += packed.bytes();
            dense_bytes += dense.bytes();
        }
    };
    count(dense.head_weight(), packed.head_weight());
    for (a, b) in dense.layers_mut().iter().zip(packed.layers_mut().iter()) {
        a.linears().iter().zip(b.linears()).for_each(|(a, b)| count(a.weight(), b.weight()));
    }
    if dense_bytes == 0 {
        let why = "no linear is packed; give the pattern with --spec, or codes with --values";
        return Err(PackModelError::Plan(why.into()));
    }
    let (tokens, turns) = (tokens.get(), turns.get());
    let (mut best, mut sizes) = ([f64::INFINITY; 2], [0; 2]);
    for _ in 0..turns {
        for (which, decoder) in [&mut dense, &mut packed].into_iter().enumerate() {
            best[which] = best[which].min(decode(decoder, tokens)?);
            sizes[which] = decoder.bytes_per_token();
        }
    }
    Ok(Speed {
        dense_tokens_per_second: tokens as f64 / best[0],
        packed_tokens_per_second: tokens as f64 / best[1],
        speedup: best[0] / best[1],
        dense_bytes_per_token: sizes[0],
        packed_bytes_per_token: sizes[1],
        share: bytes as f64 / dense_bytes as f64,
        tokens,
        turns,
        pruned_by_magnitude,
    })
}

/// Tokens per second of a model as it is stored: the best of some turns.
pub fn tokens_per_second(
    model: &Model<'_>,
    tokens: NonZeroUsize,
    turns: NonZeroUsize,
) -> Result<f64, PackModelError> {
    let mut decoder = Decoder::load(model, Storage::Half)?;
    let mut best = f64::INFINITY;
    for _ in 0..turns.get() {
        best = best.min(decode(&mut decoder, tokens.get())?);
    }
    Ok(tokens.get() as f64 / best)
}

/// The codes of a dense matrix, if codes are chosen for it.
fn encoded(weight: &Weight, chosen: Option<Encoding>) -> Result<Option<Weight>, PackModelError> {
    let codes = chosen.filter(|encoding| encoding.kind().has_codes());
    let (Some(encoding), Some(values)) = (codes, weight.values()) else { return Ok(None) };
    let plan = |why: &dyn std::fmt::Display| PackModelError::Plan(why.to_string());
    let spec = dense_spec(&[weight.rows(), weight.cols()]).map_err(|why| plan(&why))?;
    let packed = Packed::pack(&spec, values).map_err(|why| plan(&why))?;
    Ok(Some(Weight::Packed(Box::new(packed.with_values(encoding).map_err(|why| plan(&why))?))))
}

/// A matrix as it is decoded dense: numbers as they are, codes with 16 bits.
fn decoded(weight: &Weight) -> Weight {
    let codes = matches!(weight, Weight::Packed(packed) if packed.values().codes().is_some());
    match weight.unpacked() {
        Weight::F32(wide) if codes => {
            let half = wide.data().iter().map(|&w| bf16::from_f32(w)).collect();
            Weight::Bf16(Matrix::from_vec(wide.rows(), wide.cols(), half))
        }
        same => same,
    }
}

/// Packs the linears of a group of the dense model in the type they have there;
/// also whether they had to be pruned by magnitude first.
fn pack_in_memory(
    dense: &mut Decoder,
    group: &Group,
) -> Result<(Vec<Packed>, bool), PackModelError> {
    let linears = dense.layers_mut()[group.layer].linears();
    let weights: Vec<&Weight> = group.linears.iter().map(|&i| linears[i].weight()).collect();
    let mut wide: Vec<Vec<f32>> = Vec::new();
    for weight in &weights {
        let mut w = vec![0.0; weight.rows() * weight.cols()];
        weight.rows_f32(0..weight.rows(), &mut w);
        wide.push(w);
    }
    let pack = |wide: &[Vec<f32>]| {
        let values: Vec<Values> =
            weights.iter().zip(wide).map(|(weight, w)| narrow(weight, w)).collect();
        let views: Vec<_> = values.iter().map(Values::view).collect();
        Packed::pack_all(&group.spec, &views)
    };
    if let Ok(packed) = pack(&wide) {
        return Ok((packed, false));
    }
    let wrong = |why: String| PackModelError::Tensor { tensor: group.names.join(", "), why };
    let members = wide.iter().map(|w| Member { weights: w[..].into(), hessian: None }).collect();
    let task = Task { spec: &group.spec, members, monitor: &() };
    let magnitude = "magnitude".parse().expect("a method");
    let mask = prune(&magnitude, &task).map_err(|error| wrong(error.to_string()))?.mask;
    wide.iter_mut().enumerate().for_each(|(t, w)| mask.apply(t, w));
    let packed = pack(&wide).map_err(|error| wrong(error.to_string()))?;
    Ok((packed, true))
}

/// Numbers in the type of the weights they were read from.
fn narrow(weight: &Weight, wide: &[f32]) -> Values {
    match weight {
        Weight::F32(_) => Values::F32(wide.to_vec()),
        Weight::F16(_) => Values::F16(wide.iter().map(|&w| f16::from_f32(w)).collect()),
        _ => Values::Bf16(wide.iter().map(|&w| bf16::from_f32(w)).collect()),
    }
}

/// Seconds to decode some tokens after a short prompt.
fn decode(decoder: &mut Decoder, tokens: usize) -> Result<f64, PackModelError> {
    const PROMPT: usize = 8;
    let vocab = decoder.config().vocab;
    let token = |i: usize| ((i * 7919 + 13) % vocab) as u32;
    decoder.reset();
    // Inside the thread pool; otherwise the decoder would enter it for every token.
    let seconds = rayon::scope(|_| {
        decoder.next(&(0..PROMPT).map(token).collect::<Vec<_>>())?;
        let started = Instant::now();
        for i in 0..tokens {
            decoder.next(&[token(i)])?;
        }
        Ok::<_, ModelError>(started.elapsed().as_secs_f64())
    })?;
    Ok(seconds)
}
