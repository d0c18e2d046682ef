//! What a run leaves on the disk, layer by layer.
//!
//! ```text
//! DIR/model-00008-of-00031.safetensors   layer 7, pruned: a shard of the result
//! DIR/openwork/plan.json                 what the run was asked for
//! DIR/openwork/layers/00007.json         what was measured, and the shard's sha256
//! DIR/openwork/layers/dense.json         the perplexity of the dense model
//! DIR/openwork/record.json, recipe.toml  at the end
//! DIR/model.safetensors.index.json       last of all: with it the folder is whole
//! ```
//!
//! A layer is done when its file in `layers/` is there; that file is written
//! after the shard. Every file appears whole or not at all, and is on the disk
//! before the next is begun. Files of ours carry the hash of their content.

use super::PipelineError;
use crate::checkpoint::write::shard_name;
use crate::disk;
use crate::report::{EvaluationRecord, LayerRecord};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What to do if there is something in the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Refuse.
    Fresh,
    /// Go on where a run with the same plan stopped; begin if there was none.
    Resume,
    /// Remove what an earlier run left, and begin.
    Force,
}

/// Everything that determines the result, in words that can be compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The version of openwork.
    pub openwork: String,
    /// Files of the model and their sha256.
    pub model: Vec<(String, String)>,
    /// Of the calibration tokens.
    pub calibration: String,
    /// Tokens in a window.
    pub seq_len: usize,
    /// Windows of a single token.
    #[serde(default, alias = "starts")]
    pub single_tokens: usize,
    /// Type of the written weights.
    pub dtype: String,
    /// Whether inputs are captured anew after each site.
    pub sequential: bool,
    /// The budget, if there is one.
    pub budget: Option<super::recipe::Budget>,
    /// What is done to every tensor.
    pub plan: Vec<String>,
}

impl Fingerprint {
    /// What differs in `other`, in words.
    fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut differ = |what: &str, was: String, is: String| {
            if was != is {
                found.push(format!("{what} was {was}, is {is}"));
            }
        };
        differ("openwork's version", self.openwork.clone(), other.openwork.clone());
        let text = |files: &[(String, String)]| {
            files
                .iter()
                .map(|(name, hash)| format!("{name} {}", hash.get(..12).unwrap_or(hash)))
                .collect::<Vec<_>>()
                .join(", ")
        };
        differ("the model", text(&self.model), text(&other.model));
        differ("the calibration text", self.calibration.clone(), other.calibration.clone());
        differ("--seq-len", self.seq_len.to_string(), other.seq_len.to_string());
        differ("--single-tokens", self.single_tokens.to_string(), other.single_tokens.to_string());
        differ("--dtype", self.dtype.clone(), other.dtype.clone());
        let order = |sequential| if sequential { "on" } else { "off" }.to_string();
        differ("--sequential", order(self.sequential), order(other.sequential));
        differ("the budget", format!("{:?}", self.budget), format!("{:?}", other.budget));
        let changed: Vec<&String> =
            other.plan.iter().filter(|line| !self.plan.contains(line)).collect();
        if let Some(first) = changed.first() {
            found
                .push(format!("{} tensors have another plan, the first is {first}", changed.len()));
        } else if self.plan.len() != other.plan.len() {
            let (was, is) = (self.plan.len(), other.plan.len());
            found.push(format!("{was} tasks were planned, now {is}"));
        }
        found
    }
}

/// A layer that is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LayerDone {
    /// What was measured.
    pub record: LayerRecord,
    /// Of the layer's shard.
    pub sha256: String,
    /// A perplexity that was measured after it.
    pub evaluation: Option<EvaluationRecord>,
    /// Wall time of the run up to here, over all starts.
    pub elapsed: f64,
}

/// The folder of a run. While it lives no other run can use the folder.
#[derive(Debug)]
pub struct RunDir {
    folder: PathBuf,
    layers: usize,
    _lock: File,
}

impl RunDir {
    /// Opens or makes the folder for a run over `layers` layers.
    pub fn open(
        folder: &Path,
        layers: usize,
        fingerprint: &Fingerprint,
        start: Start,
    ) -> Result<Self, PipelineError> {
        let wrong = |why: &str| PipelineError::Folder { path: folder.into(), why: why.into() };
        check_folder(folder, start)?;
        let ours = folder.join("openwork");
        fs::create_dir_all(ours.join("layers")).map_err(|error| wrong(&cannot(&error)))?;
        let lock = File::create(ours.join("lock")).map_err(|error| wrong(&cannot(&error)))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(wrong("another run is writing here; wait for it, or choose another"));
            }
            Err(TryLockError::Error(error)) => return Err(wrong(&cannot(&error))),
        }
        let run = Self { folder: folder.to_path_buf(), layers, _lock: lock };
        if start == Start::Force {
            run.clear()?;
        }
        let plan = ours.join("plan.json");
        match read_sealed::<Fingerprint>(&plan)? {
            None => write_sealed(&plan, fingerprint)?,
            Some(before) => {
                let differ = before.differences(fingerprint);
                if !differ.is_empty() {
                    return Err(wrong(&format!(
                        "a run with another plan was begun here: {}; ask for the same again, or give --force to begin anew",
                        differ.join("; ")
                    )));
                }
            }
        }
        Ok(run)
    }

    /// Removes what a run leaves, and nothing else.
    fn clear(&self) -> Result<(), PipelineError> {
        let remove = |path: PathBuf| match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(PipelineError::io(&path, error))
            }
            _ => Ok(()),
        };
        // The list first: without it the folder is not taken for a whole model.
        remove(self.folder.join("model.safetensors.index.json"))?;
        remove(self.folder.join("model.safetensors"))?;
        for folder in [self.folder.clone(), self.folder.join("openwork/layers")] {
            let entries = fs::read_dir(&folder).map_err(|e| PipelineError::io(&folder, e))?;
            for entry in entries.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let shard = name.starts_with("model-") && name.ends_with(".safetensors");
                if shard || name.ends_with(disk::UNFINISHED) || folder.ends_with("layers") {
                    remove(entry.path())?;
                }
            }
        }
        for name in ["openwork/plan.json", "openwork/record.json"] {
            remove(self.folder.join(name))?;
        }
        Ok(())
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The shard of a layer; shard 1 is for everything else.
    pub fn shard(&self, layer: usize) -> PathBuf {
        self.folder.join(shard_name(layer + 2, self.layers + 1))
    }

    /// The shard for everything beside the layers.
    pub fn rest(&self) -> PathBuf {
        self.folder.join(shard_name(1, self.layers + 1))
    }

    fn layer_file(&self, layer: usize) -> PathBuf {
        self.folder.join(format!("openwork/layers/{layer:05}.json"))
    }

    /// The layers that are done, from the first on, their shards checked.
    pub fn done(&self) -> Result<Vec<LayerDone>, PipelineError> {
        let mut done = Vec::new();
        for layer in 0..self.layers {
            let Some(state) = read_sealed::<LayerDone>(&self.layer_file(layer))? else { break };
            let shard = self.shard(layer);
            let wrong = match disk::sha256_of(&shard) {
                Ok(found) if found == state.sha256 => None,
                Ok(_) => Some("is damaged: its content is not what the run wrote"),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    Some("is missing: the run wrote it")
                }
                Err(error) => return Err(PipelineError::io(&shard, error)),
            };
            if let Some(wrong) = wrong {
                return Err(PipelineError::State {
                    path: shard,
                    why: format!(
                        "{wrong}; remove {} to prune this layer and those after it again",
                        self.layer_file(layer).display()
                    ),
                });
            }
            done.push(state);
        }
        Ok(done)
    }

    /// A layer is done; its shard is on the disk.
    pub fn save(&self, layer: usize, done: &LayerDone) -> Result<(), PipelineError> {
        write_sealed(&self.layer_file(layer), done)
    }

    /// The perplexity of the dense model, if it was measured.
    pub fn dense(&self) -> Result<Option<EvaluationRecord>, PipelineError> {
        read_sealed(&self.folder.join("openwork/layers/dense.json"))
    }

    /// Keeps the perplexity of the dense model.
    pub fn save_dense(&self, evaluation: &EvaluationRecord) -> Result<(), PipelineError> {
        write_sealed(&self.folder.join("openwork/layers/dense.json"), evaluation)
    }

    /// Densities by layer that a budget was shared into, if it was.
    pub fn shares(&self) -> Result<Option<Vec<f64>>, PipelineError> {
        read_sealed(&self.folder.join("openwork/layers/shares.json"))
    }

    /// Keeps the densities by layer.
    pub fn save_shares(&self, shares: &[f64]) -> Result<(), PipelineError> {
        write_sealed(&self.folder.join("openwork/layers/shares.json"), &shares.to_vec())
    }

    /// Writes one of the small files of the result.
    pub fn write(&self, name: &str, text: &str) -> Result<(), PipelineError> {
        let path = self.folder.join(name);
        disk::write(&path, text.as_bytes()).map_err(|error| PipelineError::io(&path, error))?;
        Ok(())
    }
}

/// Whether a folder may be written to, without writing to it.
pub fn check_folder(folder: &Path, start: Start) -> Result<(), PipelineError> {
    let wrong = |why: &str| PipelineError::Folder { path: folder.into(), why: why.into() };
    match fs::read_dir(folder) {
        Ok(mut entries) => {
            if start == Start::Fresh && entries.next().is_some() {
                return Err(wrong(
                    "the folder is not empty; give --resume to go on with a run, or --force to overwrite one",
                ));
            }
            let ours = folder.join("openwork/plan.json").exists() || without_plan(folder);
            if start == Start::Resume && !ours && entries.next().is_some() {
                return Err(wrong("the folder is not empty, and there is no run to resume in it"));
            }
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(wrong(&cannot(&error))),
    }
}

/// Whether a run was stopped here before it wrote its plan.
fn without_plan(folder: &Path) -> bool {
    let only = |folder: PathBuf, expected: &dyn Fn(&str) -> bool| {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.flatten().all(|entry| entry.file_name().to_str().is_some_and(expected))
    };
    let first = |name: &str| ["layers", "lock"].contains(&name) || name.ends_with(disk::UNFINISHED);
    only(folder.to_path_buf(), &|name| name == "openwork")
        && only(folder.join("openwork"), &first)
        && only(folder.join("openwork/layers"), &|_| false)
}

fn cannot(error: &std::io::Error) -> String {
    format!("cannot be used: {error}")
}

/// Writes JSON below the hash of its bytes.
fn write_sealed<T: Serialize>(path: &Path, value: &T) -> Result<(), PipelineError> {
    let body = serde_json::to_string(value)
        .map_err(|error| PipelineError::io(path, std::io::Error::other(error)))?;
    let text = format!("{}\n{body}\n", disk::sha256(body.as_bytes()));
    disk::write(path, text.as_bytes()).map_err(|error| PipelineError::io(path, error))?;
    Ok(())
}

/// Reads what [`write_sealed`] wrote; nothing if there is no such file.
fn read_sealed<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, PipelineError> {
    let wrong = |why: &str| PipelineError::State {
        path: path.to_path_buf(),
        why: format!("{why}; remove it, and what it stands for is done again"),
    };
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(PipelineError::io(path, error)),
    };
    let text = String::from_utf8(text).map_err(|_| wrong("is damaged: not a text"))?;
    let (hash, body) = text.split_once('\n').ok_or_else(|| wrong("is damaged: it ends early"))?;
    let body = body.strip_suffix('\n').unwrap_or(body);
    if disk::sha256(body.as_bytes()) != hash {
        return Err(wrong("is damaged: its content does not match its hash"));
    }
    serde_json::from_str(body)
        .map(Some)
        .map_err(|error| wrong(&format!("was written by another version: {error}")))
}
