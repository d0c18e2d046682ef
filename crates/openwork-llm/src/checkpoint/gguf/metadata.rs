//! The metadata of a GGUF file: typed key-value pairs.

use crate::checkpoint::error::Fault;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// The type of a scalar value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScalarType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    U64,
    I64,
    F64,
}

impl ScalarType {
    /// The type with this number in the file.
    pub fn new(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            // 9 is a list.
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// Size in bytes; `None` for strings.
    pub fn size(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String => None,
        }
    }

    /// Minimum size in bytes: a string has at least its length.
    pub fn least(self) -> u64 {
        self.size().unwrap_or(8)
    }

    /// The value in `bytes`, which have the length given by [`size`](Self::size).
    pub fn value(self, bytes: &[u8]) -> Result<Value, String> {
        let mut raw = [0; 8];
        if self != Self::String {
            raw[..bytes.len()].copy_from_slice(bytes);
        }
        let unsigned = u64::from_le_bytes(raw);
        // Sign extension: shift left, then arithmetically right.
        let unused = 64 - 8 * self.size().unwrap_or(8) as u32;
        let signed = (unsigned << unused) as i64 >> unused;
        Ok(match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => Value::Unsigned(unsigned),
            Self::I8 | Self::I16 | Self::I32 | Self::I64 => Value::Signed(signed),
            Self::F32 => Value::Float(shortest(f32::from_bits(unsigned as u32))),
            Self::F64 => Value::Float(f64::from_bits(unsigned)),
            Self::Bool => match unsigned {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                other => return Err(format!("is the boolean {other}, neither 0 nor 1")),
            },
            Self::String => {
                let text = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8".to_string())?;
                Value::Text(text.to_string())
            }
        })
    }
}

/// The f64 with the fewest digits that rounds to `number`: an f32 of 1e-5 means
/// 1e-5, not 9.999999747378752e-6.
pub(super) fn shortest(number: f32) -> f64 {
    // Rust prints the shortest digits that read back as the same f32.
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// A scalar value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
}

/// The value of a key; of a list only its range in the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MetadataValue {
    One(Value),
    List { kind: ScalarType, count: usize, range: Range<usize> },
}

impl fmt::Display for MetadataValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(Value::Unsigned(n)) => write!(f, "{n}"),
            Self::One(Value::Signed(n)) => write!(f, "{n}"),
            Self::One(Value::Float(x)) => write!(f, "{x}"),
            Self::One(Value::Bool(b)) => write!(f, "{b}"),
            // A text can be a long chat template.
            Self::One(Value::Text(text)) => {
                write!(f, "{:?}", text.chars().take(60).collect::<String>())
            }
            Self::List { kind, count, .. } => write!(f, "a list of {count} {kind:?}"),
        }
    }
}

/// The key-value pairs of a file. Getters return `None` for a missing key and an
/// error for a value of another type.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metadata(BTreeMap<String, MetadataValue>);

impl Metadata {
    /// Inserts a key; returns false if it existed.
    pub fn insert(&mut self, key: String, value: MetadataValue) -> bool {
        self.0.insert(key, value).is_none()
    }

    /// All keys, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &MetadataValue)> {
        self.0.iter()
    }

    pub fn get(&self, key: &str) -> Option<&MetadataValue> {
        self.0.get(key)
    }

    fn one<T>(
        &self,
        key: &str,
        asked: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        let Some(meta) = self.get(key) else { return Ok(None) };
        let value = match meta {
            MetadataValue::One(value) => read(value),
            MetadataValue::List { .. } => None,
        };
        let wrong =
            || Fault::Metadata { key: key.to_string(), why: format!("is {meta}, not {asked}") };
        value.map(Some).ok_or_else(wrong)
    }

    pub fn text(&self, key: &str) -> Result<Option<String>, Fault> {
        self.one(key, "a text", |value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        })
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, Fault> {
        self.one(key, "a boolean", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// An integer from 0 to 2^32 - 1, of any integer type.
    pub fn number(&self, key: &str) -> Result<Option<u32>, Fault> {
        self.one(key, "an integer below 2^32", |value| match value {
            Value::Unsigned(n) => u32::try_from(*n).ok(),
            Value::Signed(n) => u32::try_from(*n).ok(),
            _ => None,
        })
    }

    /// A finite number, of any type.
    pub fn float(&self, key: &str) -> Result<Option<f64>, Fault> {
        self.one(key, "a finite number", |value| match value {
            Value::Float(x) => Some(*x).filter(|x| x.is_finite()),
            Value::Unsigned(n) => Some(*n as f64),
            Value::Signed(n) => Some(*n as f64),
            _ => None,
        })
    }

    /// The length and bytes of a list of type `asked`.
    fn list<'a>(
        &self,
        key: &str,
        asked: ScalarType,
        bytes: &'a [u8],
    ) -> Result<Option<(usize, &'a [u8])>, Fault> {
        match self.get(key) {
            None => Ok(None),
            Some(MetadataValue::List { kind, count, range }) if *kind == asked => {
                Ok(Some((*count, &bytes[range.clone()])))
            }
            Some(other) => {
                let why = format!("is {other}, not a list of {asked:?}");
                Err(Fault::Metadata { key: key.to_string(), why })
            }
        }
    }

    pub fn texts<'a>(&self, key: &str, bytes: &'a [u8]) -> Result<Option<Vec<&'a str>>, Fault> {
        let Some((count, mut bytes)) = self.list(key, ScalarType::String, bytes)? else {
            return Ok(None);
        };
        let mut texts = Vec::with_capacity(count);
        // The lengths were validated when the file was opened.
        while let Some((length, rest)) = bytes.split_first_chunk::<8>() {
            let (text, rest) = rest.split_at(u64::from_le_bytes(*length) as usize);
            let text = std::str::from_utf8(text).map_err(|_| Fault::Metadata {
                key: key.to_string(),
                why: format!("entry {} is not UTF-8", texts.len()),
            })?;
            texts.push(text);
            bytes = rest;
        }
        Ok(Some(texts))
    }

    pub fn floats(&self, key: &str, bytes: &[u8]) -> Result<Option<Vec<f32>>, Fault> {
        let list = self.list(key, ScalarType::F32, bytes)?;
        Ok(list.map(|(_, bytes)| {
            bytes.as_chunks().0.iter().map(|&number| f32::from_le_bytes(number)).collect()
        }))
    }

    pub fn flags(&self, key: &str, bytes: &[u8]) -> Result<Option<Vec<bool>>, Fault> {
        let list = self.list(key, ScalarType::Bool, bytes)?;
        Ok(list.map(|(_, bytes)| bytes.iter().map(|&flag| flag != 0).collect()))
    }

    pub fn integers(&self, key: &str, bytes: &[u8]) -> Result<Option<Vec<i32>>, Fault> {
        let list = self.list(key, ScalarType::I32, bytes)?;
        Ok(list.map(|(_, bytes)| {
            bytes.as_chunks().0.iter().map(|&number| i32::from_le_bytes(number)).collect()
        }))
    }
}
