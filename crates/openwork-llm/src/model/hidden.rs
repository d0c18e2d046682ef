//! The hidden state of a batch of windows, and buffers to work in.

use openwork::Matrix;

/// Hidden states of `windows` sequences of `len` tokens each.
#[derive(Debug)]
pub struct Hidden {
    /// `[windows * len, hidden]`, window after window.
    pub(super) states: Matrix,
    /// Number of sequences.
    pub(super) windows: usize,
    /// Tokens in each.
    pub(super) len: usize,
    /// Position of each window's first token: 0, unless a cache holds earlier ones.
    pub(super) start: usize,
    /// Kept from layer to layer, so that it is allocated once.
    pub(super) scratch: Scratch,
}

/// Activations of one window inside a layer; only their capacity outlives it.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub normed: Vec<f32>,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub mixed: Vec<f32>,
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    pub out: Vec<f32>,
}

impl Hidden {
    /// States of windows of `len` tokens.
    ///
    /// # Panics
    ///
    /// If the rows are not a multiple of `len`.
    pub fn new(states: Matrix, len: usize) -> Self {
        assert!(len > 0 && states.rows().is_multiple_of(len), "rows do not make windows of {len}");
        let windows = states.rows() / len;
        Self { states, windows, len, start: 0, scratch: Scratch::default() }
    }

    /// Number of sequences.
    pub fn windows(&self) -> usize {
        self.windows
    }

    /// Tokens in each sequence.
    pub fn window_len(&self) -> usize {
        self.len
    }

    /// `[windows * len, hidden]`, window after window.
    pub fn states(&self) -> &Matrix {
        &self.states
    }

    /// `[windows * len, hidden]`, window after window.
    pub fn states_mut(&mut self) -> &mut Matrix {
        &mut self.states
    }

    /// The states, without the buffers.
    pub fn into_states(self) -> Matrix {
        self.states
    }
}
