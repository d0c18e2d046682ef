//! Log-likelihoods of continuations, on which tasks are based:
//!
//! ```text
//! log p(continuation | context) = sum_t log p(y_t | context, y_1 .. y_{t-1})
//! ```
//!
//! Continuations come in groups, such as the choices of a question. What the
//! sequences of a group have in common at their start is computed once, and many
//! groups go through each layer together.

use crate::model::{Layer, Model, ModelError, RaggedBatch, Span};
use openwork::Matrix;
use std::borrow::Borrow;
use std::ops::ControlFlow;

/// Tokens in a batch; large enough for products of matrices, small enough for the
/// activations of a layer to stay modest.
const BATCH_TOKENS: usize = 2048;
/// Size of the hidden states that share one pass over the layers, in bytes.
const GROUP_BYTES: usize = 64 << 20;

/// A context and its continuation, as tokens.
///
/// Holds, once built: both have at least one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    tokens: Vec<u32>,
    /// Tokens of the context.
    context: usize,
}

impl Continuation {
    /// A continuation of a context; `None` if either is empty.
    pub fn new(context: &[u32], continuation: &[u32]) -> Option<Self> {
        let some = !context.is_empty() && !continuation.is_empty();
        some.then(|| Self { tokens: [context, continuation].concat(), context: context.len() })
    }

    /// Number of tokens that the model reads: all but the last.
    pub fn input_len(&self) -> usize {
        self.tokens.len() - 1
    }

    /// What the model reads.
    fn input(&self) -> &[u32] {
        &self.tokens[..self.input_len()]
    }

    /// All tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The positions whose next token belongs to the continuation, and that token.
    fn targets(&self) -> impl Iterator<Item = (usize, u32)> {
        (self.context - 1..self.input_len()).map(|at| (at, self.tokens[at + 1]))
    }
}

/// How likely a model finds a continuation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likelihood {
    /// The logarithm of its probability, in nats.
    pub log: f64,
    /// Whether every token of it is the likeliest one.
    pub greedy: bool,
}

/// The sequences of a group as spans.
struct Placed {
    spans: Vec<Span>,
    /// Tokens that all sequences have in common; if any, they are the first span.
    shared: usize,
    /// The span of each sequence's other tokens, if there are any.
    rest: Vec<Option<usize>>,
}

/// Places the sequences of a group with their common prefix in one span.
fn place(group: &[Continuation]) -> Placed {
    let Some(first) = group.first() else {
        return Placed { spans: Vec::new(), shared: 0, rest: Vec::new() };
    };
    let shared = group.iter().fold(first.input().len(), |shared, other| {
        let same = first.input().iter().zip(other.input()).take(shared);
        same.take_while(|(a, b)| a == b).count()
    });
    let mut spans = Vec::new();
    if shared > 0 {
        spans.push(Span { tokens: first.input()[..shared].to_vec(), after: None });
    }
    let rest = group.iter().map(|one| {
        let tokens = one.input()[shared..].to_vec();
        (!tokens.is_empty()).then(|| {
            spans.push(Span { tokens, after: (shared > 0).then_some(0) });
            spans.len() - 1
        })
    });
    let rest = rest.collect();
    Placed { spans, shared, rest }
}

/// Groups that go through a layer together.
struct Batch {
    states: RaggedBatch,
    /// The row and next token of every scored position, continuation by continuation.
    targets: Vec<(usize, u32)>,
}

impl Batch {
    fn new(model: &Model<'_>, groups: &[Vec<Continuation>]) -> Result<Self, ModelError> {
        let mut spans: Vec<Span> = Vec::new();
        let mut places = Vec::new();
        for group in groups {
            let Placed { spans: own, shared, rest } = place(group);
            let base = spans.len();
            places.push((base, shared, rest));
            let shifted = own.into_iter().map(|Span { tokens, after }| Span {
                tokens,
                after: after.map(|span| base + span),
            });
            spans.extend(shifted);
        }
        let states = RaggedBatch::new(model, &spans)?;
        let mut targets = Vec::new();
        for (group, (base, shared, rest)) in groups.iter().zip(&places) {
            for (one, rest) in group.iter().zip(rest) {
                targets.extend(one.targets().map(|(at, token)| {
                    let row = match rest {
                        Some(span) if at >= *shared => states.first_row(base + span) + at - shared,
                        _ => states.first_row(*base) + at,
                    };
                    (row, token)
                }));
            }
        }
        Ok(Self { states, targets })
    }
}

/// The log-likelihoods of groups of continuations, in their order.
///
/// `layer` gives a layer; it is called for every layer and a large number of groups,
/// so that one layer is in memory at a time if it loads them. `on_progress` receives
/// the share that is done, and may stop the computation.
pub fn log_likelihoods<L: Borrow<Layer>>(
    model: &Model<'_>,
    layer: &mut dyn FnMut(usize) -> Result<L, ModelError>,
    groups: &[Vec<Continuation>],
    on_progress: &mut dyn FnMut(f64) -> ControlFlow<()>,
) -> Result<Vec<Vec<Likelihood>>, ModelError> {
    let layers = model.config().layers;
    let most = GROUP_BYTES / (model.config().state_width() * size_of::<f32>()).max(1);
    let total: usize = groups.iter().map(|group| token_count(group)).sum();
    let (mut done, mut found) = (0, Vec::with_capacity(groups.len()));
    for together in chunks(groups, most) {
        let mut batches = chunks(together, BATCH_TOKENS)
            .map(|groups| Batch::new(model, groups))
            .collect::<Result<Vec<_>, _>>()?;
        for index in 0..layers {
            let layer = layer(index)?;
            for batch in &mut batches {
                layer.borrow().forward_ragged(&mut batch.states);
                done += batch.states.states().rows();
                // Spans that are shared make it less than the total, until the end.
                if on_progress(done as f64 / (total * layers).max(1) as f64).is_break() {
                    return Err(ModelError::Stopped);
                }
            }
        }
        let mut scores = score(model, &batches)?.into_iter();
        for group in together {
            let likelihood = |one: &Continuation| {
                let scores = scores.by_ref().take(one.tokens.len() - one.context);
                scores.fold(Likelihood { log: 0.0, greedy: true }, |sum, (loss, greedy)| {
                    Likelihood { log: sum.log - loss, greedy: sum.greedy && greedy }
                })
            };
            found.push(group.iter().map(likelihood).collect());
        }
    }
    Ok(found)
}

/// The loss of every scored position of some batches, and whether its token is the
/// likeliest.
fn score(model: &Model<'_>, batches: &[Batch]) -> Result<Vec<(f64, bool)>, ModelError> {
    let count = batches.iter().map(|batch| batch.targets.len()).sum();
    let mut states = Matrix::zeros(count, model.config().hidden);
    let all = batches.iter().flat_map(|batch| {
        batch.targets.iter().map(|(row, token)| (batch.states.states().row(*row), token))
    });
    let mut targets = Vec::with_capacity(count);
    for (i, (row, token)) in all.enumerate() {
        states.row_mut(i).copy_from_slice(row);
        targets.push(Some(*token));
    }
    let scores = model.head()?.scores(states.view(), &targets);
    match scores.iter().all(|score| score.loss.is_finite()) {
        true => Ok(scores.into_iter().map(|score| (score.loss, score.greedy)).collect()),
        false => Err(ModelError::NotFinite),
    }
}

/// Tokens of a group whose sequences share nothing: a bound.
fn token_count(group: &[Continuation]) -> usize {
    group.iter().map(Continuation::input_len).sum()
}

/// Splits groups into consecutive parts of at most so many tokens, each of at least
/// one group.
fn chunks(groups: &[Vec<Continuation>], most: usize) -> impl Iterator<Item = &[Vec<Continuation>]> {
    let mut rest = groups;
    std::iter::from_fn(move || {
        let mut tokens = 0;
        let fits = rest.iter().take_while(|group| {
            tokens += token_count(group);
            tokens <= most
        });
        let count = fits.count().max(1).min(rest.len());
        let (part, after) = rest.split_at(count);
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn continuation(context: &[u32], continuation: &[u32]) -> Continuation {
        Continuation::new(context, continuation).expect("neither is empty")
    }

    #[test]
    fn spans_spell_every_sequence_and_share_the_prefix() {
        let groups: [(&[(&[u32], &[u32])], usize); 6] = [
            (&[(&[1, 2, 3], &[4])], 3),
            (&[(&[1, 2, 3], &[4]), (&[1, 2, 3], &[5])], 3),
            (&[(&[1, 2], &[4, 5]), (&[1, 2], &[4, 6, 7])], 4),
            (&[(&[1, 2], &[3, 4]), (&[1, 2], &[5, 6])], 4),
            (&[(&[1], &[3, 4]), (&[2], &[3, 4])], 4),
            (&[(&[1], &[2]), (&[1], &[2, 3, 4])], 3),
        ];
        for (group, tokens) in groups {
            let group: Vec<_> = group.iter().map(|(a, b)| continuation(a, b)).collect();
            let Placed { spans, rest, .. } = place(&group);
            assert_eq!(spans.iter().map(|span| span.tokens.len()).sum::<usize>(), tokens);
            for (one, rest) in group.iter().zip(rest) {
                let spelled = match rest.map(|rest| (&spans[rest], spans[rest].after)) {
                    None => spans[0].tokens.clone(),
                    Some((span, None)) => span.tokens.clone(),
                    Some((span, Some(prefix))) => {
                        [&spans[prefix].tokens[..], &span.tokens].concat()
                    }
                };
                assert_eq!(spelled, one.input());
            }
        }
    }

    #[test]
    fn chunks_hold_every_group_once_within_the_limit() {
        let group = |length: usize| vec![continuation(&vec![1; length], &[2])];
        let groups: Vec<_> = [5, 1, 1, 9, 3, 3, 3, 20].into_iter().map(group).collect();
        for most in 0..40 {
            let parts: Vec<_> = chunks(&groups, most).collect();
            assert_eq!(parts.concat(), groups);
            for part in parts {
                let tokens: usize = part.iter().map(|group| token_count(group)).sum();
                assert!(tokens <= most || part.len() == 1);
            }
        }
    }
}
