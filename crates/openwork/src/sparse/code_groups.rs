//! Groups of codes with fixed scales, to train weights that stay values of codes.

use super::encoding::Encoding;
use super::error::PackError;
use super::packed::choice;
use super::quant::CodeBits;
use super::scale::{self, range, round};
use super::{PackedOrder, ValueType, ValuesRef};
use crate::spec::Spec;
use rayon::prelude::*;

/// The kept weights of a tensor in groups that share a scale, as they are packed. It rounds
/// other weights at the same places to values of these codes.
#[derive(Clone, Debug)]
pub struct CodeGroups {
    bits: CodeBits,
    group: usize,
    /// Weights of a strip, dropped ones included; the last strip may have fewer.
    strip: usize,
    strips: Vec<Strip>,
}

/// The kept weights of a strip.
#[derive(Clone, Debug)]
struct Strip {
    /// Their offsets from the strip's first weight on, in packed order.
    offsets: Vec<u32>,
    /// The scale of each group.
    scales: Vec<f32>,
}

impl CodeGroups {
    /// The groups of every tensor of a spec, given weights that are values of codes, which
    /// may have been rounded to a type of 16 bits.
    ///
    /// # Panics
    ///
    /// If `encoding` has no codes, or there is not one slice for each tensor, of its size.
    pub fn find(
        spec: &Spec,
        weights: &[&[f32]],
        encoding: Encoding,
    ) -> Result<Vec<Self>, PackError> {
        /// Types that the values may have been rounded to.
        const STORED: [ValueType; 2] = [ValueType::Bf16, ValueType::F16];
        let bits = encoding.kind().code_bits().expect("an encoding with codes");
        let values: Vec<ValuesRef<'_>> = weights.iter().map(|w| ValuesRef::F32(w)).collect();
        let choice = choice(spec, &values)?;
        let of_tensor = |(t, &weights): (usize, &&[f32])| {
            let order = PackedOrder::of_choice(spec, t, &choice);
            let (_, cols) = spec.tensors()[t].matrix();
            let size = order.strip_rows() * cols;
            let strip = |number: usize| {
                let own = &weights[number * size..weights.len().min((number + 1) * size)];
                let offsets: Vec<u32> =
                    order.strip(number).into_iter().map(|offset| offset as u32).collect();
                let values: Vec<f32> = offsets.iter().map(|&at| own[at as usize]).collect();
                let groups = values.chunks(encoding.group());
                let scale = |group| {
                    let by = |stored| scale::expressing(group, bits, stored);
                    STORED.into_iter().find_map(by).map(f32::from)
                };
                match groups.map(scale).collect() {
                    Some(scales) => Ok(Strip { offsets, scales }),
                    None => Err(PackError::NotCodes {
                        tensor: spec.tensors()[t].name().to_string(),
                        row: number * order.strip_rows(),
                        encoding: encoding.to_string(),
                        group: encoding.group(),
                    }),
                }
            };
            let strips: Vec<Result<Strip, PackError>> =
                (0..order.strips()).into_par_iter().map(strip).collect();
            // The first error in order, not in time.
            let strips = strips.into_iter().collect::<Result<Vec<_>, _>>()?;
            Ok(Self { bits, group: encoding.group(), strip: size, strips })
        };
        weights.iter().enumerate().map(of_tensor).collect()
    }

    /// The number of kept weights.
    pub fn kept(&self) -> usize {
        self.strips.iter().map(|strip| strip.offsets.len()).sum()
    }

    /// Visits the offsets of the kept weights.
    pub fn each(&self, mut visit: impl FnMut(usize)) {
        for (number, strip) in self.strips.iter().enumerate() {
            strip.offsets.iter().for_each(|&at| visit(number * self.strip + at as usize));
        }
    }

    /// Writes to `out`, for every kept weight, the value of the code that is nearest to it;
    /// dropped weights are left alone. Weights beyond the first or the last code are moved to
    /// it. A code of zero is written as -0.0, as by `+quant`.
    ///
    /// # Panics
    ///
    /// If the slices do not have the size of the tensor.
    pub fn round(&self, weights: &mut [f32], out: &mut [f32]) {
        assert_eq!(weights.len(), out.len(), "a value for every weight");
        assert_eq!(weights.len().div_ceil(self.strip), self.strips.len(), "the tensor's size");
        let (low, high) = range(self.bits);
        let strips = weights.par_chunks_mut(self.strip).zip(out.par_chunks_mut(self.strip));
        strips.zip(&self.strips).for_each(|((weights, out), strip)| {
            for (offsets, &scale) in strip.offsets.chunks(self.group).zip(&strip.scales) {
                let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
                for &at in offsets {
                    let weight = &mut weights[at as usize];
                    let quotient = *weight * inverse;
                    if quotient > high {
                        *weight = high * scale;
                    } else if quotient < low {
                        *weight = low * scale;
                    }
                    let code = round(quotient.clamp(low, high));
                    out[at as usize] = if code == 0.0 { -0.0 } else { scale * code };
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Pattern;

    fn find(w: &[f32]) -> Result<Vec<CodeGroups>, PackError> {
        let spec = "2:4".parse::<Pattern>().unwrap().bind(&[2, 8]).unwrap();
        CodeGroups::find(&spec, &[w], Encoding::new("int4", 32).unwrap())
    }

    #[test]
    fn weights_without_codes_are_refused_by_name() {
        let row = [1.0, 0.3333, 0.0, 0.0, 0.123, 0.7, 0.0, 0.0];
        let error = find(&[row, row].concat()).unwrap_err().to_string();
        assert!(error.contains("row 0 are not values of int4 codes in groups of 32"), "{error}");
    }

    #[test]
    fn weights_take_the_nearest_code_and_stay_in_its_range() {
        let row = [0.0, 1.0, 0.0, -3.5, 0.5, -0.0, 0.0, 0.0];
        let groups = find(&[row, row].concat()).unwrap();
        let mut latent = [[0.0, 9.0, 0.0, -3.2, 0.2, -7.0, 0.0, 0.0], row].concat();
        let mut out = vec![0.0; 16];
        groups[0].round(&mut latent, &mut out);
        assert_eq!(out[..8], [0.0, 3.5, 0.0, -3.0, 0.0, -4.0, 0.0, 0.0]);
        assert!(out[4].is_sign_negative() && out[0].is_sign_positive());
        assert_eq!(out[8..], row);
        assert_eq!(latent[..8], [0.0, 3.5, 0.0, -3.2, 0.2, -4.0, 0.0, 0.0]);
    }
}
