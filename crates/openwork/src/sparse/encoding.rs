//! How kept values are stored: as numbers of 32 or 16 bits, or as codes of 8 or 4.

use super::quant::{CodeBits, GROUPS, Quantized};
use super::{ValueType, Values};
use std::fmt;

/// A row of [`VALUE_KINDS`].
#[derive(Debug, PartialEq, Eq)]
pub struct ValueKind {
    /// Its name, also in files.
    pub name: &'static str,
    /// Bits of one value, without its part of a scale.
    pub bits: usize,
    /// What it is, in one line.
    pub summary: &'static str,
    store: Store,
}

/// How values of a kind are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    Numbers(ValueType),
    Codes(CodeBits),
}

/// All kinds of values that a packed tensor may have.
pub const VALUE_KINDS: &[ValueKind] = &[
    ValueKind {
        name: "f32",
        bits: 32,
        summary: "IEEE single precision",
        store: Store::Numbers(ValueType::F32),
    },
    ValueKind {
        name: "f16",
        bits: 16,
        summary: "IEEE half precision",
        store: Store::Numbers(ValueType::F16),
    },
    ValueKind {
        name: "bf16",
        bits: 16,
        summary: "the upper half of an f32",
        store: Store::Numbers(ValueType::Bf16),
    },
    ValueKind {
        name: "int8",
        bits: 8,
        summary: "codes -127 to 127 with a 16-bit scale per group",
        store: Store::Codes(CodeBits::Eight),
    },
    ValueKind {
        name: "int4",
        bits: 4,
        summary: "codes -8 to 7 with a 16-bit scale per group",
        store: Store::Codes(CodeBits::Four),
    },
];

impl ValueKind {
    /// Whether values are codes with scales.
    pub fn has_codes(&self) -> bool {
        matches!(self.store, Store::Codes(_))
    }

    /// Bits of a code, if values are codes.
    pub fn code_bits(&self) -> Option<CodeBits> {
        match self.store {
            Store::Codes(bits) => Some(bits),
            Store::Numbers(_) => None,
        }
    }

    /// The type, if values are numbers.
    pub fn number_type(&self) -> Option<ValueType> {
        match self.store {
            Store::Numbers(value_type) => Some(value_type),
            Store::Codes(_) => None,
        }
    }

    /// Bits of a value with its part of a scale, in groups of `group`.
    pub fn bits_with_scale(&self, group: usize) -> f64 {
        let scale = if self.has_codes() { 16.0 / group as f64 } else { 0.0 };
        self.bits as f64 + scale
    }
}

/// A kind of values, and the size of its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    kind: &'static ValueKind,
    group: usize,
}

impl Encoding {
    /// The size of a group if none is given.
    pub const DEFAULT_GROUP: usize = GROUPS[0];

    /// The kind called `name`, in groups of `group`, which matters to codes only.
    pub fn new(name: &str, group: usize) -> Result<Self, String> {
        let names: Vec<&str> = VALUE_KINDS.iter().map(|kind| kind.name).collect();
        let kind = VALUE_KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
            format!("value type `{name}` is unknown; choose one of {}", names.join(", "))
        })?;
        match GROUPS.contains(&group) {
            true => Ok(Self { kind, group }),
            false => Err(format!("a group has 32, 64 or 128 values, not {group}")),
        }
    }

    /// The kind.
    pub fn kind(self) -> &'static ValueKind {
        self.kind
    }

    /// The size of a group.
    pub fn group(self) -> usize {
        self.group
    }

    pub(super) fn store(self) -> Store {
        self.kind.store
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name)
    }
}

/// The kept values of a packed tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum PackedValues {
    /// Numbers of one type.
    Numbers(Values),
    /// Codes, a run per strip.
    Codes(Quantized),
}

impl From<Values> for PackedValues {
    fn from(values: Values) -> Self {
        Self::Numbers(values)
    }
}

impl From<Quantized> for PackedValues {
    fn from(codes: Quantized) -> Self {
        Self::Codes(codes)
    }
}

impl PackedValues {
    /// How they are stored.
    pub fn encoding(&self) -> Encoding {
        let (store, group) = match self {
            Self::Numbers(values) => (Store::Numbers(values.value_type()), Encoding::DEFAULT_GROUP),
            Self::Codes(codes) => (Store::Codes(codes.bits()), codes.group()),
        };
        let kind = VALUE_KINDS.iter().find(|kind| kind.store == store);
        Encoding { kind: kind.expect("every storage is listed"), group }
    }

    /// Bytes in memory and in a file.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Numbers(values) => values.len() * values.value_type().bytes(),
            Self::Codes(codes) => codes.bytes(),
        }
    }

    /// The numbers or codes as they are in a file.
    pub fn to_le_bytes(&self) -> Vec<u8> {
        match self {
            Self::Numbers(values) => values.to_le_bytes(),
            Self::Codes(codes) => codes.codes().to_vec(),
        }
    }

    /// The numbers, unless values are codes.
    pub fn numbers(&self) -> Option<&Values> {
        match self {
            Self::Numbers(values) => Some(values),
            Self::Codes(_) => None,
        }
    }

    /// The codes, if values are codes.
    pub fn codes(&self) -> Option<&Quantized> {
        match self {
            Self::Numbers(_) => None,
            Self::Codes(codes) => Some(codes),
        }
    }
}
