//! A dense panel of eight rows and some columns, two by two: value
//! `16 (c / 2) + 2 r + c % 2` is that of row `r`, column `c`. Sixteen values
//! are then eight rows of an even column and the same rows of the next.

use super::simd::{self, Value};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Rows of a panel: the lanes of a register.
pub(super) const ROWS: usize = 8;

/// What the eight rows give with `x`, a number for each column.
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

/// The same for `S` panels at once, each with an `x` of its own; sums over even
/// and over odd columns are apart.
///
/// # Safety
///
/// The machine has AVX2, FMA and F16C; from each of `values` on there are
/// `8 cols` values, from each of `x` on `cols` numbers; `cols` is even.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn sums_avx2<T: Value, const S: usize>(
    values: [*const T; S],
    x: [*const f32; S],
    cols: usize,
) -> [[__m256; 2]; S] {
    let mut sums = [[_mm256_setzero_ps(); 2]; S];
    for c in (0..cols).step_by(2) {
        for s in 0..S {
            // SAFETY: columns c and c + 1 are there, and their sixteen values.
            unsafe {
                let at = values[s].add(ROWS * c);
                if (c * ROWS * size_of::<T>()).is_multiple_of(64) {
                    simd::ahead(at);
                }
                let (even, odd) = T::pairs(at);
                let (x0, x1) =
                    (_mm256_broadcast_ss(&*x[s].add(c)), _mm256_broadcast_ss(&*x[s].add(c + 1)));
                sums[s][0] = _mm256_fmadd_ps(even, x0, sums[s][0]);
                sums[s][1] = _mm256_fmadd_ps(odd, x1, sums[s][1]);
            }
        }
    }
    // Not yet added up: a closure of `array::map` does not have the features of
    // this function, and the sums would go through memory.
    sums
}

/// Widens some columns of a panel, from an even one on, to `out`, where row `r`
/// of column `c` is at `8 c + r`.
///
/// # Panics
///
/// If there are other numbers of values than `out` has room for.
pub(super) fn widen<T: Value>(values: &[T], out: &mut [f32], simd: bool) {
    assert_eq!(values.len(), out.len(), "room for the panel");
    #[cfg(target_arch = "x86_64")]
    if simd {
        // SAFETY: `simd` says that the machine has the features.
        return unsafe { widen_avx2(values, out) };
    }
    let _ = simd;
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

/// Adds what a widened panel gives with columns of `X`, each `width` long, to its
/// rows: that of panel row `r` begins at `rows[r]` in `acc`.
///
/// # Panics
///
/// If there is no column of `xt` for each of the panel, or a row leaves `acc`.
pub(super) fn multiply(
    wide: &[f32],
    xt: &[f32],
    width: usize,
    rows: [usize; ROWS],
    acc: &mut [f32],
    simd: bool,
) {
    assert_eq!(xt.len() * ROWS, wide.len() * width, "a column for each of the panel");
    assert!(rows.iter().all(|&row| row + width <= acc.len()), "rows leave their matrix");
    #[cfg(target_arch = "x86_64")]
    if simd {
        // SAFETY: `simd` says that the machine has the features; weights, columns
        // and rows are there by the assertions above.
        return unsafe { multiply_avx2(wide, xt, width, rows, acc) };
    }
    let _ = simd;
    for (w, x) in wide.chunks_exact(ROWS).zip(xt.chunks_exact(width)) {
        for (&w, &row) in w.iter().zip(&rows) {
            acc[row..][..width].iter_mut().zip(x).for_each(|(acc, x)| *acc += w * x);
        }
    }
}

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
    acc: &mut [f32],
) {
    let acc = acc.as_mut_ptr();
    // Eight sums at a time, or six: as many as hide how long one step takes, and
    // each number that is read serves several of them.
    let mut at = 0;
    while at < width {
        // SAFETY: by the contract above.
        unsafe {
            at += 8 * match (width - at) / 8 {
                0 => unreachable!("rows of X come by eight"),
                1 => tiles::<8, 1>(wide, xt, width, rows, at, acc),
                2 => tiles::<4, 2>(wide, xt, width, rows, at, acc),
                3 => tiles::<2, 3>(wide, xt, width, rows, at, acc),
                _ => tiles::<2, 4>(wide, xt, width, rows, at, acc),
            }
        }
    }
}

/// Some vectors of all rows, `R` rows and `V` vectors at a time; gives `V`.
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
