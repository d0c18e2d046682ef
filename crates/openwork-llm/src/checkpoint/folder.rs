//! Hugging Face folders: `config.json` and one or more safetensors files.

use super::error::{CheckpointError, Fault};
use super::json_entries::JsonEntries;
use super::mapped::{Mapped, io_fault};
use super::packed;
use super::safetensors::{self, Metadata};
use super::tensor::TensorInfo;
use crate::disk;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// File name of a model in one file.
pub(super) const SINGLE: &str = "model.safetensors";
/// File name of the index of a sharded model.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Size limit of files other than tensors; Gemma's tokenizer.json has 33 MB.
const MAX_SMALL: u64 = 1 << 28;

/// Reads the config, maps the files, and lists their tensors.
pub(super) fn open(
    folder: &Path,
) -> Result<(Value, Vec<Mapped>, Vec<TensorInfo>), CheckpointError> {
    let lacks = |what| CheckpointError::new(folder, Fault::Incomplete { what });
    if let Some(layers) = unfinished_layers(folder) {
        return Err(CheckpointError::new(folder, Fault::Unfinished { layers }));
    }
    let config = json(&folder.join("config.json"))?.ok_or_else(|| lacks("config.json"))?;
    if !config.is_object() {
        let why = Fault::Shape("not a JSON object".to_string());
        return Err(CheckpointError::new(&folder.join("config.json"), why));
    }
    // Like transformers, prefer a single file to shards.
    if folder.join(SINGLE).exists() {
        let file = Mapped::open(&folder.join(SINGLE))?;
        let (tensors, metadata) = header(&file, 0)?;
        let tensors = joined(&file, tensors, &metadata)?;
        return Ok((config, vec![file], tensors));
    }
    let index = folder.join(INDEX);
    if !index.exists() {
        return Err(lacks("model.safetensors"));
    }
    let (files, tensors) = shards(folder, &index)?;
    Ok((config, files, tensors))
}

/// The layers that are done in the folder of a run that is not finished; `None`
/// for other folders. A run writes its plan first and the index last.
pub fn unfinished_layers(folder: &Path) -> Option<usize> {
    let run = folder.join("openwork");
    if !run.join("plan.json").exists() || folder.join(INDEX).exists() {
        return None;
    }
    // A run with passes keeps its layers deeper.
    let folders = [run.join("layers"), run.join("work/pass-1/masked/openwork/layers")];
    let done = |folder| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_layer = |name: &str| name.ends_with(".json") && name.starts_with(char::is_numeric);
    let names = folders.into_iter().flat_map(done).map(|entry| entry.file_name());
    Some(names.filter(|name| name.to_str().is_some_and(is_layer)).count())
}

/// The contents of a small file; `None` if there is no such file.
pub(super) fn small(path: &Path) -> Result<Option<Vec<u8>>, CheckpointError> {
    match disk::read(path, MAX_SMALL) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CheckpointError::new(path, io_fault(error))),
    }
}

/// The JSON in `path`; `None` if there is no such file.
fn json(path: &Path) -> Result<Option<Value>, CheckpointError> {
    let Some(bytes) = small(path)? else { return Ok(None) };
    let value = serde_json::from_slice(&bytes);
    value.map(Some).map_err(|error| CheckpointError::new(path, Fault::Json(error)))
}

fn header(file: &Mapped, number: usize) -> Result<(Vec<TensorInfo>, Metadata), CheckpointError> {
    safetensors::read(file.bytes(), number)
        .map_err(|fault| CheckpointError::new(file.path(), fault))
}

/// The tensors of a file, with packed tensors in place of their parts.
pub(super) fn joined(
    file: &Mapped,
    tensors: Vec<TensorInfo>,
    metadata: &Metadata,
) -> Result<Vec<TensorInfo>, CheckpointError> {
    packed::join(file.bytes(), tensors, metadata)
        .map_err(|fault| CheckpointError::new(file.path(), fault))
}

/// Opens every shard of the index. Guarantees that the index and the shards list
/// the same tensors, each in one shard.
fn shards(folder: &Path, index: &Path) -> Result<(Vec<Mapped>, Vec<TensorInfo>), CheckpointError> {
    let wrong = |fault| CheckpointError::new(index, fault);
    let listed = weight_map(index)?;
    // Shards by name, each with its first tensor for error messages.
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for (tensor, shard) in &listed {
        names.entry(shard).or_insert(tensor);
    }
    let mut files = Vec::with_capacity(names.len());
    let mut tensors: Vec<TensorInfo> = Vec::new();
    let mut metadata = Vec::with_capacity(names.len());
    let mut found: HashMap<String, &str> = HashMap::new();
    for (&shard, &tensor) in &names {
        // A path could reach any file of the machine.
        if Path::new(shard).file_name() != Some(shard.as_ref()) {
            return Err(wrong(Fault::ShardName { shard: shard.to_string() }));
        }
        let path = folder.join(shard);
        if !path.exists() {
            let (shard, tensor) = (shard.to_string(), tensor.to_string());
            return Err(wrong(Fault::MissingShard { shard, tensor }));
        }
        let file = Mapped::open(&path)?;
        let (of_file, text) = header(&file, files.len())?;
        metadata.push(text);
        for stored in of_file {
            if let Some(other) = found.insert(stored.name.clone(), shard) {
                let (tensor, other) = (stored.name, other.to_string());
                return Err(CheckpointError::new(&path, Fault::InTwoShards { tensor, other }));
            }
            tensors.push(stored);
        }
        files.push(file);
    }
    let listed: HashMap<&str, &str> =
        listed.iter().map(|(tensor, shard)| (tensor.as_str(), shard.as_str())).collect();
    for stored in &tensors {
        if !listed.contains_key(stored.name.as_str()) {
            let shard = found[&stored.name].to_string();
            return Err(wrong(Fault::NotInIndex { tensor: stored.name.clone(), shard }));
        }
    }
    for (&tensor, &shard) in &listed {
        if found.get(tensor) != Some(&shard) {
            let (tensor, shard) = (tensor.to_string(), shard.to_string());
            return Err(wrong(Fault::NotInShard { tensor, shard }));
        }
    }
    let mut by_file: Vec<Vec<TensorInfo>> = files.iter().map(|_| Vec::new()).collect();
    tensors.into_iter().for_each(|stored| by_file[stored.file].push(stored));
    let mut tensors = Vec::new();
    for ((file, of_file), metadata) in files.iter().zip(by_file).zip(&metadata) {
        tensors.extend(joined(file, of_file, metadata)?);
    }
    // A packed tensor's own name must be unique too.
    let mut seen = HashMap::new();
    for stored in &tensors {
        if let Some(other) = seen.insert(stored.name.as_str(), stored.file) {
            let (tensor, other) = (stored.name.clone(), files[other].path().display().to_string());
            let path = files[stored.file].path();
            return Err(CheckpointError::new(path, Fault::InTwoShards { tensor, other }));
        }
    }
    Ok((files, tensors))
}

/// The (tensor, shard) pairs of an index; tensors are unique.
fn weight_map(index: &Path) -> Result<Vec<(String, String)>, CheckpointError> {
    let wrong = |fault| CheckpointError::new(index, fault);
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: JsonEntries<String>,
    }
    let bytes = small(index)?.ok_or_else(|| wrong(Fault::Missing))?;
    let list: Index = serde_json::from_slice(&bytes).map_err(|error| match error.is_data() {
        true => wrong(Fault::Shape(format!("not an index of shards: {error}"))),
        false => wrong(Fault::Json(error)),
    })?;
    let pairs = list.weight_map.0;
    let mut names: Vec<&str> = pairs.iter().map(|(tensor, _)| tensor.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(wrong(Fault::Twice { tensor: pair[0].to_string() }));
    }
    if pairs.is_empty() {
        return Err(wrong(Fault::Shape("the weight_map is empty".to_string())));
    }
    Ok(pairs)
}
