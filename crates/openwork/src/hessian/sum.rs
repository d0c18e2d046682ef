//! Streams inputs into H.

use half::{bf16, f16};

use super::{Hessian, HessianError};
use crate::linalg::{CHUNK, Gram};
use crate::matrix::MatrixRef;

/// Chunks gathered before they are added: a tile of the f64 sum is then read
/// and written once for all of them.
const BATCH: usize = 8;

/// Of three chunks in a row the middle one is held out, so that two chunks are
/// enough for a split and the held-out third is spread over all samples.
fn held_out(chunk: usize) -> bool {
    chunk % 3 == 1
}

/// Entry types that samples may have: `f32`, `bf16` and `f16`.
pub trait Sample: Copy + Into<f32> + Send + Sync {
    /// The type's name, for messages.
    const NAME: &'static str;
}

impl Sample for f32 {
    const NAME: &'static str = "f32";
}

impl Sample for bf16 {
    const NAME: &'static str = "bf16";
}

impl Sample for f16 {
    const NAME: &'static str = "f16";
}

/// Accumulates X'X over rows of samples and produces a [`Hessian`].
///
/// Samples are summed in chunks of [`CHUNK`], in order, so the result depends neither on
/// the sizes of the pieces they arrive in nor on the number of threads. One of every three
/// chunks is held out, to choose the damping by.
///
/// ```
/// use openwork::{Matrix, hessian::HessianSum};
/// let x = Matrix::from_vec(2, 2, vec![1.0, 2.0, 3.0, 4.0]);
/// let mut sum = HessianSum::new(2);
/// sum.add(x.view()).unwrap();
/// let h = sum.finish().unwrap();
/// assert_eq!(h.matrix().data(), [5.0, 7.0, 7.0, 10.0]);
/// assert_eq!(h.samples(), Some(2));
/// ```
#[derive(Clone, Debug)]
pub struct HessianSum {
    /// The index of the first sample in the whole stream.
    first: usize,
    /// Samples added, including those still buffered.
    count: usize,
    /// Samples in `held`.
    held_count: usize,
    fit: Gram,
    held: Gram,
    /// Samples not yet summed, fewer than `BATCH * CHUNK`.
    gathered: Vec<f32>,
}

/// The state of a partial sum, to be sent to another process; see
/// [`HessianSum::into_parts`].
#[derive(Clone, Debug, PartialEq)]
pub struct SumParts {
    /// Columns of X.
    pub columns: usize,
    /// The index of the first sample in the whole stream.
    pub first: usize,
    /// Samples.
    pub count: usize,
    /// Held-out samples.
    pub held_count: usize,
    /// X'X over the samples to fit on, tile by tile.
    pub fit: Vec<f64>,
    /// The same over the held-out samples.
    pub held: Vec<f64>,
}

impl HessianSum {
    /// The state of the sum, for another process.
    ///
    /// ```
    /// use openwork::{Matrix, hessian::HessianSum};
    /// let x = Matrix::from_fn(3, 2, |i, j| (i + j) as f32);
    /// let mut sum = HessianSum::starting_at(2, 512);
    /// sum.add(x.view()).unwrap();
    /// let parts = sum.clone().into_parts();
    /// let again = HessianSum::from_parts(parts).unwrap();
    /// assert_eq!(again.finish().unwrap(), sum.finish().unwrap());
    /// ```
    pub fn into_parts(mut self) -> SumParts {
        self.flush();
        SumParts {
            columns: self.columns(),
            first: self.first,
            count: self.count,
            held_count: self.held_count,
            fit: self.fit.into_data(),
            held: self.held.into_data(),
        }
    }

    /// The sum with this state.
    pub fn from_parts(parts: SumParts) -> Result<Self, HessianError> {
        let wrong = HessianError::SampleWidth { found: parts.fit.len(), columns: parts.columns };
        let (fit, held) = (
            Gram::from_data(parts.columns, &parts.fit),
            Gram::from_data(parts.columns, &parts.held),
        );
        let (Some(fit), Some(held)) = (fit, held) else { return Err(wrong) };
        Ok(Self {
            first: parts.first,
            count: parts.count,
            held_count: parts.held_count,
            fit,
            held,
            gathered: Vec::new(),
        })
    }

    /// A sum over no samples of `columns` columns.
    pub fn new(columns: usize) -> Self {
        Self::starting_at(columns, 0)
    }

    /// A partial sum whose first sample is number `first` of the whole stream;
    /// see [`HessianSum::merge`].
    pub fn starting_at(columns: usize, first: usize) -> Self {
        Self {
            first,
            count: 0,
            held_count: 0,
            fit: Gram::zeros(columns),
            held: Gram::zeros(columns),
            gathered: Vec::new(),
        }
    }

    /// Number of columns of X.
    pub fn columns(&self) -> usize {
        self.fit.cols()
    }

    /// Samples added so far.
    pub fn samples(&self) -> usize {
        self.count
    }

    /// Adds samples, one per row of `x`. On an error nothing is added.
    pub fn add<T: Sample>(&mut self, x: MatrixRef<'_, T>) -> Result<(), HessianError> {
        let k = self.columns();
        if x.cols() != k {
            return Err(HessianError::SampleWidth { found: x.cols(), columns: k });
        }
        let finite = |r| entries(&x, r).all(f32::is_finite);
        if let Some(r) = (0..x.rows()).find(|&r| !finite(r)) {
            let (column, value) = entries(&x, r)
                .enumerate()
                .find(|(_, value)| !value.is_finite())
                .expect("this row has such an entry");
            let sample = self.first + self.count + r;
            return Err(HessianError::Sample { sample, column, value, kind: T::NAME });
        }
        if k == 0 {
            // There is nothing to sum, but every sample counts.
            self.count += x.rows();
        }
        let mut r = 0;
        while r < x.rows() && k > 0 {
            let end = x.rows().min(r + BATCH * CHUNK - self.gathered_rows());
            self.gathered.reserve((end - r) * k);
            for r in r..end {
                self.gathered.extend(entries(&x, r));
            }
            self.count += end - r;
            r = end;
            if self.gathered_rows() == BATCH * CHUNK {
                self.flush();
            }
        }
        Ok(())
    }

    /// Adds the sum over the samples that follow in the stream.
    ///
    /// Both sums are flushed first: a chunk that is not full is added as it is. The result
    /// depends only on where the stream was cut.
    ///
    /// ```
    /// use openwork::{Matrix, hessian::HessianSum};
    /// let x = Matrix::from_fn(3, 1, |i, _| i as f32);
    /// let mut head = HessianSum::new(1);
    /// let mut tail = HessianSum::starting_at(1, 2);
    /// head.add(x.view().part(0, 2, 0, 1)).unwrap();
    /// tail.add(x.view().part(2, 1, 0, 1)).unwrap();
    /// head.merge(tail).unwrap();
    /// assert_eq!(head.samples(), 3);
    /// ```
    pub fn merge(&mut self, next: Self) -> Result<(), HessianError> {
        if next.first != self.first + self.count {
            return Err(HessianError::Order {
                expected: self.first + self.count,
                found: next.first,
            });
        }
        self.merge_next(next)
    }

    /// As [`merge`](Self::merge), where samples between the two are missing.
    pub fn merge_next(&mut self, mut next: Self) -> Result<(), HessianError> {
        if next.columns() != self.columns() {
            return Err(HessianError::SampleWidth {
                found: next.columns(),
                columns: self.columns(),
            });
        }
        self.flush();
        next.flush();
        self.fit.merge(&next.fit);
        self.held.merge(&next.held);
        self.count += next.count;
        self.held_count += next.held_count;
        Ok(())
    }

    /// H = X'X / n, and the same over the held-out samples alone.
    pub fn finish(mut self) -> Result<Hessian, HessianError> {
        if self.count == 0 {
            return Err(HessianError::NoSamples);
        }
        self.flush();
        let (n, n_held) = (self.count, self.held_count);
        let held = (n_held > 0 && n_held < n).then(|| self.held.to_matrix(1.0 / n_held as f64));
        self.fit.merge(&self.held);
        drop(self.held);
        let h = self.fit.to_matrix(1.0 / n as f64);
        Ok(Hessian::trusted(h, Some(n), held.map(|held| (held, n_held))))
    }

    fn gathered_rows(&self) -> usize {
        self.gathered.len() / self.columns().max(1)
    }

    /// Sums all buffered samples, including those of a chunk that is not full.
    fn flush(&mut self) {
        let (k, rows) = (self.columns(), self.gathered_rows());
        let x = MatrixRef::new(&self.gathered, rows, k);
        let before = self.first + self.count - rows;
        let (mut fit, mut held) = (Vec::new(), Vec::new());
        for start in (0..rows).step_by(CHUNK) {
            let chunk = x.part(start, CHUNK.min(rows - start), 0, k);
            if held_out((before + start) / CHUNK) {
                self.held_count += chunk.rows();
                held.push(chunk);
            } else {
                fit.push(chunk);
            }
        }
        self.fit.add(&fit);
        self.held.add(&held);
        self.gathered.clear();
    }
}

/// Row `r` of the samples, as f32.
fn entries<'a, T: Sample>(x: &'a MatrixRef<'_, T>, r: usize) -> impl Iterator<Item = f32> + 'a {
    (0..x.cols()).map(move |c| x.at(r, c).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::tests::random;
    use crate::matrix::Matrix;

    /// More than a batch, and not a multiple of a chunk.
    const N: usize = BATCH * CHUNK + CHUNK + 17;

    fn summed(x: &Matrix, piece: usize) -> HessianSum {
        let mut sum = HessianSum::new(x.cols());
        for start in (0..x.rows()).step_by(piece) {
            let rows = piece.min(x.rows() - start);
            sum.add(x.view().part(start, rows, 0, x.cols())).unwrap();
        }
        sum
    }

    #[test]
    fn h_equals_its_definition_and_the_split_adds_up() {
        let (x, k) = (random(N, 11, 1), 11);
        let h = summed(&x, N).finish().unwrap();
        let mean = |rows: &[usize], i: usize, j: usize| {
            let terms = rows.iter().map(|&r| f64::from(x.row(r)[i]) * f64::from(x.row(r)[j]));
            terms.sum::<f64>() / rows.len() as f64
        };
        let all: Vec<usize> = (0..N).collect();
        let (held, fit): (Vec<usize>, Vec<usize>) = (0..N).partition(|&r| (r / CHUNK) % 3 == 1);
        let split = h.split().unwrap();
        assert_eq!(split.0.samples(), Some(fit.len()));
        assert_eq!(split.1.samples(), Some(held.len()));
        for i in 0..k {
            for j in 0..k {
                for (h, rows) in [(&h, &all), (&split.0, &fit), (&split.1, &held)] {
                    let (got, want) = (h.matrix().row(i)[j], mean(rows, i, j));
                    assert!((got - want).abs() <= 1e-6, "{i}, {j}: {got} for {want}");
                }
            }
        }
    }

    #[test]
    fn pieces_of_any_size_and_any_number_of_threads_give_the_same_bytes() {
        let x = random(N, 300, 2);
        let whole = summed(&x, N).finish().unwrap();
        for (piece, threads) in [(1, 2), (7, 1), (CHUNK, 3), (CHUNK + 1, 2), (1000, 3)] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let h = pool.install(|| summed(&x, piece).finish().unwrap());
            assert!(h == whole, "pieces of {piece} on {threads} threads");
        }
    }

    #[test]
    fn parts_merged_in_order_give_the_same_bytes_whoever_summed_them() {
        let (x, part) = (random(N, 40, 3), 2 * CHUNK);
        let merged = |threads: usize, piece: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut total = HessianSum::new(40);
                for start in (0..N).step_by(part) {
                    let rows = part.min(N - start);
                    let mut next = HessianSum::starting_at(40, start);
                    for from in (0..rows).step_by(piece) {
                        let rows = piece.min(rows - from);
                        next.add(x.view().part(start + from, rows, 0, 40)).unwrap();
                    }
                    total.merge(next).unwrap();
                }
                total.finish().unwrap()
            })
        };
        let first = merged(1, part);
        assert!(first == merged(2, 100) && first == merged(3, 1));
        // The split is the one of the whole stream.
        let whole = summed(&x, N).finish().unwrap();
        assert_eq!(first.split().unwrap().1.samples(), whole.split().unwrap().1.samples());
        for (a, b) in first.matrix().data().iter().zip(whole.matrix().data()) {
            assert!((a - b).abs() <= 1e-15, "{a} and {b}");
        }
    }

    #[test]
    fn parts_out_of_order_are_refused() {
        let mut sum = HessianSum::new(2);
        let error = sum.merge(HessianSum::starting_at(2, 5)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a partial sum starts at sample 5, but sample 0 is next; merge the parts in order"
        );
        let error = sum.merge(HessianSum::new(3)).unwrap_err();
        assert_eq!(error.to_string(), "a sample has 3 entries, but H has 2 columns");
    }

    #[test]
    fn half_precision_rows_sum_like_their_f32_values() {
        let x = random(300, 9, 4);
        let b = Matrix::from_fn(300, 9, |i, j| f32::from(bf16::from_f32(x.row(i)[j])));
        let mut sum = HessianSum::new(9);
        let rows: Vec<bf16> = x.data().iter().map(|&x| bf16::from_f32(x)).collect();
        sum.add(MatrixRef::new(&rows, 300, 9)).unwrap();
        assert!(sum.finish().unwrap() == summed(&b, 300).finish().unwrap());
        let b = Matrix::from_fn(300, 9, |i, j| f32::from(f16::from_f32(x.row(i)[j])));
        let mut sum = HessianSum::new(9);
        let rows: Vec<f16> = x.data().iter().map(|&x| f16::from_f32(x)).collect();
        sum.add(MatrixRef::new(&rows, 300, 9)).unwrap();
        assert!(sum.finish().unwrap() == summed(&b, 300).finish().unwrap());
    }

    #[test]
    fn a_sample_that_is_not_finite_is_named_and_nothing_is_added() {
        let mut sum = HessianSum::new(3);
        sum.add(random(4, 3, 1).view()).unwrap();
        let mut x = random(2, 3, 2);
        x.row_mut(1)[2] = f32::NAN;
        let error = sum.add(x.view()).unwrap_err().to_string();
        assert_eq!(error, "sample 5, column 2 is NaN; every input must be finite");
        let rows = [f16::ONE, f16::from_f32(1e6), f16::ONE];
        let error = sum.add(MatrixRef::new(&rows, 1, 3)).unwrap_err().to_string();
        assert_eq!(
            error,
            "sample 4, column 1 is inf; the largest f16 is 65504; store these inputs as f32 or bf16"
        );
        assert_eq!(sum.samples(), 4);
    }

    #[test]
    fn wrong_widths_and_no_samples_are_refused() {
        let mut sum = HessianSum::new(3);
        let error = sum.add(random(4, 2, 1).view()).unwrap_err();
        assert_eq!(error.to_string(), "a sample has 2 entries, but H has 3 columns");
        let error = sum.finish().unwrap_err();
        assert_eq!(error.to_string(), "H has no samples; give it at least one row of inputs");
    }

    #[test]
    fn few_samples_have_no_split() {
        assert!(summed(&random(CHUNK, 3, 1), 9).finish().unwrap().split().is_none());
        assert!(summed(&random(CHUNK + 1, 3, 1), 9).finish().unwrap().split().is_some());
    }
}
