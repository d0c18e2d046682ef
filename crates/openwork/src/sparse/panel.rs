//! Dense panels of eight rows, stored as pairs of columns: row `r`, column `c` is
//! value `16 (c / 2) + 2 r + c % 2`. Sixteen consecutive values are eight rows of an
//! even column interleaved with the same rows of the next.

use super::kernel::{Kernel, Value};
#[cfg(target_arch = "x86_64")]
use super::source::Source;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Rows of a panel: the lanes of a register.
pub(super) const ROWS: usize = 8;

/// The products of the eight rows with `x`.
pub(super) fn sums<T: Value>(values: &[T], x: &[f32]) -> [f32; ROWS] {
    let (mut even, mut odd) = ([0.0f32; ROWS], [0.0f32; ROWS]);
    for (pair, x) in values.chunks_exact(2 * ROWS).zip(x.chunks_exact(2)) {
        for r in 0..ROWS {
            even[r] += pair[2 * r].wide() * x[0];
            odd[r] += pair[2 * r + 1].wide() * x[1];
        }
    }
    std::array::from_fn(|r| even[r] + odd[r])
}

/// The same for `S` panels at once, each with its own `x`; sums over even and odd
/// columns are separate.
///
/// # Safety
///
/// The machine has AVX2, FMA and F16C; each of `values` has `8 cols` values from `first`,
/// a multiple of 16, on; from each of `x` on there are `cols` numbers; `cols` is even.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn sums_avx2<P: Source, const S: usize>(
    values: [P; S],
    first: usize,
    x: [*const f32; S],
    cols: usize,
) -> [[__m256; 2]; S] {
    let mut sums = [[_mm256_setzero_ps(); 2]; S];
    for c in (0..cols).step_by(2) {
        for s in 0..S {
            // SAFETY: columns c and c + 1 are there, and their sixteen values.
            unsafe {
                let at = first + ROWS * c;
                values[s].prefetch(at);
                let (even, odd) = values[s].pairs(at);
                let (x0, x1) =
                    (_mm256_broadcast_ss(&*x[s].add(c)), _mm256_broadcast_ss(&*x[s].add(c + 1)));
                sums[s][0] = _mm256_fmadd_ps(even, x0, sums[s][0]);
                sums[s][1] = _mm256_fmadd_ps(odd, x1, sums[s][1]);
            }
        }
    }
    // Not added up here: a closure of `array::map` lacks the features of this function,
    // so the sums would go through memory.
    sums
}

/// Converts columns of a panel, from an even one on, to f32: row `r` of column `c` is
/// written to `out[8 c + r]`.
///
/// # Panics
///
/// If `values` and `out` have different lengths.
pub(super) fn widen<T: Value>(values: &[T], out: &mut [f32], kernel: Kernel) {
    assert_eq!(values.len(), out.len(), "as many outputs as values");
    #[cfg(target_arch = "x86_64")]
    if kernel >= Kernel::Avx2 {
        // SAFETY: the machine has the kernel.
        return unsafe { widen_avx2(values, out) };
    }
    let _ = kernel;
    for (pair, out) in values.chunks_exact(2 * ROWS).zip(out.chunks_exact_mut(2 * ROWS)) {
        for r in 0..ROWS {
            out[r] = pair[2 * r].wide();
            out[ROWS + r] = pair[2 * r + 1].wide();
        }
    }
}

/// # Safety
///
/// The machine has AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen_avx2<T: Value>(values: &[T], out: &mut [f32]) {
    for (pair, out) in values.chunks_exact(2 * ROWS).zip(out.chunks_exact_mut(2 * ROWS)) {
        // SAFETY: both have sixteen entries.
        unsafe {
            let (even, odd) = T::pairs(pair.as_ptr());
            _mm256_storeu_ps(out.as_mut_ptr(), even);
            _mm256_storeu_ps(out.as_mut_ptr().add(ROWS), odd);
        }
    }
}

/// Adds the products of a panel in f32 with columns of `X`, each `width` long; the
/// line of panel row `r` begins at `rows[r]` in `acc`.
///
/// # Panics
///
/// If `xt` does not have one column per column of the panel, or a line exceeds `acc`.
pub(super) fn multiply(
    wide: &[f32],
    xt: &[f32],
    width: usize,
    rows: [usize; ROWS],
    acc: &mut [f32],
    kernel: Kernel,
) {
    assert_eq!(xt.len() * ROWS, wide.len() * width, "one input column per column of the panel");
    assert!(rows.iter().all(|&row| row + width <= acc.len()), "lines within the accumulator");
    #[cfg(target_arch = "x86_64")]
    if kernel >= Kernel::Avx2 {
        // SAFETY: the machine has the kernel; weights, columns and rows are in range by
        // the assertions above.
        return unsafe {
            match kernel {
                Kernel::Avx512 => multiply_avx512(wide, xt, width, rows, acc),
                _ => multiply_avx2(wide, xt, width, rows, 0, acc),
            }
        };
    }
    let _ = kernel;
    for (w, x) in wide.chunks_exact(ROWS).zip(xt.chunks_exact(width)) {
        for (&w, &row) in w.iter().zip(&rows) {
            acc[row..][..width].iter_mut().zip(x).for_each(|(acc, x)| *acc += w * x);
        }
    }
}

/// The same from column `at` of `X'` on.
///
/// # Safety
///
/// The machine has AVX2 and FMA; every eight of `wide` have `width` numbers in
/// `xt`, and `width` from each of `rows` on are in `acc`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_avx2(
    wide: &[f32],
    xt: &[f32],
    width: usize,
    rows: [usize; ROWS],
    mut at: usize,
    acc: &mut [f32],
) {
    let acc = acc.as_mut_ptr();
    // Eight or six sums at a time: enough to hide the latency of an FMA, and every
    // number that is loaded serves several of them.
    while at < width {
        // SAFETY: by the contract above.
        unsafe {
            at += 8 * match (width - at) / 8 {
                0 => unreachable!("rows of X are padded to a multiple of eight"),
                1 => tiles::<8, 1>(wide, xt, width, rows, at, acc),
                2 => tiles::<4, 2>(wide, xt, width, rows, at, acc),
                3 => tiles::<2, 3>(wide, xt, width, rows, at, acc),
                _ => tiles::<2, 4>(wide, xt, width, rows, at, acc),
            }
        }
    }
}

/// `V` vectors of all rows, `R` rows at a time; returns `V`.
///
/// # Safety
///
/// As for [`multiply_avx2`], and `at + 8 V` is at most `width`.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn tiles<const R: usize, const V: usize>(
    wide: &[f32],
    xt: &[f32],
    width: usize,
    rows: [usize; ROWS],
    at: usize,
    acc: *mut f32,
) -> usize {
    for first in (0..ROWS).step_by(R) {
        // SAFETY: by the contract above.
        unsafe {
            let mut sums = [[_mm256_setzero_ps(); V]; R];
            for r in 0..R {
                for v in 0..V {
                    sums[r][v] = _mm256_loadu_ps(acc.add(rows[first + r] + at + 8 * v));
                }
            }
            let (mut w, mut x) = (wide.as_ptr().add(first), xt.as_ptr().add(at));
            for _ in 0..wide.len() / ROWS {
                let mut column = [_mm256_setzero_ps(); V];
                for v in 0..V {
                    column[v] = _mm256_loadu_ps(x.add(8 * v));
                }
                for r in 0..R {
                    let w = _mm256_broadcast_ss(&*w.add(r));
                    for v in 0..V {
                        sums[r][v] = _mm256_fmadd_ps(w, column[v], sums[r][v]);
                    }
                }
                w = w.wrapping_add(ROWS);
                x = x.wrapping_add(width);
            }
            for r in 0..R {
                for v in 0..V {
                    _mm256_storeu_ps(acc.add(rows[first + r] + at + 8 * v), sums[r][v]);
                }
            }
        }
    }
    V
}

/// # Safety
///
/// As for [`multiply_avx2`], and the machine has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn multiply_avx512(
    wide: &[f32],
    xt: &[f32],
    width: usize,
    rows: [usize; ROWS],
    acc: &mut [f32],
) {
    // Sixteen sums at a time take half as many loads as multiplications.
    let mut at = 0;
    while at + 16 <= width {
        // SAFETY: by the contract.
        unsafe {
            at += 16
                * match (width - at) / 16 {
                    1 => wide_tiles::<8, 1>(wide, xt, width, rows, at, acc),
                    2 => wide_tiles::<8, 2>(wide, xt, width, rows, at, acc),
                    3 => wide_tiles::<8, 3>(wide, xt, width, rows, at, acc),
                    _ => wide_tiles::<4, 4>(wide, xt, width, rows, at, acc),
                }
        }
    }
    // SAFETY: by the contract.
    unsafe { multiply_avx2(wide, xt, width, rows, at, acc) }
}

/// `V` vectors of all rows, `R` rows at a time; returns `V`.
///
/// # Safety
///
/// As for [`multiply_avx512`], and `at + 16 V` is at most `width`.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn wide_tiles<const R: usize, const V: usize>(
    wide: &[f32],
    xt: &[f32],
    width: usize,
    rows: [usize; ROWS],
    at: usize,
    acc: &mut [f32],
) -> usize {
    let acc = acc.as_mut_ptr();
    for first in (0..ROWS).step_by(R) {
        // SAFETY: by the contract.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); V]; R];
            for r in 0..R {
                for v in 0..V {
                    sums[r][v] = _mm512_loadu_ps(acc.add(rows[first + r] + at + 16 * v));
                }
            }
            let (mut w, mut x) = (wide.as_ptr().add(first), xt.as_ptr().add(at));
            for _ in 0..wide.len() / ROWS {
                let mut column = [_mm512_setzero_ps(); V];
                for v in 0..V {
                    column[v] = _mm512_loadu_ps(x.add(16 * v));
                }
                for r in 0..R {
                    let w = _mm512_set1_ps(*w.add(r));
                    for v in 0..V {
                        sums[r][v] = _mm512_fmadd_ps(w, column[v], sums[r][v]);
                    }
                }
                w = w.wrapping_add(ROWS);
                x = x.wrapping_add(width);
            }
            for r in 0..R {
                for v in 0..V {
                    _mm512_storeu_ps(acc.add(rows[first + r] + at + 16 * v), sums[r][v]);
                }
            }
        }
    }
    V
}
