//! Per-layer embeddings: an extra input of every layer that depends on the token alone.
//!
//! ```text
//! e = sqrt(d) E[token]        p = (norm(P e / sqrt(d)) + sqrt(w) T[token]) / sqrt(2)
//! h <- h + norm(W_out (act(W_gate h) o p))        after the MLP
//! ```
//!
//! `E` is the embedding, of width `d`; `P` and `T` are the layer's rows of
//! `per_layer_model_projection` and columns of `embed_tokens_per_layer`, `w` wide. A layer
//! computes `p` from the tokens of a batch whenever it needs it: stored for all layers it
//! would be several times as large as the hidden states.

use super::config::{Config, PerLayerEmbedding};
use super::hidden::Scratch;
use super::layer::{ACTIVATION_CHUNK, Layer, NormSlot, sized};
use super::linear::{Input, Role};
use super::norm::Norm;
use super::tap::Tap;
use super::vector;
use super::weight::apply;
use crate::checkpoint::{Checkpoint, CheckpointError, Table};
use openwork::linalg::{Threads, gemm};
use openwork::{Matrix, MatrixMut, MatrixRef};
use rayon::prelude::*;

/// The table of all layers.
const TABLE: &str = "model.embed_tokens_per_layer.weight";
/// The projection of all layers.
const PROJECTION: &str = "model.per_layer_model_projection.weight";
/// The norm of the projections.
const NORM: &str = "model.per_layer_projection_norm.weight";

/// Names and shapes of the tensors that the layers share.
pub(super) fn tensors(c: &Config) -> Vec<(&'static str, Vec<usize>)> {
    let Some(PerLayerEmbedding { width, vocab }) = c.per_layer else { return Vec::new() };
    let all = c.layers * width;
    vec![(TABLE, vec![vocab, all]), (PROJECTION, vec![all, c.hidden]), (NORM, vec![width])]
}

/// The input of one layer, by token.
#[derive(Clone, Debug)]
pub(super) struct PerLayerInput {
    /// `E`, and its factor.
    embedding: Table,
    embedding_scale: f32,
    /// `P`: `[width, hidden]`.
    projection: Matrix,
    norm: Norm,
    /// `T`: one row per token and layer.
    table: Table,
    layer: usize,
    layers: usize,
}

impl PerLayerInput {
    /// Loads the input of layer `index` from a checkpoint of the whole model, if it has one.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        c: &Config,
        index: usize,
    ) -> Result<Option<Self>, CheckpointError> {
        let Some(PerLayerEmbedding { width, vocab }) = c.per_layer else { return Ok(None) };
        let all = c.layers * width;
        let projection = checkpoint.tensor_with_shape(PROJECTION, &[all, c.hidden])?;
        let mut rows = Matrix::zeros(width, c.hidden);
        projection.rows_f32(index * width..(index + 1) * width, rows.data_mut());
        let norm = checkpoint.tensor_with_shape(NORM, &[width])?.to_f32();
        Ok(Some(Self {
            embedding: checkpoint.table(c.family.embedding(), [c.vocab, c.hidden], c.hidden)?,
            embedding_scale: c.embedding_scale,
            projection: rows,
            norm: Norm::new(norm, c.family.norm_offset, c.norm_eps),
            table: checkpoint.table(TABLE, [vocab, all], width)?,
            layer: index,
            layers: c.layers,
        }))
    }

    /// `p` of each token: `[T, width]`.
    pub(super) fn of(&self, tokens: &[u32], out: &mut Vec<f32>) {
        let (width, d) = (self.projection.rows(), self.projection.cols());
        let mut embedded = Matrix::zeros(tokens.len(), d);
        let rows = embedded.data_mut().par_chunks_mut(d).with_min_len(32);
        rows.zip(tokens).for_each(|(row, &token)| self.embedding.row(token as usize, row));
        let scale = self.embedding_scale / (d as f32).sqrt();
        let out = sized(out, tokens.len() * width);
        let view = MatrixMut::new(out, tokens.len(), width);
        gemm(0.0, view, scale, embedded.view(), self.projection.view().t(), Threads::All);
        let rows = out.par_chunks_mut(width).with_min_len(32);
        rows.zip(tokens).for_each_init(
            || vec![0.0; width],
            |own, (row, &token)| {
                self.norm.in_place(row);
                self.table.row(token as usize * self.layers + self.layer, own);
                vector::add_scaled(row, own, (width as f32).sqrt());
                vector::scale(row, std::f32::consts::FRAC_1_SQRT_2);
            },
        );
    }
}

impl Layer {
    /// Adds the per-layer embedding of each token, if the model has them.
    pub(super) fn add_per_layer(
        &self,
        h: &mut [f32],
        tokens: &[u32],
        scratch: &mut Scratch,
        tap: &mut dyn Tap,
    ) {
        let Some(input) = &self.per_layer else { return };
        let (t, d) = (h.len() / self.config.hidden, self.config.hidden);
        assert_eq!(tokens.len(), t, "per-layer embeddings need the tokens of all rows");
        let [gate_proj, out_proj] = Role::PER_LAYER
            .map(|role| self.info().position(role).expect("the layer has per-layer embeddings"))
            .map(|linear| &self.linears[linear]);
        let Scratch { gate, up, out, .. } = scratch;
        let x = MatrixRef::new(h, t, d);
        tap.on_input(Input::PerLayerGate.into(), x);
        let width = gate_proj.weight.rows();
        let gate = sized(gate, t * width);
        apply(x, &mut [(&gate_proj.weight, MatrixMut::new(gate, t, width))]);
        input.of(tokens, up);
        self.activate(gate, up);
        let x = MatrixRef::new(gate, t, width);
        tap.on_input(Input::PerLayerOutput.into(), x);
        let out = sized(out, t * d);
        apply(x, &mut [(&out_proj.weight, MatrixMut::new(out, t, d))]);
        if let Some(norm) = self.norm(NormSlot::AfterPerLayer) {
            norm.rows_in_place(out);
        }
        let parts = h.par_chunks_mut(ACTIVATION_CHUNK).zip(out.par_chunks(ACTIVATION_CHUNK));
        parts.for_each(|(h, out)| vector::add(h, out));
    }
}
