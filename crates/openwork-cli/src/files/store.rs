//! A safetensors file in memory without a copy, and one tensor of it.

use super::dtype::Dtype;
use super::error::{Fault, FileError};
use super::place::Place;
use openwork::spec::distance;
use safetensors::{SafeTensorError, SafeTensors, tensor::Metadata};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The header's own length stands before it, in 8 bytes.
const PREFIX: usize = 8;

/// An open safetensors file, whose header has been read. Holds for the tensors
/// it gives: their bytes lie within the file and are as many as type and shape
/// need.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    map: memmap2::Mmap,
    header: Metadata,
    /// Where the data starts.
    data: usize,
}

/// One tensor of a file, of a known floating-point type.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    store: &'a Store,
    /// Its name in the file.
    pub name: String,
    /// Its dims.
    pub shape: &'a [usize],
    /// The type of its numbers.
    pub dtype: Dtype,
    /// Its numbers, little-endian.
    pub bytes: &'a [u8],
}

impl Store {
    /// Opens and checks the file at `path`.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let wrong = |fault| FileError::new(path, fault);
        let io = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => wrong(Fault::Missing),
            _ => wrong(Fault::Read(error)),
        };
        // Before it is opened: opening a pipe would wait for its writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(wrong(Fault::Kind));
        }
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is read-only and owned here. As with every mapped file,
        // another process that shortens it while we read can stop this one with
        // SIGBUS; no reader of mapped files can prevent that.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        let (length, header) =
            SafeTensors::read_metadata(&map).map_err(|error| wrong(fault(error, &map)))?;
        let data = PREFIX + length;
        Ok(Self { path: path.to_path_buf(), map, header, data })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.header.offset_keys();
        names.sort();
        names
    }

    /// The text that the header's metadata has for `key`.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.header.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// An error about this file.
    pub fn wrong(&self, fault: Fault) -> FileError {
        FileError::new(&self.path, fault)
    }

    /// The dims of a tensor, if there is such a one.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.header.info(name).map(|info| info.shape.as_slice())
    }

    /// The name of the tensor that `place` means: the one it names, or the only
    /// one.
    pub fn choose(&self, place: &Place) -> Result<String, FileError> {
        let mut names = self.names();
        match &place.tensor {
            Some(name) if names.contains(name) => Ok(name.clone()),
            _ if names.is_empty() => Err(self.wrong(Fault::Empty)),
            Some(name) => {
                let near = names.iter().min_by_key(|known| distance(name, known));
                let hint = near
                    .filter(|near| distance(name, near) <= 2)
                    .map_or(String::new(), |near| format!("did you mean `{near}`? "));
                Err(self.wrong(Fault::NoTensor { name: name.clone(), hint, names }))
            }
            None if names.len() == 1 => Ok(names.remove(0)),
            None => Err(self.wrong(Fault::Ambiguous { names })),
        }
    }

    /// The tensor called `name`, of one of the types `allowed`; `what` it is to
    /// be used as goes into the message.
    pub fn entry(
        &self,
        name: &str,
        what: &'static str,
        allowed: &'static [Dtype],
    ) -> Result<Entry<'_>, FileError> {
        let Some(info) = self.header.info(name) else {
            let (name, names) = (name.to_string(), self.names());
            return Err(self.wrong(Fault::NoTensor { name, hint: String::new(), names }));
        };
        let dtype = Dtype::from_safetensors(info.dtype).filter(|dtype| allowed.contains(dtype));
        let Some(dtype) = dtype else {
            let found = format!("{:?}", info.dtype).to_lowercase();
            return Err(self.wrong(Fault::Type { name: name.to_string(), found, what, allowed }));
        };
        let (start, end) = info.data_offsets;
        let range = self.data.checked_add(start).zip(self.data.checked_add(end));
        let Some(bytes) = range.and_then(|(start, end)| self.map.get(start..end)) else {
            let why = format!("tensor `{name}` lies outside the file");
            return Err(self.wrong(Fault::NotSafetensors(why)));
        };
        Ok(Entry { store: self, name: name.to_string(), shape: &info.shape, dtype, bytes })
    }
}

impl Entry<'_> {
    /// An error about the file that this tensor is in.
    pub fn wrong(&self, fault: Fault) -> FileError {
        self.store.wrong(fault)
    }

    /// All numbers as f32. NaN and infinity pass, to be refused by name later; a
    /// finite f64 that f32 cannot hold is refused here.
    pub fn to_f32(&self) -> Result<Vec<f32>, FileError> {
        let mut values = Vec::with_capacity(self.bytes.len() / self.dtype.bytes());
        for (offset, bytes) in self.bytes.chunks_exact(self.dtype.bytes()).enumerate() {
            let value = self.dtype.read(bytes);
            let narrow = value as f32;
            if value.is_finite() && narrow.is_infinite() {
                let name = self.name.clone();
                return Err(self.wrong(Fault::Narrow { name, offset, value }));
            }
            values.push(narrow);
        }
        Ok(values)
    }
}

/// What the reader of headers did not like, in words.
fn fault(error: SafeTensorError, bytes: &[u8]) -> Fault {
    let length = bytes.len();
    let claimed = bytes.first_chunk::<PREFIX>().map(|prefix| u64::from_le_bytes(*prefix));
    match (error, claimed) {
        (SafeTensorError::HeaderTooSmall, _) | (_, None) => Fault::TooShort { length },
        (SafeTensorError::InvalidHeaderLength | SafeTensorError::HeaderTooLarge, Some(claimed)) => {
            Fault::Header { claimed, length }
        }
        (SafeTensorError::MetadataIncompleteBuffer, Some(claimed)) => {
            let start = PREFIX.saturating_add(usize::try_from(claimed).unwrap_or(usize::MAX));
            let found = length.saturating_sub(start);
            match described(bytes.get(PREFIX..start)) {
                Some(described) => Fault::DataLength { found, described },
                None => Fault::NotSafetensors("its tensors do not fill its data".to_string()),
            }
        }
        (error, _) => Fault::NotSafetensors(error.to_string()),
    }
}

/// Where the last tensor of a header ends.
fn described(header: Option<&[u8]>) -> Option<usize> {
    let header: Map<String, Value> = serde_json::from_slice(header?).ok()?;
    let end = |tensor: &Value| tensor["data_offsets"][1].as_u64();
    usize::try_from(header.values().filter_map(end).max()?).ok()
}
