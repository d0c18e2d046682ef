//! The states of a run's windows between the steps, chunk by chunk.

use super::hidden::Shelf;
use super::steps::{Chunk, Sums};
use super::{Calibration, PipelineError};
use crate::model::{Config, Layer, Site};
use openwork::prune::measure::OutputError;
use std::io;
use std::path::{Path, PathBuf};

/// Tokens that a chunk has, as nearly as whole windows allow. Part of the
/// result: sums of X'X are closed at the end of every chunk.
pub const CHUNK_TOKENS: usize = 8192;

/// Windows in a chunk.
pub(super) fn chunk_windows(seq_len: usize) -> usize {
    (CHUNK_TOKENS / seq_len.max(1)).max(1)
}

impl Calibration {
    /// The windows by chunk, those of a chunk all of one length; starts come last.
    pub fn chunks(&self) -> impl Iterator<Item = &[Vec<u32>]> {
        let by_length =
            |windows: &'_ [Vec<u32>]| chunk_windows(windows.first().map_or(1, Vec::len));
        self.windows
            .chunks(by_length(&self.windows))
            .chain(self.starts.chunks(by_length(&self.starts)))
    }
}

/// The states of windows, all of them or those of some chunks. They stand before
/// a layer, or after its attention; targets are its outputs before it was pruned.
#[derive(Debug)]
pub struct States {
    shelf: Shelf,
    targets: Shelf,
    places: Vec<Place>,
    width: usize,
    folder: PathBuf,
}

/// Where a chunk stands.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Its first sample among all of the run.
    first: usize,
    /// Tokens in each of its windows.
    window: usize,
    attended: bool,
    /// Whether there is a target.
    targeted: bool,
}

impl States {
    /// Room for chunks of so many windows with so many tokens each, in memory or in
    /// files within `spill`.
    pub fn new(
        chunks: &[[usize; 2]],
        config: &Config,
        spill: Option<&Path>,
    ) -> Result<Self, PipelineError> {
        let width = config.hidden;
        let sizes: Vec<usize> =
            chunks.iter().map(|[count, window]| count * window * width).collect();
        let shelf = || match spill {
            None => Ok(Shelf::in_memory(&sizes)),
            Some(folder) => Shelf::in_file(folder, &sizes),
        };
        let folder = spill.unwrap_or(Path::new("states")).to_path_buf();
        let io = |error| PipelineError::io(&folder, error);
        let (shelf, targets) = (shelf().map_err(io)?, shelf().map_err(io)?);
        let places = chunks
            .iter()
            .scan(0, |next, &[count, window]| {
                let first = *next;
                *next += count * window;
                Some(Place { first, window, attended: false, targeted: false })
            })
            .collect();
        Ok(Self { shelf, targets, places, width, folder })
    }

    /// How many chunks there are, with states or without.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Puts states before the first layer.
    pub fn put(&mut self, chunk: usize, states: Vec<f32>) -> Result<(), PipelineError> {
        let place = &mut self.places[chunk];
        (place.attended, place.targeted) = (false, false);
        self.shelf.put(chunk, states).map_err(|error| self.io(error))
    }

    /// Runs the layer as it is: its outputs become the target, inputs of `sites`
    /// are summed, and the states stay before it.
    pub fn begin(
        &mut self,
        chunk: usize,
        layer: &Layer,
        sites: &[Site],
    ) -> Result<Sums, PipelineError> {
        self.with(chunk, |chunk| chunk.begin(layer, sites))
    }

    /// Sums the inputs of `sites` with the sites before them pruned; first goes
    /// through attention, if asked to.
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

    /// Goes through the layer; how far the states are from the target, if there is one.
    pub fn advance(&mut self, chunk: usize, layer: &Layer) -> Result<OutputError, PipelineError> {
        self.with(chunk, |chunk| Ok(chunk.finish(layer)))
    }

    fn with<T>(
        &mut self,
        index: usize,
        work: impl FnOnce(&mut Chunk) -> Result<T, PipelineError>,
    ) -> Result<T, PipelineError> {
        let place = self.places[index];
        let states = self.shelf.take(index).map_err(|error| self.io(error))?;
        if states.is_empty() {
            return Err(PipelineError::Crew(format!("the states of chunk {index} are not here")));
        }
        let mut chunk = Chunk::new(place.first, states, place.window, self.width);
        chunk.attended = place.attended;
        if place.targeted {
            chunk.target = self.targets.take(index).map_err(|error| self.io(error))?;
        }
        let result = work(&mut chunk);
        let Chunk { hidden, target, attended, .. } = chunk;
        let (states, targeted) = (hidden.into_states().into_vec(), !target.is_empty());
        self.shelf.put(index, states).map_err(|error| self.io(error))?;
        if targeted {
            self.targets.put(index, target).map_err(|error| self.io(error))?;
        }
        self.places[index] = Place { attended, targeted, ..place };
        result
    }

    fn io(&self, error: io::Error) -> PipelineError {
        PipelineError::io(&self.folder, error)
    }
}
