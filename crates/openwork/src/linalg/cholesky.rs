//! Factors and inverts large symmetric positive definite matrices, by panels
//! and with all threads of the current rayon pool.
//!
//! ```text
//! A = L L'        X = L^-1        A^-1 = X' X
//! ```
//!
//! Nearly all work is matrix products on panels of columns. Each
//! tile is computed by one thread in a fixed order, so results do not
//! depend on the number of threads.

use rayon::prelude::*;

use super::gemm::{Scalar, Threads, gemm};
use super::small;
pub use super::small::NotPositive;
use crate::matrix::{Matrix, MatrixMut, MatrixRef};

/// Columns factored before the rest of the matrix is updated: deep enough for products at
/// full speed, while the scalar part stays small.
const PANEL: usize = 192;

/// Columns of a panel factored entry by entry.
const LEAF: usize = 32;

/// Factors a symmetric matrix in place, reading its lower triangle only:
///
/// ```text
/// A = L L'
/// ```
///
/// On success `a` holds L, with zeros above the diagonal. A pivot (the square
/// of a diagonal entry of L) at or below `floor` is an error that names it;
/// `a` is then partly factored.
///
/// ```
/// use openwork::{Matrix, linalg::cholesky};
/// let mut a = Matrix::from_vec(2, 2, vec![4.0, 2.0, 2.0, 10.0]);
/// cholesky::factor(&mut a, 0.0).unwrap();
/// assert_eq!(a.data(), [2.0, 0.0, 1.0, 3.0]);
/// ```
///
/// # Panics
///
/// If `a` is not square.
pub fn factor<T: Scalar>(a: &mut Matrix<T>, floor: T) -> Result<(), NotPositive> {
    lower_factor(a, floor)?;
    for i in 0..a.rows() {
        a.row_mut(i)[i + 1..].fill(T::ZERO);
    }
    Ok(())
}

/// [`factor`] that leaves arbitrary entries above the diagonal.
fn lower_factor<T: Scalar>(a: &mut Matrix<T>, floor: T) -> Result<(), NotPositive> {
    let n = square(a.view());
    factor_panels(a.data_mut(), n, n, PANEL, floor)
}

/// Right-looking Cholesky of the lower triangle of an n x n slice. Each diagonal
/// block is factored while other threads update what lies below it.
fn factor_panels<T: Scalar>(
    a: &mut [T],
    n: usize,
    stride: usize,
    panel: usize,
    floor: T,
) -> Result<(), NotPositive> {
    if n <= LEAF {
        return small::cholesky(a, n, stride, floor);
    }
    // A block of a larger matrix: entries after its last are not accessed.
    let a = &mut a[..(n - 1) * stride + n];
    let mut below = Vec::new();
    let mut inverse = factor_block(a, panel.min(n), stride, floor, n > panel)?;
    for end in (panel..n).step_by(panel) {
        let (start, width, height) = (end - panel, panel, n - end);
        let rest = &mut a[end * stride..];

        // 1. The panel below the block: P = A[end.., start..end] L_block^-T.
        below.resize(height * width, T::ZERO);
        let old = MatrixRef::with_strides(&rest[start..], height, width, stride, 1);
        let block = MatrixRef::new(&inverse, width, width);
        let tall = PANEL;
        below.par_chunks_mut(tall * width).enumerate().for_each(|(p, rows)| {
            let count = rows.len() / width;
            let old = old.part(p * tall, count, 0, width);
            let rows = MatrixMut::new(rows, count, width);
            gemm(T::ZERO, rows, T::ONE, old, block.t(), Threads::One);
        });

        // 2. The trailing matrix: A[end.., end..] -= P P', lower tiles only.
        let p_all = MatrixRef::new(&below, height, width);
        let update = |top: usize, count: usize, rows: &mut [T]| {
            for (r, p_r) in below[top * width..].chunks_exact(width).take(count).enumerate() {
                rows[r * stride + start..][..width].copy_from_slice(p_r);
            }
            let cols = top + count;
            let trailing = MatrixMut::with_stride(&mut rows[end..], count, cols, stride);
            let left = p_all.part(top, count, 0, width);
            let right = p_all.part(0, cols, 0, width).t();
            gemm(T::ONE, trailing, -T::ONE, left, right, Threads::One);
        };
        let next = panel.min(height);
        let (head, tail) = rest.split_at_mut((next * stride).min(rest.len()));
        let (factored, ()) = rayon::join(
            || {
                update(0, next, &mut *head);
                factor_block(&mut head[end..], next, stride, floor, next < height)
            },
            // Long row panels come last and are started first.
            || {
                tail.par_chunks_mut(tall * stride).enumerate().rev().for_each(|(p, rows)| {
                    let top = next + p * tall;
                    update(top, tall.min(height - top), rows);
                });
            },
        );
        inverse = factored.map_err(|e| NotPositive { pivot: end + e.pivot, ..e })?;
    }
    Ok(())
}

/// Factors a diagonal block, and returns the inverse of its factor if there are rows below
/// it.
fn factor_block<T: Scalar>(
    a: &mut [T],
    n: usize,
    stride: usize,
    floor: T,
    needed: bool,
) -> Result<Vec<T>, NotPositive> {
    factor_panels(a, n, stride, LEAF, floor)?;
    Ok(if needed { inverted_block(|i| &a[i * stride..], n) } else { Vec::new() })
}

/// The inverse of a lower triangular block, given by its rows.
fn inverted_block<'l, T: Scalar>(row: impl Fn(usize) -> &'l [T], n: usize) -> Vec<T> {
    let mut inverse = vec![T::ZERO; n * n];
    for i in 0..n {
        inverse[i * n..][..=i].copy_from_slice(&row(i)[..=i]);
    }
    invert_block(&mut inverse, n);
    inverse
}

/// The inverse of a lower triangular matrix by row panels i; entries above the diagonal are
/// not read:
///
/// ```text
/// X_ii = L_ii^-1        X_ij = -X_ii sum_j<=k<i L_ik X_kj
/// ```
///
/// # Panics
///
/// If `l` is not square.
pub fn invert_lower<T: Scalar>(l: &Matrix<T>) -> Matrix<T> {
    let mut x = Matrix::zeros(l.rows(), l.cols());
    invert_lower_into(l, &mut x);
    x
}

/// [`invert_lower`] into a matrix of the same size, where tiles above the diagonal
/// are left unchanged.
fn invert_lower_into<T: Scalar>(l: &Matrix<T>, x: &mut Matrix<T>) {
    let n = square(l.view());
    let panels = (0..n).into_par_iter().step_by(PANEL);
    let diagonals: Vec<Vec<T>> =
        panels.map(|top| inverted_block(|i| &l.row(top + i)[top..], PANEL.min(n - top))).collect();
    for (top, diagonal) in (0..n).step_by(PANEL).zip(&diagonals) {
        let height = PANEL.min(n - top);
        let (done, rest) = x.data_mut().split_at_mut(top * n);
        let done = MatrixRef::new(done, top, n);
        let x_ii = MatrixRef::new(diagonal, height, height);
        let tiles: Vec<Vec<T>> = (0..top / PANEL)
            .into_par_iter()
            .map(|j| {
                let left = j * PANEL;
                let mut sum = vec![T::ZERO; height * PANEL];
                let mut tile = sum.clone();
                let l_i = l.view().part(top, height, left, top - left);
                let x_j = done.part(left, top - left, left, PANEL);
                gemm(
                    T::ZERO,
                    MatrixMut::new(&mut sum, height, PANEL),
                    T::ONE,
                    l_i,
                    x_j,
                    Threads::One,
                );
                let sum = MatrixRef::new(&sum, height, PANEL);
                gemm(
                    T::ZERO,
                    MatrixMut::new(&mut tile, height, PANEL),
                    -T::ONE,
                    x_ii,
                    sum,
                    Threads::One,
                );
                tile
            })
            .collect();
        rest.par_chunks_mut(n).take(height).enumerate().for_each(|(r, row)| {
            for (j, tile) in tiles.iter().enumerate() {
                row[j * PANEL..][..PANEL].copy_from_slice(&tile[r * PANEL..][..PANEL]);
            }
            row[top..top + height].copy_from_slice(&diagonal[r * height..][..height]);
        });
    }
}

/// [`invert_lower`] of one contiguous block by recursive halving.
fn invert_block<T: Scalar>(l: &mut [T], n: usize) {
    if n <= LEAF {
        return small::invert_lower(l, n, n);
    }
    let half = (n / 2).next_multiple_of(8).min(n - 1);
    let rest = n - half;
    let copy = |l: &[T], top: usize, left: usize, rows: usize, cols: usize| -> Vec<T> {
        let mut part = Vec::with_capacity(rows * cols);
        (0..rows).for_each(|r| part.extend_from_slice(&l[(top + r) * n + left..][..cols]));
        part
    };
    let (mut a, mut d) = (copy(l, 0, 0, half, half), copy(l, half, half, rest, rest));
    let c = copy(l, half, 0, rest, half);
    invert_block(&mut a, half);
    invert_block(&mut d, rest);
    // [A 0; C D]^-1 = [A^-1 0; -D^-1 C A^-1  D^-1]
    let mut ca = vec![T::ZERO; rest * half];
    let (a_ref, d_ref) = (MatrixRef::new(&a, half, half), MatrixRef::new(&d, rest, rest));
    let c_ref = MatrixRef::new(&c, rest, half);
    gemm(T::ZERO, MatrixMut::new(&mut ca, rest, half), T::ONE, c_ref, a_ref, Threads::One);
    let corner = MatrixMut::with_stride(&mut l[half * n..], rest, half, n);
    gemm(T::ZERO, corner, -T::ONE, d_ref, MatrixRef::new(&ca, rest, half), Threads::One);
    for r in 0..half {
        l[r * n..][..half].copy_from_slice(&a[r * half..][..half]);
    }
    for r in 0..rest {
        l[(half + r) * n + half..][..rest].copy_from_slice(&d[r * rest..][..rest]);
    }
}

/// The product X'X of a lower triangular X, exactly symmetric: the inverse
/// of L L' for X = L^-1.
///
/// # Panics
///
/// If `x` is not square.
pub fn transposed_square<T: Scalar>(x: &Matrix<T>) -> Matrix<T> {
    let mut c = Matrix::zeros(x.rows(), x.cols());
    transposed_square_into(x, &mut c);
    c
}

/// [`transposed_square`] into a matrix of the same size.
fn transposed_square_into<T: Scalar>(x: &Matrix<T>, c: &mut Matrix<T>) {
    let n = square(x.view());
    if n == 0 {
        return;
    }
    // Row panel i, up to its diagonal: rows i.. of X only, the others are zero.
    c.data_mut().par_chunks_mut(PANEL * n).enumerate().for_each(|(p, rows)| {
        let (top, count) = (p * PANEL, rows.len() / n);
        let below = n - top;
        let left = x.view().part(top, below, top, count).t();
        let right = x.view().part(top, below, 0, top + count);
        let panel = MatrixMut::with_stride(rows, count, top + count, n);
        gemm(T::ZERO, panel, T::ONE, left, right, Threads::One);
    });
    mirror(c);
}

/// Copies the lower triangle of a square matrix to its upper triangle.
///
/// # Panics
///
/// If `a` is not square.
pub fn mirror<T: Scalar>(a: &mut Matrix<T>) {
    let n = square(a.view());
    mirror_block(a.data_mut(), n, n);
}

/// [`mirror`] of an n x n block. Its lower left quarter becomes the upper right
/// one, then the quarters on the diagonal are mirrored.
fn mirror_block<T: Scalar>(a: &mut [T], n: usize, stride: usize) {
    // Small enough for the cache, because columns are read.
    const TILE: usize = 64;
    if n <= TILE {
        for i in 0..n {
            for j in i + 1..n {
                a[i * stride + j] = a[j * stride + i];
            }
        }
        return;
    }
    let half = (n / 2).next_multiple_of(TILE).min(n - 1);
    let (top, bottom) = a.split_at_mut(half * stride);
    top.par_chunks_mut(TILE * stride).enumerate().for_each(|(tile, rows)| {
        for left in (half..n).step_by(TILE) {
            for (i, row) in rows.chunks_mut(stride).enumerate() {
                for j in left..n.min(left + TILE) {
                    row[j] = bottom[(j - half) * stride + tile * TILE + i];
                }
            }
        }
    });
    rayon::join(
        || mirror_block(top, half, stride),
        || mirror_block(&mut bottom[half..], n - half, stride),
    );
}

/// The inverse of a symmetric positive definite matrix, from its lower triangle.
///
/// ```
/// use openwork::{Matrix, linalg::cholesky};
/// let a = Matrix::from_vec(2, 2, vec![4.0, 0.0, 0.0, 16.0]);
/// assert_eq!(cholesky::inverse(a, 0.0).unwrap().data(), [0.25, 0.0, 0.0, 0.0625]);
/// ```
///
/// # Panics
///
/// If `a` is not square.
pub fn inverse<T: Scalar>(mut a: Matrix<T>, floor: T) -> Result<Matrix<T>, NotPositive> {
    let mut scratch = Matrix::zeros(a.rows(), a.cols());
    invert(&mut a, &mut scratch, floor)?;
    Ok(a)
}

/// [`inverse`] in place, with scratch of the same size. Reuse it for repeated inversions:
/// new pages cost a fifth of the time.
///
/// # Panics
///
/// If `a` is not square, or `scratch` has another size.
pub fn invert<T: Scalar>(
    a: &mut Matrix<T>,
    scratch: &mut Matrix<T>,
    floor: T,
) -> Result<(), NotPositive> {
    let (n, m) = (square(a.view()), square(scratch.view()));
    assert_eq!(n, m, "scratch of size {m} for a matrix of size {n}");
    lower_factor(a, floor)?;
    invert_lower_into(a, scratch);
    transposed_square_into(scratch, a);
    Ok(())
}

/// Solves L X = B in place, with the n x r matrix B in row-major order.
///
/// # Panics
///
/// If L is not square or B has another number of rows.
pub fn solve_lower<T: Scalar>(l: &Matrix<T>, b: &mut Matrix<T>) {
    let n = square(l.view());
    assert_eq!(b.rows(), n, "a system of {n} equations has {} right-hand rows", b.rows());
    let cols = b.cols();
    for top in (0..n).step_by(LEAF) {
        let height = LEAF.min(n - top);
        let (done, rest) = b.data_mut().split_at_mut(top * cols);
        let rest = &mut rest[..height * cols];
        let left = l.view().part(top, height, 0, top);
        let block = MatrixMut::new(rest, height, cols);
        gemm(T::ONE, block, -T::ONE, left, MatrixRef::new(done, top, cols), Threads::All);
        small::forward_many(&l.data()[top * n + top..], height, n, rest, cols, cols);
    }
}

/// Solves L' X = B in place, with the n x r matrix B in row-major order.
///
/// # Panics
///
/// If L is not square or B has another number of rows.
pub fn solve_lower_transposed<T: Scalar>(l: &Matrix<T>, b: &mut Matrix<T>) {
    let n = square(l.view());
    assert_eq!(b.rows(), n, "a system of {n} equations has {} right-hand rows", b.rows());
    let cols = b.cols();
    for top in (0..n).step_by(LEAF).rev() {
        let height = LEAF.min(n - top);
        let end = top + height;
        let (head, done) = b.data_mut().split_at_mut(end * cols);
        let rows = &mut head[top * cols..];
        let left = l.view().part(end, n - end, top, height).t();
        let block = MatrixMut::new(rows, height, cols);
        gemm(T::ONE, block, -T::ONE, left, MatrixRef::new(done, n - end, cols), Threads::All);
        for i in (0..height).rev() {
            let (above, row) = rows.split_at_mut(i * cols);
            let row = &mut row[..cols];
            let l_i = &l.row(top + i)[top..=top + i];
            let f = T::ONE / l_i[i];
            row.iter_mut().for_each(|x| *x *= f);
            for (j, above) in above.chunks_exact_mut(cols.max(1)).enumerate() {
                for (x, &y) in above.iter_mut().zip(&*row) {
                    *x -= l_i[j] * y;
                }
            }
        }
    }
}

/// The size of a square matrix.
fn square<T: Copy>(a: MatrixRef<'_, T>) -> usize {
    assert_eq!(a.rows(), a.cols(), "a {} x {} matrix is not square", a.rows(), a.cols());
    a.rows()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::tests::random;

    /// R R' / n + I in f64.
    fn positive(n: usize) -> Matrix<f64> {
        let r = random(n, n, n as u64);
        let r = Matrix::from_fn(n, n, |i, j| f64::from(r.row(i)[j]));
        let mut a = Matrix::from_fn(n, n, |i, j| f64::from(u8::from(i == j)));
        gemm(1.0, a.view_mut(), 1.0 / n as f64, r.view(), r.view().t(), Threads::One);
        a
    }

    fn product(a: MatrixRef<'_, f64>, b: MatrixRef<'_, f64>) -> Matrix<f64> {
        let mut c = Matrix::zeros(a.rows(), b.cols());
        gemm(0.0, c.view_mut(), 1.0, a, b, Threads::One);
        c
    }

    /// Rounding of n operations on entries near 1.
    fn tolerance(n: usize) -> f64 {
        1e-14 * (10 + n) as f64
    }

    fn near(a: &Matrix<f64>, b: impl Fn(usize, usize) -> f64, what: &str) {
        for i in 0..a.rows() {
            for j in 0..a.cols() {
                let (x, y) = (a.row(i)[j], b(i, j));
                assert!(
                    (x - y).abs() <= tolerance(a.rows()),
                    "{what} of size {}: entry {i}, {j} is {x}, not {y}",
                    a.rows()
                );
            }
        }
    }

    fn sizes() -> impl Iterator<Item = usize> {
        (0..=64).chain([PANEL - 1, PANEL, PANEL + 1, 2 * PANEL + 37])
    }

    fn identity(i: usize, j: usize) -> f64 {
        f64::from(u8::from(i == j))
    }

    #[test]
    fn factor_and_inverse_obey_their_equations_at_every_size() {
        for n in sizes() {
            let a = positive(n);
            let mut l = a.clone();
            // Only the lower triangle may be read.
            for i in 0..n {
                l.row_mut(i)[i + 1..].fill(f64::NAN);
            }
            let mut c = l.clone();
            factor(&mut l, 0.0).unwrap();
            near(&product(l.view(), l.view().t()), |i, j| a.row(i)[j], "L L'");
            near(&product(l.view(), invert_lower(&l).view()), identity, "L L^-1");
            c = inverse(c, 0.0).unwrap();
            near(&product(a.view(), c.view()), identity, "A A^-1");
            near(&c, |i, j| c.row(j)[i], "symmetry");
        }
    }

    #[test]
    fn solves_obey_their_equations_at_every_size() {
        for n in sizes() {
            let mut l = positive(n);
            factor(&mut l, 0.0).unwrap();
            for cols in [0, 1, 5] {
                let b = Matrix::from_fn(n, cols, |i, j| ((i + 3 * j) as f64).sin());
                let mut x = b.clone();
                solve_lower(&l, &mut x);
                near(&product(l.view(), x.view()), |i, j| b.row(i)[j], "L X");
                let mut x = b.clone();
                solve_lower_transposed(&l, &mut x);
                near(&product(l.view().t(), x.view()), |i, j| b.row(i)[j], "L' X");
            }
        }
    }

    #[test]
    fn the_bad_pivot_is_named_wherever_it_lies() {
        let n = 2 * PANEL + 37;
        for bad in [0, 1, LEAF, PANEL - 1, PANEL, PANEL + LEAF + 1, n - 1] {
            let mut a = positive(n);
            a.row_mut(bad)[bad] = -1.0;
            assert_eq!(factor(&mut a, 0.0).unwrap_err().pivot, bad);
        }
    }

    #[test]
    fn bytes_do_not_depend_on_the_number_of_threads() {
        let a = positive(3 * PANEL + 5);
        let inverses: Vec<Matrix<f64>> = [1, 2, 3]
            .map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| inverse(a.clone(), 0.0).unwrap())
            })
            .into();
        assert!(inverses[0] == inverses[1] && inverses[0] == inverses[2]);
    }
}
