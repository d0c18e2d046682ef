//! Checkpoints: Hugging Face folders and GGUF files, memory-mapped.
//!
//! [`Checkpoint::open`] maps the files and validates every header, offset and
//! size without copying data. Reading a [`Tensor`] then cannot fail:
//! [`Tensor::to_f32`] widens or dequantizes all of it, [`Tensor::rows_f32`] a
//! range of rows. Names, row order and conventions are always Hugging Face's.

mod dtype;
mod encoder;
mod error;
mod folder;
mod fused;
mod gguf;
mod grids;
mod json_entries;
mod mapped;
mod multimodal;
mod mxfp4;
mod natural_order;
mod packed;
mod quant;
mod safetensors;
mod shared_keys;
mod tensor;
mod tied_embeddings;
pub mod write;

pub use dtype::Dtype;
pub use error::{CheckpointError, Fault};
pub use folder::unfinished_layers;
pub(crate) use gguf::Metadata;
pub(crate) use gguf::export::export as export_gguf;
pub(crate) use gguf::write::like as write_gguf;
pub use packed::Packing;
pub(crate) use packed::{PartBytes, parts as packed_parts};
pub use safetensors::SafetensorsFile;
pub use tensor::{Table, Tensor};

use crate::tokens::{Tokenizer, catch_panic};
use mapped::Mapped;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensor::{RowOrder, TensorInfo};

/// An opened model. Holds, once built:
///
/// 1. every tensor's bytes lie within its file, as many as its shape and type
///    need;
/// 2. names are unique, and the tensors are in natural order of their names
///    (`layers.2` before `layers.10`).
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    companions: Companions,
    config: Value,
    files: Vec<Arc<Mapped>>,
    tensors: Vec<TensorInfo>,
    rounded: Option<Dtype>,
    /// Notes for the user.
    notes: Vec<String>,
}

/// Where the config's and tokenizer's data come from.
#[derive(Debug)]
enum Companions {
    /// Files in the folder.
    Folder,
    /// The metadata of a GGUF file.
    Gguf(Metadata),
    /// Files embedded in the program.
    BuiltIn(&'static [(&'static str, &'static [u8])]),
}

/// The storage format of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A Hugging Face folder with safetensors.
    HuggingFace,
    /// One GGUF file.
    Gguf,
}

impl Format {
    /// `safetensors` or `gguf`.
    pub fn name(self) -> &'static str {
        match self {
            Self::HuggingFace => "safetensors",
            Self::Gguf => "gguf",
        }
    }
}

impl Checkpoint {
    /// Opens a Hugging Face folder or a `.gguf` file and validates all headers,
    /// offsets and sizes.
    ///
    /// ```
    /// use openwork_llm::{Checkpoint, Dtype};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let model = Checkpoint::open("../../testdata/gguf/qwen2.gguf".as_ref())?;
    /// assert_eq!(model.config()["num_attention_heads"], 4);
    /// let embedding = model.tensor("model.embed_tokens.weight")?;
    /// assert_eq!((embedding.shape(), embedding.dtype()), (&[420, 32][..], Dtype::Q5_0));
    /// let mut row = vec![0.0; 32];
    /// embedding.rows_f32(7..8, &mut row);
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        if path == Path::new("demo") && !path.exists() {
            return Self::built_in(crate::demo::FILES);
        }
        let kind = std::fs::metadata(path)
            .map_err(|error| CheckpointError::new(path, mapped::io_fault(error)))?;
        let (config, companions, files, mut tensors, notes) = if kind.is_dir() {
            let (mut config, files, mut tensors) = folder::open(path)?;
            let mut notes: Vec<String> =
                multimodal::text_model(&mut config, &mut tensors).into_iter().collect();
            let alone = encoder::encoder_alone(&mut config, &mut tensors);
            notes.extend(alone.map_err(|fault| CheckpointError::new(path, fault))?);
            (config, Companions::Folder, files, tensors, notes)
        } else {
            let file = Mapped::open(path)?;
            if !file.bytes().starts_with(gguf::MAGIC) {
                return Err(CheckpointError::new(path, Fault::Kind));
            }
            let gguf::GgufContents { config, metadata, tensors, notes } = gguf::open(&file)?;
            (config, Companions::Gguf(metadata), vec![file], tensors, notes)
        };
        let (mut config, mut notes) = (config, notes);
        notes.extend(shared_keys::drop_unused(&config, &mut tensors));
        let split = fused::split(&mut config, &mut tensors);
        notes.extend(split.map_err(|fault| CheckpointError::new(path, fault))?);
        tensors.sort_by(|a, b| natural_order::compare(&a.name, &b.name));
        let path = path.to_path_buf();
        let files = files.into_iter().map(Arc::new).collect();
        let mut model = Self { path, companions, config, files, tensors, rounded: None, notes };
        model.resolve_tied_embeddings();
        Ok(model)
    }

    /// Opens one safetensors file, such as a shard, of a model with this config.
    pub fn open_shard(path: &Path, config: Value) -> Result<Self, CheckpointError> {
        let file = Mapped::open(path)?;
        let (tensors, metadata) = safetensors::read(file.bytes(), 0)
            .map_err(|fault| CheckpointError::new(path, fault))?;
        let mut tensors = folder::joined(&file, tensors, &metadata)?;
        let mut config = config;
        fused::split(&mut config, &mut tensors)
            .map_err(|fault| CheckpointError::new(path, fault))?;
        tensors.sort_by(|a, b| natural_order::compare(&a.name, &b.name));
        let (path, files) = (path.to_path_buf(), vec![Arc::new(file)]);
        let (companions, notes) = (Companions::Folder, Vec::new());
        Ok(Self { path, companions, config, files, tensors, rounded: None, notes })
    }

    /// Opens a model, or a single `.safetensors` file, which has tensors but no
    /// config: it can be inspected, not run.
    pub fn open_any(path: &Path) -> Result<Self, CheckpointError> {
        match path.extension().is_some_and(|extension| extension == "safetensors") && path.is_file()
        {
            true => Self::open_shard(path, Value::Null),
            false => Self::open(path),
        }
    }

    /// Opens the files of the built-in model.
    fn built_in(files: &'static [(&'static str, &'static [u8])]) -> Result<Self, CheckpointError> {
        let file = |name: &'static str| {
            let found = files.iter().find(|(known, _)| *known == name);
            found.map(|(_, bytes)| *bytes).ok_or_else(|| {
                CheckpointError::new(Path::new("demo"), Fault::Incomplete { what: name })
            })
        };
        let wrong = |fault| CheckpointError::new(Path::new("demo"), fault);
        let config = serde_json::from_slice(file("config.json")?)
            .map_err(|error| wrong(Fault::Json(error)))?;
        let weights = Mapped::built_in("demo", file(folder::SINGLE)?);
        let (tensors, metadata) = safetensors::read(weights.bytes(), 0).map_err(wrong)?;
        let mut tensors = folder::joined(&weights, tensors, &metadata)?;
        tensors.sort_by(|a, b| natural_order::compare(&a.name, &b.name));
        Ok(Self {
            path: PathBuf::from("demo"),
            companions: Companions::BuiltIn(files),
            config,
            files: vec![Arc::new(weights)],
            tensors,
            rounded: None,
            notes: Vec::new(),
        })
    }

    /// Reads a small file beside the tensors, such as `tokenizer.json`; `None` for
    /// GGUF or if there is no such file.
    pub fn companion(&self, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        match &self.companions {
            Companions::Gguf(_) => Ok(None),
            Companions::BuiltIn(files) => {
                Ok(files.iter().find(|(known, _)| *known == name).map(|(_, bytes)| bytes.to_vec()))
            }
            Companions::Folder => folder::small(&self.path.join(name)),
        }
    }

    /// Rounds every value to F32, F16 or BF16 as it is read, as a folder of that
    /// type will store it.
    pub fn rounded(mut self, dtype: Dtype) -> Self {
        self.rounded = Some(dtype);
        self
    }

    /// The type that values are rounded to as they are read, if they are.
    pub fn rounding(&self) -> Option<Dtype> {
        self.rounded
    }

    /// Releases the memory of mapped pages; they are read again when needed.
    pub fn release(&self) {
        self.files.iter().for_each(|file| file.release());
    }

    /// The chat template of a GGUF file, if it has one; folders have files of their own
    /// ([`crate::chat`]).
    pub fn chat_template(&self) -> Option<String> {
        match &self.companions {
            Companions::Gguf(metadata) => metadata.text("tokenizer.chat_template").ok()?,
            _ => None,
        }
    }

    /// The folder or file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A name for people: that of the folder or file, or, in a cache of the Hugging Face
    /// Hub, that of the repository.
    pub fn name(&self) -> String {
        let text = |path: Option<&Path>| {
            let name = path.and_then(Path::file_name).unwrap_or_default();
            name.to_string_lossy().into_owned()
        };
        // models--org--name/snapshots/COMMIT
        let snapshots = self.path.parent();
        let repo = text(snapshots.and_then(Path::parent));
        match repo.strip_prefix("models--").and_then(|repo| repo.split_once("--")) {
            Some((owner, name)) if text(snapshots) == "snapshots" => format!("{owner}/{name}"),
            _ => text(Some(&self.path)),
        }
    }

    /// The storage format.
    pub fn format(&self) -> Format {
        match self.companions {
            Companions::Gguf(_) => Format::Gguf,
            _ => Format::HuggingFace,
        }
    }

    /// The mapped files that hold the tensors, with their lengths in bytes.
    pub fn files(&self) -> impl Iterator<Item = (&Path, usize)> {
        self.files.iter().map(|file| (file.path(), file.bytes().len()))
    }

    /// The names of those files, without their folders, and the sha256 of each.
    pub fn hashes(&self) -> Vec<(String, String)> {
        use rayon::prelude::*;
        let hash = |file: &Arc<Mapped>| {
            let name = file.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            (name, crate::disk::sha256(file.bytes()))
        };
        self.files.par_iter().map(hash).collect()
    }

    /// Notes for the user: what was interpreted differently or not read.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// `config.json`, or its equivalent built from GGUF metadata. Corrected, with
    /// a note, if it ties a head that differs from the embedding; of a multimodal
    /// model, the config of its text model.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The names of all tensors, in natural order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|stored| stored.name.as_str())
    }

    /// All tensors, in natural order of their names.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.tensors.iter().map(|stored| self.view(stored))
    }

    /// Whether there is a tensor `name`.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// The tensor `name`.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        let stored = self.find(name).ok_or_else(|| {
            let fault = Fault::NoTensor { tensor: name.to_string(), count: self.tensors.len() };
            CheckpointError::new(&self.path, fault)
        })?;
        Ok(self.view(stored))
    }

    /// The weights `name`, which must have the given shape.
    pub fn tensor_with_shape(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<Tensor<'_>, CheckpointError> {
        let tensor = self.tensor(name)?;
        if tensor.shape() != shape {
            let (tensor, found) = (name.to_string(), tensor.shape().to_vec());
            let fault = Fault::OtherShape { tensor, found, asked: shape.to_vec() };
            return Err(CheckpointError::new(&self.path, fault));
        }
        if !tensor.dtype().holds_weights() {
            let fault = Fault::NotWeights { tensor: name.to_string(), dtype: tensor.dtype() };
            return Err(CheckpointError::new(&self.path, fault));
        }
        Ok(tensor)
    }

    /// The tensor `name` of a given shape as a table with rows of `width` elements, several
    /// of which make a row of the tensor.
    ///
    /// # Panics
    ///
    /// If the tensor's rows cannot be divided so.
    pub fn table(
        &self,
        name: &str,
        shape: [usize; 2],
        width: usize,
    ) -> Result<Table, CheckpointError> {
        assert!(shape[1].is_multiple_of(width), "rows of {} as rows of {width}", shape[1]);
        let Tensor { stored, rounded, .. } = self.tensor_with_shape(name, &shape)?;
        let plain = stored.packed.is_none() && stored.order == RowOrder::AsStored;
        let divides = plain && stored.dtype.bytes_for(width as u64).is_some();
        if width != shape[1] && !divides {
            let why = format!("is stored in blocks that cross rows of {width} elements");
            let fault = Fault::Tensor { tensor: name.to_string(), why };
            return Err(CheckpointError::new(&self.path, fault));
        }
        let stored =
            TensorInfo { shape: vec![shape[0] * (shape[1] / width), width], ..stored.clone() };
        Ok(Table { file: Arc::clone(&self.files[stored.file]), stored, rounded })
    }

    /// Refuses weights that are NaN or infinite; reads every value once.
    pub fn check_finite(&self) -> Result<(), CheckpointError> {
        for stored in self.tensors.iter().filter(|stored| stored.dtype.holds_weights()) {
            let tensor = Tensor { rounded: None, ..self.view(stored) };
            if let Some(row) = tensor.not_finite() {
                let fault = Fault::NotFinite { tensor: stored.name.clone(), row };
                return Err(CheckpointError::new(self.files[stored.file].path(), fault));
            }
        }
        Ok(())
    }

    /// The tokenizer, from `tokenizer.json` or GGUF metadata.
    pub fn tokenizer(&self) -> Result<Tokenizer, CheckpointError> {
        let wrong = |fault| CheckpointError::new(&self.path, fault);
        let built = catch_panic(|| match &self.companions {
            Companions::Folder | Companions::BuiltIn(_) => Tokenizer::from_files(self),
            Companions::Gguf(metadata) => {
                Tokenizer::from_gguf(metadata, self.files[0].bytes()).map_err(wrong)
            }
        });
        built.map_err(|panic| wrong(Fault::Tokenizer(panic)))?
    }

    fn find(&self, name: &str) -> Option<&TensorInfo> {
        let found =
            self.tensors.binary_search_by(|stored| natural_order::compare(&stored.name, name));
        found.ok().map(|at| &self.tensors[at])
    }

    fn view<'a>(&'a self, stored: &'a TensorInfo) -> Tensor<'a> {
        Tensor::new(stored, self.files[stored.file].bytes(), self.rounded)
    }
}
