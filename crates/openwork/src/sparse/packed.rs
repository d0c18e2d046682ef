//! A packed matrix: packing, unpacking, stored parts, and products.

use super::error::{PackError, PartsError};
use super::kept::{Kind, kept, mask};
use super::kernel::{Kernel, Value};
use super::{
    FORMATS, Format, IndexStorage, Layout, PackedView, Shape, ValueType, Values, ValuesRef,
    general, layout, matmul, matvec,
};
use crate::mask::Bits;
use crate::matrix::{MatrixMut, MatrixRef};
use crate::spec::{Element, Spec};
use crate::values::typed;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// One tensor of a spec, packed. Holds, once built:
///
/// 1. the index is one that packing can produce for this spec;
/// 2. the number of values is the one that the index implies.
///
/// A tensor with more than two axes is a matrix whose rows are the first axis.
#[derive(Clone, Debug)]
pub struct Packed {
    spec: Arc<Spec>,
    tensor: usize,
    rows: usize,
    cols: usize,
    format: &'static Format,
    shape: Shape,
    index: Vec<u8>,
    values: Values,
}

/// Smallest and largest number of bytes that a task of a matrix-vector product reads.
const TASK_BYTES: Range<usize> = 1 << 15..1 << 19;

impl Packed {
    /// The format of tensor `tensor` of a spec.
    ///
    /// # Panics
    ///
    /// If there is no such tensor.
    pub fn format_of(spec: &Spec, tensor: usize) -> &'static Format {
        Self::plan(spec, tensor).0
    }

    fn plan(spec: &Spec, tensor: usize) -> (&'static Format, Shape) {
        let (rows, cols) = matrix_shape(spec, tensor);
        FORMATS
            .iter()
            .find_map(|format| Some((format, (format.fits)(spec, rows, cols)?)))
            .expect("the last format fits any spec")
    }

    /// Packs the weights of a spec's only tensor.
    pub fn pack(spec: &Arc<Spec>, weights: ValuesRef<'_>) -> Result<Self, PackError> {
        let mut all = Self::pack_all(spec, &[weights])?;
        Ok(all.pop().expect("one for each tensor"))
    }

    /// Packs the weights of all tensors of a spec.
    pub fn pack_all(spec: &Arc<Spec>, weights: &[ValuesRef<'_>]) -> Result<Vec<Self>, PackError> {
        if weights.len() != spec.tensors().len() {
            return Err(PackError::Tensors {
                expected: spec.tensors().len(),
                found: weights.len(),
            });
        }
        for (tensor, weights) in spec.tensors().iter().zip(weights) {
            if tensor.size() != weights.len() {
                return Err(PackError::Size {
                    tensor: tensor.name().to_string(),
                    expected: tensor.size(),
                    found: weights.len(),
                });
            }
        }
        let stay = match weights {
            // One type known outside the loop: most weights by far.
            [one] => typed!(ValuesRef, one, v => kept(spec, |e| kind(v[e.offset]))),
            all => {
                kept(spec, |e: Element| typed!(ValuesRef, all[e.tensor], v => kind(v[e.offset])))
            }
        }?;
        Ok(weights.iter().enumerate().map(|(t, w)| Self::gathered(spec, t, &stay, *w)).collect())
    }

    /// Packs a tensor, given its kept blocks.
    fn gathered(spec: &Arc<Spec>, tensor: usize, stay: &Bits, weights: ValuesRef<'_>) -> Self {
        let (format, mut shape) = Self::plan(spec, tensor);
        let mask = mask(spec, tensor, stay);
        let index = layout!(&shape, l => l.encode(&mask));
        shape.accept(&index);
        let values = match weights {
            ValuesRef::F32(w) => Values::F32(gather(&shape, &index, w)),
            ValuesRef::F16(w) => Values::F16(gather(&shape, &index, w)),
            ValuesRef::Bf16(w) => Values::Bf16(gather(&shape, &index, w)),
        };
        let (rows, cols) = matrix_shape(spec, tensor);
        Self { spec: Arc::clone(spec), tensor, rows, cols, format, shape, index, values }
    }

    /// A tensor from its stored parts. They are not trusted: everything is checked.
    pub fn from_parts(
        spec: &Arc<Spec>,
        tensor: usize,
        format: &str,
        index: Vec<u8>,
        values: Values,
    ) -> Result<Self, PartsError> {
        let parts = (values.len(), values.value_type());
        let (format, shape, index) = Self::checked(spec, tensor, format, index, parts)?;
        let (rows, cols) = matrix_shape(spec, tensor);
        let spec = Arc::clone(spec);
        Ok(Self { spec, tensor, rows, cols, format, shape, index, values })
    }

    /// Checks whether [`from_parts`](Self::from_parts) accepts an index with this many
    /// values of a type.
    pub fn check_parts(
        spec: &Spec,
        tensor: usize,
        format: &str,
        index: &[u8],
        values: usize,
        value_type: ValueType,
    ) -> Result<(), PartsError> {
        Self::checked(spec, tensor, format, index.to_vec(), (values, value_type)).map(drop)
    }

    /// Checks stored parts and returns the index in memory.
    fn checked(
        spec: &Spec,
        tensor: usize,
        format: &str,
        index: Vec<u8>,
        (count, value_type): (usize, ValueType),
    ) -> Result<(&'static Format, Shape, Vec<u8>), PartsError> {
        let tensors = spec.tensors().len();
        if tensor >= tensors {
            return Err(PartsError::Tensor { tensors, tensor });
        }
        let (own, mut shape) = Self::plan(spec, tensor);
        if own.name != format {
            return Err(PartsError::Format {
                spec: spec.text().to_string(),
                expected: own.name,
                found: format.to_string(),
            });
        }
        let index = match own.storage {
            IndexStorage::ScopeCodes => {
                let stored = index.len() + count * value_type.bytes();
                general::plausible(spec.tensors()[tensor].size(), stored)?;
                let stay = general::decode(spec, tensor, &index)?;
                let mask = mask(spec, tensor, &stay);
                layout!(&shape, l => l.encode(&mask))
            }
            IndexStorage::Memory => {
                let expected = layout!(&shape, l => l.index_len());
                if index.len() != expected {
                    return Err(PartsError::Index { expected, found: index.len() });
                }
                layout!(&shape, l => l.check(&index))?;
                index
            }
        };
        shape.accept(&index);
        let expected = layout!(&shape, l => l.values_len());
        if count != expected {
            return Err(PartsError::Values { expected, found: count, value_type });
        }
        Ok((own, shape, index))
    }

    /// The spec.
    pub fn spec(&self) -> &Arc<Spec> {
        &self.spec
    }

    /// Its position among the spec's tensors.
    pub fn tensor(&self) -> usize {
        self.tensor
    }

    /// Its format.
    pub fn format(&self) -> &'static Format {
        self.format
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn memory_index(&self) -> &[u8] {
        &self.index
    }

    /// Rows of the matrix: outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the matrix: inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The kept values, in the format's order.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// The index as it is stored in a file.
    pub fn index(&self) -> Vec<u8> {
        match (&self.shape, self.format.storage) {
            (Shape::BitMask(mask), IndexStorage::ScopeCodes) => {
                let stay = general::kept_blocks(&self.spec, self.tensor, mask, &self.index);
                general::codes(&self.spec, self.tensor, &stay)
            }
            _ => self.index.clone(),
        }
    }

    /// Bytes in a file: values and index.
    pub fn stored_bytes(&self) -> usize {
        let index = match self.format.storage {
            IndexStorage::ScopeCodes => general::code_bytes(&self.spec, self.tensor),
            IndexStorage::Memory => self.index.len(),
        };
        self.values.len() * self.values.value_type().bytes() + index
    }

    /// Bytes in memory, all of which a product reads.
    pub fn bytes(&self) -> usize {
        self.values.len() * self.values.value_type().bytes() + self.index.len()
    }

    /// Bytes of the dense tensor.
    pub fn dense_bytes(&self) -> usize {
        self.rows * self.cols * self.values.value_type().bytes()
    }

    /// The dense tensor, bit for bit what was packed.
    pub fn unpack(&self) -> Values {
        match &self.values {
            Values::F32(v) => Values::F32(self.scatter(v)),
            Values::F16(v) => Values::F16(self.scatter(v)),
            Values::Bf16(v) => Values::Bf16(self.scatter(v)),
        }
    }

    fn scatter<T: Copy + Default>(&self, values: &[T]) -> Vec<T> {
        let mut dense = vec![T::default(); self.rows * self.cols];
        let mut values = values.iter();
        layout!(&self.shape, l => l.each(&self.index, |offset| {
            // There is a value per kept weight.
            if let Some(&value) = values.next() {
                dense[offset] = value;
            }
        }));
        dense
    }

    /// Rows that are stored together; [`matvec_rows`](Self::matvec_rows) accepts whole
    /// multiples.
    pub fn strip_rows(&self) -> usize {
        layout!(&self.shape, l => l.strip())
    }

    /// `y = W x`, on all threads.
    ///
    /// # Panics
    ///
    /// If the vectors do not fit the matrix.
    pub fn matvec(&self, x: &[f32], y: &mut [f32]) {
        assert_eq!((x.len(), y.len()), (self.cols, self.rows), "vectors that fit the matrix");
        let share = self.bytes().div_ceil(2 * rayon::current_num_threads());
        let bytes = share.clamp(TASK_BYTES.start, TASK_BYTES.end);
        let rows = (bytes * self.rows).div_ceil(self.bytes().max(1)).max(1);
        // Strips left over from whole streams are computed one by one, which is slower: a
        // large matrix has them only at its end.
        let most = layout!(&self.shape, l => l.streams());
        let streams = if bytes == TASK_BYTES.end { most } else { 1 };
        let rows = rows.next_multiple_of(self.strip_rows() * streams);
        y.par_chunks_mut(rows).enumerate().for_each(|(i, y)| {
            self.matvec_rows(i * rows..i * rows + y.len(), x, y);
        });
    }

    /// `y = W x` for some rows, on this thread. The rows begin and end with
    /// [strips](Self::strip_rows), or end with the matrix; the result does not depend on
    /// how the rows are divided.
    ///
    /// # Panics
    ///
    /// If they do not, or if the vectors do not fit the matrix.
    pub fn matvec_rows(&self, rows: Range<usize>, x: &[f32], y: &mut [f32]) {
        self.product(rows, x, y, Kernel::best());
    }

    pub(super) fn product(&self, rows: Range<usize>, x: &[f32], y: &mut [f32], kernel: Kernel) {
        let strip = self.strip_rows();
        assert!(
            rows.start.is_multiple_of(strip)
                && (rows.end.is_multiple_of(strip) || rows.end == self.rows)
                && rows.start <= rows.end
                && rows.end <= self.rows,
            "rows {rows:?} of {} are not whole strips of {strip}",
            self.rows
        );
        assert_eq!((x.len(), y.len()), (self.cols, rows.len()), "vectors that fit the matrix");
        layout!(&self.shape, l => typed!(Values, &self.values, v => {
            matvec::matvec(l, PackedView { index: &self.index, values: v }, rows, x, y, kernel);
        }));
    }

    /// `Y <- beta Y + X W'`, on all threads; with `beta = 0` the old entries of
    /// `Y` are not read.
    ///
    /// # Panics
    ///
    /// If the shapes do not fit together.
    pub fn matmul(&self, beta: f32, x: MatrixRef<'_>, y: MatrixMut<'_>) {
        self.products(beta, x, y, Kernel::best());
    }

    pub(super) fn products(&self, beta: f32, x: MatrixRef<'_>, y: MatrixMut<'_>, kernel: Kernel) {
        assert_eq!(
            (x.cols(), y.rows(), y.cols()),
            (self.cols, x.rows(), self.rows),
            "matrices that fit"
        );
        layout!(&self.shape, l => typed!(Values, &self.values, v => {
            let w = PackedView { index: &self.index, values: v };
            matmul::matmul(l, w, self.rows, beta, x, y, kernel);
        }));
    }
}

impl Shape {
    /// Takes over what follows from a checked index.
    fn accept(&mut self, index: &[u8]) {
        if let Self::BitMask(mask) = self {
            mask.set_starts(index);
        }
    }
}

/// Rows and columns of a tensor as a matrix.
fn matrix_shape(spec: &Spec, tensor: usize) -> (usize, usize) {
    match spec.tensors()[tensor].dims() {
        [] => (1, 1),
        [only] => (1, *only),
        [rows, rest @ ..] => (*rows, rest.iter().product()),
    }
}

fn kind<T: Value>(value: T) -> Kind {
    match value.bits() {
        0 => Kind::Zero,
        _ if value.wide() == 0.0 => Kind::NegativeZero,
        _ => Kind::Number,
    }
}

fn gather<T: Copy>(shape: &Shape, index: &[u8], weights: &[T]) -> Vec<T> {
    let mut values = Vec::with_capacity(layout!(shape, l => l.values_len()));
    layout!(shape, l => l.each(index, |offset| values.push(weights[offset])));
    values
}
