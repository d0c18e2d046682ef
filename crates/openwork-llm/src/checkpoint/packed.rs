//! Packed tensors in safetensors files: two ordinary tensors each, and an entry
//! in the metadata. `docs/formats.md` describes the layout.

use super::dtype::Dtype;
use super::error::Fault;
use super::tensor::TensorInfo;
use super::write::{Data, Part};
use openwork::sparse::{Packed, PartsError, ValueType, Values};
use openwork::{Pattern, Spec};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Prefix of the metadata keys; the tensor's name follows.
const KEY: &str = "openwork.packed.";
/// Suffixes of the two parts' names.
const VALUES: &str = ".packed.values";
const INDEX: &str = ".packed.index";

/// The metadata of a packed tensor, as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// A name of `openwork::sparse::FORMATS`.
    format: String,
    /// The spec's text.
    spec: String,
    /// The dense tensor's shape.
    shape: Vec<usize>,
    /// For a coupling: its members and their shapes, in the spec's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    members: Vec<(String, Vec<usize>)>,
    /// For a coupling: the index of this member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    member: Option<usize>,
}

/// The location of a packed tensor's parts in its file. Guarantees that
/// [`Packed::from_parts`] accepts them.
#[derive(Clone, Debug)]
pub(super) struct PackedInfo {
    pub format: String,
    pub spec: Arc<Spec>,
    tensor: usize,
    value_type: ValueType,
    pub values: Range<usize>,
    pub index: Range<usize>,
}

impl PackedInfo {
    /// Copies the parts from the file `bytes`.
    pub fn read(&self, bytes: &[u8]) -> Result<Packed, PartsError> {
        let values = Values::from_le_bytes(self.value_type, &bytes[self.values.clone()])
            .unwrap_or(Values::F32(Vec::new()));
        let index = bytes[self.index.clone()].to_vec();
        Packed::from_parts(&self.spec, self.tensor, &self.format, index, values)
    }

    /// Values of the dense tensor from `first` on, as f32. Every call unpacks the
    /// whole tensor, so read large ranges.
    pub fn rows_f32(&self, bytes: &[u8], first: usize, out: &mut [f32]) {
        let Ok(packed) = self.read(bytes) else {
            // Validated when it was opened, so the file has changed since.
            return out.fill(f32::NAN);
        };
        let part = first..first + out.len();
        match packed.unpack() {
            Values::F32(v) => out.copy_from_slice(&v[part]),
            Values::F16(v) => out.iter_mut().zip(&v[part]).for_each(|(o, v)| *o = v.to_f32()),
            Values::Bf16(v) => out.iter_mut().zip(&v[part]).for_each(|(o, v)| *o = v.to_f32()),
        }
    }

    /// Number of nonzero kept values.
    pub fn nonzeros(&self, bytes: &[u8]) -> u64 {
        let bytes = &bytes[self.values.clone()];
        // The sign is the highest bit of the last byte; -0 is zero.
        let zero = |value: &[u8]| match value.split_last() {
            Some((last, rest)) => last & 0x7f == 0 && rest.iter().all(|&b| b == 0),
            None => true,
        };
        bytes.par_chunks(self.value_type.bytes()).filter(|value| !zero(value)).count() as u64
    }
}

fn value_type(dtype: Dtype) -> Option<ValueType> {
    match dtype {
        Dtype::F32 => Some(ValueType::F32),
        Dtype::F16 => Some(ValueType::F16),
        Dtype::BF16 => Some(ValueType::Bf16),
        _ => None,
    }
}

/// Replaces the parts of each packed tensor by the tensor, and validates them.
pub(super) fn join(
    bytes: &[u8],
    mut tensors: Vec<TensorInfo>,
    metadata: &HashMap<String, String>,
) -> Result<Vec<TensorInfo>, Fault> {
    let mut packed: Vec<(&str, &str)> = metadata
        .iter()
        .filter_map(|(key, text)| Some((key.strip_prefix(KEY)?, text.as_str())))
        .collect();
    if packed.is_empty() {
        return Ok(tensors);
    }
    packed.sort_unstable();
    let at: HashMap<&str, usize> =
        tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.as_str(), i)).collect();
    let joined: Vec<TensorInfo> = packed
        .par_iter()
        .map(|&(name, text)| {
            let part = |end: &str| at.get(format!("{name}{end}").as_str()).map(|&i| &tensors[i]);
            place(bytes, name, text, part(VALUES), part(INDEX))
                .map_err(|why| Fault::Packed { tensor: name.to_string(), why })
        })
        .collect::<Result<_, _>>()?;
    let parts = |name: &str| {
        let whole = name.strip_suffix(VALUES).or_else(|| name.strip_suffix(INDEX));
        whole.is_some_and(|name| packed.binary_search_by_key(&name, |entry| entry.0).is_ok())
    };
    if let Some(twice) = packed.iter().find(|(name, _)| at.contains_key(name)) {
        return Err(Fault::Twice { tensor: twice.0.to_string() });
    }
    tensors.retain(|tensor| !parts(&tensor.name));
    tensors.extend(joined);
    Ok(tensors)
}

fn place(
    bytes: &[u8],
    name: &str,
    text: &str,
    values: Option<&TensorInfo>,
    index: Option<&TensorInfo>,
) -> Result<TensorInfo, String> {
    let entry: Entry = serde_json::from_str(text).map_err(|error| format!("metadata: {error}"))?;
    let lacks = |end: &str| format!("its file has no tensor \"{name}{end}\"");
    let values = values.ok_or_else(|| lacks(VALUES))?;
    let index = index.ok_or_else(|| lacks(INDEX))?;
    let value_type = value_type(values.dtype)
        .ok_or_else(|| format!("its values are {}, not F32, F16 or BF16", values.dtype))?;
    if index.dtype != Dtype::U8 {
        return Err(format!("its index is {}, not U8", index.dtype));
    }
    let pattern: Pattern = entry.spec.parse().map_err(|error| format!("{error}"))?;
    let spec = match entry.member {
        None => pattern.bind(&entry.shape),
        Some(_) => {
            let members: Vec<(&str, &[usize])> =
                entry.members.iter().map(|(name, shape)| (name.as_str(), &shape[..])).collect();
            pattern.bind_all(&members)
        }
    };
    let spec = Arc::new(spec.map_err(|error| format!("{error}"))?);
    let tensor = entry.member.unwrap_or(0);
    if spec.tensors().get(tensor).is_none_or(|tensor| tensor.dims() != entry.shape) {
        return Err(format!("its shape {:?} does not match its spec", entry.shape));
    }
    let count = values.range.len() / value_type.bytes();
    let stored = &bytes[index.range.clone()];
    Packed::check_parts(&spec, tensor, &entry.format, stored, count, value_type)
        .map_err(|error| error.to_string())?;
    let place = PackedInfo {
        format: entry.format,
        spec,
        tensor,
        value_type,
        values: values.range.clone(),
        index: index.range.clone(),
    };
    Ok(TensorInfo {
        name: name.to_string(),
        shape: entry.shape,
        packed: Some(Box::new(place)),
        ..values.clone()
    })
}

/// The two tensors that store a packed tensor, and its metadata entry. The bytes
/// are those of [`Values::to_le_bytes`] and [`Packed::index`].
pub(crate) fn parts<'a>(
    name: &str,
    packed: &Packed,
    values: &'a [u8],
    index: &'a [u8],
) -> ([Part<'a>; 2], (String, String)) {
    let dtype = match packed.values().value_type() {
        ValueType::F32 => Dtype::F32,
        ValueType::F16 => Dtype::F16,
        ValueType::Bf16 => Dtype::BF16,
    };
    let spec = packed.spec();
    let shape_of = |tensor: usize| spec.tensors()[tensor].dims().to_vec();
    let coupled = spec.tensors().len() > 1;
    let members = match coupled {
        true => spec.tensors().iter().map(|t| (t.name().to_string(), t.dims().to_vec())).collect(),
        false => Vec::new(),
    };
    let entry = Entry {
        format: packed.format().name.to_string(),
        spec: spec.text().to_string(),
        shape: shape_of(packed.tensor()),
        members,
        member: coupled.then_some(packed.tensor()),
    };
    let count = packed.values().len();
    let tensors = [
        Part::new(&format!("{name}{VALUES}"), dtype, &[count], Data::Bytes(values)),
        Part::new(&format!("{name}{INDEX}"), Dtype::U8, &[index.len()], Data::Bytes(index)),
    ];
    // Text and numbers always become JSON.
    (tensors, (format!("{KEY}{name}"), serde_json::to_string(&entry).unwrap_or_default()))
}
