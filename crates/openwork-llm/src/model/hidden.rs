//! Hidden states of a batch of windows, and scratch buffers.

use super::carried::Carried;
use super::ragged::Heads;
use openwork::Matrix;

/// Hidden states of `windows` sequences of `len` tokens each.
#[derive(Debug)]
pub struct Hidden {
    /// `[windows * len, hidden]`, window by window.
    pub(super) states: Matrix,
    /// What its tokens carry beside.
    pub(super) carried: Carried,
    /// Number of sequences.
    pub(super) windows: usize,
    /// Tokens per sequence.
    pub(super) len: usize,
    /// Position of each window's first token: 0, unless a cache holds earlier tokens.
    pub(super) start: usize,
    /// Reused from layer to layer.
    pub(super) scratch: Scratch,
}

/// The windows of a batch, whose states follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    /// Tokens per window.
    pub len: usize,
    /// Position of each window's first token.
    pub start: usize,
}

impl Windows {
    /// The position of a row of the batch in its window.
    pub fn position(self, row: usize) -> usize {
        self.start + row % self.len
    }
}

/// Buffers for the activations of one batch of windows in a layer.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub normed: Vec<f32>,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub mixed: Vec<f32>,
    /// The gate of attention's output: `[T, heads * head_dim]`.
    pub head_gate: Vec<f32>,
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    pub out: Vec<f32>,
    /// The tokens of one expert: `[tokens, hidden]`.
    pub rows: Vec<f32>,
    /// The outputs of experts: `[T, hidden]`.
    pub sum: Vec<f32>,
}

impl Scratch {
    /// Queries, keys and values, and a buffer of `size` entries for the attention output.
    pub fn mixed_rows(&mut self, size: usize) -> Heads<'_> {
        self.mixed.resize(size, 0.0);
        Heads { q: &self.q, k: &self.k, v: &self.v, mixed: &mut self.mixed }
    }
}

impl Hidden {
    /// States of windows of `len` tokens, in a model whose tokens carry nothing beside.
    ///
    /// # Panics
    ///
    /// If the rows are not a multiple of `len`.
    pub fn new(states: Matrix, len: usize) -> Self {
        Self::carrying(states, Carried::default(), len)
    }

    /// States of windows of `len` tokens.
    ///
    /// # Panics
    ///
    /// If the rows are not a multiple of `len`.
    pub fn carrying(states: Matrix, carried: Carried, len: usize) -> Self {
        assert!(len > 0 && states.rows().is_multiple_of(len), "rows do not make windows of {len}");
        let windows = states.rows() / len;
        Self { states, carried, windows, len, start: 0, scratch: Scratch::default() }
    }

    /// A copy, without the scratch buffers.
    pub fn copy(&self) -> Self {
        let (states, carried) = (self.states.clone(), self.carried.clone());
        Self { start: self.start, ..Self::carrying(states, carried, self.len) }
    }

    /// Number of sequences.
    pub fn windows(&self) -> usize {
        self.windows
    }

    /// Tokens per sequence.
    pub fn window_len(&self) -> usize {
        self.len
    }

    /// `[windows * len, hidden]`, window by window.
    pub fn states(&self) -> &Matrix {
        &self.states
    }

    /// `[windows * len, hidden]`, window by window.
    pub fn states_mut(&mut self) -> &mut Matrix {
        &mut self.states
    }

    /// The states, without what is carried beside.
    pub fn into_states(self) -> Matrix {
        self.states
    }

    /// The states, and what is carried beside.
    pub fn into_parts(self) -> (Matrix, Carried) {
        (self.states, self.carried)
    }
}
