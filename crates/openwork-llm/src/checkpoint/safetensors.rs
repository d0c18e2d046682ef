//! Strict parsing of safetensors headers.
//!
//! The `safetensors` crate checks the same guarantees, but most of its errors do
//! not name the tensor, and it accepts two tensors with the same name. So the
//! header is parsed here, and the tests compare the two.

use super::dtype::Dtype;
use super::error::{CheckpointError, Fault};
use super::json_entries::JsonEntries;
use super::mapped::Mapped;
use super::tensor::{Convention, RowOrder, TensorInfo};
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use std::collections::HashMap;
use std::fmt;
use std::path::Path;

/// Header size limit, as in the `safetensors` crate.
const MAX_HEADER: u64 = 100_000_000;
/// Maximum rank of a tensor.
pub(super) const MAX_RANK: usize = 8;
/// Bytes of the header's length, which precedes it.
const PREFIX: usize = 8;

/// The header's `__metadata__`.
pub(super) type Metadata = HashMap<String, String>;

/// An open safetensors file whose header has the guarantees of `read`.
#[derive(Debug)]
pub struct SafetensorsFile {
    file: Mapped,
    tensors: Vec<TensorInfo>,
    metadata: Metadata,
}

impl SafetensorsFile {
    /// Opens and checks the file at `path`.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        if path.exists() && !path.is_file() {
            let fault = Fault::Shape("not a regular file".to_string());
            return Err(CheckpointError::new(path, fault));
        }
        let file = Mapped::open(path)?;
        let (tensors, metadata) =
            read(file.bytes(), 0).map_err(|fault| CheckpointError::new(path, fault))?;
        Ok(Self { file, tensors, metadata })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Name, type, shape and little-endian bytes of every tensor.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, Dtype, &[usize], &[u8])> {
        self.tensors.iter().map(|tensor| {
            let bytes = &self.file.bytes()[tensor.range.clone()];
            (tensor.name.as_str(), tensor.dtype, tensor.shape.as_slice(), bytes)
        })
    }

    /// The text that the header's metadata has for `key`.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }
}

/// The tensors of `bytes`, file number `file` of its checkpoint. Guarantees:
///
/// 1. names are unique;
/// 2. every tensor has as many bytes as its shape and type need;
/// 3. the tensors cover the data completely, without overlaps.
pub(super) fn read(bytes: &[u8], file: usize) -> Result<(Vec<TensorInfo>, Metadata), Fault> {
    let length = bytes.len() as u64;
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else {
        return Err(truncated("the header's length", PREFIX as u128, length));
    };
    let claimed = u64::from_le_bytes(*prefix);
    if claimed > MAX_HEADER {
        return Err(Fault::HeaderLength { claimed, limit: MAX_HEADER });
    }
    // At most 10^8, so the cast keeps the value.
    let header_len = claimed as usize;
    let Some((header, data)) = rest.split_at_checked(header_len) else {
        return Err(truncated("the header", PREFIX as u128 + u128::from(claimed), length));
    };
    let header = std::str::from_utf8(header).map_err(|error| Fault::Header(error.to_string()))?;
    let JsonEntries(entries, metadata): JsonEntries<Entry> =
        serde_json::from_str(header).map_err(|error| Fault::Header(error.to_string()))?;

    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        tensors.push((entry.data_offsets, check(name, entry, file)?));
    }
    // Guarantee 1.
    let mut names: Vec<&str> = tensors.iter().map(|(_, tensor)| tensor.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Fault::Twice { tensor: pair[0].to_string() });
    }
    // Guarantee 3.
    tensors.sort_by_key(|&(offsets, _)| offsets);
    let mut end = 0;
    let mut last = "";
    for ([start, stop], tensor) in &tensors {
        let (start, stop) = (*start, *stop);
        if start < end {
            return Err(Fault::Overlap {
                tensor: tensor.name.clone(),
                start,
                end: stop,
                other: last.to_string(),
                other_end: end,
            });
        }
        if start > end {
            return Err(Fault::Hole { start: end, end: start });
        }
        if stop > data.len() as u64 {
            let (tensor, length) = (tensor.name.clone(), data.len() as u64);
            return Err(Fault::Beyond { tensor, start, end: stop, length });
        }
        end = stop;
        last = &tensor.name;
    }
    if end < data.len() as u64 {
        return Err(Fault::Hole { start: end, end: data.len() as u64 });
    }
    let base = PREFIX + header_len;
    let tensors = tensors
        .into_iter()
        .map(|([start, stop], mut tensor)| {
            // Both are within the file, which is in memory.
            tensor.range = base + start as usize..base + stop as usize;
            tensor
        })
        .collect();
    Ok((tensors, metadata))
}

/// Guarantee 2 for one entry; its range is set later.
fn check(name: String, entry: Entry, file: usize) -> Result<TensorInfo, Fault> {
    let Some(dtype) = Dtype::from_safetensors(&entry.dtype) else {
        let known = Dtype::known(false);
        return Err(Fault::Type { tensor: name, dtype: entry.dtype, known });
    };
    let (shape, needed) = match sized(dtype, &entry.shape.0) {
        Ok(sized) => sized,
        Err(why) => {
            let why = why.to_string();
            return Err(Fault::TensorShape { tensor: name, shape: entry.shape.0, why });
        }
    };
    let [start, end] = entry.data_offsets;
    let found = i128::from(end) - i128::from(start);
    if found != i128::from(needed) {
        let dtype = dtype.name();
        return Err(Fault::Size { tensor: name, dtype, shape, needed, start, end, found });
    }
    Ok(TensorInfo {
        name,
        shape,
        dtype,
        file,
        range: 0..0,
        order: RowOrder::AsStored,
        convention: Convention::Same,
        packed: None,
    })
}

/// The shape as `usize` and its size in bytes. The product of the dims fits even
/// with empty axes counted as 1.
pub(super) fn sized(dtype: Dtype, shape: &[u64]) -> Result<(Vec<usize>, u64), &'static str> {
    const TOO_LARGE: &str = "too many elements for any file";
    let product = |least: u64| {
        shape.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent.max(least)))
    };
    if product(1).is_none_or(|len| len > isize::MAX as u64) {
        return Err(TOO_LARGE);
    }
    let len = product(0).ok_or(TOO_LARGE)?;
    // Blocks run along the last axis.
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(dtype.block_len() as u64) {
        return Err("the last axis is not a multiple of the type's block");
    }
    let bytes = dtype.bytes_for(len).ok_or(TOO_LARGE)?;
    // Every dim is at most the product above, which fits an isize.
    Ok((shape.iter().map(|&extent| extent as usize).collect(), bytes))
}

fn truncated(what: &str, needed: u128, length: u64) -> Fault {
    Fault::Truncated { what: what.to_string(), needed, length }
}

/// A tensor's entry in the header.
#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    shape: Dims,
    data_offsets: [u64; 2],
}

/// A shape of at most [`MAX_RANK`] axes; a longer list is not stored.
struct Dims(Vec<u64>);

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Dims;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a shape of at most {MAX_RANK} axes")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
                let mut dims = Vec::new();
                while let Some(extent) = seq.next_element()? {
                    if dims.len() == MAX_RANK {
                        return Err(de::Error::custom(format!("more than {MAX_RANK} axes")));
                    }
                    dims.push(extent);
                }
                Ok(Dims(dims))
            }
        }
        deserializer.deserialize_seq(Read)
    }
}
