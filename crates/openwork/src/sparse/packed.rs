//! A packed matrix: packing, unpacking, stored parts, and products.

use super::activations::Activations;
use super::encoding::Store;
use super::error::{PackError, PartsError};
use super::kept::{Kept, Kind, kept};
use super::kernel::{Kernel, Value};
use super::quant::{CodeBits, CodesRef, Quantized};
use super::{
    Encoding, FORMATS, Format, IndexStorage, Layout, PackedValues, PackedView, Shape, ValueType,
    Values, ValuesRef, bitmask, dense_codes, general, layout, matmul, matvec,
};
#[cfg(target_arch = "x86_64")]
use super::{planes::Planes, source::CodesView, vnni};
use crate::linalg::matvec::Element as _;
use crate::linalg::{Threads, gemm, has_matrix_unit};
use crate::mask::{Bits, Choice, Mask};
use crate::matrix::{MatrixMut, MatrixRef};
use crate::spec::{Element, Spec};
use crate::values::{rounded, typed};
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
    /// The codes of the scopes, where a file holds those instead.
    codes: Vec<u8>,
    values: PackedValues,
    /// The first group of each strip, and the number of groups; empty without codes.
    groups: Vec<usize>,
}

/// Values that a product with codes converts to f32 at a time: a quarter of a
/// first-level cache.
const CONVERTED: usize = 1 << 11;
/// The same for a product with many rows.
const CONVERTED_MANY: usize = 1 << 22;

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

    /// Why products with a tensor of a spec are slower than its bytes allow, if they are:
    /// its format has no kernel for the pattern.
    ///
    /// # Panics
    ///
    /// If there is no such tensor.
    pub fn slow_because(spec: &Spec, tensor: usize) -> Option<&'static str> {
        let general = Self::format_of(spec, tensor).name == general::FORMAT.name;
        (general && spec.density() < bitmask::MIN_DENSITY).then_some(general::SLOW)
    }

    pub(super) fn plan(spec: &Spec, tensor: usize) -> (&'static Format, Shape) {
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
        let choice = choice(spec, weights)?;
        Ok(weights.iter().enumerate().map(|(t, w)| Self::gathered(spec, t, &choice, *w)).collect())
    }

    /// Packs a tensor, given its kept blocks.
    fn gathered(spec: &Arc<Spec>, tensor: usize, choice: &Choice, weights: ValuesRef<'_>) -> Self {
        let (format, mut shape) = Self::plan(spec, tensor);
        let kept = Kept { spec, tensor, choice };
        let codes = match format.storage {
            IndexStorage::ScopeCodes => general::codes(&kept),
            IndexStorage::Memory => Vec::new(),
        };
        let index = layout!(&shape, l => l.encode(&kept));
        shape.accept(&index);
        let values = match weights {
            ValuesRef::F32(w) => Values::F32(gather(&shape, &index, w)),
            ValuesRef::F16(w) => Values::F16(gather(&shape, &index, w)),
            ValuesRef::Bf16(w) => Values::Bf16(gather(&shape, &index, w)),
        };
        let (rows, cols) = matrix_shape(spec, tensor);
        let (spec, values) = (Arc::clone(spec), values.into());
        Self { spec, tensor, rows, cols, format, shape, index, codes, values, groups: Vec::new() }
    }

    /// The same tensor with its values stored in another way: as the nearest numbers of a
    /// type, or as the nearest codes.
    pub fn with_values(&self, encoding: Encoding) -> Result<Self, PackError> {
        let count = layout!(&self.shape, l => l.values_len());
        let (values, groups) = match encoding.store() {
            Store::Numbers(value_type) => {
                let mut wide = vec![0.0; count];
                self.read_values(0..self.strips(), &mut wide);
                let mut values = Values::zeros(value_type, count);
                typed!(Values, &mut values, v => rounded(&wide, v)).map_err(|at| {
                    PackError::Range { at, value: wide[at].to_string(), value_type }
                })?;
                (values.into(), Vec::new())
            }
            Store::Codes(bits) => {
                let groups = self.group_starts(encoding.group());
                (self.codes(bits, encoding.group())?.into(), groups)
            }
        };
        Ok(Self { values, groups, spec: Arc::clone(&self.spec), ..self.clone_layout() })
    }

    /// All but the values.
    fn clone_layout(&self) -> Self {
        Self {
            spec: Arc::clone(&self.spec),
            shape: self.shape.clone(),
            index: self.index.clone(),
            codes: self.codes.clone(),
            values: Values::F32(Vec::new()).into(),
            groups: Vec::new(),
            ..*self
        }
    }

    /// The codes of all values, a run per strip.
    fn codes(&self, bits: CodeBits, group: usize) -> Result<Quantized, PackError> {
        /// Strips whose codes one task computes.
        const STRIPS: usize = 64;
        let stored = self.values.numbers().map_or(ValueType::F32, Values::value_type);
        let parts: Vec<Result<Quantized, PackError>> = (0..self.strips().div_ceil(STRIPS))
            .into_par_iter()
            .map(|part| {
                let mut codes = Quantized::new(bits, group);
                let mut wide = Vec::new();
                for strip in part * STRIPS..self.strips().min((part + 1) * STRIPS) {
                    let values = layout!(&self.shape, l => l.values_of(strip..strip + 1));
                    wide.resize(values.len(), 0.0);
                    self.read_values(strip..strip + 1, &mut wide);
                    if let Some(i) = wide.iter().position(|v| !v.is_finite()) {
                        let value = wide[i].to_string();
                        return Err(PackError::NotFinite { at: values.start + i, value });
                    }
                    codes.push_stored(&wide, stored);
                }
                Ok(codes)
            })
            .collect();
        let mut all = Quantized::new(bits, group);
        for part in parts {
            all.extend(&part?);
        }
        Ok(all)
    }

    /// Strips of the matrix.
    fn strips(&self) -> usize {
        self.rows.div_ceil(self.strip_rows())
    }

    /// The first group of each strip, and the number of groups.
    fn group_starts(&self, group: usize) -> Vec<usize> {
        group_starts(&self.shape, self.strips(), group)
    }

    /// The values of some strips as f32, in packed order.
    fn read_values(&self, strips: Range<usize>, out: &mut [f32]) {
        match &self.values {
            PackedValues::Numbers(values) => {
                let range = layout!(&self.shape, l => l.values_of(strips));
                typed!(Values, values, v => {
                    out.iter_mut().zip(&v[range]).for_each(|(out, v)| *out = v.wide());
                });
            }
            PackedValues::Codes(codes) => {
                let mut out = out;
                for strip in strips {
                    let count = layout!(&self.shape, l => l.values_of(strip..strip + 1)).len();
                    let (this, rest) = out.split_at_mut(count);
                    codes.read(self.groups[strip], this);
                    out = rest;
                }
            }
        }
    }

    /// A tensor from its stored parts. They are not trusted: everything is checked.
    pub fn from_parts(
        spec: &Arc<Spec>,
        tensor: usize,
        format: &str,
        index: Vec<u8>,
        values: impl Into<PackedValues>,
    ) -> Result<Self, PartsError> {
        let values = values.into();
        let scales;
        let parts = match &values {
            PackedValues::Numbers(v) => {
                ValuesPart::Numbers { count: v.len(), value_type: v.value_type() }
            }
            PackedValues::Codes(codes) => {
                scales = codes.scale_bytes();
                ValuesPart::Codes(CodesRef {
                    bits: codes.bits(),
                    group: codes.group(),
                    codes: codes.codes(),
                    scales: &scales,
                })
            }
        };
        let (format, shape, index, codes) = Self::checked(spec, tensor, format, index, parts)?;
        let (rows, cols) = matrix_shape(spec, tensor);
        let strips = rows.div_ceil(layout!(&shape, l => l.strip()));
        let groups = match &values {
            PackedValues::Numbers(_) => Vec::new(),
            PackedValues::Codes(codes) => group_starts(&shape, strips, codes.group()),
        };
        let spec = Arc::clone(spec);
        Ok(Self { spec, tensor, rows, cols, format, shape, index, codes, values, groups })
    }

    /// Checks whether [`from_parts`](Self::from_parts) accepts an index with these
    /// values.
    pub fn check_parts(
        spec: &Spec,
        tensor: usize,
        format: &str,
        index: &[u8],
        values: ValuesPart<'_>,
    ) -> Result<(), PartsError> {
        Self::checked(spec, tensor, format, index.to_vec(), values).map(drop)
    }

    /// Checks stored parts and returns the index in memory, and the codes if they are stored
    /// instead.
    fn checked(
        spec: &Spec,
        tensor: usize,
        format: &str,
        index: Vec<u8>,
        values: ValuesPart<'_>,
    ) -> Result<(&'static Format, Shape, Vec<u8>, Vec<u8>), PartsError> {
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
        let (index, codes) = match own.storage {
            IndexStorage::ScopeCodes => {
                let stored = index.len() + values.bytes();
                general::plausible(spec.tensors()[tensor].size(), stored)?;
                let choice = general::decode(spec, tensor, &index)?;
                let kept = Kept { spec, tensor, choice: &choice };
                (layout!(&shape, l => l.encode(&kept)), index)
            }
            IndexStorage::Memory => {
                let expected = layout!(&shape, l => l.index_len());
                if index.len() != expected {
                    return Err(PartsError::Index { expected, found: index.len() });
                }
                layout!(&shape, l => l.check(&index))?;
                (index, Vec::new())
            }
        };
        shape.accept(&index);
        match values {
            ValuesPart::Numbers { count, value_type } => {
                let expected = layout!(&shape, l => l.values_len());
                if count != expected {
                    return Err(PartsError::Values { expected, found: count, value_type });
                }
            }
            ValuesPart::Codes(codes) => {
                let (rows, _) = matrix_shape(spec, tensor);
                layout!(&shape, l => {
                    let strips = 0..rows.div_ceil(l.strip());
                    codes.check(l.values_len(), strips.map(|strip| l.values_of(strip..strip + 1).len()))
                })?;
            }
        }
        Ok((own, shape, index, codes))
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

    /// Number of kept values.
    pub fn kept(&self) -> usize {
        layout!(&self.shape, l => l.values_len())
    }

    /// The kept values, in the format's order.
    pub fn values(&self) -> &PackedValues {
        &self.values
    }

    /// The index as it is stored in a file.
    pub fn index(&self) -> Vec<u8> {
        self.stored_index().to_vec()
    }

    fn stored_index(&self) -> &[u8] {
        match self.format.storage {
            IndexStorage::ScopeCodes => &self.codes,
            IndexStorage::Memory => &self.index,
        }
    }

    /// Bytes in a file: values and index.
    pub fn stored_bytes(&self) -> usize {
        self.values.bytes() + self.stored_index().len()
    }

    /// Bytes in memory, all of which a product reads.
    pub fn bytes(&self) -> usize {
        self.values.bytes() + self.index.len()
    }

    /// Bytes of the dense tensor in the type of its values; for codes, with 16 bits.
    pub fn dense_bytes(&self) -> usize {
        let bytes = self.values.numbers().map_or(2, |values| values.value_type().bytes());
        self.rows * self.cols * bytes
    }

    /// The dense tensor, bit for bit what was packed; values of codes as f32, which
    /// expresses them exactly.
    pub fn unpack(&self) -> Values {
        match &self.values {
            PackedValues::Numbers(Values::F32(v)) => Values::F32(self.scatter(v)),
            PackedValues::Numbers(Values::F16(v)) => Values::F16(self.scatter(v)),
            PackedValues::Numbers(Values::Bf16(v)) => Values::Bf16(self.scatter(v)),
            PackedValues::Codes(_) => {
                let mut wide = vec![0.0; layout!(&self.shape, l => l.values_len())];
                self.read_values(0..self.strips(), &mut wide);
                Values::F32(self.scatter(&wide))
            }
        }
    }

    /// Some rows of the dense tensor as f32.
    ///
    /// # Panics
    ///
    /// If the rows are not in the matrix or `out` has another size.
    pub fn rows_f32(&self, rows: Range<usize>, out: &mut [f32]) {
        assert!(rows.end <= self.rows && rows.start <= rows.end, "rows {rows:?}");
        assert_eq!(out.len(), rows.len() * self.cols, "room for the rows");
        let height = self.strip_rows();
        let strips = rows.start / height..rows.end.div_ceil(height);
        // Offsets within the strips that lie before and after the rows.
        let skipped = (rows.start - strips.start * height) * self.cols;
        if let Shape::Dense(_) = self.shape {
            return self.read_values(strips, out);
        }
        out.fill(0.0);
        layout!(&self.shape, l => {
            let mut values = vec![0.0; l.values_of(strips.clone()).len()];
            self.read_values(strips.clone(), &mut values);
            let mut values = values.into_iter();
            let index = &self.index[l.index_of(strips.clone())];
            l.part(strips).each(index, |offset| {
                // There is a value per kept weight.
                let value = values.next().unwrap_or(0.0);
                if let Some(out) = offset.checked_sub(skipped).and_then(|at| out.get_mut(at)) {
                    *out = value;
                }
            });
        });
    }

    /// Number of kept values that are not zero.
    pub fn nonzeros(&self) -> usize {
        (0..self.strips())
            .into_par_iter()
            .map_init(Vec::new, |values, strip| {
                let count = layout!(&self.shape, l => l.values_of(strip..strip + 1)).len();
                values.resize(count, 0.0);
                self.read_values(strip..strip + 1, values);
                values.iter().filter(|&&value| value != 0.0).count()
            })
            .sum()
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
        self.product(rows, x, y, (Kernel::best(), Activations::chosen()));
    }

    pub(super) fn product(
        &self,
        rows: Range<usize>,
        x: &[f32],
        y: &mut [f32],
        means: (Kernel, Activations),
    ) {
        let (kernel, _) = means;
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
        let PackedValues::Numbers(values) = &self.values else {
            return self.product_of_codes(rows, x, y, means);
        };
        if let (Shape::Dense(_), true) = (&self.shape, kernel > Kernel::Scalar) {
            // Reads rows in streams of its own.
            let range = rows.start * self.cols..rows.end * self.cols;
            return typed!(Values, values, v => matrix_vector(&v[range], x, y));
        }
        layout!(&self.shape, l => typed!(Values, values, v => {
            matvec::matvec(l, PackedView { index: &self.index, values: v }, rows, x, y, kernel);
        }));
    }

    /// The same with codes. Which strips are computed by which kernel does not depend on how
    /// the rows are divided.
    fn product_of_codes(
        &self,
        rows: Range<usize>,
        x: &[f32],
        y: &mut [f32],
        means: (Kernel, Activations),
    ) {
        if let (Shape::Dense(_), PackedValues::Codes(codes)) = (&self.shape, &self.values) {
            return dense_codes::matvec(codes, rows, x, y, means);
        }
        let height = self.strip_rows();
        let first = rows.start / height;
        let (whole, rest) = y.split_at_mut(rows.len() / height * height);
        let after = first + whole.len() / height;
        if !self.whole_strips_of_codes(first, x, whole, means) {
            self.converted_codes(first, x, whole, means.0);
        }
        self.converted_codes(after, x, rest, means.0);
    }

    /// Whole strips from `first` on by a kernel for codes; `false` if there is none.
    fn whole_strips_of_codes(
        &self,
        first: usize,
        x: &[f32],
        y: &mut [f32],
        (kernel, activations): (Kernel, Activations),
    ) -> bool {
        #[cfg(target_arch = "x86_64")]
        if let PackedValues::Codes(codes) = &self.values {
            let w = CodesView { index: &self.index, codes, groups: &self.groups };
            let integers = self.rounds_vector(kernel);
            let numbers = kernel >= Kernel::Avx2 && layout!(&self.shape, l => l.has_codes_avx2());
            let planes;
            let x = if integers {
                // SAFETY: the machine has AVX-512.
                planes = unsafe { Planes::new(x, activations.planes()) };
                matvec::CodesInput::Planes(&planes)
            } else {
                matvec::CodesInput::Numbers(x)
            };
            if integers || numbers {
                // SAFETY: the layout and the machine have the kernel.
                layout!(&self.shape, l => unsafe { matvec::codes(l, w, first, x, y) });
                return true;
            }
        }
        let _ = (first, x, y, kernel, activations);
        false
    }

    /// Whether products of codes with a vector round it and are computed in integers, by VNNI.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn rounds_vector(&self, kernel: Kernel) -> bool {
        let has = match &self.shape {
            Shape::Dense(_) => true,
            shape => layout!(shape, l => l.has_codes_vnni()),
        };
        let codes = self.values.codes().is_some();
        codes && has && kernel == Kernel::Avx512 && vnni::available()
    }

    /// Strips from `first` on, the values of a few at a time converted to f32.
    fn converted_codes(&self, first: usize, x: &[f32], y: &mut [f32], kernel: Kernel) {
        let height = self.strip_rows();
        layout!(&self.shape, l => {
            let strips = y.len().div_ceil(height);
            let count = l.values_of(first..first + strips).len();
            let step = (CONVERTED * strips / count.max(1)).max(1);
            let mut wide = Vec::new();
            for (i, y) in y.chunks_mut(step * height).enumerate() {
                let start = first + i * step;
                let strips = start..start + y.len().div_ceil(height);
                wide.resize(l.values_of(strips.clone()).len(), 0.0);
                self.read_values(strips.clone(), &mut wide);
                let index = &self.index[l.index_of(strips.clone())];
                let w = PackedView { index, values: &wide[..] };
                matvec::matvec(&l.part(strips), w, 0..y.len(), x, y, kernel);
            }
        });
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
        if self.is_dense_faster(x.rows()) {
            return self.dense_products(beta, x, y);
        }
        let values = match (&self.shape, &self.values) {
            (_, PackedValues::Codes(_)) => return self.products_of_codes(beta, x, y, kernel),
            (_, PackedValues::Numbers(values)) => values,
        };
        layout!(&self.shape, l => typed!(Values, values, v => {
            let w = PackedView { index: &self.index, values: v };
            matmul::matmul(l, w, self.rows, beta, x, y, kernel);
        }));
    }

    /// The same with codes: the values of some strips at a time are converted to f32.
    fn products_of_codes(&self, beta: f32, x: MatrixRef<'_>, mut y: MatrixMut<'_>, kernel: Kernel) {
        let height = self.strip_rows();
        layout!(&self.shape, l => {
            let step = (CONVERTED_MANY * self.strips() / l.values_len().max(1)).max(1);
            let mut wide = Vec::new();
            for start in (0..self.strips()).step_by(step) {
                let strips = start..self.strips().min(start + step);
                wide.resize(l.values_of(strips.clone()).len(), 0.0);
                self.read_parallel(strips.clone(), &mut wide);
                let index = &self.index[l.index_of(strips.clone())];
                let w = PackedView { index, values: &wide[..] };
                let rows = start * height..self.rows.min(strips.end * height);
                let y = y.reborrow().part(0, x.rows(), rows.start, rows.len());
                matmul::matmul(&l.part(strips), w, rows.len(), beta, x, y, kernel);
            }
        });
    }

    /// Whether a product with `rows` rows is faster with dense weights: a kernel that skips
    /// weights loads an accumulator or a column of `X` for few multiplications, while a dense
    /// product is bound by multiplications alone once its weights are prepared.
    fn is_dense_faster(&self, rows: usize) -> bool {
        if matches!(self.shape, Shape::Dense(_)) {
            return true;
        }
        // The time of a row of a dense product, and that of unpacking and preparing the
        // weights, in rows: measured with AVX-512, and estimated from products of 64 rows for a
        // matrix unit.
        let (row, prepare) = if has_matrix_unit() { (0.25, 200.0) } else { (1.0, 330.0) };
        let work = layout!(&self.shape, l => l.work()) / (self.rows * self.cols).max(1) as f64;
        rows as f64 * (work - row) > prepare
    }

    /// The same by dense weights: some rows of them at a time are unpacked as f32.
    fn dense_products(&self, beta: f32, x: MatrixRef<'_>, mut y: MatrixMut<'_>) {
        let height = self.strip_rows();
        let step = (CONVERTED_MANY / (self.cols * height).max(1)).max(1) * height;
        let share = step.div_ceil(4 * rayon::current_num_threads() * height) * height;
        let mut wide = Vec::new();
        for start in (0..self.rows).step_by(step) {
            let rows = start..self.rows.min(start + step);
            wide.resize(rows.len() * self.cols, 0.0);
            let parts = wide.par_chunks_mut((share * self.cols).max(1));
            parts.enumerate().for_each(|(part, out)| {
                let first = start + part * share;
                self.rows_f32(first..rows.end.min(first + share), out);
            });
            let y = y.reborrow().part(0, x.rows(), start, rows.len());
            let w = MatrixRef::new(&wide, rows.len(), self.cols);
            gemm(beta, y, 1.0, x, w.t(), Threads::All);
        }
    }

    /// [`read_values`](Self::read_values) on all threads.
    fn read_parallel(&self, strips: Range<usize>, out: &mut [f32]) {
        let threads = rayon::current_num_threads();
        let step = strips.len().div_ceil(2 * threads).max(1);
        let mut parts = Vec::new();
        let mut out = out;
        for start in strips.clone().step_by(step) {
            let part = start..strips.end.min(start + step);
            let count = layout!(&self.shape, l => l.values_of(part.clone())).len();
            let (this, rest) = out.split_at_mut(count);
            parts.push((part, this));
            out = rest;
        }
        parts.into_par_iter().for_each(|(part, out)| self.read_values(part, out));
    }
}

/// Stored values, to be checked.
#[derive(Clone, Copy, Debug)]
pub enum ValuesPart<'a> {
    /// Numbers of a type.
    Numbers {
        /// How many.
        count: usize,
        /// Their type.
        value_type: ValueType,
    },
    /// Codes.
    Codes(CodesRef<'a>),
}

impl ValuesPart<'_> {
    fn bytes(&self) -> usize {
        match self {
            Self::Numbers { count, value_type } => count * value_type.bytes(),
            Self::Codes(codes) => codes.codes.len() + codes.scales.len(),
        }
    }
}

/// The first group of each strip, and the number of groups.
fn group_starts(shape: &Shape, strips: usize, group: usize) -> Vec<usize> {
    let mut starts = vec![0];
    let mut end = 0;
    for strip in 0..strips {
        end += layout!(shape, l => l.values_of(strip..strip + 1)).len().div_ceil(group);
        starts.push(end);
    }
    starts
}

impl Shape {
    /// Takes over what follows from a checked index.
    pub(super) fn accept(&mut self, index: &[u8]) {
        match self {
            Self::BitMask(mask) => mask.set_starts(index),
            Self::Gathered(gathered) => gathered.accept(index),
            _ => {}
        }
    }
}

/// The blocks that every level of a spec keeps of its weights.
pub(super) fn choice(spec: &Spec, weights: &[ValuesRef<'_>]) -> Result<Choice, PackError> {
    if spec.has_levels() {
        // A -0.0 is stored, so it counts as a number here.
        let set = |w: &ValuesRef<'_>| {
            let mut bits = Bits::zeros(w.len());
            typed!(ValuesRef, w, v => {
                for (i, &value) in v.iter().enumerate() {
                    bits.set(i, kind(value) != Kind::Zero);
                }
            });
            bits
        };
        let mask = Mask::from_bits(weights.iter().map(set).collect());
        return mask
            .find_choice(spec)
            .map_err(|breach| PackError::Breach { spec: spec.text().to_string(), breach });
    }
    let kept = match weights {
        _ if spec.keep() == spec.blocks_per_scope() => Ok(Bits::ones(spec.blocks())),
        // One type known outside the loop: most weights by far.
        [one] => typed!(ValuesRef, one, v => kept(spec, |e| kind(v[e.offset]))),
        all => kept(spec, |e: Element| typed!(ValuesRef, all[e.tensor], v => kind(v[e.offset]))),
    }?;
    Ok(Choice::from_levels(kept, [None, None]))
}

/// Rows and columns of a tensor as a matrix.
fn matrix_shape(spec: &Spec, tensor: usize) -> (usize, usize) {
    match spec.tensors()[tensor].dims() {
        [] => (1, 1),
        [only] => (1, *only),
        [rows, rest @ ..] => (*rows, rest.iter().product()),
    }
}

fn matrix_vector<T: Value>(w: &[T], x: &[f32], y: &mut [f32]) {
    T::matvec(w, x, y);
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
