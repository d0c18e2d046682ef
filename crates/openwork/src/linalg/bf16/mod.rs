//! f32 products by instructions for bf16.
//!
//! The matrix unit of recent Intel processors (AMX) multiplies bf16 numbers and adds in f32,
//! at sixteen times the rate of f32 instructions. Every f32 number is the sum of three bf16
//! numbers, each at most `2^-8` of the one before, so a product of f32 matrices is
//!
//! ```text
//! A B = A_0 B_0 + A_0 B_1 + A_1 B_0 + A_0 B_2 + A_1 B_1 + A_2 B_0 + rest,     |rest| < 2^-23 |A| |B|
//! ```
//!
//! six products of the unit, added in f32: as accurate as a product in f32. If columns of
//! `B` need fewer terms (weights stored as bf16 need one), as few as three products
//! suffice.
//!
//! Where training allows rounded operands, `A_0 B_0` alone is enough
//! ([`Rounded`](Kernel::Rounded)): AVX-512's dot products of bf16 have twice the rate of f32
//! instructions.
//!
//! Infinity has no such decomposition and gives NaN on the unit; numbers below `1e-38` count
//! as zero.

mod dot;
mod pack;
mod sums;
mod tile;
mod unit;

use super::Threads;
use crate::matrix::{MatrixMut, MatrixRef};
use pack::{Operand, Order, Terms};
use rayon::prelude::*;
use std::cell::Cell;
use std::ops::Range;
use sums::Sums;

/// The instructions of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    /// The matrix unit, with as many terms as f32 needs.
    Exact,
    /// Dot products of operands rounded to one term, the right one dithered.
    Rounded,
}

impl Kernel {
    /// Whether this machine has the instructions.
    pub fn available(self) -> bool {
        match self {
            Kernel::Exact => unit::available(),
            Kernel::Rounded => dot::available(),
        }
    }

    /// How the numbers of the left and the right operand become bf16.
    fn terms(self) -> [Terms; 2] {
        match self {
            Kernel::Exact => [Terms::Three; 2],
            Kernel::Rounded => [Terms::Nearest, Terms::Dithered],
        }
    }

    /// Bytes of `B` packed at a time: they stay in a core's private cache while the panels of
    /// `A` are processed. On the unit, twice as many are a quarter slower.
    fn bytes(self) -> usize {
        match self {
            Kernel::Exact => 900 << 10,
            Kernel::Rounded => 512 << 10,
        }
    }
}

/// Rows of a block of `A` and columns of a block of `B`: two tiles each.
const PANEL: usize = 32;
/// Depth of one tile.
const STEP: usize = 32;
/// bf16 terms of an f32 number.
const PARTS: usize = 3;
/// Maximum number of rows of `A` packed at a time.
const ROWS: usize = 1024;
/// Maximum number of columns of `A` packed at a time, which is also the number of products
/// accumulated before a sum is stored.
const DEPTH: usize = 768;
/// Products with a shorter side or fewer multiplications are faster by f32 instructions,
/// which need less packing.
const LEAST: (usize, usize) = (48, 1 << 21);

thread_local! {
    /// Buffers for both operands, reused from product to product: fresh pages take as long
    /// as a small product.
    static SCRATCH: Cell<[Operand; 2]> = const { Cell::new([Operand::EMPTY; 2]) };
}

/// Whether a product of such a size is faster here than by f32 instructions.
pub(super) fn worth(m: usize, n: usize, k: usize) -> bool {
    m.min(n).min(k) >= LEAST.0 && m * n * k >= LEAST.1
}

/// Whether the rows or the columns of a matrix are contiguous, so that it can be packed.
pub(super) fn fits(x: MatrixRef<'_>) -> bool {
    let (rows, cols) = x.strides();
    rows == 1 || cols == 1
}

/// `C <- beta C + alpha A B` for several `B` and `C`; shapes are checked, and
/// [`Kernel::available`] and [`fits`] hold.
pub(super) fn gemm(
    kernel: Kernel,
    beta: f32,
    alpha: f32,
    a: MatrixRef<'_>,
    products: &mut [(MatrixRef<'_>, MatrixMut<'_>)],
    threads: Threads,
) {
    let (m, k) = (a.rows(), a.cols());
    let [mut left, mut right] = SCRATCH.take();
    // Equal depths, in whole tiles.
    let depth = k.div_ceil(k.div_ceil(DEPTH)).next_multiple_of(STEP);
    let [of_a, of_b] = kernel.terms();
    let width = (kernel.bytes() / (2 * of_b.count() * depth)).max(PANEL) / PANEL * PANEL;
    for depth in chunks(k, depth) {
        let beta = if depth.start == 0 { beta } else { 1.0 };
        for rows in chunks(m, ROWS) {
            let a = a.part(rows.start, rows.len(), depth.start, depth.len());
            left.pack(a, Order::Rows, of_a, threads);
            for (b, c) in &mut *products {
                for cols in chunks(b.cols(), width) {
                    let b = b.part(depth.start, depth.len(), cols.start, cols.len());
                    right.pack(b.t(), Order::Pairs, of_b, threads);
                    let c = c.reborrow().part(rows.start, rows.len(), cols.start, cols.len());
                    multiply(kernel, beta, c, alpha, &left, &right, threads);
                }
            }
        }
    }
    SCRATCH.set([left, right]);
}

/// `0..n` in pieces of `size`.
fn chunks(n: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..n).step_by(size).map(move |start| start..n.min(start + size))
}

/// `C <- beta C + alpha A B`, packed. A task is a panel of `A`.
fn multiply(
    kernel: Kernel,
    beta: f32,
    mut c: MatrixMut<'_>,
    alpha: f32,
    left: &Operand,
    right: &Operand,
    threads: Threads,
) {
    let (cols, stride) = (c.cols(), c.row_stride());
    let size = (c.rows() - 1) * stride + cols;
    let data = &mut c.data_mut()[..size];
    let task = |(i, data): (usize, &mut [f32])| {
        let rows = (data.len() - cols) / stride + 1;
        let mut c = MatrixMut::with_stride(data, rows, cols, stride);
        let (a, _) = left.panel(i);
        let mut add = |j: usize, sums: &Sums| {
            let c = c.reborrow().part(0, rows, j * PANEL, PANEL.min(cols - j * PANEL));
            sums.add_to(beta, c, alpha);
        };
        // The sums of a product are read while the unit computes the next one.
        let mut sums = [Sums::default(), Sums::default()];
        let _unit = (kernel == Kernel::Exact).then(unit::Configured::new);
        for j in 0..right.panels() {
            let (b, parts) = right.panel(j);
            let sum = &mut sums[j % 2];
            match kernel {
                Kernel::Exact => tile::multiply(a, b, parts, sum),
                Kernel::Rounded => dot::multiply(a, b, sum),
            }
            if j > 0 {
                add(j - 1, &sums[(j - 1) % 2]);
            }
        }
        let last = right.panels() - 1;
        add(last, &sums[last % 2]);
    };
    match threads {
        Threads::One => data.chunks_mut(PANEL * stride).enumerate().for_each(task),
        Threads::All => data.par_chunks_mut(PANEL * stride).enumerate().for_each(task),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::tests::random;
    use crate::matrix::Matrix;

    /// The kernels of this machine; says loudly which tests did not run.
    fn kernels() -> impl Iterator<Item = Kernel> {
        [Kernel::Exact, Kernel::Rounded].into_iter().filter(|kernel| {
            if !kernel.available() {
                eprintln!("SKIPPED {kernel:?}: this machine lacks the instructions");
            }
            kernel.available()
        })
    }

    /// The entries as the kernel multiplies them.
    fn operand(kernel: Kernel, x: MatrixRef<'_>) -> Matrix {
        Matrix::from_fn(x.rows(), x.cols(), |i, j| match kernel {
            Kernel::Exact => x.at(i, j),
            Kernel::Rounded => half::bf16::from_f32(x.at(i, j)).to_f32(),
        })
    }

    /// Half a unit in the last place of an f32.
    const ROUND: f64 = 1.0 / (1u64 << 24) as f64;

    /// Compares `beta C + alpha A B` with its definition in f64. Every product and
    /// every addition of a chain may be rounded, as in f32.
    fn check(
        kernel: Kernel,
        beta: f32,
        alpha: f32,
        a: MatrixRef<'_>,
        b: MatrixRef<'_>,
        what: &str,
    ) {
        let (m, n, k) = (a.rows(), b.cols(), a.cols());
        // bf16 represents the right operand, so that no threshold matters.
        let rounded = operand(kernel, b);
        let b = rounded.view();
        let old =
            if beta == 0.0 { Matrix::from_fn(m, n, |_, _| f32::NAN) } else { random(m, n, 9) };
        let mut c = old.clone();
        gemm(kernel, beta, alpha, a, &mut [(b, c.view_mut())], Threads::All);
        let (a, b) = (operand(kernel, a), operand(Kernel::Exact, b));
        for i in 0..m {
            for j in 0..n {
                let terms = || (0..k).map(|p| f64::from(a.row(i)[p]) * f64::from(b.row(p)[j]));
                let (sum, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                let start = if beta == 0.0 { 0.0 } else { f64::from(beta * old.row(i)[j]) };
                let want = start + f64::from(alpha) * sum;
                let size = start.abs() + f64::from(alpha.abs()) * size;
                let off = (f64::from(c.row(i)[j]) - want).abs();
                assert!(
                    off <= (k.min(DEPTH) + k / DEPTH + 8) as f64 * ROUND * size,
                    "{kernel:?}, {what}, {m} x {n} x {k}, entry {i}, {j}: {} for {want}",
                    c.row(i)[j]
                );
            }
        }
    }

    #[test]
    fn products_equal_their_definition_at_every_size_and_transposition() {
        for kernel in kernels() {
            every_size(kernel);
        }
    }

    fn every_size(kernel: Kernel) {
        let sizes = (1..=70).map(|n| (n / 2 + 1, n, (n * 37) % 71 + 1));
        for (m, n, k) in sizes.chain([(65, 300, 800), (1050, 33, 40), (40, 33, 1700)]) {
            let (a, b) = (random(m, k, 1), random(k, n, 2));
            let (at, bt) = (random(k, m, 3), random(n, k, 4));
            for (a, b) in [
                (a.view(), b.view()),
                (at.view().t(), b.view()),
                (a.view(), bt.view().t()),
                (at.view().t(), bt.view().t()),
            ] {
                check(kernel, 0.0, 1.0, a, b, "a product");
            }
            check(kernel, 0.5, -2.0, a.view(), b.view(), "a scaled sum");
        }
    }

    #[test]
    fn as_many_parts_as_numbers_need() {
        let kernel = Kernel::Exact;
        if !kernels().any(|found| found == kernel) {
            return;
        }
        let (a, b) = (random(50, 90, 1), random(70, 90, 2));
        for (parts, mask) in [(1, 0xffff_0000), (2, 0xffff_ff00), (3, u32::MAX)] {
            // The last panel alone needs all three.
            let b = Matrix::from_fn(70, 90, |i, j| {
                let mask = if i < 64 { mask } else { u32::MAX };
                f32::from_bits(b.row(i)[j].to_bits() & mask)
            });
            let mut packed = Operand::default();
            packed.pack(b.view(), Order::Pairs, Terms::Three, Threads::One);
            let found: Vec<usize> = (0..packed.panels()).map(|i| packed.panel(i).1).collect();
            assert_eq!(found, [parts, parts, 3]);
            check(kernel, 0.0, 1.0, a.view(), b.view().t(), "parts");
        }
    }

    #[test]
    fn numbers_of_any_size_keep_their_digits() {
        for kernel in kernels() {
            for power in [-80, -40, 0, 40, 60] {
                let scale = 2.0f32.powi(power);
                let a = Matrix::from_fn(33, 40, |i, j| scale * random(33, 40, 5).row(i)[j]);
                check(kernel, 0.0, 1.0, a.view(), random(40, 33, 6).view(), "large and small");
            }
        }
    }

    #[test]
    fn nan_and_infinity_do_not_pass_for_numbers() {
        let bads = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        for (kernel, bad) in kernels().flat_map(|kernel| bads.map(|bad| (kernel, bad))) {
            let (mut a, b) = (random(40, 50, 1), random(50, 60, 2));
            a.row_mut(7)[11] = bad;
            let mut c = Matrix::zeros(40, 60);
            gemm(kernel, 0.0, 1.0, a.view(), &mut [(b.view(), c.view_mut())], Threads::One);
            for i in 0..40 {
                assert!(
                    c.row(i).iter().all(|x| x.is_finite() == (i != 7)),
                    "{kernel:?}, {bad} in row 7, row {i}"
                );
            }
        }
    }

    #[test]
    fn products_together_and_on_any_number_of_threads_have_the_same_bytes() {
        for kernel in kernels() {
            same_bytes(kernel);
        }
    }

    fn same_bytes(kernel: Kernel) {
        let a = random(1100, 900, 1);
        let bs = [random(900, 300, 2), random(900, 70, 3)];
        let run = |threads| {
            let mut cs = [Matrix::zeros(1100, 300), Matrix::zeros(1100, 70)];
            let mut products: Vec<_> =
                bs.iter().map(Matrix::view).zip(cs.iter_mut().map(Matrix::view_mut)).collect();
            gemm(kernel, 0.0, 1.0, a.view(), &mut products, threads);
            cs
        };
        let want = run(Threads::One);
        for threads in 1..=3 {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            assert!(pool.install(|| run(Threads::All)) == want, "{threads} threads");
        }
        for (b, want) in bs.iter().zip(&want) {
            let mut c = Matrix::zeros(1100, b.cols());
            gemm(kernel, 0.0, 1.0, a.view(), &mut [(b.view(), c.view_mut())], Threads::All);
            assert!(&c == want, "alone");
        }
    }

    #[test]
    fn small_changes_of_the_right_operand_survive_on_average() {
        if !kernels().any(|kernel| kernel == Kernel::Rounded) {
            return;
        }
        // One plus a fraction of a unit in the last place of bf16, in sums over 640 entries.
        let a = Matrix::from_fn(3, 640, |_, _| 1.0);
        for share in [-0.7f32, -0.25, 0.0, 0.1, 0.5, 0.9] {
            let ulp = if share < 0.0 { 1.0 / 256.0 } else { 1.0 / 128.0 };
            for transposed in [false, true] {
                let b = Matrix::from_fn(640, 640, |_, _| 1.0 + share * ulp);
                let b = if transposed { b.view().t() } else { b.view() };
                let mut c = Matrix::zeros(3, 640);
                gemm(Kernel::Rounded, 0.0, 1.0, a.view(), &mut [(b, c.view_mut())], Threads::One);
                for &sum in c.data() {
                    let found = (sum / 640.0 - 1.0) / ulp;
                    assert!((found - share).abs() < 0.03, "{found} of {share}");
                }
            }
        }
    }
}
