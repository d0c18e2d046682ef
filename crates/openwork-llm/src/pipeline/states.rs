//! Hidden states of the calibration windows between stages, chunk by chunk, and what their
//! tokens carry beside.

use super::stages::{Chunk, Sums};
use super::{Calibration, PipelineError};
use crate::chunk_store::ChunkStore;
use crate::model::{Carried, Config, Hidden, Layer, Site};
use openwork::Matrix;
use openwork::prune::measure::OutputError;
use std::io;
use std::path::{Path, PathBuf};

/// Tokens per chunk, rounded down to whole windows. It affects the result, because
/// X'X is summed chunk by chunk.
pub const CHUNK_TOKENS: usize = 8192;

/// Windows in a chunk.
pub(super) fn chunk_windows(seq_len: usize) -> usize {
    (CHUNK_TOKENS / seq_len.max(1)).max(1)
}

impl Calibration {
    /// The windows by chunk, all windows of a chunk of one length; single tokens come last.
    pub fn chunks(&self) -> impl Iterator<Item = &[Vec<u32>]> {
        let by_length =
            |windows: &'_ [Vec<u32>]| chunk_windows(windows.first().map_or(1, Vec::len));
        self.windows
            .chunks(by_length(&self.windows))
            .chain(self.single_tokens.chunks(by_length(&self.single_tokens)))
    }
}

/// Hidden states of all chunks or some of them: the inputs of a layer, or of its
/// MLP. Targets are the layer's outputs before it was pruned.
#[derive(Debug)]
pub struct States {
    inputs: ChunkStore,
    targets: ChunkStore,
    /// Keys and values that later layers share, if any.
    keys_values: ChunkStore,
    chunks: Vec<ChunkState>,
    width: usize,
    folder: PathBuf,
}

/// How far a chunk has advanced.
#[derive(Clone, Debug)]
struct ChunkState {
    /// Its first sample among all of the run.
    first: usize,
    /// Tokens in each of its windows.
    window: usize,
    attended: bool,
    /// Whether there is a target.
    targeted: bool,
    /// Its tokens, in a model with per-layer embeddings.
    tokens: Vec<u32>,
}

impl States {
    /// Allocates chunks, given as `[windows, tokens per window]`, in memory or in files
    /// in the folder `spill`.
    pub fn new(
        chunks: &[[usize; 2]],
        config: &Config,
        spill: Option<&Path>,
    ) -> Result<Self, PipelineError> {
        let width = config.hidden;
        let folder = spill.unwrap_or(Path::new("states")).to_path_buf();
        let store = |width: usize| {
            let sizes: Vec<usize> =
                chunks.iter().map(|[count, window]| count * window * width).collect();
            match spill {
                None => Ok(ChunkStore::in_memory(&sizes)),
                Some(folder) => ChunkStore::in_file(folder, &sizes),
            }
            .map_err(|error| PipelineError::io(&folder, error))
        };
        let (inputs, targets) = (store(width)?, store(width)?);
        let keys_values = store(config.shared_width())?;
        let chunks = chunks
            .iter()
            .scan(0, |next, &[count, window]| {
                let first = *next;
                *next += count * window;
                let (attended, targeted, tokens) = (false, false, Vec::new());
                Some(ChunkState { first, window, attended, targeted, tokens })
            })
            .collect();
        Ok(Self { inputs, targets, keys_values, chunks, width, folder })
    }

    /// Number of chunks, with or without states.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Stores the inputs of the first layer.
    pub fn put(&mut self, chunk: usize, hidden: Hidden) -> Result<(), PipelineError> {
        let chunk_state = &mut self.chunks[chunk];
        (chunk_state.attended, chunk_state.targeted) = (false, false);
        self.store(chunk, hidden)
    }

    /// Stores hidden states and what their tokens carry.
    fn store(&mut self, chunk: usize, hidden: Hidden) -> Result<(), PipelineError> {
        let (states, Carried { tokens, keys_values }) = hidden.into_parts();
        self.chunks[chunk].tokens = tokens;
        let stored = self.inputs.put(chunk, states.into_vec());
        let stored = stored.and_then(|()| self.keys_values.put(chunk, keys_values));
        stored.map_err(|error| self.io(error))
    }

    /// Runs the dense layer: stores its outputs as targets and sums the inputs of
    /// `sites`. The hidden states do not advance.
    pub fn begin(
        &mut self,
        chunk: usize,
        layer: &Layer,
        sites: &[Site],
    ) -> Result<Sums, PipelineError> {
        self.with(chunk, |chunk| chunk.begin(layer, sites))
    }

    /// Sums the inputs of `sites` with the sites before them pruned; first advances
    /// through attention, if `attend`.
    pub fn look(
        &mut self,
        chunk: usize,
        layer: &Layer,
        sites: &[Site],
        attend: bool,
    ) -> Result<Sums, PipelineError> {
        self.with(chunk, |chunk| {
            if attend && !chunk.attended {
                chunk.attend(layer);
            }
            chunk.look(layer, sites)
        })
    }

    /// Advances through the layer; the distance from the targets, if there are any.
    pub fn advance(&mut self, chunk: usize, layer: &Layer) -> Result<OutputError, PipelineError> {
        self.with(chunk, |chunk| Ok(chunk.finish(layer)))
    }

    fn with<T>(
        &mut self,
        index: usize,
        work: impl FnOnce(&mut Chunk) -> Result<T, PipelineError>,
    ) -> Result<T, PipelineError> {
        let states = self.inputs.take(index).map_err(|error| self.io(error))?;
        if states.is_empty() {
            return Err(PipelineError::Executor(format!(
                "this process does not hold the states of chunk {index}"
            )));
        }
        let keys_values = self.keys_values.take(index).map_err(|error| self.io(error))?;
        let state = &mut self.chunks[index];
        let carried = Carried { tokens: std::mem::take(&mut state.tokens), keys_values };
        let states = Matrix::from_vec(states.len() / self.width, self.width, states);
        let hidden = Hidden::carrying(states, carried, state.window);
        let mut chunk = Chunk::new(state.first, hidden);
        chunk.attended = state.attended;
        if state.targeted {
            chunk.target = self.targets.take(index).map_err(|error| self.io(error))?;
        }
        let result = work(&mut chunk);
        let Chunk { hidden, target, attended, .. } = chunk;
        let targeted = !target.is_empty();
        self.store(index, hidden)?;
        if targeted {
            self.targets.put(index, target).map_err(|error| self.io(error))?;
        }
        let state = &mut self.chunks[index];
        (state.attended, state.targeted) = (attended, targeted);
        result
    }

    fn io(&self, error: io::Error) -> PipelineError {
        PipelineError::io(&self.folder, error)
    }
}
