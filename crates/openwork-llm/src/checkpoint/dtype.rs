//! Storage types of tensors: one row of [`TABLE`] per type, with its names in both
//! formats and its block size.

use super::quant;
use half::{bf16, f16};

/// The storage type of a tensor.
#[allow(missing_docs)] // the names are the formats' own
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    F64,
    F32,
    F16,
    BF16,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q4K,
    Q5K,
    Q6K,
    Q2K,
    Q3K,
    IQ2XXS,
    IQ3XXS,
    IQ4NL,
    IQ4XS,
    MXFP4,
}

/// A type's names and sizes.
struct Row {
    dtype: Dtype,
    /// Its name, in safetensors headers and in GGUF tools.
    name: &'static str,
    /// Whether safetensors supports it.
    safetensors: bool,
    /// Its number in GGUF files, if GGUF supports it.
    ggml: Option<u32>,
    /// Elements per block.
    block: usize,
    /// Bytes per block.
    bytes: usize,
}

const fn plain(dtype: Dtype, name: &'static str, ggml: Option<u32>, bytes: usize) -> Row {
    Row { dtype, name, safetensors: true, ggml, block: 1, bytes }
}

const fn blocks(dtype: Dtype, name: &'static str, ggml: u32, block: usize, bytes: usize) -> Row {
    Row { dtype, name, safetensors: false, ggml: Some(ggml), block, bytes }
}

/// Every type, in the order of the enum. GGUF numbers are those of `ggml_type`.
const TABLE: &[Row] = &[
    plain(Dtype::F64, "F64", Some(28), 8),
    plain(Dtype::F32, "F32", Some(0), 4),
    plain(Dtype::F16, "F16", Some(1), 2),
    plain(Dtype::BF16, "BF16", Some(30), 2),
    plain(Dtype::I64, "I64", Some(27), 8),
    plain(Dtype::I32, "I32", Some(26), 4),
    plain(Dtype::I16, "I16", Some(25), 2),
    plain(Dtype::I8, "I8", Some(24), 1),
    plain(Dtype::U8, "U8", None, 1),
    plain(Dtype::Bool, "BOOL", None, 1),
    blocks(Dtype::Q8_0, "Q8_0", 8, 32, 34),
    blocks(Dtype::Q4_0, "Q4_0", 2, 32, 18),
    blocks(Dtype::Q4_1, "Q4_1", 3, 32, 20),
    blocks(Dtype::Q5_0, "Q5_0", 6, 32, 22),
    blocks(Dtype::Q5_1, "Q5_1", 7, 32, 24),
    blocks(Dtype::Q4K, "Q4_K", 12, 256, 144),
    blocks(Dtype::Q5K, "Q5_K", 13, 256, 176),
    blocks(Dtype::Q6K, "Q6_K", 14, 256, 210),
    blocks(Dtype::Q2K, "Q2_K", 10, 256, 84),
    blocks(Dtype::Q3K, "Q3_K", 11, 256, 110),
    blocks(Dtype::IQ2XXS, "IQ2_XXS", 16, 256, 66),
    blocks(Dtype::IQ3XXS, "IQ3_XXS", 18, 256, 98),
    blocks(Dtype::IQ4NL, "IQ4_NL", 20, 32, 18),
    blocks(Dtype::IQ4XS, "IQ4_XS", 23, 256, 136),
    // In safetensors, its scales have a tensor of their own.
    blocks(Dtype::MXFP4, "MXFP4", 39, 32, 17),
];

impl Dtype {
    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Its usual name: `BF16`, `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Elements per block; 1 for a type without blocks.
    pub fn block_len(self) -> usize {
        self.row().block
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.row().bytes
    }

    /// Whether it stores weights: a floating-point or quantized type.
    pub fn holds_weights(self) -> bool {
        use Dtype::{Bool, I8, I16, I32, I64, U8};
        !matches!(self, I64 | I32 | I16 | I8 | U8 | Bool)
    }

    /// The type called `name` in a safetensors header.
    pub fn from_safetensors(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.safetensors && row.name == name).map(|row| row.dtype)
    }

    /// Its number in a GGUF file, if GGUF supports it.
    pub fn ggml(self) -> Option<u32> {
        self.row().ggml
    }

    /// The type with this number in a GGUF file.
    pub fn from_ggml(number: u32) -> Option<Self> {
        TABLE.iter().find(|row| row.ggml == Some(number)).map(|row| row.dtype)
    }

    /// The names of all types of a format, for error messages.
    pub(crate) fn known(gguf: bool) -> String {
        let has = |row: &&Row| if gguf { row.ggml.is_some() } else { row.safetensors };
        TABLE.iter().filter(has).map(|row| row.name).collect::<Vec<_>>().join(", ")
    }

    /// Size of `len` elements in bytes; `None` if `len` is not a multiple of the
    /// block, or on overflow.
    pub fn bytes_for(self, len: u64) -> Option<u64> {
        let block = self.block_len() as u64;
        if !len.is_multiple_of(block) {
            return None;
        }
        (len / block).checked_mul(self.block_bytes() as u64)
    }

    /// Rounds values to F32, F16 or BF16.
    ///
    /// # Panics
    /// If the type is any other.
    pub fn round(self, values: &mut [f32]) {
        match self {
            Self::F32 => {}
            Self::F16 => values.iter_mut().for_each(|w| *w = f16::from_f32(*w).to_f32()),
            Self::BF16 => values.iter_mut().for_each(|w| *w = bf16::from_f32(*w).to_f32()),
            other => panic!("cannot round values to {other}"),
        }
    }

    /// Converts `bytes` to f32 into `out`.
    ///
    /// # Panics
    /// If `bytes` does not hold exactly `out.len()` elements.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(
            self.bytes_for(out.len() as u64),
            Some(bytes.len() as u64),
            "{} bytes for {} numbers of {}",
            bytes.len(),
            out.len(),
            self.name()
        );
        match self {
            Self::F64 => widen(bytes, out, |b| f64::from_le_bytes(b) as f32),
            Self::F32 => widen(bytes, out, f32::from_le_bytes),
            Self::F16 => widen(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
            Self::BF16 => widen(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
            Self::I64 => widen(bytes, out, |b| i64::from_le_bytes(b) as f32),
            Self::I32 => widen(bytes, out, |b| i32::from_le_bytes(b) as f32),
            Self::I16 => widen(bytes, out, |b| f32::from(i16::from_le_bytes(b))),
            Self::I8 => widen(bytes, out, |b| f32::from(i8::from_le_bytes(b))),
            Self::U8 | Self::Bool => widen(bytes, out, |[b]: [u8; 1]| f32::from(b)),
            Self::Q8_0 => quant::blocks(bytes, out, quant::q8_0),
            Self::Q4_0 => quant::blocks(bytes, out, quant::q4_0),
            Self::Q4_1 => quant::blocks(bytes, out, quant::q4_1),
            Self::Q5_0 => quant::blocks(bytes, out, quant::q5_0),
            Self::Q5_1 => quant::blocks(bytes, out, quant::q5_1),
            Self::Q4K => quant::blocks(bytes, out, quant::q4_k),
            Self::Q5K => quant::blocks(bytes, out, quant::q5_k),
            Self::Q6K => quant::blocks(bytes, out, quant::q6_k),
            Self::Q2K => quant::blocks(bytes, out, quant::q2_k),
            Self::Q3K => quant::blocks(bytes, out, quant::q3_k),
            Self::IQ2XXS => quant::blocks(bytes, out, quant::iq2_xxs),
            Self::IQ3XXS => quant::blocks(bytes, out, quant::iq3_xxs),
            Self::IQ4NL => quant::blocks(bytes, out, quant::iq4_nl),
            Self::IQ4XS => quant::blocks(bytes, out, quant::iq4_xs),
            Self::MXFP4 => quant::blocks(bytes, out, quant::mxfp4),
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

fn widen<const N: usize>(bytes: &[u8], out: &mut [f32], read: impl Fn([u8; N]) -> f32) {
    let (numbers, _) = bytes.as_chunks::<N>();
    for (out, &number) in out.iter_mut().zip(numbers) {
        *out = read(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_stands_at_its_own_row() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.dtype as usize, i, "{}", row.name);
            if row.safetensors {
                assert_eq!(Dtype::from_safetensors(row.name), Some(row.dtype));
            }
            if let Some(number) = row.ggml {
                assert_eq!(Dtype::from_ggml(number), Some(row.dtype));
            }
        }
    }

    #[test]
    fn widening_is_exact() {
        let mut out = [0.0; 2];
        Dtype::F32.decode(&[1.5f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat(), &mut out);
        assert_eq!(out, [1.5, -2.0]);
        Dtype::F16.decode(
            &[f16::from_f32(0.25).to_le_bytes(), f16::MAX.to_le_bytes()].concat(),
            &mut out,
        );
        assert_eq!(out, [0.25, 65504.0]);
        Dtype::BF16.decode(&[0x80, 0x3f, 0x00, 0xc0], &mut out);
        assert_eq!(out, [1.0, -2.0]);
        Dtype::I64.decode(&[(-7i64).to_le_bytes(), 3i64.to_le_bytes()].concat(), &mut out);
        assert_eq!(out, [-7.0, 3.0]);
    }
}
