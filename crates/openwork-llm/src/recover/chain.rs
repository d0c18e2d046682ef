//! Hidden states of calibration windows in two models, layer after layer, and the keys and
//! values that later layers share.

use super::RecoverError;
use crate::chunk_store::ChunkStore;
use crate::model::{Carried, Half, Hidden, Layer, Model, NoTap};
use openwork::Matrix;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// The states of windows before a layer: in the pruned model, whose layers so far
/// are recovered, and in the dense model.
pub struct Chain {
    width: usize,
    seq_len: usize,
    /// What [`Carried::tokens`] needs, by window.
    tokens: Vec<Vec<u32>>,
    pruned: ChunkStore,
    dense: ChunkStore,
    folder: PathBuf,
}

/// What a layer is trained on: the pruned model's input of it, and the dense model's output.
pub(super) struct Pair<'a> {
    pub input: Vec<f32>,
    /// What its tokens carry beside, in the pruned model.
    pub carried: Carried,
    output: Cow<'a, [f32]>,
    size: usize,
}

impl Pair<'_> {
    /// The dense model's states.
    pub fn output(&self) -> &[f32] {
        &self.output[..self.size]
    }
}

impl Chain {
    /// The states of windows before the first layer. If they exceed `memory` bytes, they
    /// are stored in files in `folder`.
    pub fn new(
        pruned: &Model<'_>,
        dense: &Model<'_>,
        windows: &[Vec<u32>],
        memory: Option<u64>,
        folder: &Path,
    ) -> Result<Self, RecoverError> {
        let (width, seq_len) = (pruned.config().hidden, windows.first().map_or(0, Vec::len));
        let numbers = |model: &Model<'_>| seq_len * model.config().state_width();
        let bytes = windows.len() * (numbers(pruned) + numbers(dense)) * size_of::<f32>();
        let spills = memory.is_some_and(|memory| bytes as u64 > memory);
        let mut tokens = Vec::new();
        let mut store = |model: &Model<'_>| -> Result<ChunkStore, RecoverError> {
            let io = |error| RecoverError::io(folder, error);
            let sizes = vec![numbers(model); windows.len()];
            let mut store = match spills {
                true => ChunkStore::in_file(folder, &sizes).map_err(io)?,
                false => ChunkStore::in_memory(&sizes),
            };
            tokens.clear();
            for (i, window) in windows.iter().enumerate() {
                let (states, carried) = model.embed(std::slice::from_ref(window))?.into_parts();
                let stored = [states.into_vec(), carried.keys_values].concat();
                store.put(i, stored).map_err(io)?;
                tokens.push(carried.tokens);
            }
            Ok(store)
        };
        let (pruned, dense) = (store(pruned)?, store(dense)?);
        Ok(Self { width, seq_len, tokens, pruned, dense, folder: folder.to_path_buf() })
    }

    /// Number of windows.
    pub fn windows(&self) -> usize {
        self.tokens.len()
    }

    /// Tokens per window.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// Entries of a state.
    pub fn width(&self) -> usize {
        self.width
    }

    /// What a layer is trained on in one window.
    pub(super) fn pair(&mut self, window: usize) -> Result<Pair<'_>, RecoverError> {
        let io = |error| RecoverError::io(&self.folder, error);
        let size = self.seq_len * self.width;
        let mut input = self.pruned.get(window).map_err(io)?.into_owned();
        let keys_values = input.split_off(size);
        let carried = Carried { tokens: self.tokens[window].clone(), keys_values };
        let output = self.dense.get(window).map_err(io)?;
        Ok(Pair { input, carried, output, size })
    }

    /// Advances both models through a layer that is recovered already.
    pub fn replay(&mut self, layer: &Layer, dense: &Layer) -> Result<(), RecoverError> {
        self.advance_pruned(layer, &Half::ALL)?;
        self.advance_dense(dense, &Half::ALL)
    }

    /// Advances the pruned model through halves of its layer.
    pub(super) fn advance_pruned(
        &mut self,
        layer: &Layer,
        halves: &[Half],
    ) -> Result<(), RecoverError> {
        advance(&mut self.pruned, &self.tokens, [self.seq_len, self.width], layer, halves)
            .map_err(|error| RecoverError::io(&self.folder, error))
    }

    /// Advances the dense model through halves of its layer.
    pub(super) fn advance_dense(
        &mut self,
        layer: &Layer,
        halves: &[Half],
    ) -> Result<(), RecoverError> {
        advance(&mut self.dense, &self.tokens, [self.seq_len, self.width], layer, halves)
            .map_err(|error| RecoverError::io(&self.folder, error))
    }
}

fn advance(
    store: &mut ChunkStore,
    tokens: &[Vec<u32>],
    [seq_len, width]: [usize; 2],
    layer: &Layer,
    halves: &[Half],
) -> std::io::Result<()> {
    for (window, tokens) in tokens.iter().enumerate() {
        let mut states = store.take(window)?;
        let keys_values = states.split_off(seq_len * width);
        let carried = Carried { tokens: tokens.clone(), keys_values };
        let states = Matrix::from_vec(seq_len, width, states);
        let mut hidden = Hidden::carrying(states, carried, seq_len);
        halves.iter().for_each(|&half| layer.forward_half(half, &mut hidden, &mut NoTap));
        let (states, carried) = hidden.into_parts();
        store.put(window, [states.into_vec(), carried.keys_values].concat())?;
    }
    Ok(())
}
