//! The folder of a run: the files it writes, and what `--resume` reads back.
//!
//! ```text
//! DIR/model-00008-of-00031.safetensors   layer 7, pruned: a shard of the result
//! DIR/openwork/plan.json                 the options of the run and the files it writes
//! DIR/openwork/layers/00007.json         measurements of layer 7 and its shard's SHA-256
//! DIR/openwork/layers/dense.json         perplexity of the dense model
//! DIR/openwork/record.json, recipe.toml  at the end
//! DIR/model.safetensors.index.json       last: marks the run as finished
//! ```
//!
//! A layer is done when its file in `layers/` exists, which is written after the
//! shard. Every file is written atomically and synced before the next one. Plan
//! and layer files start with the SHA-256 of their content.

use super::PipelineError;
use super::plan::METHOD;
use super::recipe::{Budget, Recipe};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::write::{INDEX, companion_names, shard_name};
use crate::report::{self, EvaluationRecord, LayerRecord, Record, TaskRecord};
use crate::{disk, output};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const PLAN: &str = "openwork/plan.json";
const LOCK: &str = "openwork/lock";
/// The folder of intermediate passes.
pub(super) const WORK: &str = "openwork/work/";
const DENSE: &str = "openwork/layers/dense.json";
const DENSE_TASKS: &str = "openwork/layers/dense-tasks.json";
const SHARES: &str = "openwork/layers/shares.json";
pub(super) const RECORD: &str = "openwork/record.json";
pub(super) const RECIPE: &str = "openwork/recipe.toml";

/// Paths that must not be symbolic links, which would lead out of the folder.
const LINKS: &[&str] = &["openwork", "openwork/layers", "openwork/work", LOCK];

/// Advice on a damaged layer file.
pub(super) const REDO: &str = "remove it, and the run computes it again";

/// Size limit of plan and layer files.
const MAX_SEALED: u64 = 1 << 28;

fn layer_file(layer: usize) -> String {
    format!("openwork/layers/{layer:05}.json")
}

/// What to do if the output folder is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Refuse.
    Fresh,
    /// Resume a run with the same plan; start a new run if there is none.
    Resume,
    /// Remove the files listed in the plan of an earlier run, and start again.
    Force,
}

/// The options of a run and the files it writes: `plan.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The version of openwork.
    pub openwork: String,
    /// Files of the model and their sha256.
    pub model: Vec<(String, String)>,
    /// The calibration windows.
    pub calibration: report::Calibration,
    /// Random seed of the calibration windows.
    pub seed: u64,
    /// Type of the written weights.
    pub dtype: String,
    /// Whether inputs are captured again after each site.
    pub sequential: bool,
    /// Prune only tensors whose names match.
    pub include: Option<String>,
    /// Leave tensors whose names match dense.
    pub exclude: Option<String>,
    /// The recovery, if the kept weights are trained.
    #[serde(default)]
    pub recovery: Option<String>,
    /// Files of the reference model for recovery, if it is not the model that is pruned,
    /// and their sha256.
    #[serde(default)]
    pub reference: Vec<(String, String)>,
    /// The recipe.
    pub recipe: Recipe,
    /// What is done to every tensor, one line per task.
    pub plan: Vec<String>,
    /// Every file that the run writes, relative to its folder; a name that ends
    /// in `/` is a folder of temporary files.
    pub files: Vec<String>,
}

impl Fingerprint {
    /// The differences to `other`, by option.
    fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut differ = |what: &str, was: String, is: String| {
            if was != is {
                found.push(format!("{what} was {was}, is {is}"));
            }
        };
        let given = |text: &Option<String>| text.clone().unwrap_or_else(|| "not given".to_string());
        differ("the version of openwork", self.openwork.clone(), other.openwork.clone());
        differ("{dtype}", self.dtype.clone(), other.dtype.clone());
        let order = |sequential| if sequential { "on" } else { "off" }.to_string();
        differ("{sequential}", order(self.sequential), order(other.sequential));
        differ("{recover}", given(&self.recovery), given(&other.recovery));
        if self.calibration.sha256 != other.calibration.sha256 {
            let (was, is) = (&self.calibration, &other.calibration);
            differ("{calib}", was.text.clone(), is.text.clone());
            differ("{samples}", was.samples.to_string(), is.samples.to_string());
            differ("{seq_len}", was.seq_len.to_string(), is.seq_len.to_string());
            differ("{single_tokens}", was.single_tokens.to_string(), is.single_tokens.to_string());
            differ("{seed}", self.seed.to_string(), other.seed.to_string());
        }
        // Different texts can be equivalent, such as a default that is given explicitly.
        if (&self.plan, &self.recipe.budget) != (&other.plan, &other.recipe.budget) {
            let (was, is) = (&self.recipe, &other.recipe);
            differ("{spec}", given(&was.spec), given(&is.spec));
            let method = |recipe: &Recipe| recipe.method.clone().unwrap_or(METHOD.to_string());
            differ("{method}", method(was), method(is));
            differ("{remove}", was.remove.to_string(), is.remove.to_string());
            differ("{include}", given(&self.include), given(&other.include));
            differ("{exclude}", given(&self.exclude), given(&other.exclude));
            let budget = |recipe: &Recipe| match recipe.budget {
                Some(Budget { density, spread }) => format!("density {density}, spread {spread}"),
                None => "not given".to_string(),
            };
            differ("[budget]", budget(was), budget(is));
            if was.rules != is.rules {
                found.push("the rules of the recipe changed".to_string());
            }
            if was.passes != is.passes {
                found.push("the passes of the recipe changed".to_string());
            }
        }
        if self.model != other.model {
            found.push(changed_files(&self.model, &other.model));
        }
        if self.reference != other.reference {
            found.push(format!("{} (reference)", changed_files(&self.reference, &other.reference)));
        }
        if found.is_empty() && self.calibration.sha256 != other.calibration.sha256 {
            found.push(format!("the text of {{calib}} {} changed", other.calibration.text));
        }
        if found.is_empty() && self.plan != other.plan {
            let new = other.plan.iter().find(|line| !self.plan.contains(line));
            let gone = self.plan.iter().find(|line| !other.plan.contains(line));
            found.push(match (new, gone) {
                (Some(line), _) => format!("the plan has a new line: {line}"),
                (None, Some(line)) => format!("the plan no longer has the line: {line}"),
                (None, None) => "the order of the plan changed".to_string(),
            });
        }
        found
    }
}

/// Describes which files of the model changed.
fn changed_files(was: &[(String, String)], is: &[(String, String)]) -> String {
    let names = |files: &[(String, String)]| -> Vec<String> {
        files.iter().map(|(name, _)| name.clone()).collect()
    };
    if names(was) != names(is) {
        let (was, is) = (names(was).join(", "), names(is).join(", "));
        return format!("the files of the model were {was} and are now {is}");
    }
    let changed: Vec<&str> =
        is.iter().filter(|file| !was.contains(file)).map(|(name, _)| name.as_str()).collect();
    format!("the content of the model changed ({})", changed.join(", "))
}

/// The files that a run over `layers` layers writes, in a safe order of removal:
/// first the index, without which the folder is not a model, last the plan.
pub fn files(source: &Checkpoint, layers: usize) -> Result<Vec<String>, PipelineError> {
    let mut files = vec![INDEX.to_string()];
    files.extend((0..layers).map(layer_file));
    files.extend([DENSE, DENSE_TASKS, SHARES, RECORD, RECIPE, "README.md"].map(String::from));
    files.extend((1..=layers + 1).map(|number| shard_name(number, layers + 1)));
    files.extend(companion_names(source)?);
    files.extend([WORK, LOCK, PLAN].map(String::from));
    Ok(files)
}

/// The state of a finished layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LayerDone {
    /// Measurements.
    pub record: LayerRecord,
    /// SHA-256 of the layer's shard.
    pub sha256: String,
    /// Perplexity after this layer, if measured.
    pub evaluation: Option<EvaluationRecord>,
    /// Seconds since the start of the run, over all resumes.
    pub elapsed: f64,
}

/// The folder of a run, locked against other runs.
#[derive(Debug)]
pub struct RunDir {
    folder: PathBuf,
    layers: usize,
    _lock: File,
}

impl RunDir {
    /// Opens or creates the folder of a run over `layers` layers.
    pub fn open(
        folder: &Path,
        layers: usize,
        fingerprint: &Fingerprint,
        start: Start,
    ) -> Result<Self, PipelineError> {
        let wrong = |why: &str| PipelineError::Folder { path: folder.into(), why: why.into() };
        let before = check_folder(folder, start)?;
        let made = folder.join("openwork/layers");
        fs::create_dir_all(&made).map_err(|error| PipelineError::io(&made, error))?;
        let path = folder.join(LOCK);
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(|error| PipelineError::io(&path, error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(wrong(
                    "another run is writing to this folder; wait for it, or choose another folder",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(PipelineError::io(&path, error)),
        }
        let run = Self { folder: folder.to_path_buf(), layers, _lock: lock };
        match before {
            Some(before) if start == Start::Force => {
                let new = fingerprint.files.iter().filter(|name| !before.files.contains(name));
                if let Some(name) = new.into_iter().find(|name| exists(&folder.join(name))) {
                    return Err(wrong(&format!(
                        "{name} was not written by the earlier run, and this one would replace it; move it away, or choose another folder"
                    )));
                }
                run.clear(&before)?;
            }
            Some(before) => {
                let differ = before.differences(fingerprint);
                if differ.is_empty() {
                    return Ok(run);
                }
                return Err(wrong(&format!(
                    "the run in this folder was started with other options: {}; give the same options to resume it, or {{force}} to start again",
                    differ.join("; ")
                )));
            }
            None => {}
        }
        write_sealed(&folder.join(PLAN), fingerprint)?;
        Ok(run)
    }

    /// Removes the files listed in the plan of the earlier run, and nothing else.
    fn clear(&self, before: &Fingerprint) -> Result<(), PipelineError> {
        let gone = |path: &Path, result: std::io::Result<()>| match result {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(PipelineError::io(path, error))
            }
            _ => Ok(()),
        };
        // This run holds the lock.
        for name in before.files.iter().filter(|name| *name != LOCK) {
            let path = self.folder.join(name);
            if name.ends_with('/') {
                // A link is removed, not followed.
                gone(&path, fs::remove_dir_all(&path))?;
                continue;
            }
            gone(&path, fs::remove_file(&path))?;
            let unfinished = self.folder.join(format!("{name}{}", disk::UNFINISHED));
            gone(&unfinished, fs::remove_file(&unfinished))?;
        }
        Ok(())
    }

    /// The record, if the run is finished.
    pub fn finished(&self) -> Option<Record> {
        let whole = self.folder.join(INDEX).exists();
        whole.then(|| Record::read(&self.folder).ok()).flatten()
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of a layer's shard; shard 1 holds everything else.
    pub fn shard(&self, layer: usize) -> PathBuf {
        self.folder.join(shard_name(layer + 2, self.layers + 1))
    }

    /// The path of the shard for tensors outside the layers.
    pub fn rest(&self) -> PathBuf {
        self.folder.join(shard_name(1, self.layers + 1))
    }

    fn layer_file(&self, layer: usize) -> PathBuf {
        self.folder.join(layer_file(layer))
    }

    /// The finished layers, in order, with their shards verified.
    pub fn done(&self) -> Result<Vec<LayerDone>, PipelineError> {
        let mut done = Vec::new();
        for layer in 0..self.layers {
            let Some(state) = read_sealed::<LayerDone>(&self.layer_file(layer), REDO)? else {
                break;
            };
            let shard = self.shard(layer);
            let wrong = match disk::sha256_of(&shard) {
                Ok(found) if found == state.sha256 => None,
                Ok(_) => Some("is damaged: its SHA-256 is not that of the shard the run wrote"),
                Err(error) if error.kind() == ErrorKind::NotFound => Some("is missing"),
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

    /// Saves the state of a layer whose shard is written.
    pub fn save(&self, layer: usize, done: &LayerDone) -> Result<(), PipelineError> {
        write_sealed(&self.layer_file(layer), done)
    }

    /// The perplexity of the dense model, if measured.
    pub fn dense(&self) -> Result<Option<EvaluationRecord>, PipelineError> {
        read_sealed(&self.folder.join(DENSE), REDO)
    }

    /// Saves the perplexity of the dense model.
    pub fn save_dense(&self, evaluation: &EvaluationRecord) -> Result<(), PipelineError> {
        write_sealed(&self.folder.join(DENSE), evaluation)
    }

    /// The accuracies of the dense model, if measured.
    pub fn dense_tasks(&self) -> Result<Option<Vec<TaskRecord>>, PipelineError> {
        read_sealed(&self.folder.join(DENSE_TASKS), REDO)
    }

    /// Saves the accuracies of the dense model.
    pub fn save_dense_tasks(&self, tasks: &[TaskRecord]) -> Result<(), PipelineError> {
        write_sealed(&self.folder.join(DENSE_TASKS), &tasks.to_vec())
    }

    /// The densities of the layers under a budget, if computed.
    pub fn shares(&self) -> Result<Option<Vec<f64>>, PipelineError> {
        read_sealed(&self.folder.join(SHARES), REDO)
    }

    /// Saves the densities of the layers.
    pub fn save_shares(&self, shares: &[f64]) -> Result<(), PipelineError> {
        write_sealed(&self.folder.join(SHARES), &shares.to_vec())
    }

    /// Writes a small file of the result.
    pub fn write(&self, name: &str, text: &str) -> Result<(), PipelineError> {
        let path = self.folder.join(name);
        disk::write(&path, text.as_bytes()).map_err(|error| PipelineError::io(&path, error))?;
        Ok(())
    }
}

/// Checks that a run may write to a folder; returns the plan of an earlier run
/// in it.
pub fn check_folder(folder: &Path, start: Start) -> Result<Option<Fingerprint>, PipelineError> {
    let wrong = |why: &str| PipelineError::Folder { path: folder.into(), why: why.into() };
    output::check_folder(folder, &[])?;
    let mut entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(PipelineError::io(folder, error)),
    };
    if let Some(link) = LINKS.iter().find(|name| folder.join(name).is_symlink()) {
        return Err(wrong(&format!(
            "{link} is a symbolic link, which a run does not follow; remove it, or choose another folder"
        )));
    }
    let empty = entries.next().is_none();
    if start == Start::Fresh && !empty {
        return Err(wrong(
            "the folder is not empty; give {resume} to continue the run in it, or {force} to replace it",
        ));
    }
    let path = folder.join(PLAN);
    let advice = "choose another {out}, or remove this folder yourself and start again";
    match read_sealed::<Fingerprint>(&path, advice)? {
        None if empty || without_plan(folder) => Ok(None),
        None if start == Start::Force => Err(wrong(
            "no run was made in this folder, and {force} replaces only what a run wrote; choose another folder",
        )),
        None => Err(wrong("the folder is not empty, and there is no run to resume in it")),
        found => Ok(found),
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

/// Whether the path exists, even as a dangling link.
fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Writes JSON, preceded by its SHA-256.
pub(super) fn write_sealed<T: Serialize>(path: &Path, value: &T) -> Result<(), PipelineError> {
    let body = serde_json::to_string(value)
        .map_err(|error| PipelineError::io(path, std::io::Error::other(error)))?;
    let text = format!("{}\n{body}\n", disk::sha256(body.as_bytes()));
    disk::write(path, text.as_bytes()).map_err(|error| PipelineError::io(path, error))?;
    Ok(())
}

/// Reads a file of [`write_sealed`]; `None` if there is none. `advice` on a
/// damaged file completes the error.
pub(super) fn read_sealed<T: DeserializeOwned>(
    path: &Path,
    advice: &str,
) -> Result<Option<T>, PipelineError> {
    let wrong = |why: &str| PipelineError::State {
        path: path.to_path_buf(),
        why: format!("{why}; {advice}"),
    };
    let text = match disk::read(path, MAX_SEALED) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(PipelineError::io(path, error)),
    };
    let text = String::from_utf8(text).map_err(|_| wrong("is damaged: not valid UTF-8"))?;
    let (hash, body) = text.split_once('\n').ok_or_else(|| wrong("is damaged: it is truncated"))?;
    let body = body.strip_suffix('\n').unwrap_or(body);
    if disk::sha256(body.as_bytes()) != hash {
        return Err(wrong("is damaged: its content does not match its hash"));
    }
    serde_json::from_str(body)
        .map(Some)
        .map_err(|error| wrong(&format!("was written by another version: {error}")))
}
