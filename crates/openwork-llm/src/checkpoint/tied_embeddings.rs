//! Tied embeddings: whether the head and the embedding share weights, judged by
//! the config and the tensors.

use super::{Checkpoint, Tensor, natural_order};
use crate::model::ties_embeddings;
use rayon::prelude::*;
use serde_json::Value;

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";
/// Rows compared by one task.
const ROWS: usize = 64;

impl Checkpoint {
    /// Resolves a config with tied embeddings as transformers does: a head without
    /// an embedding serves as the embedding, and a head that differs from the
    /// embedding is not tied, whatever the config says.
    pub(super) fn resolve_tied_embeddings(&mut self) {
        let Some(head) = self.tensors.iter().position(|tensor| tensor.name == HEAD) else { return };
        if !ties_embeddings(&self.config) {
            return;
        }
        let Ok(embedding) = self.tensor(EMBEDDING) else {
            self.tensors[head].name = EMBEDDING.to_string();
            self.tensors.sort_by(|a, b| natural_order::compare(&a.name, &b.name));
            return;
        };
        if !same(&embedding, &self.view(&self.tensors[head])) {
            self.config["tie_word_embeddings"] = Value::Bool(false);
            self.notes.push(format!(
                "config.json ties the embeddings, but {HEAD} and {EMBEDDING} differ; each is used \
                 as stored"
            ));
        }
    }
}

/// Whether two tensors have the same shape and values.
fn same(a: &Tensor<'_>, b: &Tensor<'_>) -> bool {
    let read = |tensor: &Tensor<'_>, from: usize| {
        let rows = from..tensor.rows().min(from + ROWS);
        let mut out = vec![0.0; rows.len() * tensor.row_len()];
        tensor.rows_f32(rows, &mut out);
        out
    };
    let blocks = 0..a.rows().div_ceil(ROWS);
    a.shape() == b.shape() && blocks.into_par_iter().all(|i| read(a, i * ROWS) == read(b, i * ROWS))
}
