//! The state of a stage on disk, from which it continues with the same bytes.
//!
//! ```text
//! state.json                the progress, and the hash of the file below
//! state-STEP.safetensors    weights and moments after STEP steps
//! best.safetensors          the weights with the lowest held-out loss
//! ```

use super::RecoverError;
use super::distill::CurvePoint;
use super::optimizer::Moments;
use super::rates::RateTrial;
use crate::checkpoint::write::{self, Data, Part};
use crate::checkpoint::{Checkpoint, Dtype};
use crate::disk;
use crate::model::ModelError;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const STATE: &str = "state.json";
const BEST: &str = "best.safetensors";
const MAX_STATE: u64 = 1 << 24;

/// The saved progress of a stage.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Saved {
    /// The learning rates that were tried for a short time.
    #[serde(default)]
    pub trials: Vec<RateTrial>,
    /// Index of the learning rate in use.
    pub attempt: usize,
    /// Steps done with it.
    pub step: usize,
    /// Held-out loss of the pruned model.
    pub before: f64,
    /// The lowest held-out loss so far.
    pub best: f64,
    /// Tokens that were trained on.
    pub tokens: u64,
    /// Losses so far.
    pub curve: Vec<CurvePoint>,
    /// The file of weights and moments, and its SHA-256.
    pub file: Option<(String, String)>,
}

/// Weights as a list of tensors, always in the same order.
pub(super) trait Parameters {
    fn tensors(&mut self) -> Vec<&mut [f32]>;
}

/// The folder of a state.
pub(super) struct StateDir {
    folder: PathBuf,
}

impl StateDir {
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf() }
    }

    fn io(&self, name: &str) -> impl Fn(std::io::Error) -> RecoverError {
        let path = self.folder.join(name);
        move |error| RecoverError::io(&path, error)
    }

    fn make(&self) -> Result<(), RecoverError> {
        std::fs::create_dir_all(&self.folder).map_err(|error| RecoverError::io(&self.folder, error))
    }

    /// Saves the state of the optimizer and removes the previous one.
    pub fn save(
        &self,
        student: &mut impl Parameters,
        moments: &Moments,
        saved: &mut Saved,
    ) -> Result<(), RecoverError> {
        self.make()?;
        let name = format!("state-{}-{}.safetensors", saved.attempt, saved.step);
        let weights = student.tensors();
        let tensors = weights.iter().map(|tensor| &**tensor).enumerate();
        let tensors = tensors.map(|(i, tensor)| (format!("w{i}"), tensor));
        let mean = moments.mean.iter().enumerate().map(|(i, t)| (format!("m{i}"), t.as_slice()));
        let square =
            moments.square.iter().enumerate().map(|(i, t)| (format!("v{i}"), t.as_slice()));
        let parts: Vec<Part<'_>> = tensors.chain(mean).chain(square).map(part).collect();
        let written = write::shard(&self.folder.join(&name), &parts, &[])?;
        let old = saved.file.replace((name, written.sha256));
        self.save_progress(saved)?;
        match old {
            Some((old, _)) => std::fs::remove_file(self.folder.join(&old)).map_err(self.io(&old)),
            None => Ok(()),
        }
    }

    /// Saves the progress alone.
    pub fn save_progress(&self, saved: &Saved) -> Result<(), RecoverError> {
        self.make()?;
        let json = serde_json::to_vec(saved).map_err(std::io::Error::other);
        let write = json.and_then(|json| disk::write(&self.folder.join(STATE), &json));
        write.map(drop).map_err(self.io(STATE))
    }

    /// Saves the best weights so far.
    pub fn save_best(&self, student: &mut impl Parameters) -> Result<(), RecoverError> {
        self.make()?;
        let weights = student.tensors();
        let parts: Vec<Part<'_>> =
            weights.iter().enumerate().map(|(i, t)| part((format!("w{i}"), &**t))).collect();
        write::shard(&self.folder.join(BEST), &parts, &[])?;
        Ok(())
    }

    /// Reads the best weights.
    pub fn load_best(&self, student: &mut impl Parameters) -> Result<(), RecoverError> {
        let file = self.open(BEST)?;
        self.read(&file, 'w', student.tensors())
    }

    /// Reads the state that was saved last, if there is one. Weights and moments stay as they
    /// are if no step was saved.
    pub fn load(
        &self,
        student: &mut impl Parameters,
        moments: &mut Moments,
    ) -> Result<Option<Saved>, RecoverError> {
        let text = match disk::read(&self.folder.join(STATE), MAX_STATE) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.io(STATE)(error)),
        };
        let saved: Saved = serde_json::from_slice(&text)
            .map_err(|error| self.io(STATE)(std::io::Error::other(error)))?;
        let Some((name, sha256)) = &saved.file else { return Ok(Some(saved)) };
        let path = self.folder.join(name);
        if disk::sha256_of(&path).map_err(self.io(name))? != *sha256 {
            let why = "is damaged: remove this folder to train this stage again";
            return Err(self.io(name)(std::io::Error::other(why)));
        }
        let file = self.open(name)?;
        self.read(&file, 'w', student.tensors())?;
        let sizes = |kind: char| -> Vec<usize> {
            let size = |i: usize| file.tensor(&format!("{kind}{i}")).map(|t| t.len()).ok();
            (0..).map_while(size).collect()
        };
        *moments = Moments::new(sizes('m'));
        self.read(&file, 'm', moments.mean.iter_mut().map(Vec::as_mut_slice).collect())?;
        self.read(&file, 'v', moments.square.iter_mut().map(Vec::as_mut_slice).collect())?;
        Ok(Some(saved))
    }

    fn open(&self, name: &str) -> Result<Checkpoint, RecoverError> {
        let file = Checkpoint::open_shard(&self.folder.join(name), serde_json::Value::Null);
        Ok(file.map_err(ModelError::from)?)
    }

    fn read(
        &self,
        file: &Checkpoint,
        kind: char,
        into: Vec<&mut [f32]>,
    ) -> Result<(), RecoverError> {
        for (i, into) in into.into_iter().enumerate() {
            let tensor = file
                .tensor_with_shape(&format!("{kind}{i}"), &[into.len()])
                .map_err(ModelError::from)?;
            into.copy_from_slice(&tensor.to_f32());
        }
        Ok(())
    }
}

fn part((name, numbers): (String, &[f32])) -> Part<'_> {
    Part::new(&name, Dtype::F32, &[numbers.len()], Data::F32(numbers))
}
