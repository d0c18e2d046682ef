//! Sums of X'X: lower triangle only, f32 products accumulated in f64.
//!
//! The matrix is cut into tiles of [`TILE`] columns and only tiles on or below
//! the diagonal are stored and computed:
//!
//! ```text
//! G[i,j] += X_c[:,i]' X_c[:,j]      for every chunk c in order, tiles j <= i
//! ```
//!
//! One chunk has at most [`CHUNK`] samples. Its product is summed in f32 over
//! the samples in order, and added to f64. The order never depends on the
//! number of threads: a tile is computed by one thread, chunk after chunk.

use rayon::prelude::*;

use super::gemm::{Threads, gemm};
use crate::matrix::{Matrix, MatrixMut, MatrixRef};

/// Samples whose products are summed in f32 before they enter the f64 sum.
///
/// 256 samples lose at most 256 x 2^-24 = 1.5e-5 of the sum of |x_i x_j|. They
/// also fit one depth block of the matrix library (gemm 0.19 takes at least
/// 512), so that the sum over a chunk is one chain of fused multiply-adds, the
/// same on every machine that has them and has no matrix unit.
pub const CHUNK: usize = 256;

/// Columns in one tile. On 1,536 columns 192 took the same time, 128 and 384
/// some 10% more: small tiles pack more, large ones waste more above the
/// diagonal.
const TILE: usize = 256;

/// Rows of a diagonal tile computed together, up to their last column.
const STRIP: usize = TILE / 2;

/// Chunks whose largest entry per column lies outside this range are scaled by
/// powers of two first: squares of the limits, times [`CHUNK`], are far inside
/// the range of f32.
const SAFE: std::ops::RangeInclusive<f32> = 1e-15..=1e15;

/// The lower triangle of a sum of X'X, in f64.
#[derive(Clone, Debug, PartialEq)]
pub struct Gram {
    cols: usize,
    /// Tile (i, j), j <= i, has index i (i + 1) / 2 + j.
    tiles: Vec<Matrix<f64>>,
}

impl Gram {
    /// The sum over no samples of `cols` columns.
    pub fn zeros(cols: usize) -> Self {
        let mut tiles = Vec::new();
        for i in 0..cols.div_ceil(TILE) {
            for j in 0..=i {
                tiles.push(Matrix::zeros(width(cols, i), width(cols, j)));
            }
        }
        Self { cols, tiles }
    }

    /// Number of columns of X.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The entries, tile by tile, to be sent to another process.
    pub fn into_data(self) -> Vec<f64> {
        self.tiles.into_iter().flat_map(Matrix::into_vec).collect()
    }

    /// The sum with these entries; `None` if their number does not match `cols` columns.
    pub fn from_data(cols: usize, data: &[f64]) -> Option<Self> {
        let mut sum = Self { cols, tiles: Vec::new() };
        let mut rest = data;
        for i in 0..cols.div_ceil(TILE) {
            for j in 0..=i {
                let (rows, cols) = (width(cols, i), width(cols, j));
                let (tile, after) = rest.split_at_checked(rows * cols)?;
                sum.tiles.push(Matrix::from_vec(rows, cols, tile.to_vec()));
                rest = after;
            }
        }
        rest.is_empty().then_some(sum)
    }

    /// Adds X'X of several chunks, in order; every chunk is finite.
    ///
    /// ```
    /// use openwork::{Matrix, linalg::Gram};
    /// let x = Matrix::from_vec(2, 2, vec![1.0, 2.0, 3.0, 4.0]);
    /// let mut sum = Gram::zeros(2);
    /// sum.add(&[x.view()]);
    /// assert_eq!(sum.to_matrix(0.5).data(), [5.0, 7.0, 7.0, 10.0]);
    /// ```
    ///
    /// # Panics
    ///
    /// If a chunk has another number of columns or more than [`CHUNK`] rows.
    pub fn add(&mut self, chunks: &[MatrixRef<'_>]) {
        for x in chunks {
            assert_eq!(x.cols(), self.cols, "a chunk has {} columns, not {}", x.cols(), self.cols);
            assert!(x.rows() <= CHUNK, "a chunk has {} rows, over {CHUNK}", x.rows());
        }
        let chunks: Vec<Chunk<'_>> = chunks.par_iter().map(|&x| Chunk::new(x)).collect();
        let places = places(self.cols);
        self.tiles.par_iter_mut().zip(&places).for_each_init(
            || vec![0.0; TILE * TILE],
            |product, (sum, &(i, j))| {
                // A diagonal tile needs only its lower triangle.
                let (height, cols) = (sum.rows(), sum.cols());
                let strip = if i == j { STRIP } else { TILE };
                for chunk in &chunks {
                    let x = chunk.entries();
                    for top in (0..height).step_by(strip) {
                        let rows = strip.min(height - top);
                        let cols = if i == j { top + rows } else { cols };
                        let product = &mut product[..rows * cols];
                        let left = x.part(0, x.rows(), i * TILE + top, rows).t();
                        let right = x.part(0, x.rows(), j * TILE, cols);
                        let c = MatrixMut::new(product, rows, cols);
                        gemm(0.0, c, 1.0, left, right, Threads::One);
                        let into = sum.view_mut().part(top, rows, 0, cols);
                        chunk.add_to(into, product, i * TILE + top, j * TILE);
                    }
                }
            },
        );
    }

    /// Adds another sum.
    ///
    /// # Panics
    ///
    /// If it has another number of columns.
    pub fn merge(&mut self, other: &Self) {
        assert_eq!(self.cols, other.cols, "sums over different columns");
        self.tiles.par_iter_mut().zip(&other.tiles).for_each(|(a, b)| {
            a.data_mut().iter_mut().zip(b.data()).for_each(|(a, b)| *a += b);
        });
    }

    /// Entry (i, j) of the sum.
    pub fn at(&self, i: usize, j: usize) -> f64 {
        let (i, j) = (i.max(j), i.min(j));
        let (ti, tj) = (i / TILE, j / TILE);
        self.tiles[ti * (ti + 1) / 2 + tj].row(i % TILE)[j % TILE]
    }

    /// The full symmetric matrix, times `scale`.
    pub fn to_matrix(&self, scale: f64) -> Matrix<f64> {
        let k = self.cols;
        let mut full = Matrix::zeros(k, k);
        if k == 0 {
            return full;
        }
        full.data_mut().par_chunks_mut(TILE * k).enumerate().for_each(|(panel, rows)| {
            for (r, row) in rows.chunks_mut(k).enumerate() {
                let i = panel * TILE + r;
                // Row i to the left of the diagonal, then column i below it.
                for tj in 0..=panel {
                    let tile = &self.tiles[panel * (panel + 1) / 2 + tj];
                    let left = &tile.row(r)[..tile.cols().min(i + 1 - tj * TILE)];
                    for (h, g) in row[tj * TILE..].iter_mut().zip(left) {
                        *h = g * scale;
                    }
                }
                for (j, h) in row.iter_mut().enumerate().skip(i + 1) {
                    *h = self.at(j, i) * scale;
                }
            }
        });
        full
    }
}

/// Columns in tile `i` of `cols` columns.
fn width(cols: usize, i: usize) -> usize {
    TILE.min(cols - i * TILE)
}

/// The tile coordinates, in the order in which tiles are stored.
fn places(cols: usize) -> Vec<(usize, usize)> {
    (0..cols.div_ceil(TILE)).flat_map(|i| (0..=i).map(move |j| (i, j))).collect()
}

/// Samples ready for an f32 product: as they are, or with columns scaled by
/// powers of two, which is exact, where squares would leave the range of f32.
enum Chunk<'a> {
    Plain(MatrixRef<'a>),
    Scaled { x: Matrix, powers: Vec<f64> },
}

impl<'a> Chunk<'a> {
    fn new(x: MatrixRef<'a>) -> Self {
        let mut largest = vec![0f32; x.cols()];
        for r in 0..x.rows() {
            for (l, x) in largest.iter_mut().zip(x.row(r)) {
                *l = l.max(x.abs());
            }
        }
        if largest.iter().all(|&l| l == 0.0 || SAFE.contains(&l)) {
            return Self::Plain(x);
        }
        let powers: Vec<f64> =
            largest.iter().map(|&l| if l == 0.0 { 1.0 } else { power_of_two(l) }).collect();
        let scaled =
            Matrix::from_fn(x.rows(), x.cols(), |r, c| (f64::from(x.at(r, c)) / powers[c]) as f32);
        Self::Scaled { x: scaled, powers }
    }

    fn entries(&self) -> MatrixRef<'_> {
        match self {
            Self::Plain(x) => *x,
            Self::Scaled { x, .. } => x.view(),
        }
    }

    /// `sum += product`, undoing the scaling in f64; row 0 of `sum` is row `top`
    /// of X'X, its column 0 is column `left`.
    fn add_to(&self, mut sum: MatrixMut<'_, f64>, product: &[f32], top: usize, left: usize) {
        let cols = sum.cols();
        for (r, product) in product.chunks_exact(cols).enumerate() {
            let terms = sum.row_mut(r).iter_mut().zip(product);
            match self {
                Self::Plain(_) => terms.for_each(|(s, &p)| *s += f64::from(p)),
                Self::Scaled { powers, .. } => {
                    let power = powers[top + r];
                    for ((s, &p), &f) in terms.zip(&powers[left..]) {
                        *s += f64::from(p) * (power * f);
                    }
                }
            }
        }
    }
}

/// The largest power of two not above `x > 0`.
fn power_of_two(x: f32) -> f64 {
    let bits = f64::from(x).to_bits();
    f64::from_bits(bits & (0x7ff << 52))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::tests::random;

    /// X'X by its definition, in f64.
    fn slow(x: &Matrix) -> Matrix<f64> {
        Matrix::from_fn(x.cols(), x.cols(), |i, j| {
            (0..x.rows()).map(|r| f64::from(x.row(r)[i]) * f64::from(x.row(r)[j])).sum()
        })
    }

    /// f32 rounding of a sum of `n` products of entries below 1: `n` times half
    /// the spacing at a sum of at most `n`.
    fn tolerance(n: usize) -> f64 {
        (n * n) as f64 * f64::from(f32::EPSILON) / 2.0
    }

    #[test]
    fn the_sum_equals_its_definition_at_every_size() {
        for k in (0..=64).chain([TILE - 1, TILE, TILE + 1, 2 * TILE + 5]) {
            let n = 1 + k % 37;
            let x = random(n, k, k as u64);
            let mut sum = Gram::zeros(k);
            sum.add(&[x.view()]);
            let (got, want) = (sum.to_matrix(1.0), slow(&x));
            for (e, (a, b)) in got.data().iter().zip(want.data()).enumerate() {
                assert!((a - b).abs() <= tolerance(n), "{n} x {k}, entry {e}: {a} for {b}");
            }
        }
    }

    #[test]
    fn the_full_matrix_is_symmetric_to_the_bit() {
        let x = random(200, 2 * TILE + 3, 1);
        let mut sum = Gram::zeros(x.cols());
        sum.add(&[x.view(), x.view()]);
        let full = sum.to_matrix(0.3);
        for i in 0..x.cols() {
            for j in 0..x.cols() {
                assert_eq!(full.row(i)[j], full.row(j)[i]);
                assert_eq!(full.row(i)[j], sum.at(i, j) * 0.3);
            }
        }
    }

    #[test]
    fn scaling_columns_by_powers_of_two_scales_the_sum_exactly() {
        let x = random(50, 7, 2);
        let powers = [100, -100, 60, -60, 0, 3, -120].map(|e| 2f64.powi(e));
        let y = Matrix::from_fn(50, 7, |r, c| (f64::from(x.row(r)[c]) * powers[c]) as f32);
        let (mut sum, mut scaled) = (Gram::zeros(7), Gram::zeros(7));
        sum.add(&[x.view()]);
        scaled.add(&[y.view()]);
        for i in 0..7 {
            for j in 0..7 {
                assert_eq!(scaled.at(i, j), sum.at(i, j) * powers[i] * powers[j], "{i}, {j}");
            }
        }
    }
}
