//! Strict parsing of GGUF files, versions 2 and 3.
//!
//! Every count and length is compared with the remaining bytes before memory is
//! allocated, so a damaged file cannot exhaust it.

use super::metadata::{Metadata, MetadataValue, ScalarType, Value};
use crate::checkpoint::dtype::Dtype;
use crate::checkpoint::error::Fault;
use crate::checkpoint::safetensors::sized;
use crate::checkpoint::tensor::{Convention, RowOrder, TensorInfo};
use std::ops::Range;

/// The first four bytes of every GGUF file.
pub(in crate::checkpoint) const MAGIC: &[u8; 4] = b"GGUF";
/// Maximum length of a key or tensor name in bytes: GGUF's limit for keys.
const MAX_NAME: u64 = 65_535;
/// Maximum rank of a tensor: ggml's limit.
const MAX_AXES: u32 = 4;
/// Default alignment of tensors.
const ALIGNMENT: u64 = 32;
/// Minimum size of a key-value pair: length, type, one byte.
const LEAST_ENTRY: u64 = 8 + 4 + 1;
/// Minimum size of a tensor's description: length, axes, type, offset.
const LEAST_TENSOR: u64 = 8 + 4 + 4 + 8;

/// Unsupported ggml types, named in errors.
const OTHER_TYPES: &[(u32, &str)] = &[
    (9, "Q8_1"),
    (15, "Q8_K"),
    (17, "IQ2_XS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (40, "NVFP4"),
];

/// The metadata and tensors of `bytes`, with GGUF's names. Guarantees:
///
/// 1. keys and tensor names are unique;
/// 2. every tensor lies within the file, and no two overlap.
pub(super) fn read(bytes: &[u8]) -> Result<(Metadata, Vec<TensorInfo>), Fault> {
    let mut cursor = Cursor { bytes, at: 0 };
    cursor.take(MAGIC.len() as u64, || "the magic number".to_string())?;
    let version = cursor.u32(|| "the version".to_string())?;
    if !(2..=3).contains(&version) {
        return Err(Fault::Version(version));
    }
    let tensor_count = cursor.count("the list of tensors", LEAST_TENSOR)?;
    let entry_count = cursor.count("the metadata", LEAST_ENTRY)?;

    let mut metadata = Metadata::default();
    for i in 0..entry_count {
        let key = cursor.name(|| format!("key {i} of the metadata"))?;
        let value = cursor.meta(&key)?;
        if !metadata.insert(key.clone(), value) {
            return Err(Fault::Metadata { key, why: "appears twice".to_string() });
        }
    }
    if let Some(count) = metadata.number("split.count")?.filter(|&count| count > 1) {
        let part = u64::from(metadata.number("split.no")?.unwrap_or(0)) + 1;
        return Err(Fault::Split { part, count });
    }
    // The count was checked against a longer rest of the file; the loop checks again.
    let mut tensors = Vec::new();
    for i in 0..tensor_count {
        tensors.push(cursor.tensor(i)?);
    }
    let alignment = alignment(&metadata)?;
    let start = (cursor.at as u64).next_multiple_of(alignment);
    place(&mut tensors, start, alignment, bytes.len() as u64)?;
    let tensors: Vec<TensorInfo> = tensors.into_iter().map(|(_, tensor)| tensor).collect();
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Fault::Twice { tensor: pair[0].to_string() });
    }
    Ok((metadata, tensors))
}

/// Every key with the byte range of its entry, for copying. The file has been
/// [read](read) before.
pub(super) fn entries(bytes: &[u8]) -> Result<Vec<(String, Range<usize>)>, Fault> {
    let mut cursor = Cursor { bytes, at: MAGIC.len() + 4 + 8 };
    let count = cursor.count("the metadata", LEAST_ENTRY)?;
    let mut entries = Vec::new();
    for i in 0..count {
        let start = cursor.at;
        let key = cursor.name(|| format!("key {i} of the metadata"))?;
        cursor.meta(&key)?;
        entries.push((key, start..cursor.at));
    }
    Ok(entries)
}

fn alignment(metadata: &Metadata) -> Result<u64, Fault> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(ALIGNMENT),
        // A u32 at most, so that rounding up cannot overflow.
        Some(MetadataValue::One(Value::Unsigned(n))) if n.is_power_of_two() && *n <= 1 << 31 => {
            Ok(*n)
        }
        Some(other) => {
            let why = format!("is {other}, not a power of two");
            Err(Fault::Metadata { key: KEY.to_string(), why })
        }
    }
}

/// Turns offsets relative to `start` into ranges of the file of `length` bytes
/// (guarantee 2).
fn place(
    tensors: &mut [(u64, TensorInfo)],
    start: u64,
    alignment: u64,
    length: u64,
) -> Result<(), Fault> {
    tensors.sort_by_key(|(offset, _)| *offset);
    let Some(data) = length.checked_sub(start) else {
        // Even an empty tensor would lie past the end.
        let what = "the padding before the tensors' data".to_string();
        return match tensors {
            [] => Ok(()),
            _ => Err(Fault::Truncated { what, needed: start.into(), length }),
        };
    };
    let mut last: Option<(u64, String)> = None;
    for (offset, tensor) in tensors {
        let offset = *offset;
        // So far the range only holds the size.
        let size = tensor.range.len() as u64;
        let name = tensor.name.clone();
        if !offset.is_multiple_of(alignment) {
            let why = format!("starts at byte {offset}, not a multiple of {alignment}");
            return Err(Fault::Tensor { tensor: name, why });
        }
        let end = offset.saturating_add(size);
        if end > data {
            return Err(Fault::Beyond { tensor: name, start: offset, end, length: data });
        }
        if let Some((other_end, other)) = last.filter(|(other_end, _)| offset < *other_end) {
            return Err(Fault::Overlap { tensor: name, start: offset, end, other, other_end });
        }
        // Within the file, which is in memory.
        tensor.range = (start + offset) as usize..(start + end) as usize;
        last = Some((end, name));
    }
    Ok(())
}

/// Reads a file front to back.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `n` bytes, which belong to `what`.
    fn take(&mut self, n: u64, what: impl FnOnce() -> String) -> Result<&'a [u8], Fault> {
        if n > self.left() {
            let needed = self.at as u128 + u128::from(n);
            let length = self.bytes.len() as u64;
            return Err(Fault::Truncated { what: what(), needed, length });
        }
        // At most the remaining bytes, which are in memory.
        let taken = &self.bytes[self.at..][..n as usize];
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: impl FnOnce() -> String) -> Result<[u8; N], Fault> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: impl FnOnce() -> String) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count of items of at least `least` bytes each.
    fn count(&mut self, what: &str, least: u64) -> Result<u64, Fault> {
        let count = self.u64(|| what.to_string())?;
        if count > self.left() / least {
            let (what, length) = (what.to_string(), self.bytes.len() as u64);
            return Err(Fault::Count { what, count, length });
        }
        Ok(count)
    }

    /// The byte range of a string; `what` it is, for errors.
    fn string(&mut self, what: impl Fn() -> String) -> Result<Range<usize>, Fault> {
        let length = self.u64(&what)?;
        self.take(length, what)?;
        Ok(self.at - length as usize..self.at)
    }

    /// A key or the name of a tensor.
    fn name(&mut self, what: impl Fn() -> String) -> Result<String, Fault> {
        let range = self.string(&what)?;
        if range.len() as u64 > MAX_NAME {
            let why = format!(
                "{} has {} bytes, which exceeds the limit of {MAX_NAME}",
                what(),
                range.len()
            );
            return Err(Fault::Shape(why));
        }
        match std::str::from_utf8(&self.bytes[range]) {
            Ok(name) => Ok(name.to_string()),
            Err(_) => Err(Fault::Shape(format!("{} is not UTF-8", what()))),
        }
    }

    /// The value of `key`; lists stay in the file.
    fn meta(&mut self, key: &str) -> Result<MetadataValue, Fault> {
        let what = || format!("the value of {key:?}");
        let kind = self.kind(key)?;
        let Some(kind) = kind else {
            // A list: its type, its length, its values.
            let Some(kind) = self.kind(key)? else {
                let why = "is a list of lists, which is not supported".to_string();
                return Err(Fault::Metadata { key: key.to_string(), why });
            };
            let count = self.count(&format!("the list {key:?}"), kind.least())?;
            let start = self.at;
            match kind.size() {
                // At most the remaining bytes, so the product fits.
                Some(size) => drop(self.take(count * size, what)?),
                None => {
                    for _ in 0..count {
                        self.string(what)?;
                    }
                }
            }
            // A count of items in memory fits.
            return Ok(MetadataValue::List { kind, count: count as usize, range: start..self.at });
        };
        let range = match kind.size() {
            Some(size) => {
                self.take(size, what)?;
                self.at - size as usize..self.at
            }
            None => self.string(what)?,
        };
        kind.value(&self.bytes[range])
            .map(MetadataValue::One)
            .map_err(|why| Fault::Metadata { key: key.to_string(), why })
    }

    /// The type of a value; `None` for a list.
    fn kind(&mut self, key: &str) -> Result<Option<ScalarType>, Fault> {
        const LIST: u32 = 9;
        let number = self.u32(|| format!("the type of {key:?}"))?;
        if number == LIST {
            return Ok(None);
        }
        ScalarType::new(number).map(Some).ok_or_else(|| {
            let why = format!("has type {number}, which GGUF does not define");
            Fault::Metadata { key: key.to_string(), why }
        })
    }

    /// The description of tensor `i` and its offset. The range holds only the size
    /// until all tensors are known.
    fn tensor(&mut self, i: u64) -> Result<(u64, TensorInfo), Fault> {
        let name = self.name(|| format!("the name of tensor {i}"))?;
        let what = || format!("the description of tensor {name:?}");
        let axes = self.u32(what)?;
        if axes > MAX_AXES {
            let why = format!("has {axes} axes, which exceeds the limit of {MAX_AXES}");
            return Err(Fault::Tensor { tensor: name, why });
        }
        let mut shape = Vec::new();
        for _ in 0..axes {
            shape.push(self.u64(what)?);
        }
        // GGUF lists the fastest-varying axis first.
        shape.reverse();
        let number = self.u32(what)?;
        let offset = self.u64(what)?;
        let Some(dtype) = Dtype::from_ggml(number) else {
            let other = OTHER_TYPES.iter().find(|(n, _)| *n == number);
            let dtype = other.map_or(format!("number {number}"), |(_, name)| name.to_string());
            return Err(Fault::Type { tensor: name, dtype, known: Dtype::known(true) });
        };
        match sized(dtype, &shape) {
            Ok((shape, bytes)) => {
                let (order, range) = (RowOrder::AsStored, 0..bytes as usize);
                Ok((
                    offset,
                    TensorInfo {
                        name,
                        shape,
                        dtype,
                        file: 0,
                        range,
                        order,
                        convention: Convention::Same,
                        packed: None,
                    },
                ))
            }
            Err(why) => Err(Fault::TensorShape { tensor: name, shape, why: why.to_string() }),
        }
    }
}
