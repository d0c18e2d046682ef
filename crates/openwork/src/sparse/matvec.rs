//! The matrix-vector product: distributes strips over a layout's kernels.

use super::kernel::{Kernel, Value};
#[cfg(target_arch = "x86_64")]
use super::planes::Planes;
#[cfg(target_arch = "x86_64")]
use super::quant::CodeBits;
#[cfg(target_arch = "x86_64")]
use super::source::CodesView;
use super::{Layout, PackedView, Strips};
use std::ops::Range;

/// `y = W x` for some rows, which begin with a strip and end with one or with the
/// matrix.
///
/// # Panics
///
/// If `y` does not have one entry per row.
pub(super) fn matvec<L: Layout, T: Value>(
    layout: &L,
    w: PackedView<'_, T>,
    rows: Range<usize>,
    x: &[f32],
    y: &mut [f32],
    kernel: Kernel,
) {
    assert_eq!(y.len(), rows.len(), "one output per row");
    let height = layout.strip();
    let base = rows.start / height;
    // The scalar kernel computes a last strip that is lower than the others.
    let whole = if kernel == Kernel::Scalar { 0 } else { y.len() / height };
    vectorized(layout, w, base, whole, x, y, kernel);
    for (i, y) in y.chunks_mut(height).enumerate().skip(whole) {
        layout.matvec_scalar(w, base + i, x, y);
    }
}

/// The first `whole` strips by a vector kernel.
#[cfg(target_arch = "x86_64")]
fn vectorized<L: Layout, T: Value>(
    layout: &L,
    w: PackedView<'_, T>,
    base: usize,
    whole: usize,
    x: &[f32],
    y: &mut [f32],
    kernel: Kernel,
) {
    // A strip that is left over is computed alone, which is slower than one stream too many.
    let streams = match layout.streams() {
        own if whole.is_multiple_of(own) || !whole.is_multiple_of(4) => own,
        _ => 4,
    };
    let step = whole / streams;
    for first in 0..step {
        let strips = Strips { base, first, step };
        match streams {
            1 => call::<L, T, 1>(layout, w, strips, x, y, kernel),
            3 => call::<L, T, 3>(layout, w, strips, x, y, kernel),
            4 => call::<L, T, 4>(layout, w, strips, x, y, kernel),
            other => unreachable!("a kernel of {other} streams"),
        }
    }
    for first in step * streams..whole {
        call::<L, T, 1>(layout, w, Strips { base, first, step: 0 }, x, y, kernel);
    }
}

/// The vector of a product with codes.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) enum CodesInput<'a> {
    /// For [`codes_avx2`](Layout::codes_avx2).
    Numbers(&'a [f32]),
    /// For [`codes_vnni`](Layout::codes_vnni).
    Planes(&'a Planes),
}

/// `y = W x` for whole strips from `base` on, with codes.
///
/// # Safety
///
/// The layout and the machine have the kernel for this kind of vector.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn codes<L: Layout>(
    layout: &L,
    w: CodesView<'_>,
    base: usize,
    x: CodesInput<'_>,
    y: &mut [f32],
) {
    let whole = y.len() / layout.strip();
    let streams = 4;
    let step = whole / streams;
    for first in 0..step {
        // SAFETY: as for this function.
        unsafe { codes_of::<L, 4>(layout, w, Strips { base, first, step }, x, y) };
    }
    for first in step * streams..whole {
        // SAFETY: as for this function.
        unsafe { codes_of::<L, 1>(layout, w, Strips { base, first, step: 0 }, x, y) };
    }
}

/// `S` strips of them.
///
/// # Safety
///
/// As for [`codes`].
#[cfg(target_arch = "x86_64")]
unsafe fn codes_of<L: Layout, const S: usize>(
    layout: &L,
    w: CodesView<'_>,
    strips: Strips,
    x: CodesInput<'_>,
    y: &mut [f32],
) {
    // SAFETY: as for this function.
    unsafe {
        match (x, w.bits()) {
            (CodesInput::Numbers(x), CodeBits::Eight) => layout.codes_avx2::<S, 8>(w, strips, x, y),
            (CodesInput::Numbers(x), CodeBits::Four) => layout.codes_avx2::<S, 4>(w, strips, x, y),
            (CodesInput::Planes(x), bits) => match (bits, x.planes()) {
                (CodeBits::Eight, 1) => layout.codes_vnni::<S, 8, 1>(w, strips, x, y),
                (CodeBits::Eight, _) => layout.codes_vnni::<S, 8, 2>(w, strips, x, y),
                (CodeBits::Four, 1) => layout.codes_vnni::<S, 4, 1>(w, strips, x, y),
                (CodeBits::Four, _) => layout.codes_vnni::<S, 4, 2>(w, strips, x, y),
            },
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn call<L: Layout, T: Value, const S: usize>(
    layout: &L,
    w: PackedView<'_, T>,
    strips: Strips,
    x: &[f32],
    y: &mut [f32],
    kernel: Kernel,
) {
    // SAFETY: the kernel is one of this machine's.
    unsafe {
        match kernel {
            Kernel::Scalar => unreachable!("not a vector kernel"),
            Kernel::Avx2 => layout.matvec_avx2::<T, S>(w, strips, x, y),
            Kernel::Avx512 => layout.matvec_avx512::<T, S>(w, strips, x, y),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn vectorized<L: Layout, T: Value>(
    _: &L,
    _: PackedView<'_, T>,
    _: usize,
    _: usize,
    _: &[f32],
    _: &mut [f32],
    _: Kernel,
) {
}
