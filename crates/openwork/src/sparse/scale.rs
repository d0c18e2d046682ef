//! Scales of groups of codes: the choice of a scale, and rounding to its codes.

use super::quant::CodeBits;
use crate::values::ValueType;
use half::{bf16, f16};

/// The smallest and the largest code.
pub(super) fn range(bits: CodeBits) -> (f32, f32) {
    match bits {
        CodeBits::Eight => (-127.0, 127.0),
        CodeBits::Four => (-8.0, 7.0),
    }
}

/// Codes of a group: quotients rounded to even and limited.
pub(super) fn encode(values: &[f32], scale: f32, (low, high): (f32, f32), codes: &mut [i8]) {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    for (code, &value) in codes.iter_mut().zip(values) {
        *code = round((value * inverse).clamp(low, high)) as i8;
    }
}

/// The nearest whole number, ties to even, of numbers below 2^22; baseline x86-64 has no
/// instruction for it.
pub(super) fn round(x: f32) -> f32 {
    const MAGIC: f32 = 1.5 * (1 << 23) as f32;
    (x + MAGIC) - MAGIC
}

/// The scale by which the largest value becomes the largest code.
pub(super) fn nearest(values: &[f32], largest: f32) -> bf16 {
    bf16::from_f32(values.iter().fold(0.0f32, |most, v| most.max(v.abs())) / largest)
}

/// The value of largest magnitude.
fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, v| if v.abs() > most.abs() { *v } else { most })
}

/// A scale whose codes are exactly these values or, if there is none, a scale whose codes
/// round to them in the type they are stored in.
///
/// The value of largest magnitude is a code times the scale, and there are few codes. All
/// are tried, each with the scales around the quotient, since the value may have been
/// rounded; most fail at the first value.
pub(super) fn expressing(values: &[f32], bits: CodeBits, stored: ValueType) -> Option<bf16> {
    let extreme = extreme(values);
    if extreme == 0.0 {
        return Some(bf16::ZERO);
    }
    find(values, extreme, bits, |value| value).or_else(|| match stored {
        ValueType::F32 => None,
        ValueType::F16 => find(values, extreme, bits, |value| f16::from_f32(value).to_f32()),
        ValueType::Bf16 => find(values, extreme, bits, |value| bf16::from_f32(value).to_f32()),
    })
}

/// A scale whose codes become these values by `store`.
fn find(values: &[f32], extreme: f32, bits: CodeBits, store: impl Fn(f32) -> f32) -> Option<bf16> {
    let (low, high) = range(bits);
    let expresses = |scale: f32| {
        let inverse = 1.0 / scale;
        let kept = |&v: &f32| store(scale * round((v * inverse).clamp(low, high))) == v;
        inverse.is_finite() && values.iter().all(kept)
    };
    let codes = (1..=low.abs() as i32).rev().map(|code| code as f32);
    let scales = codes.flat_map(|code| {
        // Only the lowest code may have no opposite.
        let quotient = bf16::from_f32(extreme.abs() / code).to_bits();
        let sign = if code > high && extreme > 0.0 { -1.0 } else { 1.0 };
        [quotient, quotient.saturating_sub(1), quotient + 1]
            .map(|bits| bf16::from_f32(sign * bf16::from_bits(bits).to_f32()))
    });
    scales.into_iter().find(|scale| scale.is_finite() && expresses(scale.to_f32()))
}

/// Rounds weights whose errors need not count alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantizer {
    bits: CodeBits,
    /// Significant bits of a scale, at most the 8 of bf16.
    digits: u32,
}

/// Significant bits of a scale whose products with codes from -8 to 7 are bf16 numbers, which
/// have 8: the code takes 3.
pub(crate) const EXACT_DIGITS: u32 = 5;

impl Quantizer {
    /// Codes of `bits` bits with scales of `digits` significant bits, 1 to 8.
    pub fn new(bits: CodeBits, digits: u32) -> Self {
        Self { bits, digits: digits.clamp(1, 8) }
    }

    /// The code nearest to a value.
    pub fn code(&self, value: f32, scale: f32) -> f32 {
        let (low, high) = range(self.bits);
        if scale == 0.0 { 0.0 } else { round((value / scale).clamp(low, high)) }
    }

    /// A scale `s` of little weighted error:
    ///
    /// ```text
    /// sum over i of h_i (v_i - s c_i)^2        c_i = the code nearest to v_i / s
    /// ```
    ///
    /// The best of scales that clip the largest value more and more; then least-squares
    /// fits to its codes, as long as they help.
    pub fn scale(&self, values: &[f32], h: &[f32]) -> f32 {
        /// By which the largest value is clipped.
        const CLIPS: [f32; 12] = [1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45];
        const FITS: usize = 3;
        let extreme = extreme(values);
        if extreme == 0.0 {
            return 0.0;
        }
        // In units of the largest value and the largest weight, squares are f32.
        let heaviest = h.iter().fold(0.0f32, |most, &h| most.max(h));
        let weight = |h: f32| if heaviest > 0.0 { h / heaviest } else { 1.0 };
        let values: Vec<(f32, f32)> =
            values.iter().zip(h).map(|(&v, &h)| (v / extreme, weight(h))).collect();
        let group = Group { extreme, values: &values, range: range(self.bits) };
        let (low, _) = group.range;
        let full = match self.bits {
            CodeBits::Eight => extreme.abs() / -low,
            CodeBits::Four => extreme / low,
        };
        let mut best = Best { error: group.error(0.0), scale: 0.0 };
        // Without the lowest code, the signs are alike.
        for sign in [1.0, -1.0] {
            self.consider(sign * full * (low / (low + 1.0)), &group, &mut best);
        }
        // Eight bits gain nothing from more.
        let clips = if self.bits == CodeBits::Eight { 2 } else { CLIPS.len() };
        for clip in &CLIPS[..clips] {
            self.consider(full * clip, &group, &mut best);
        }
        for _ in 0..FITS {
            if !group.fit(best.scale).is_some_and(|fit| self.consider(fit, &group, &mut best)) {
                break;
            }
        }
        best.scale
    }

    /// Takes the scales around `scale` if they are better; whether one was.
    fn consider(&self, scale: f32, group: &Group<'_>, best: &mut Best) -> bool {
        let mut better = false;
        for scale in self.near(scale) {
            let error = group.error(scale);
            if error < best.error {
                (*best, better) = (Best { error, scale }, true);
            }
        }
        better
    }

    /// The finite scales around a number.
    pub fn near(&self, scale: f32) -> impl Iterator<Item = f32> + use<> {
        let step = 1u32 << (24 - self.digits);
        let below = scale.to_bits() & !(step - 1);
        let both = [below, below + step].map(f32::from_bits);
        let count = if f32::from_bits(below) == scale { 1 } else { 2 };
        both.into_iter().take(count).filter(|scale| scale.is_finite())
    }
}

/// The best scale so far.
struct Best {
    error: f32,
    scale: f32,
}

/// Values in units of the largest, with the weights of their errors.
struct Group<'a> {
    extreme: f32,
    values: &'a [(f32, f32)],
    range: (f32, f32),
}

impl Group<'_> {
    /// The code of a value, and the scale in the same units.
    fn coder(&self, scale: f32) -> (impl Fn(f32) -> f32, f32) {
        let ((low, high), step) = (self.range, scale / self.extreme);
        let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
        (move |v: f32| round((v * inverse).clamp(low, high)), step)
    }

    fn error(&self, scale: f32) -> f32 {
        let (code, step) = self.coder(scale);
        let square = |&(v, h): &(f32, f32)| {
            let off = v - step * code(v);
            h * off * off
        };
        self.values.iter().map(square).sum()
    }

    /// The least-squares scale of the codes of another one.
    fn fit(&self, scale: f32) -> Option<f32> {
        let (code, _) = self.coder(scale);
        let (mut product, mut square) = (0.0, 0.0);
        for &(v, h) in self.values {
            let code = code(v);
            product += h * v * code;
            square += h * code * code;
        }
        (square > 0.0).then(|| product / square * self.extreme)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_rounded_no_worse_than_by_its_largest_value() {
        for seed in 0..200u32 {
            let number = |i: u32| ((i * 7919 + seed * 104_729 + 13) % 257) as f32 / 128.0 - 1.0;
            let values: Vec<f32> = (0..32).map(number).collect();
            let h: Vec<f32> = (0..32).map(|i| number(3 * i + 1).abs() + 0.01).collect();
            for (bits, largest) in [(CodeBits::Four, 7.0), (CodeBits::Eight, 127.0)] {
                for digits in 1..=8 {
                    let quantizer = Quantizer::new(bits, digits);
                    let error = |scale: f32| -> f64 {
                        let off = |v: f32| f64::from(v - scale * quantizer.code(v, scale));
                        values.iter().zip(&h).map(|(&v, &h)| f64::from(h) * off(v).powi(2)).sum()
                    };
                    let scale = quantizer.scale(&values, &h);
                    let significant = 24 - scale.to_bits().trailing_zeros().min(23);
                    assert!(significant <= digits, "{scale} has {significant} of {digits} bits");
                    let plain = quantizer.near(extreme(&values).abs() / largest);
                    let least = plain.map(error).fold(f64::INFINITY, f64::min);
                    assert!(error(scale) <= 1.00001 * least, "{bits:?}, {digits} digits");
                }
            }
        }
    }

    #[test]
    fn codes_that_were_rounded_to_16_bits_are_found_again() {
        for (bits, low, high) in [(CodeBits::Four, -8, 7), (CodeBits::Eight, -127, 127)] {
            for seed in 1..200 {
                let scale =
                    bf16::from_f32(0.001 * seed as f32 * if seed % 2 == 0 { -1.0 } else { 1.0 });
                let code = |i: i32| low + (i * i * 31 + seed * 7 + i) % (high - low + 1);
                let exact: Vec<f32> = (0..32).map(|i| scale.to_f32() * code(i) as f32).collect();
                for stored in [ValueType::F32, ValueType::F16, ValueType::Bf16] {
                    let store = |v: f32| match stored {
                        ValueType::F32 => v,
                        ValueType::F16 => f16::from_f32(v).to_f32(),
                        ValueType::Bf16 => bf16::from_f32(v).to_f32(),
                    };
                    let values: Vec<f32> = exact.iter().map(|&v| store(v)).collect();
                    let found = expressing(&values, bits, stored).expect("they are codes").to_f32();
                    let quantizer = Quantizer::new(bits, 8);
                    for &v in &values {
                        assert_eq!(store(found * quantizer.code(v, found)), v, "{stored}");
                    }
                }
            }
        }
        assert_eq!(expressing(&[1.0, 0.3, -0.77], CodeBits::Four, ValueType::F32), None);
        assert_eq!(expressing(&[0.0, -0.0], CodeBits::Four, ValueType::F32), Some(bf16::ZERO));
    }
}
