//! The number types of weights, Hessians and inputs.

use half::{bf16, f16};
use std::fmt;

/// A floating-point type that files store, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 64 bits.
    F64,
    /// 32 bits.
    F32,
    /// 16 bits, up to 65504.
    F16,
    /// The upper 16 bits of an f32.
    BF16,
}

impl Dtype {
    /// Every type.
    pub const ALL: &'static [Self] = &[Self::F64, Self::F32, Self::F16, Self::BF16];
    /// The types that samples may have.
    pub const SAMPLES: &'static [Self] = &[Self::F32, Self::F16, Self::BF16];

    /// The type that safetensors calls by this name; nothing for other numbers.
    pub fn from_safetensors(dtype: safetensors::Dtype) -> Option<Self> {
        match dtype {
            safetensors::Dtype::F64 => Some(Self::F64),
            safetensors::Dtype::F32 => Some(Self::F32),
            safetensors::Dtype::F16 => Some(Self::F16),
            safetensors::Dtype::BF16 => Some(Self::BF16),
            _ => None,
        }
    }

    /// Its name in a safetensors header.
    pub fn header(self) -> &'static str {
        match self {
            Self::F64 => "F64",
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
        }
    }

    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// The number whose bytes these are.
    ///
    /// # Panics
    ///
    /// If there are not [`Dtype::bytes`] of them.
    pub fn read(self, bytes: &[u8]) -> f64 {
        const LENGTH: &str = "one number's bytes";
        match self {
            Self::F64 => f64::from_le_bytes(bytes.try_into().expect(LENGTH)),
            Self::F32 => f32::from_le_bytes(bytes.try_into().expect(LENGTH)).into(),
            Self::F16 => f16::from_le_bytes(bytes.try_into().expect(LENGTH)).into(),
            Self::BF16 => bf16::from_le_bytes(bytes.try_into().expect(LENGTH)).into(),
        }
    }

    /// Writes `value`, rounded to the nearest number of this type; whether that
    /// is finite. Zero stays exactly zero.
    ///
    /// # Panics
    ///
    /// If there are not [`Dtype::bytes`] bytes.
    pub fn write(self, value: f32, bytes: &mut [u8]) -> bool {
        match self {
            Self::F64 => bytes.copy_from_slice(&f64::from(value).to_le_bytes()),
            Self::F32 => bytes.copy_from_slice(&value.to_le_bytes()),
            Self::F16 => bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            Self::BF16 => bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
        self.read(bytes).is_finite()
    }

    /// A list for a person: `f32, f16 or bf16`.
    pub fn words(list: &[Self]) -> String {
        let names: Vec<String> = list.iter().map(Self::to_string).collect();
        match names.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => names.concat(),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.header().to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for &dtype in Dtype::ALL {
            for value in [0.0, 1.0, -0.5, 1.5, 65504.0] {
                // bf16 rounds the largest f16.
                let value = if dtype == Dtype::BF16 && value > 2.0 { 65536.0 } else { value };
                let mut bytes = vec![7; dtype.bytes()];
                assert!(dtype.write(value, &mut bytes));
                assert_eq!(dtype.read(&bytes), f64::from(value), "{dtype}");
            }
        }
    }

    #[test]
    fn what_a_type_cannot_hold_is_told() {
        assert!(!Dtype::F16.write(70000.0, &mut [0; 2]));
        assert!(Dtype::BF16.write(70000.0, &mut [0; 2]));
        assert!(!Dtype::BF16.write(f32::MAX, &mut [0; 2]));
    }

    #[test]
    fn lists_read_like_a_sentence() {
        assert_eq!(Dtype::words(Dtype::SAMPLES), "f32, f16 or bf16");
        assert_eq!(Dtype::words(&[Dtype::F32]), "f32");
    }
}
