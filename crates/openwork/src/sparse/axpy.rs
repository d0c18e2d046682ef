//! The inner step of every product with many rows: one output row, as a vector
//! over the rows of `X`, gathers scaled columns of `X`.
//!
//! ```text
//! acc[t] <- acc[t] + sum_i w_i X[t, c_i]
//! ```
//!
//! `X` comes transposed, so that the entries of one column stand side by side;
//! up to eight vectors of eight rows stay in registers while the weights go by.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Rows of `X` that go together at most: eight vectors of eight.
pub(super) const MOST: usize = 64;

/// Kept weights of one output row: weight `w[i]` belongs to the column of `X`
/// that begins at `at[i]`.
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

/// Calls a kernel for the number of vectors that `acc` has. The second number
/// is how many sums of one entry run side by side, so that no sum waits for its
/// last step.
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
/// If a column leaves `xt`.
pub(super) fn gather(list: &List, xt: &[f32], acc: &mut [f32], simd: bool) {
    let List { w, at } = list;
    assert_eq!(w.len(), at.len(), "a weight for each column");
    let room = xt.len().checked_sub(acc.len()).expect("room for one column");
    assert!(at.iter().all(|&at| at as usize <= room), "columns leave their matrix");
    #[cfg(target_arch = "x86_64")]
    if simd {
        // SAFETY: `simd` says that the machine has the features; every column
        // has `acc.len()` entries in `xt` by the assertions above.
        return unsafe { by_width!(gather_avx2, acc.len() / 8, w, at, xt, acc) };
    }
    let _ = simd;
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
