//! The product with one vector: strips go to a format's kernel, or to its slow
//! twin.

use super::Layout;
use super::simd::Value;
use std::ops::Range;

/// `y = W x` for some rows, which begin with a strip and end with one or with
/// the matrix; `simd` asks for the AVX2 kernel, which the machine then has.
///
/// # Panics
///
/// If `y` has another number of rows.
pub(super) fn matvec<L: Layout, T: Value>(
    layout: &L,
    index: &[u8],
    values: &[T],
    rows: Range<usize>,
    x: &[f32],
    y: &mut [f32],
    simd: bool,
) {
    assert_eq!(y.len(), rows.len(), "a number for each row");
    let height = layout.strip();
    let from = rows.start / height;
    // A last strip that is lower is left to the slow twin.
    let whole = if simd { y.len() / height } else { 0 };
    side_by_side(layout, index, values, from, whole, x, y);
    for (i, y) in y.chunks_mut(height).enumerate().skip(whole) {
        layout.slow(index, values, from + i, x, y);
    }
}

/// The first `whole` strips, by the AVX2 kernel; there are none where it cannot
/// run.
#[cfg(target_arch = "x86_64")]
fn side_by_side<L: Layout, T: Value>(
    layout: &L,
    index: &[u8],
    values: &[T],
    from: usize,
    whole: usize,
    x: &[f32],
    y: &mut [f32],
) {
    let streams = layout.streams();
    let part = whole / streams;
    for i in 0..part {
        // SAFETY: there is a strip, so the machine has the features.
        unsafe {
            match streams {
                3 => layout.fast::<T, 3>(index, values, from, i, part, x, y),
                4 => layout.fast::<T, 4>(index, values, from, i, part, x, y),
                other => unreachable!("a kernel of {other} streams"),
            }
        }
    }
    for i in part * streams..whole {
        // SAFETY: as above.
        unsafe { layout.fast::<T, 1>(index, values, from, i, 0, x, y) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn side_by_side<L: Layout, T: Value>(
    _: &L,
    _: &[u8],
    _: &[T],
    _: usize,
    _: usize,
    _: &[f32],
    _: &mut [f32],
) {
}
