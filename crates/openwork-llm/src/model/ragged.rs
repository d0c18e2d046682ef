//! Ragged batches: token sequences of different lengths that share prefixes, run
//! through a layer together.
//!
//! A batch is a list of spans. A span begins a sequence, or continues the one that
//! ends with an earlier span, so that a prefix of several sequences is computed once:
//!
//! ```text
//! span 0   The capital of France        begins a sequence
//! span 1   is Paris                     continues span 0
//! span 2   is a city                    continues span 0
//! ```
//!
//! Linear layers see the tokens of all spans as the rows of one matrix; only
//! positions and attention depend on the spans.

use super::attention::GroupedQueryAttention;
use super::carried::Carried;
use super::delta_net::{DeltaNet, DeltaState, Projected};
use super::hidden::Scratch;
use super::keep_awake::keep_awake;
use super::layer::Layer;
use super::{Model, ModelError, check_length};
use openwork::{Matrix, MatrixRef};
use rayon::prelude::*;
use std::ops::Range;

/// Consecutive tokens of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The tokens, at least one.
    pub tokens: Vec<u32>,
    /// The index of the earlier span that it continues; `None` begins a sequence.
    pub after: Option<usize>,
}

/// The hidden states of a list of spans.
#[derive(Debug)]
pub struct RaggedBatch {
    /// `[tokens, hidden]`, span by span.
    states: Matrix,
    carried: Carried,
    spans: Vec<PlacedSpan>,
    /// The position of each row in its sequence.
    positions: Vec<usize>,
    scratch: Scratch,
}

/// The rows of a span and of the spans it continues.
#[derive(Debug)]
struct PlacedSpan {
    rows: Range<usize>,
    /// The rows before it in its sequence, from the beginning on.
    before: Vec<Range<usize>>,
}

impl RaggedBatch {
    /// Embeds spans; in an encoder each is a text of its own.
    ///
    /// # Panics
    ///
    /// If a span continues itself or a later one, or, in an encoder, any.
    pub fn new(model: &Model<'_>, spans: &[Span]) -> Result<Self, ModelError> {
        if spans.iter().any(|span| span.tokens.is_empty()) {
            return Err(ModelError::Windows);
        }
        let (mut placed, mut positions): (Vec<PlacedSpan>, Vec<usize>) = Default::default();
        for (i, span) in spans.iter().enumerate() {
            let before = match span.after {
                None => Vec::new(),
                Some(earlier) => {
                    assert!(model.config().encoder.is_none(), "texts of an encoder are whole");
                    assert!(earlier < i, "span {i} continues span {earlier}");
                    let PlacedSpan { rows, before } = &placed[earlier];
                    before.iter().chain([rows]).cloned().collect()
                }
            };
            let start: usize = before.iter().map(Range::len).sum();
            let (first, length) = (positions.len(), span.tokens.len());
            check_length(start + length, model.config())?;
            positions.extend(start..start + length);
            placed.push(PlacedSpan { rows: first..first + length, before });
        }
        let texts: Vec<&[u32]> = spans.iter().map(|span| span.tokens.as_slice()).collect();
        let (states, carried) = model.embed_texts(&texts)?;
        Ok(Self { states, carried, spans: placed, positions, scratch: Scratch::default() })
    }

    /// `[tokens, hidden]`, span by span.
    pub fn states(&self) -> &Matrix {
        &self.states
    }

    /// The row of the first token of a span.
    pub fn first_row(&self, span: usize) -> usize {
        self.spans[span].rows.start
    }
}

impl Layer {
    /// Runs the layer on a batch, in place.
    pub fn forward_ragged(&self, batch: &mut RaggedBatch) {
        let RaggedBatch { states, carried, spans, positions, scratch } = batch;
        let h = states.data_mut();
        let mut carried = carried.rows(0..positions.len(), positions.len());
        keep_awake(|| {
            self.attention_input(h, scratch, &mut super::NoTap);
            match &self.delta_net {
                Some(net) => {
                    self.project_delta(h.len(), scratch);
                    mix_spans(net, spans, self.config().hidden, scratch);
                }
                None => {
                    self.project_heads(h.len(), scratch);
                    self.rotate_rows(h.len(), &|row| positions[row], scratch);
                    self.share_keys(&mut carried, scratch);
                    let width = self.output_linear().weight().cols();
                    let mixed = scratch.mixed_rows(positions.len() * width);
                    attend_spans(&self.grouped_attention(), spans, mixed);
                    self.gate_heads(scratch);
                }
            }
            self.attention_output(h, scratch);
            self.mlp(h, carried.tokens, scratch, &mut super::NoTap);
        });
    }
}

/// Runs a gated delta net span by span, each after the spans before it.
fn mix_spans(net: &DeltaNet, spans: &[PlacedSpan], hidden: usize, scratch: &mut Scratch) {
    let Scratch { normed, q, v, mixed, .. } = scratch;
    let tokens = normed.len() / hidden;
    let width = v.len() / tokens;
    mixed.resize(tokens * width, 0.0);
    let mut states: Vec<DeltaState> = Vec::with_capacity(spans.len());
    for PlacedSpan { rows, before } in spans {
        let after = before.last().map(|last| spans.iter().position(|span| span.rows == *last));
        let mut state = after.flatten().map_or_else(DeltaState::default, |i| states[i].clone());
        let part = |x: usize| rows.start * x..rows.end * x;
        let channels = q.len() / tokens;
        let projected = Projected {
            input: MatrixRef::new(&normed[part(hidden)], rows.len(), hidden),
            mixed: &q[part(channels)],
            gate: &v[part(width)],
        };
        net.mix(&projected, &mut state, &mut mixed[part(width)]);
        states.push(state);
    }
}

/// Queries, keys and values of a batch, and a buffer for the attention output.
pub(super) struct Heads<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub mixed: &'a mut [f32],
}

/// Attends span by span, each to the tokens before it and to itself.
fn attend_spans(attention: &GroupedQueryAttention, spans: &[PlacedSpan], heads: Heads<'_>) {
    let width = attention.heads * attention.head_dim;
    let kv_width = attention.kv_heads * attention.head_dim;
    let Heads { q, k, v, mut mixed } = heads;
    let mut tasks = Vec::with_capacity(spans.len());
    for span in spans {
        let (out, rest) = mixed.split_at_mut(span.rows.len() * width);
        mixed = rest;
        tasks.push((span, out));
    }
    tasks.into_par_iter().with_max_len(1).for_each(|(PlacedSpan { rows, before }, out)| {
        let q = &q[rows.start * width..rows.end * width];
        let part = |rows: &Range<usize>| rows.start * kv_width..rows.end * kv_width;
        if before.is_empty() {
            return attention.attend(q, &k[part(rows)], &v[part(rows)], out);
        }
        let gather = |x: &[f32]| -> Vec<f32> {
            before.iter().chain([rows]).flat_map(|rows| &x[part(rows)]).copied().collect()
        };
        attention.attend(q, &gather(k), &gather(v), out);
    });
}
