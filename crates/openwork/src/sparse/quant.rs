//! Integer codes: values as `scale * code`, in groups that share a 16-bit scale.
//!
//! Values come in runs: the kept values of one strip. Every run begins with a group, and
//! its last group is filled up with zero codes. A code of 8 bits is a byte in two's
//! complement, -127 to 127. Codes of 4 bits are -8 to 7, stored plus 8, 32 of them in 16
//! bytes: byte `j` has value `j` in its lower half and value `j + 16` in its upper one.
//! Scales are bf16, which has the range of f32, so no scale overflows. Scales chosen here for
//! codes of 4 bits have 5 significant bits, so that values are bf16 numbers.

use super::error::PartsError;
use super::kernel::Kernel;
use super::scale::{self, Quantizer, range};
use crate::values::ValueType;
use half::bf16;

/// The sizes that a group may have.
pub const GROUPS: [usize; 3] = [32, 64, 128];

/// Values that 16 bytes of 4-bit codes hold.
pub(super) const UNIT: usize = 32;

/// The weights of errors that count alike.
const ONES: [f32; GROUPS[2]] = [1.0; GROUPS[2]];

/// Bits of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeBits {
    /// A byte per value.
    Eight,
    /// Half a byte per value.
    Four,
}

impl CodeBits {
    /// As a number.
    pub fn bits(self) -> usize {
        match self {
            Self::Eight => 8,
            Self::Four => 4,
        }
    }

    /// Bytes of the codes of some values, a multiple of 32.
    pub(super) fn bytes(self, values: usize) -> usize {
        values * self.bits() / 8
    }
}

/// Codes of any number of runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    bits: CodeBits,
    group: usize,
    codes: Vec<u8>,
    scales: Vec<bf16>,
}

/// Borrowed codes, and their scales in little-endian bytes.
#[derive(Clone, Copy, Debug)]
pub struct CodesRef<'a> {
    /// Bits of a code.
    pub bits: CodeBits,
    /// Values that share a scale.
    pub group: usize,
    /// All codes.
    pub codes: &'a [u8],
    /// All scales.
    pub scales: &'a [u8],
}

impl Quantized {
    /// Codes without a run.
    ///
    /// # Panics
    ///
    /// If `group` is not in [`GROUPS`].
    pub fn new(bits: CodeBits, group: usize) -> Self {
        assert!(GROUPS.contains(&group), "a group of {group}");
        Self { bits, group, codes: Vec::new(), scales: Vec::new() }
    }

    /// Stored codes; `None` if the group is not in [`GROUPS`] or the scales have an odd
    /// number of bytes.
    pub fn from_bytes(stored: CodesRef<'_>) -> Option<Self> {
        let whole = stored.scales.len().is_multiple_of(2) && GROUPS.contains(&stored.group);
        let scales = stored.scales.as_chunks::<2>().0.iter().map(|&b| bf16::from_le_bytes(b));
        whole.then(|| Self {
            bits: stored.bits,
            group: stored.group,
            codes: stored.codes.to_vec(),
            scales: scales.collect(),
        })
    }

    /// Bits of a code.
    pub fn bits(&self) -> CodeBits {
        self.bits
    }

    /// Values that share a scale.
    pub fn group(&self) -> usize {
        self.group
    }

    /// All codes.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// All scales.
    pub fn scales(&self) -> &[bf16] {
        &self.scales
    }

    /// All scales as little-endian bytes.
    pub fn scale_bytes(&self) -> Vec<u8> {
        self.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect()
    }

    /// Bytes of codes and scales.
    pub fn bytes(&self) -> usize {
        self.codes.len() + 2 * self.scales.len()
    }

    /// Adds a run of finite values, each as the nearest code of its group's best scale.
    pub fn push(&mut self, run: &[f32]) {
        self.push_stored(run, ValueType::F32);
    }

    /// The same for values of type `stored`. Groups that codes express are kept: what the
    /// codes stand for is equal to the values, or rounds to them in their type.
    pub fn push_stored(&mut self, run: &[f32], stored: ValueType) {
        let mut group = [0.0f32; GROUPS[2]];
        let mut codes = [0i8; GROUPS[2]];
        let (group, codes) = (&mut group[..self.group], &mut codes[..self.group]);
        let plain = Quantizer::new(self.bits, scale::EXACT_DIGITS);
        for values in run.chunks(self.group) {
            group[..values.len()].copy_from_slice(values);
            group[values.len()..].fill(0.0);
            let scale =
                scale::expressing(values, self.bits, stored).unwrap_or_else(|| match self.bits {
                    CodeBits::Eight => scale::nearest(group, 127.0),
                    CodeBits::Four => bf16::from_f32(plain.scale(values, &ONES[..values.len()])),
                });
            scale::encode(group, scale.to_f32(), range(self.bits), codes);
            self.scales.push(scale);
            self.append(codes);
        }
    }

    fn append(&mut self, codes: &[i8]) {
        match self.bits {
            CodeBits::Eight => self.codes.extend(codes.iter().map(|&code| code as u8)),
            CodeBits::Four => {
                for unit in codes.chunks_exact(UNIT) {
                    let half = |code: i8| (code + 8) as u8;
                    let (low, high) = unit.split_at(UNIT / 2);
                    self.codes.extend(low.iter().zip(high).map(|(&a, &b)| half(a) | half(b) << 4));
                }
            }
        }
    }

    /// Adds the runs of other codes of the same kind.
    ///
    /// # Panics
    ///
    /// If they are of another kind.
    pub fn extend(&mut self, other: &Self) {
        assert_eq!((self.bits, self.group), (other.bits, other.group), "codes of one kind");
        self.codes.extend_from_slice(&other.codes);
        self.scales.extend_from_slice(&other.scales);
    }

    /// The values from the beginning of a group on.
    ///
    /// # Panics
    ///
    /// If there are not as many.
    pub fn read(&self, first_group: usize, out: &mut [f32]) {
        let scales = &self.scales[first_group..];
        let codes = &self.codes[self.bits.bytes(first_group * self.group)..];
        assert!(out.len().div_ceil(self.group) <= scales.len(), "groups of all values");
        for (i, out) in out.chunks_mut(self.group).enumerate() {
            decode(self.bits, &codes[self.bits.bytes(i * self.group)..], scales[i].to_f32(), out);
        }
    }
}

/// The values of codes that begin with a unit.
fn decode(bits: CodeBits, codes: &[u8], scale: f32, out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if Kernel::best() >= Kernel::Avx2 {
        // SAFETY: the machine has the kernel.
        return unsafe { decode_avx2(bits, codes, scale, out) };
    }
    decode_portable(bits, codes, scale, out);
}

/// [`decode_portable`], compiled for AVX2.
///
/// # Safety
///
/// The machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn decode_avx2(bits: CodeBits, codes: &[u8], scale: f32, out: &mut [f32]) {
    decode_portable(bits, codes, scale, out);
}

#[inline(always)]
fn decode_portable(bits: CodeBits, codes: &[u8], scale: f32, out: &mut [f32]) {
    match bits {
        CodeBits::Eight => {
            let codes = &codes[..out.len()];
            out.iter_mut().zip(codes).for_each(|(out, &code)| *out = scale * f32::from(code as i8));
        }
        CodeBits::Four => {
            for (out, codes) in out.chunks_mut(UNIT).zip(codes.chunks_exact(UNIT / 2)) {
                let value = |half: u8| scale * (f32::from(half) - 8.0);
                let (low, high) = out.split_at_mut(out.len().min(UNIT / 2));
                low.iter_mut().zip(codes).for_each(|(out, &code)| *out = value(code & 15));
                high.iter_mut().zip(codes).for_each(|(out, &code)| *out = value(code >> 4));
            }
        }
    }
}

impl CodesRef<'_> {
    /// The values from the beginning of a group on.
    ///
    /// # Panics
    ///
    /// If there are not as many.
    pub fn read(&self, first_group: usize, out: &mut [f32]) {
        let codes = &self.codes[self.bits.bytes(first_group * self.group)..];
        for (i, out) in out.chunks_mut(self.group).enumerate() {
            let at = 2 * (first_group + i);
            let scale = bf16::from_le_bytes([self.scales[at], self.scales[at + 1]]).to_f32();
            decode(self.bits, &codes[self.bits.bytes(i * self.group)..], scale, out);
        }
    }

    /// Checks that these are codes of `values` values, in runs of so many each.
    pub(super) fn check(
        &self,
        values: usize,
        runs: impl Iterator<Item = usize> + Clone,
    ) -> Result<(), PartsError> {
        let damaged = |why: String| Err(PartsError::Codes(why));
        if !GROUPS.contains(&self.group) {
            return damaged(format!("groups of {} values; choose 32, 64 or 128", self.group));
        }
        // Before the runs are counted: a file may declare any number of them.
        if values.div_ceil(self.group) > self.scales.len() / 2 {
            return damaged(format!(
                "{} scales are stored, too few for {values} values",
                self.scales.len() / 2
            ));
        }
        let groups: usize = runs.clone().map(|run| run.div_ceil(self.group)).sum();
        let expected = (self.bits.bytes(groups * self.group), 2 * groups);
        if (self.codes.len(), self.scales.len()) != expected {
            return damaged(format!(
                "{} bytes of codes and {} of scales are stored; the pattern needs {} and {}",
                self.codes.len(),
                self.scales.len(),
                expected.0,
                expected.1
            ));
        }
        let scales = self.scales.as_chunks::<2>().0;
        if let Some(i) = scales.iter().position(|&b| !bf16::from_le_bytes(b).is_finite()) {
            return damaged(format!("scale {i} is not finite"));
        }
        if self.bits == CodeBits::Eight
            && let Some(i) = self.codes.iter().position(|&code| code == 0x80)
        {
            return damaged(format!("code {i} is -128, which is not used"));
        }
        let mut end = 0;
        for run in runs {
            let first = end + run;
            end += run.next_multiple_of(self.group);
            if let Some(i) = (first..end).find(|&i| self.code(i) != 0) {
                return damaged(format!("code {i} is padding but not zero"));
            }
        }
        Ok(())
    }

    /// Code `i`.
    fn code(&self, i: usize) -> i8 {
        match self.bits {
            CodeBits::Eight => self.codes[i] as i8,
            CodeBits::Four => {
                let (unit, j) = (i / UNIT, i % UNIT);
                let byte = self.codes[unit * UNIT / 2 + j % (UNIT / 2)];
                (byte >> (4 * (j / (UNIT / 2))) & 15) as i8 - 8
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(i: usize) -> f32 {
        ((i * 7919 + 13) % 257) as f32 / 128.0 - 1.0
    }

    #[test]
    fn values_come_back_within_half_a_step() {
        for bits in [CodeBits::Eight, CodeBits::Four] {
            for group in GROUPS {
                for len in (0..=70).chain([127, 128, 129, 300]) {
                    let values: Vec<f32> = (0..len).map(number).collect();
                    let mut all = Quantized::new(bits, group);
                    all.push(&[7.0; 5]);
                    all.push(&values);
                    let mut back = vec![f32::NAN; len];
                    all.read(1, &mut back);
                    for (i, (v, back)) in values.iter().zip(&back).enumerate() {
                        let scale = all.scales[1 + i / group].to_f32().abs();
                        // A clipped value may be further away; 4 bits clip up to 30 %.
                        let far = if bits == CodeBits::Eight { 0.76 } else { 4.0 };
                        assert!((v - back).abs() <= far * scale, "{v} -> {back}, scale {scale}");
                    }
                    let stored = all.scale_bytes();
                    let view = CodesRef { bits, group, codes: &all.codes, scales: &stored };
                    view.check(5 + len, [5, len].into_iter()).unwrap();
                    let mut again = vec![f32::NAN; len];
                    view.read(1, &mut again);
                    assert_eq!(back, again);
                    assert_eq!(Quantized::from_bytes(view).unwrap(), all);
                }
            }
        }
    }

    #[test]
    fn what_codes_express_is_kept_exactly() {
        for (bits, low, high) in [(CodeBits::Eight, -127, 127), (CodeBits::Four, -8, 7)] {
            let values: Vec<f32> =
                (0..32).map(|i| 0.375 * (low + i * (high - low) / 31) as f32).collect();
            let mut all = Quantized::new(bits, 32);
            all.push(&values);
            let mut back = vec![0.0; 32];
            all.read(0, &mut back);
            assert_eq!(values, back);
        }
        let mut zeros = Quantized::new(CodeBits::Four, 32);
        zeros.push(&[0.0, -0.0, 0.0]);
        let mut back = [f32::NAN; 3];
        zeros.read(0, &mut back);
        assert_eq!(back, [0.0; 3]);
    }

    #[test]
    fn extreme_values_have_finite_codes() {
        for bits in [CodeBits::Eight, CodeBits::Four] {
            for extreme in [f32::MAX, f32::MIN_POSITIVE, 1e-45, 3e38] {
                let mut all = Quantized::new(bits, 32);
                all.push(&[extreme, -extreme, 0.0, extreme / 3.0]);
                let mut back = [f32::NAN; 4];
                all.read(0, &mut back);
                assert!(back.iter().all(|v| v.is_finite()), "{extreme}: {back:?}");
            }
        }
    }

    #[test]
    fn four_bits_do_no_worse_than_plain_rounding() {
        for seed in 0..50 {
            let values: Vec<f32> = (0..32).map(|i| number(i * (seed + 3) + 17 * seed)).collect();
            let mut all = Quantized::new(CodeBits::Four, 32);
            all.push(&values);
            let mut back = vec![0.0; 32];
            all.read(0, &mut back);
            let error = |back: &[f32]| -> f32 {
                values.iter().zip(back).map(|(a, b)| (a - b) * (a - b)).sum()
            };
            let scale = scale::nearest(&values, 7.0).to_f32();
            let plain: Vec<f32> = values.iter().map(|v| scale * (v / scale).round()).collect();
            // The plain scale has more significant bits, which evenly spread values gain from.
            assert!(error(&back) <= 1.1 * error(&plain), "{} {}", error(&back), error(&plain));
        }
    }
}
