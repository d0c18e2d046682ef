//! Matrix products by the `gemm` crate, which nothing else calls, or by a matrix unit (f32,
//! on machines that have one).

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

use crate::matrix::{MatrixMut, MatrixRef};

/// How many threads one product may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The calling thread only: for products that are themselves run in parallel.
    One,
    /// All threads of the current rayon pool.
    All,
}

/// Entry types that a matrix computation may have: `f32` and `f64`.
pub trait Scalar:
    Copy
    + Default
    + Debug
    + PartialEq
    + PartialOrd
    + Send
    + Sync
    + Neg<Output = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + Into<f64>
    + 'static
{
    /// The number 1.
    const ONE: Self;
    /// The number 0.
    const ZERO: Self;
    /// Distance from 1 to the next larger number.
    const EPSILON: Self;
    /// The nearest number to `x`.
    fn from_f64(x: f64) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// The absolute value.
    fn abs(self) -> Self;
    /// Computes [`gemm_each`] on a matrix unit, if this machine has one for this type and it
    /// is faster; returns whether it did. Shapes are already checked.
    fn on_unit(
        _beta: Self,
        _alpha: Self,
        _a: MatrixRef<'_, Self>,
        _products: &mut [(MatrixRef<'_, Self>, MatrixMut<'_, Self>)],
        _threads: Threads,
    ) -> bool {
        false
    }
}

impl Scalar for f32 {
    const ONE: Self = 1.0;
    const ZERO: Self = 0.0;
    const EPSILON: Self = f32::EPSILON;
    fn from_f64(x: f64) -> Self {
        x as f32
    }
    fn sqrt(self) -> Self {
        self.sqrt()
    }
    fn abs(self) -> Self {
        self.abs()
    }
    #[cfg(target_arch = "x86_64")]
    fn on_unit(
        beta: f32,
        alpha: f32,
        a: MatrixRef<'_>,
        products: &mut [(MatrixRef<'_>, MatrixMut<'_>)],
        threads: Threads,
    ) -> bool {
        by_bf16(super::bf16::Kernel::Exact, beta, alpha, a, products, threads)
    }
}

impl Scalar for f64 {
    const ONE: Self = 1.0;
    const ZERO: Self = 0.0;
    const EPSILON: Self = f64::EPSILON;
    fn from_f64(x: f64) -> Self {
        x
    }
    fn sqrt(self) -> Self {
        self.sqrt()
    }
    fn abs(self) -> Self {
        self.abs()
    }
}

/// Rows per panel for products of a tall matrix with a square one, panels in parallel: up to
/// 192, because the square matrix is packed again for every panel (a fifth of the time for
/// 96 rows), and such that the number of panels is a multiple of four, so that two or four
/// threads have equal work. It depends on the rows alone, because results must not depend
/// on the number of threads.
pub(crate) fn panel_rows(rows: usize) -> usize {
    let panels = 4 * rows.div_ceil(4 * 192);
    rows.div_ceil(panels.max(1)).max(1)
}

/// Adds a product to a scaled matrix:
///
/// ```text
/// C <- beta C + alpha A B
/// ```
///
/// With `beta = 0` the old entries of `C` are not read, so they may be NaN.
///
/// # Panics
///
/// If the shapes do not match.
pub fn gemm<T: Scalar>(
    beta: T,
    c: MatrixMut<'_, T>,
    alpha: T,
    a: MatrixRef<'_, T>,
    b: MatrixRef<'_, T>,
    threads: Threads,
) {
    gemm_each(beta, alpha, a, &mut [(b, c)], threads);
}

/// [`gemm()`] of one `A` with several `B`, each with its own `C`; `A` is packed once.
///
/// ```
/// use openwork::Matrix;
/// use openwork::linalg::{Threads, gemm_each};
/// let (a, b) = (Matrix::from_vec(1, 2, vec![1.0, 2.0]), Matrix::from_vec(2, 1, vec![3.0, 4.0]));
/// let (mut c, mut d) = (Matrix::zeros(1, 1), Matrix::zeros(1, 2));
/// let (right, square) = (b.view(), Matrix::from_fn(2, 2, |i, j| (i + j) as f32));
/// gemm_each(0.0, 1.0, a.view(), &mut [(right, c.view_mut()), (square.view(), d.view_mut())], Threads::One);
/// assert_eq!((c.data(), d.data()), (&[11.0][..], &[2.0, 5.0][..]));
/// ```
///
/// # Panics
///
/// If the shapes do not match.
pub fn gemm_each<T: Scalar>(
    beta: T,
    alpha: T,
    a: MatrixRef<'_, T>,
    products: &mut [(MatrixRef<'_, T>, MatrixMut<'_, T>)],
    threads: Threads,
) {
    check_shapes(a, products);
    if !T::on_unit(beta, alpha, a, products, threads) {
        for (b, c) in products {
            by_crate(beta, c.reborrow(), alpha, a, *b, threads);
        }
    }
}

/// # Panics
///
/// If the shapes of the products do not match.
fn check_shapes<T: Scalar>(a: MatrixRef<'_, T>, products: &[(MatrixRef<'_, T>, MatrixMut<'_, T>)]) {
    for (b, c) in products {
        assert_eq!(
            (b.rows(), c.rows(), c.cols()),
            (a.cols(), a.rows(), b.cols()),
            "a product of {} x {} and {} x {} does not fit {} x {}",
            a.rows(),
            a.cols(),
            b.rows(),
            b.cols(),
            c.rows(),
            c.cols()
        );
    }
}

/// Computes [`gemm_each`] by instructions for bf16, if this machine has them and they are
/// faster; returns whether it did.
#[cfg(target_arch = "x86_64")]
fn by_bf16(
    kernel: super::bf16::Kernel,
    beta: f32,
    alpha: f32,
    a: MatrixRef<'_>,
    products: &mut [(MatrixRef<'_>, MatrixMut<'_>)],
    threads: Threads,
) -> bool {
    use super::bf16;
    let width = products.iter().map(|(b, _)| b.cols()).sum();
    let fit = bf16::fits(a) && products.iter().all(|(b, _)| bf16::fits(*b));
    let usable = bf16::worth(a.rows(), width, a.cols()) && fit && kernel.available();
    if usable {
        bf16::gemm(kernel, beta, alpha, a, products, threads);
    }
    usable
}

/// [`gemm_each`] whose operands may be rounded to bf16 before they are multiplied, if this
/// machine has instructions for that which are faster; sums are f32 in any case.
///
/// # Panics
///
/// If the shapes do not match.
pub fn gemm_rounded(
    beta: f32,
    alpha: f32,
    a: MatrixRef<'_>,
    products: &mut [(MatrixRef<'_>, MatrixMut<'_>)],
    threads: Threads,
) {
    check_shapes(a, products);
    #[cfg(target_arch = "x86_64")]
    {
        use super::bf16::Kernel;
        // The unit is faster, three terms or not.
        let rounds = !Kernel::Exact.available();
        if rounds && by_bf16(Kernel::Rounded, beta, alpha, a, products, threads) {
            return;
        }
    }
    gemm_each(beta, alpha, a, products, threads);
}

/// [`gemm()`] by the `gemm` crate; shapes are already checked.
fn by_crate<T: Scalar>(
    beta: T,
    mut c: MatrixMut<'_, T>,
    alpha: T,
    a: MatrixRef<'_, T>,
    b: MatrixRef<'_, T>,
    threads: Threads,
) {
    let (m, n, k) = (c.rows(), c.cols(), a.cols());
    if m == 0 || n == 0 {
        return;
    }
    let parallelism = match threads {
        Threads::One => ::gemm::Parallelism::None,
        Threads::All => ::gemm::Parallelism::Rayon(0),
    };
    let row_stride = c.row_stride() as isize;
    let (a_rs, a_cs) = a.strides();
    let (b_rs, b_cs) = b.strides();
    // SAFETY: `MatrixRef` and `MatrixMut` guarantee that every entry within
    // their rows and columns lies inside their slices, and that the entries of
    // `c` are distinct; the borrow of `c` is exclusive.
    unsafe {
        ::gemm::gemm(
            m,
            n,
            k,
            c.data_mut().as_mut_ptr(),
            1,
            row_stride,
            beta != T::ZERO,
            a.data().as_ptr(),
            a_cs as isize,
            a_rs as isize,
            b.data().as_ptr(),
            b_cs as isize,
            b_rs as isize,
            beta,
            alpha,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Matrix;

    /// The definition, in f64.
    fn slow(a: MatrixRef<'_>, b: MatrixRef<'_>) -> Matrix {
        Matrix::from_fn(a.rows(), b.cols(), |i, j| {
            (0..a.cols()).map(|k| f64::from(a.at(i, k)) * f64::from(b.at(k, j))).sum::<f64>() as f32
        })
    }

    fn some(rows: usize, cols: usize, seed: usize) -> Matrix {
        Matrix::from_fn(rows, cols, |i, j| ((i * 31 + j * 17 + seed * 7) % 23) as f32 / 11.0 - 1.0)
    }

    #[test]
    fn products_equal_their_definition_at_every_size_and_transposition() {
        for n in (0..=20).chain([33, 64]) {
            let (m, k) = (n / 2 + 1, (n * 3) % 17);
            let (a, b) = (some(m, k, 1), some(k, n, 2));
            let (at, bt) = (some(k, m, 3), some(n, k, 4));
            for (a, b) in
                [(a.view(), b.view()), (at.view().t(), b.view()), (a.view(), bt.view().t())]
            {
                let want = slow(a, b);
                let mut got = Matrix::from_fn(m, n, |_, _| f32::NAN);
                gemm(0.0, got.view_mut(), 1.0, a, b, Threads::One);
                for (x, y) in got.data().iter().zip(want.data()) {
                    assert!(
                        (x - y).abs() <= 1e-5 * (1.0 + y.abs()),
                        "{m} x {n} x {k}: {x} for {y}"
                    );
                }
            }
        }
    }
}
