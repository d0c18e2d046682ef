//! Packed tensors in safetensors files: two or three ordinary tensors each, and an entry
//! in the metadata. `docs/formats.md` describes the layout.

use super::dtype::Dtype;
use super::error::Fault;
use super::tensor::TensorInfo;
use super::write::{Data, Part};
use openwork::sparse::{
    CodeBits, CodesRef, Encoding, Packed, PackedValues, PartsError, Quantized, VALUE_KINDS,
    ValueType, Values, ValuesPart,
};
use openwork::{Pattern, Spec};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Prefix of the metadata keys; the tensor's name follows.
const KEY: &str = "openwork.packed.";
/// Suffixes of the parts' names.
const VALUES: &str = ".packed.values";
const INDEX: &str = ".packed.index";
const SCALES: &str = ".packed.scales";
const SUFFIXES: [&str; 3] = [VALUES, INDEX, SCALES];

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
    /// For codes: their kind, `int8` or `int4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    values: Option<String>,
    /// For codes: values that share a scale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<usize>,
}

/// The location of a packed tensor's parts in its file. Guarantees that
/// [`Packed::from_parts`] accepts them.
#[derive(Clone, Debug)]
pub(super) struct PackedInfo {
    pub format: String,
    pub spec: Arc<Spec>,
    tensor: usize,
    stored: StoredValues,
    pub values: Range<usize>,
    pub index: Range<usize>,
    /// Empty without codes.
    pub scales: Range<usize>,
}

/// How values are stored.
#[derive(Clone, Copy, Debug)]
enum StoredValues {
    Numbers(ValueType),
    Codes { bits: CodeBits, encoding: Encoding },
}

/// How a tensor is packed.
#[derive(Clone, Copy, Debug)]
pub struct Packing<'a> {
    /// The spec's text.
    pub spec: &'a str,
    /// The format's name.
    pub format: &'a str,
    /// The kind of its values.
    pub values: &'static str,
    /// Bytes of a weight of the dense tensor: those of its values, 2 for codes.
    pub dense_weight_bytes: usize,
    /// Why products with it are slower than its bytes allow, if they are.
    pub slow: Option<&'static str>,
}

impl Packing<'_> {
    /// Whether values are codes.
    pub fn has_codes(&self) -> bool {
        VALUE_KINDS.iter().any(|kind| kind.name == self.values && kind.has_codes())
    }
}

impl PackedInfo {
    /// How the tensor is packed.
    pub fn packing(&self) -> Packing<'_> {
        Packing {
            spec: self.spec.text(),
            format: &self.format,
            values: match self.stored {
                StoredValues::Numbers(value_type) => value_type.name(),
                StoredValues::Codes { encoding, .. } => encoding.kind().name,
            },
            dense_weight_bytes: match self.stored {
                StoredValues::Numbers(value_type) => value_type.bytes(),
                StoredValues::Codes { .. } => 2,
            },
            slow: Packed::slow_because(&self.spec, self.tensor),
        }
    }

    /// The codes in the file `bytes`, if values are codes.
    fn codes<'a>(&self, bytes: &'a [u8]) -> Option<CodesRef<'a>> {
        let StoredValues::Codes { bits, encoding } = self.stored else { return None };
        Some(CodesRef {
            bits,
            group: encoding.group(),
            codes: &bytes[self.values.clone()],
            scales: &bytes[self.scales.clone()],
        })
    }

    /// Copies the parts from the file `bytes`.
    pub fn read(&self, bytes: &[u8]) -> Result<Packed, PartsError> {
        let none = || Values::F32(Vec::new()).into();
        let values: PackedValues = match (self.stored, self.codes(bytes)) {
            (StoredValues::Numbers(value_type), _) => {
                let numbers = Values::from_le_bytes(value_type, &bytes[self.values.clone()]);
                numbers.map_or_else(none, Into::into)
            }
            (_, codes) => codes.and_then(Quantized::from_bytes).map_or_else(none, Into::into),
        };
        let index = bytes[self.index.clone()].to_vec();
        Packed::from_parts(&self.spec, self.tensor, &self.format, index, values)
    }

    /// Values of the dense tensor from `first` on, the first of a row of `row_len`, as
    /// f32. Every call reads the whole tensor, unless it is dense with codes: read large
    /// ranges.
    pub fn rows_f32(&self, bytes: &[u8], first: usize, row_len: usize, out: &mut [f32]) {
        if let ("dense", Some(codes)) = (self.format.as_str(), self.codes(bytes)) {
            let groups = row_len.div_ceil(codes.group);
            for (i, out) in out.chunks_mut(row_len).enumerate() {
                codes.read((first / row_len + i) * groups, out);
            }
            return;
        }
        let Ok(packed) = self.read(bytes) else {
            // Validated when it was opened, so the file has changed since.
            return out.fill(f32::NAN);
        };
        packed.rows_f32(first / row_len..(first + out.len()) / row_len, out);
    }

    /// Number of nonzero kept values.
    pub fn nonzeros(&self, bytes: &[u8]) -> u64 {
        let StoredValues::Numbers(value_type) = self.stored else {
            return self.read(bytes).map_or(0, |packed| packed.nonzeros() as u64);
        };
        let bytes = &bytes[self.values.clone()];
        // The sign is the highest bit of the last byte; -0 is zero.
        let zero = |value: &[u8]| match value.split_last() {
            Some((last, rest)) => last & 0x7f == 0 && rest.iter().all(|&b| b == 0),
            None => true,
        };
        bytes.par_chunks(value_type.bytes()).filter(|value| !zero(value)).count() as u64
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
            place(bytes, name, text, SUFFIXES.map(part))
                .map_err(|why| Fault::Packed { tensor: name.to_string(), why })
        })
        .collect::<Result<_, _>>()?;
    let parts = |name: &str| {
        let whole = SUFFIXES.iter().find_map(|end| name.strip_suffix(end));
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
    [values, index, scales]: [Option<&TensorInfo>; 3],
) -> Result<TensorInfo, String> {
    let entry: Entry = serde_json::from_str(text).map_err(|error| format!("metadata: {error}"))?;
    let lacks = |end: &str| format!("its file has no tensor \"{name}{end}\"");
    let values = values.ok_or_else(|| lacks(VALUES))?;
    let index = index.ok_or_else(|| lacks(INDEX))?;
    let stored = stored_values(&entry, values.dtype)?;
    let scales = match (stored, scales) {
        (StoredValues::Codes { .. }, None) => return Err(lacks(SCALES)),
        (StoredValues::Codes { .. }, Some(scales)) if scales.dtype != Dtype::BF16 => {
            return Err(format!("its scales are {}, not BF16", scales.dtype));
        }
        (StoredValues::Codes { .. }, Some(scales)) => scales.range.clone(),
        (StoredValues::Numbers(_), Some(_)) => {
            return Err("it has scales, but its values are not codes".to_string());
        }
        (StoredValues::Numbers(_), None) => 0..0,
    };
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
    let info = PackedInfo {
        format: entry.format,
        spec,
        tensor,
        stored,
        values: values.range.clone(),
        index: index.range.clone(),
        scales,
    };
    let parts = match stored {
        StoredValues::Numbers(value_type) => {
            ValuesPart::Numbers { count: values.range.len() / value_type.bytes(), value_type }
        }
        StoredValues::Codes { .. } => {
            ValuesPart::Codes(info.codes(bytes).ok_or("its values are not codes")?)
        }
    };
    let index = &bytes[info.index.clone()];
    Packed::check_parts(&info.spec, tensor, &info.format, index, parts)
        .map_err(|error| error.to_string())?;
    // Codes are read as f32, which expresses them exactly.
    let codes = matches!(stored, StoredValues::Codes { .. });
    let dtype = if codes { Dtype::F32 } else { values.dtype };
    Ok(TensorInfo {
        name: name.to_string(),
        shape: entry.shape,
        dtype,
        packed: Some(Box::new(info)),
        ..values.clone()
    })
}

/// How the values of an entry are stored.
fn stored_values(entry: &Entry, dtype: Dtype) -> Result<StoredValues, String> {
    let Some(kind) = &entry.values else {
        let numbers = value_type(dtype)
            .ok_or_else(|| format!("its values are {dtype}, not F32, F16 or BF16"))?;
        return match entry.group {
            None => Ok(StoredValues::Numbers(numbers)),
            Some(_) => Err("it has groups, but its values are not codes".to_string()),
        };
    };
    let encoding = Encoding::new(kind, entry.group.unwrap_or(Encoding::DEFAULT_GROUP))?;
    let bits = encoding.kind().code_bits().ok_or_else(|| format!("`{kind}` has no codes"))?;
    match dtype {
        Dtype::U8 => Ok(StoredValues::Codes { bits, encoding }),
        other => Err(format!("its codes are {other}, not U8")),
    }
}

/// The bytes of a packed tensor's parts.
pub(crate) struct PartBytes {
    values: Vec<u8>,
    index: Vec<u8>,
    scales: Option<Vec<u8>>,
}

impl PartBytes {
    pub fn new(packed: &Packed) -> Self {
        Self {
            values: packed.values().to_le_bytes(),
            index: packed.index(),
            scales: packed.values().codes().map(Quantized::scale_bytes),
        }
    }
}

/// The tensors that store a packed tensor, and its metadata entry.
pub(crate) fn parts<'a>(
    name: &str,
    packed: &Packed,
    bytes: &'a PartBytes,
) -> (Vec<Part<'a>>, (String, String)) {
    let encoding = packed.values().encoding();
    let (dtype, width) = match encoding.kind().number_type() {
        Some(ValueType::F32) => (Dtype::F32, 4),
        Some(ValueType::F16) => (Dtype::F16, 2),
        Some(ValueType::Bf16) => (Dtype::BF16, 2),
        None => (Dtype::U8, 1),
    };
    let codes = encoding.kind().has_codes();
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
        values: codes.then(|| encoding.kind().name.to_string()),
        group: codes.then(|| encoding.group()),
    };
    let part = |end: &str, dtype, width: usize, bytes: &'a [u8]| {
        Part::new(&format!("{name}{end}"), dtype, &[bytes.len() / width], Data::Bytes(bytes))
    };
    let mut tensors =
        vec![part(VALUES, dtype, width, &bytes.values), part(INDEX, Dtype::U8, 1, &bytes.index)];
    tensors.extend(bytes.scales.as_ref().map(|scales| part(SCALES, Dtype::BF16, 2, scales)));
    // Text and numbers always become JSON.
    (tensors, (format!("{KEY}{name}"), serde_json::to_string(&entry).unwrap_or_default()))
}
