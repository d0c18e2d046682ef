//! The inner loop of the matrix-matrix product: one output row, as a vector over the
//! rows of `X`, accumulates scaled columns of `X`.
//!
//! ```text
//! acc[t] <- acc[t] + sum_i w_i X[t, c_i]
//! ```
//!
//! `X` is transposed, so the entries of a column are contiguous; up to eight vectors
//! of eight rows stay in registers during the sum.

use super::kernel::Kernel;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Largest number of rows of `X` at a time: eight vectors of eight.
pub(super) const MAX_ROWS: usize = 64;

/// Kept weights of one output row: `w[i]` multiplies the column of `X` that begins
/// at `at[i]`.
#[derive(Clone, Debug, Default)]
pub(super) struct List {
    pub w: Vec<f32>,
    pub at: Vec<u32>,
}

impl List {
    pub fn clear(&mut self) {
        self.w.clear();
        self.at.clear();
    }

    pub fn push(&mut self, w: f32, at: usize) {
        self.w.push(w);
        self.at.push(at as u32);
    }
}

/// Calls a kernel for the number of vectors in `acc`. The second number is how many
/// partial sums of an entry run side by side, so that none waits for its last step.
#[cfg(target_arch = "x86_64")]
macro_rules! by_width {
    ($kernel:ident, $width:expr, $($argument:expr),+) => {
        match $width {
            1 => $kernel::<1, 8>($($argument),+),
            2 => $kernel::<2, 4>($($argument),+),
            3 => $kernel::<3, 2>($($argument),+),
            4 => $kernel::<4, 2>($($argument),+),
            5 => $kernel::<5, 1>($($argument),+),
            6 => $kernel::<6, 1>($($argument),+),
            7 => $kernel::<7, 1>($($argument),+),
            8 => $kernel::<8, 1>($($argument),+),
            width => unreachable!("{width} vectors of rows"),
        }
    };
}

/// Adds the weights of a list. `acc` has one to eight times eight entries.
///
/// # Panics
///
/// If a column exceeds `xt`.
pub(super) fn gather(list: &List, xt: &[f32], acc: &mut [f32], kernel: Kernel) {
    let List { w, at } = list;
    assert_eq!(w.len(), at.len(), "a weight for each column");
    let room = xt.len().checked_sub(acc.len()).expect("at least one column");
    assert!(at.iter().all(|&at| at as usize <= room), "columns within the matrix");
    #[cfg(target_arch = "x86_64")]
    if kernel == Kernel::Avx512 && acc.len().is_multiple_of(16) {
        // SAFETY: as below.
        return unsafe {
            match acc.len() / 16 {
                1 => gather_avx512::<1, 8>(w, at, xt, acc),
                2 => gather_avx512::<2, 4>(w, at, xt, acc),
                3 => gather_avx512::<3, 4>(w, at, xt, acc),
                4 => gather_avx512::<4, 4>(w, at, xt, acc),
                vectors => unreachable!("{vectors} vectors of rows"),
            }
        };
    }
    #[cfg(target_arch = "x86_64")]
    if kernel >= Kernel::Avx2 {
        // SAFETY: the machine has the kernel; every column has `acc.len()` entries in
        // `xt` by the assertions above.
        return unsafe { by_width!(gather_avx2, acc.len() / 8, w, at, xt, acc) };
    }
    let _ = kernel;
    for (&w, &at) in w.iter().zip(at) {
        let column = &xt[at as usize..][..acc.len()];
        acc.iter_mut().zip(column).for_each(|(acc, x)| *acc += w * x);
    }
}

/// `V` vectors of sums, `U` times; the first of them begin at `acc`.
///
/// # Safety
///
/// `acc` has `8 V` entries and the machine AVX2.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn begin<const V: usize, const U: usize>(acc: &[f32]) -> [[__m256; V]; U] {
    let mut sums = [[_mm256_setzero_ps(); V]; U];
    for (v, sum) in sums[0].iter_mut().enumerate() {
        // SAFETY: v < V, and `acc` has 8 V entries.
        *sum = unsafe { _mm256_loadu_ps(acc.as_ptr().add(8 * v)) };
    }
    sums
}

/// Adds the `U` sums up and writes them to `acc`.
///
/// # Safety
///
/// `acc` has `8 V` entries and the machine AVX2.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn end<const V: usize, const U: usize>(mut sums: [[__m256; V]; U], acc: &mut [f32]) {
    let mut width = U / 2;
    while width > 0 {
        for u in 0..width {
            for v in 0..V {
                sums[u][v] = _mm256_add_ps(sums[u][v], sums[u + width][v]);
            }
        }
        width /= 2;
    }
    for (v, &sum) in sums[0].iter().enumerate() {
        // SAFETY: v < V, and `acc` has 8 V entries.
        unsafe { _mm256_storeu_ps(acc.as_mut_ptr().add(8 * v), sum) };
    }
}

/// # Safety
///
/// The machine has AVX2 and FMA, `acc` has `8 V` entries, and so has `xt` from
/// every entry of `at` on; there are as many `w` as `at`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn gather_avx2<const V: usize, const U: usize>(
    w: &[f32],
    at: &[u32],
    xt: &[f32],
    acc: &mut [f32],
) {
    let whole = w.len() / U * U;
    // SAFETY: by the contract above.
    unsafe {
        let mut sums = begin::<V, U>(acc);
        for i in (0..whole).step_by(U) {
            for u in 0..U {
                let x = xt.as_ptr().add(*at.get_unchecked(i + u) as usize);
                let w = _mm256_broadcast_ss(w.get_unchecked(i + u));
                for v in 0..V {
                    sums[u][v] = _mm256_fmadd_ps(w, _mm256_loadu_ps(x.add(8 * v)), sums[u][v]);
                }
            }
        }
        for i in whole..w.len() {
            let x = xt.as_ptr().add(at[i] as usize);
            let w = _mm256_set1_ps(w[i]);
            for v in 0..V {
                sums[0][v] = _mm256_fmadd_ps(w, _mm256_loadu_ps(x.add(8 * v)), sums[0][v]);
            }
        }
        end::<V, U>(sums, acc);
    }
}

/// The same with vectors of 16.
///
/// # Safety
///
/// The machine has AVX-512F, `acc` has `16 V` entries, and so has `xt` from every entry
/// of `at` on; there are as many `w` as `at`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn gather_avx512<const V: usize, const U: usize>(
    w: &[f32],
    at: &[u32],
    xt: &[f32],
    acc: &mut [f32],
) {
    let whole = w.len() / U * U;
    let mut sums = [[_mm512_setzero_ps(); V]; U];
    // SAFETY: by the contract above.
    unsafe {
        for v in 0..V {
            sums[0][v] = _mm512_loadu_ps(acc.as_ptr().add(16 * v));
        }
        for i in (0..whole).step_by(U) {
            for u in 0..U {
                let x = xt.as_ptr().add(*at.get_unchecked(i + u) as usize);
                let w = _mm512_set1_ps(*w.get_unchecked(i + u));
                for v in 0..V {
                    sums[u][v] = _mm512_fmadd_ps(w, _mm512_loadu_ps(x.add(16 * v)), sums[u][v]);
                }
            }
        }
        for i in whole..w.len() {
            let x = xt.as_ptr().add(at[i] as usize);
            let w = _mm512_set1_ps(w[i]);
            for v in 0..V {
                sums[0][v] = _mm512_fmadd_ps(w, _mm512_loadu_ps(x.add(16 * v)), sums[0][v]);
            }
        }
        let mut width = U / 2;
        while width > 0 {
            for u in 0..width {
                for v in 0..V {
                    sums[u][v] = _mm512_add_ps(sums[u][v], sums[u + width][v]);
                }
            }
            width /= 2;
        }
        for v in 0..V {
            _mm512_storeu_ps(acc.as_mut_ptr().add(16 * v), sums[0][v]);
        }
    }
}
