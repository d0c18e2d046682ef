//! Hidden states of calibration windows in two models, layer after layer.

use super::RecoverError;
use crate::chunk_store::ChunkStore;
use crate::model::{Half, Hidden, Layer, Model, NoTap};
use openwork::Matrix;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// The states of windows before a layer: in the pruned model, whose layers so far
/// are recovered, and in the dense model.
pub struct Chain {
    width: usize,
    seq_len: usize,
    windows: usize,
    pruned: ChunkStore,
    dense: ChunkStore,
    folder: PathBuf,
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
        let sizes = vec![seq_len * width; windows.len()];
        let bytes = 2 * (windows.len() * seq_len * width * size_of::<f32>()) as u64;
        let spills = memory.is_some_and(|memory| bytes > memory);
        let store = |model: &Model<'_>| -> Result<ChunkStore, RecoverError> {
            let io = |error| RecoverError::io(folder, error);
            let mut store = match spills {
                true => ChunkStore::in_file(folder, &sizes).map_err(io)?,
                false => ChunkStore::in_memory(&sizes),
            };
            for (i, window) in windows.iter().enumerate() {
                let states = model.embed(std::slice::from_ref(window))?.into_states();
                store.put(i, states.into_vec()).map_err(io)?;
            }
            Ok(store)
        };
        Ok(Self {
            width,
            seq_len,
            windows: windows.len(),
            pruned: store(pruned)?,
            dense: store(dense)?,
            folder: folder.to_path_buf(),
        })
    }

    /// Number of windows.
    pub fn windows(&self) -> usize {
        self.windows
    }

    /// Tokens per window.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// Entries of a state.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The states of one window: in the pruned model, and in the dense one.
    pub(super) fn pair(&mut self, window: usize) -> Result<[Cow<'_, [f32]>; 2], RecoverError> {
        let io = |error| RecoverError::io(&self.folder, error);
        Ok([self.pruned.get(window).map_err(io)?, self.dense.get(window).map_err(io)?])
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
        advance(&mut self.pruned, self.windows, [self.seq_len, self.width], layer, halves)
            .map_err(|error| RecoverError::io(&self.folder, error))
    }

    /// Advances the dense model through halves of its layer.
    pub(super) fn advance_dense(
        &mut self,
        layer: &Layer,
        halves: &[Half],
    ) -> Result<(), RecoverError> {
        advance(&mut self.dense, self.windows, [self.seq_len, self.width], layer, halves)
            .map_err(|error| RecoverError::io(&self.folder, error))
    }
}

fn advance(
    store: &mut ChunkStore,
    windows: usize,
    [seq_len, width]: [usize; 2],
    layer: &Layer,
    halves: &[Half],
) -> std::io::Result<()> {
    for window in 0..windows {
        let states = Matrix::from_vec(seq_len, width, store.take(window)?);
        let mut hidden = Hidden::new(states, seq_len);
        halves.iter().for_each(|&half| layer.forward_half(half, &mut hidden, &mut NoTap));
        store.put(window, hidden.into_states().into_vec())?;
    }
    Ok(())
}
