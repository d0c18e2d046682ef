//! Weights of a linear layer in their storage type, and f32 products with them.

use crate::checkpoint::{Dtype, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use openwork::linalg::matvec::Element;
use openwork::linalg::{Threads, gemm, gemm_each, gemm_rounded};
use openwork::sparse::{Packed, PartsError, Values, ValuesRef};
use openwork::{Matrix, MatrixMut, MatrixRef};
use rayon::prelude::*;
use std::ops::Range;

/// How weights are stored in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// All as f32, including packed weights: for pruning.
    F32,
    /// Packed weights unchanged, all others as f32: for passes over many tokens.
    Packed,
    /// Packed weights, bf16 and f16 unchanged, all others rounded to bf16: for
    /// decoding.
    Half,
}

/// A matrix `[out, in]` in a storage type, or packed.
#[derive(Clone, Debug)]
pub enum Weight {
    /// 4 bytes per weight.
    F32(Matrix<f32>),
    /// 4 bytes per weight, whose products with many rows may round operands to bf16
    /// ([`gemm_rounded`]): for training.
    Rounding(Matrix<f32>),
    /// 2 bytes per weight.
    Bf16(Matrix<bf16>),
    /// 2 bytes per weight.
    F16(Matrix<f16>),
    /// The kept weights of a pruned matrix.
    Packed(Box<Packed>),
}

/// Weights converted to f32 at a time, in a product with many rows.
const PANEL: usize = 1 << 22;
/// Products with at most this many rows read the matrix once per row.
const FEW: usize = 2;
/// Minimum and maximum bytes that one task of a matrix-vector product reads.
const TASK_BYTES: Range<usize> = 1 << 15..1 << 19;

impl Weight {
    /// Loads a matrix. Fails only for packed weights that changed after the file was
    /// opened.
    pub fn load(tensor: &Tensor<'_>, storage: Storage) -> Result<Self, PartsError> {
        if storage != Storage::F32
            && let Some(packed) = tensor.packed()?
        {
            return Ok(Weight::Packed(Box::new(packed)));
        }
        let (rows, cols) = (tensor.rows(), tensor.row_len());
        Ok(match (storage, tensor.dtype(), tensor.bytes()) {
            (Storage::F32 | Storage::Packed, ..) => {
                Weight::F32(Matrix::from_vec(rows, cols, tensor.to_f32()))
            }
            (Storage::Half, Dtype::F16, Some(bytes)) => {
                let data =
                    bytes.as_chunks::<2>().0.iter().map(|&b| f16::from_le_bytes(b)).collect();
                Weight::F16(Matrix::from_vec(rows, cols, data))
            }
            (Storage::Half, Dtype::BF16, Some(bytes)) => {
                let data =
                    bytes.as_chunks::<2>().0.iter().map(|&b| bf16::from_le_bytes(b)).collect();
                Weight::Bf16(Matrix::from_vec(rows, cols, data))
            }
            (Storage::Half, ..) => {
                let mut narrow = Matrix::zeros(rows, cols);
                let step = (PANEL / cols.max(1)).max(1);
                let mut wide = vec![0.0; step.min(rows) * cols];
                for start in (0..rows).step_by(step) {
                    let count = step.min(rows - start);
                    let wide = &mut wide[..count * cols];
                    tensor.rows_f32(start..start + count, wide);
                    narrow.data_mut()[start * cols..][..count * cols].convert_from_f32_slice(wide);
                }
                Weight::Bf16(narrow)
            }
        })
    }

    /// The same weights, unpacked if they are packed.
    pub fn unpacked(&self) -> Self {
        let Weight::Packed(packed) = self else { return self.clone() };
        let (rows, cols) = (packed.rows(), packed.cols());
        match packed.unpack() {
            Values::F32(data) => Weight::F32(Matrix::from_vec(rows, cols, data)),
            Values::F16(data) => Weight::F16(Matrix::from_vec(rows, cols, data)),
            Values::Bf16(data) => Weight::Bf16(Matrix::from_vec(rows, cols, data)),
        }
    }

    /// The values in row-major order, unless they are packed.
    pub fn values(&self) -> Option<ValuesRef<'_>> {
        match self {
            Weight::F32(m) | Weight::Rounding(m) => Some(ValuesRef::F32(m.data())),
            Weight::Bf16(m) => Some(ValuesRef::Bf16(m.data())),
            Weight::F16(m) => Some(ValuesRef::F16(m.data())),
            Weight::Packed(_) => None,
        }
    }

    /// Number of outputs.
    pub fn rows(&self) -> usize {
        match self {
            Weight::F32(m) | Weight::Rounding(m) => m.rows(),
            Weight::Bf16(m) => m.rows(),
            Weight::F16(m) => m.rows(),
            Weight::Packed(m) => m.rows(),
        }
    }

    /// Number of inputs.
    pub fn cols(&self) -> usize {
        match self {
            Weight::F32(m) | Weight::Rounding(m) => m.cols(),
            Weight::Bf16(m) => m.cols(),
            Weight::F16(m) => m.cols(),
            Weight::Packed(m) => m.cols(),
        }
    }

    /// Size in memory, in bytes; decoding a token reads all of it.
    pub fn bytes(&self) -> usize {
        match self {
            Weight::F32(m) | Weight::Rounding(m) => 4 * m.data().len(),
            Weight::Bf16(m) => 2 * m.data().len(),
            Weight::F16(m) => 2 * m.data().len(),
            Weight::Packed(m) => m.bytes(),
        }
    }

    /// Converts rows to f32 into `out`.
    ///
    /// # Panics
    ///
    /// If `out` has the wrong length.
    pub fn rows_f32(&self, rows: Range<usize>, out: &mut [f32]) {
        let part = rows.start * self.cols()..rows.end * self.cols();
        match self {
            Weight::F32(m) | Weight::Rounding(m) => out.copy_from_slice(&m.data()[part]),
            Weight::Bf16(m) => m.data()[part].convert_to_f32_slice(out),
            Weight::F16(m) => m.data()[part].convert_to_f32_slice(out),
            Weight::Packed(m) => m.rows_f32(rows, out),
        }
    }

    /// The matrix, if its weights are f32.
    pub fn matrix(&self) -> Option<&Matrix> {
        match self {
            Weight::F32(matrix) | Weight::Rounding(matrix) => Some(matrix),
            _ => None,
        }
    }

    /// The matrix, mutable, if its weights are f32.
    pub fn matrix_mut(&mut self) -> Option<&mut Matrix> {
        match self {
            Weight::F32(matrix) | Weight::Rounding(matrix) => Some(matrix),
            _ => None,
        }
    }

    /// Sets whether products with many rows may round their operands to bf16, if the weights
    /// are f32.
    pub fn round_products(&mut self, rounds: bool) {
        let Some(matrix) = self.matrix_mut() else { return };
        let matrix = std::mem::replace(matrix, Matrix::zeros(0, 0));
        *self = match rounds {
            true => Weight::Rounding(matrix),
            false => Weight::F32(matrix),
        };
    }

    /// `C <- beta C + alpha A B`, rounded as the products of this weight: for those of its
    /// gradients.
    pub(super) fn product(
        &self,
        beta: f32,
        c: MatrixMut<'_>,
        alpha: f32,
        a: MatrixRef<'_>,
        b: MatrixRef<'_>,
    ) {
        match self {
            Weight::Rounding(_) => gemm_rounded(beta, alpha, a, &mut [(b, c)], Threads::All),
            _ => gemm(beta, c, alpha, a, b, Threads::All),
        }
    }

    /// Rows that must stay in one task.
    fn strip_rows(&self) -> usize {
        if let Weight::Packed(packed) = self { packed.strip_rows() } else { 1 }
    }

    /// Rows `rows` times `x`.
    fn matvec_rows(&self, rows: Range<usize>, x: &[f32], y: &mut [f32]) {
        let part = rows.start * x.len()..rows.end * x.len();
        match self {
            Weight::F32(m) | Weight::Rounding(m) => f32::matvec(&m.data()[part], x, y),
            Weight::Bf16(m) => bf16::matvec(&m.data()[part], x, y),
            Weight::F16(m) => f16::matvec(&m.data()[part], x, y),
            Weight::Packed(m) => m.matvec_rows(rows, x, y),
        }
    }
}

/// The products `Y_i = X W_i'` of one input with several matrices, `X` being
/// `[rows, in]`.
///
/// # Panics
///
/// If the shapes do not fit together.
pub fn apply(x: MatrixRef<'_>, products: &mut [(&Weight, MatrixMut<'_>)]) {
    if x.rows() > FEW {
        // The f32 matrices together: their input is packed once.
        let (mut wide, mut rounding) = (Vec::new(), Vec::new());
        for (weight, y) in products {
            match weight {
                Weight::F32(w) => wide.push((w.view().t(), y.reborrow())),
                Weight::Rounding(w) => rounding.push((w.view().t(), y.reborrow())),
                _ => multiply(0.0, y.reborrow(), x, weight),
            }
        }
        gemm_each(0.0, 1.0, x, &mut wide, Threads::All);
        gemm_rounded(0.0, 1.0, x, &mut rounding, Threads::All);
        return;
    }
    // Two tasks per thread, so that a delayed task delays less.
    let total: usize = products.iter().map(|(weight, _)| weight.bytes()).sum();
    let share = total.div_ceil(2 * rayon::current_num_threads());
    let task_bytes = share.clamp(TASK_BYTES.start, TASK_BYTES.end);
    for r in 0..x.rows() {
        let x = x.row(r);
        // The rows of all matrices in one parallel loop: waking threads takes time.
        let mut tasks = Vec::new();
        for (weight, y) in products.iter_mut() {
            assert_eq!((weight.cols(), weight.rows()), (x.len(), y.cols()), "shapes do not fit");
            let step = (task_bytes * weight.rows()).div_ceil(weight.bytes().max(1)).max(1);
            let step = step.next_multiple_of(weight.strip_rows());
            for (i, part) in y.row_mut(r).chunks_mut(step).enumerate() {
                tasks.push((*weight, i * step, part));
            }
        }
        tasks.into_par_iter().for_each(|(weight, start, y)| {
            weight.matvec_rows(start..start + y.len(), x, y);
        });
    }
}

/// Adds one product: `Y <- Y + X W'`.
pub fn apply_add(x: MatrixRef<'_>, weight: &Weight, mut y: MatrixMut<'_>) {
    if x.rows() > FEW {
        return multiply(1.0, y, x, weight);
    }
    let mut product = Matrix::zeros(x.rows(), weight.rows());
    apply(x, &mut [(weight, product.view_mut())]);
    for r in 0..x.rows() {
        super::vector::add(y.row_mut(r), product.row(r));
    }
}

/// `Y <- beta Y + X W'`, with the matrix converted to f32 panel by panel.
fn multiply(beta: f32, mut y: MatrixMut<'_>, x: MatrixRef<'_>, weight: &Weight) {
    match weight {
        Weight::F32(w) | Weight::Rounding(w) => {
            return weight.product(beta, y, 1.0, x, w.view().t());
        }
        Weight::Packed(w) => return w.matmul(beta, x, y),
        _ => {}
    }
    let (n, k, t) = (weight.rows(), weight.cols(), x.rows());
    let step = (PANEL / k.max(1)).clamp(1, n.max(1));
    let mut panel = vec![0.0; step * k];
    for start in (0..n).step_by(step) {
        let count = step.min(n - start);
        let panel = &mut panel[..count * k];
        let share = count.div_ceil(rayon::current_num_threads()).max(1);
        panel.par_chunks_mut(share * k).enumerate().for_each(|(i, part)| {
            let first = start + i * share;
            weight.rows_f32(first..first + part.len() / k, part);
        });
        let panel = MatrixRef::new(panel, count, k);
        gemm(beta, y.reborrow().part(0, t, start, count), 1.0, x, panel.t(), Threads::All);
    }
}
