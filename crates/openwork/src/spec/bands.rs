//! Bands: runs of rows that a pattern treats as separate tensors.
//!
//! If no scope crosses from one run of rows into another, and the pattern means the same
//! bound to each run as bound to the whole, the runs may be pruned on different machines.

use super::bundle::{Unit, Units};
use super::{Pattern, Spec};
use std::ops::Range;

/// Rows of a tensor, and the pattern bound to them alone.
#[derive(Clone, Debug)]
pub struct Band {
    /// The rows.
    pub rows: Range<usize>,
    /// The pattern on these rows.
    pub spec: Spec,
}

/// Cuts the tensor of `spec`, to which `pattern` is bound, into bands of about `rows` rows,
/// the last one possibly shorter; they keep as many blocks per scope as `spec`. `None` if
/// scopes cross every cut, the spec has levels, or the tensor is not larger than one band.
///
/// ```
/// use openwork::{Pattern, spec::bands};
/// let cut = |text: &str| {
///     let pattern: Pattern = text.parse().unwrap();
///     let spec = pattern.bind(&[96, 64]).unwrap();
///     bands(&pattern, &spec, 40).map(|bands| bands.into_iter().map(|band| band.rows).collect())
/// };
/// assert_eq!(cut("2:4"), Some(vec![0..40, 40..80, 80..96]));
/// // Rows eight apart belong together.
/// assert_eq!(cut("rows16"), Some(vec![0..48, 48..96]));
/// // One scope over everything.
/// assert_eq!(cut("unstructured(50%)"), None);
/// ```
pub fn bands(pattern: &Pattern, spec: &Spec, rows: usize) -> Option<Vec<Band>> {
    let [tensor] = spec.tensors() else { return None };
    // Inner levels may tie rows together that the outermost does not.
    if spec.has_levels() {
        return None;
    }
    let [all, rest @ ..] = tensor.dims() else { return None };
    let (all, dims) = (*all, |rows| -> Vec<usize> { [&[rows], rest].concat() });
    if rest.is_empty() {
        return None;
    }
    let units = spec.units().ok()?;
    // Patterns repeat after few rows, such as those of a block or of a fragment.
    const FARTHEST: usize = 128;
    (rows.max(1)..all.min(rows + FARTHEST)).find_map(|height| {
        let mut found = Vec::new();
        let mut first = 0;
        for start in (0..all).step_by(height) {
            let rows = start..all.min(start + height);
            let spec = match found.first() {
                Some(Band { spec, .. }) if rows.len() == height => Spec::clone(spec),
                _ => {
                    let alone = pattern.bind_all(&[(tensor.name(), &dims(rows.len()))]).ok()?;
                    let alike = alone.blocks_per_scope() == spec.blocks_per_scope();
                    alike.then(|| alone.with_keep(spec.keep()))?
                }
            };
            first = agree(&units, first, &spec.units().ok()?, start)?;
            found.push(Band { rows, spec });
        }
        (first == units.len()).then_some(found)
    })
}

/// Checks that the units of a band that starts at row `start` are those of the whole from
/// `first` on, and returns the index after them. Both repeat, so the first unit represents
/// all.
fn agree(whole: &Units<'_>, first: usize, band: &Units<'_>, start: usize) -> Option<usize> {
    let after = first + band.len();
    let same = |number: usize, index: usize| {
        whole.with(index, |a, shift_a| {
            band.with(number, |b, shift_b| {
                (number > 0 || a.alike(b))
                    && rows(a, shift_a).eq(rows(b, shift_b).map(|row| row + start))
            })
        })
    };
    let fits = whole.repeat() && band.repeat() && after <= whole.len();
    (fits && (first..after).enumerate().all(|(number, index)| same(number, index))).then_some(after)
}

/// All rows of a unit of one tensor.
fn rows<'u>(unit: &'u Unit, shift: &[usize]) -> impl Iterator<Item = usize> + 'u {
    let shift = shift[0];
    unit.bundles.iter().flat_map(move |bundle| bundle.rows.iter().map(move |row| row + shift))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mask;
    use crate::spec::PRESETS;

    fn cut(text: &str, dims: [usize; 2], rows: usize) -> Option<Vec<Band>> {
        let pattern: Pattern = text.parse().unwrap();
        bands(&pattern, &pattern.bind(&dims).unwrap(), rows)
    }

    #[test]
    fn a_mask_of_the_whole_is_made_of_masks_of_its_bands() {
        let (rows, cols) = (64, 32);
        let mut fell_apart = 0;
        for text in PRESETS.iter().map(|preset| preset.example) {
            let Ok(spec) = text.parse::<Pattern>().unwrap().bind(&[rows, cols]) else { continue };
            let Some(found) = cut(text, [rows, cols], 20) else { continue };
            assert!(found.len() >= 2, "{text}");
            fell_apart += 1;
            let noise = |offset: usize| ((offset * 7919) % 1009) as f64;
            let of = |spec: &Spec, start: usize| {
                Mask::select(spec, |scope, block| {
                    spec.elements(scope, block).map(|e| noise(e.offset + start * cols)).sum()
                })
            };
            let whole = of(&spec, 0);
            for Band { rows, spec } in found {
                let band = of(&spec, rows.start);
                for offset in 0..rows.len() * cols {
                    let there = whole.tensors()[0].get(rows.start * cols + offset);
                    assert_eq!(band.tensors()[0].get(offset), there, "{text}");
                }
            }
        }
        assert!(fell_apart >= 6, "{fell_apart} presets fall apart into bands");
    }

    #[test]
    fn what_rows_share_is_not_cut() {
        // A domain that depends on the height, columns of the whole, a coupling.
        for text in ["2:4 in (M/4,0)+(M/2,K)", "columns", "channel", "unstructured(50%)"] {
            assert!(cut(text, [64, 32], 16).is_none(), "{text}");
        }
        assert!(cut("2:4", [64, 32], 64).is_none());
    }
}
