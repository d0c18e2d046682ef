//! The pruning problem as methods see it: weights, curvature and a spec.

use super::{Monitor, PruneError};
use crate::hessian::{Curvature, Damping, Hessian};
use crate::mask::{Bits, Mask};
use crate::matrix::Matrix;
use crate::spec::{Spec, Tensor, Unit};
use crate::values::ValuesRef;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Weights, their curvature and a spec, checked to fit together.
///
/// Only weights inside the domain may change, so a row is fitted on the columns
/// of its domain alone, and its curvature is that submatrix of H. Methods work in
/// units in which the submatrix has a unit diagonal (see [`Curvature`]).
pub struct Problem<'a> {
    /// The spec.
    pub spec: &'a Spec,
    /// The weights of each tensor as a matrix.
    pub weights: Vec<Weights<'a>>,
    /// The index of each tensor's Hessian.
    hessian_of: Vec<usize>,
    hessians: Vec<&'a Hessian>,
    curvatures: Vec<Arc<Curvature>>,
    /// Curvatures of rows whose domain is a subset of the columns.
    parts: CurvatureCache,
}

/// Curvatures by Hessian, factor and columns; shared by rows that are pruned
/// separately.
pub(super) type CurvatureCache = Arc<Mutex<HashMap<(usize, u64, Vec<u32>), Arc<Curvature>>>>;

/// The weights of a tensor as a matrix, in their storage type.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    values: ValuesRef<'a>,
    rows: usize,
    cols: usize,
}

impl<'a> Weights<'a> {
    /// Row-major values.
    ///
    /// # Panics
    ///
    /// If there are not `rows * cols` of them.
    pub fn new(values: ValuesRef<'a>, rows: usize, cols: usize) -> Self {
        assert_eq!(values.len(), rows * cols, "values of a {rows} x {cols} matrix");
        Self { values, rows, cols }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All weights, row-major.
    pub fn values(&self) -> ValuesRef<'a> {
        self.values
    }

    /// The weight in row `i`, column `j`.
    #[inline]
    pub fn at(&self, i: usize, j: usize) -> f32 {
        self.values.at(i * self.cols + j)
    }
}

impl<'a> From<&'a Matrix> for Weights<'a> {
    fn from(matrix: &'a Matrix) -> Self {
        Self::new(ValuesRef::F32(matrix.data()), matrix.rows(), matrix.cols())
    }
}

/// The factor by which a tensor's loss counts. Weight 0 counts so little that it
/// only breaks ties; a power of two, so that scaling by it is exact.
pub(crate) fn loss_weight(tensor: &Tensor) -> f64 {
    const TIE_BREAK: f64 = 1.0 / (1u128 << 80) as f64;
    if tensor.weight() == 0.0 { TIE_BREAK } else { tensor.weight() }
}

/// Rows of one tensor whose domain has the same columns.
pub struct Group {
    /// The tensor.
    pub tensor: usize,
    /// Its rows.
    pub rows: Vec<usize>,
    /// The columns of the domain in these rows, ascending.
    pub columns: Vec<u32>,
    /// The curvature of those columns.
    pub curvature: Arc<Curvature>,
}

impl<'a> Problem<'a> {
    /// A problem whose tensor `t` has Hessian `hessian_of[t]`.
    pub fn new(
        spec: &'a Spec,
        weights: Vec<Weights<'a>>,
        hessian_of: Vec<usize>,
        hessians: Vec<&'a Hessian>,
        curvatures: Vec<Arc<Curvature>>,
    ) -> Self {
        Self { spec, weights, hessian_of, hessians, curvatures, parts: CurvatureCache::default() }
    }

    /// The same problem with a shared cache of curvatures.
    pub(super) fn sharing(self, parts: &CurvatureCache) -> Self {
        Self { parts: parts.clone(), ..self }
    }

    /// Another spec over the same tensors, and other weights, with the same inputs.
    pub(super) fn with<'b>(&self, spec: &'b Spec, weights: Vec<Weights<'b>>) -> Problem<'b>
    where
        'a: 'b,
    {
        Problem {
            spec,
            weights,
            hessian_of: self.hessian_of.clone(),
            hessians: self.hessians.clone(),
            curvatures: self.curvatures.clone(),
            // Domains of levels rarely recur; their curvatures would only fill memory.
            parts: CurvatureCache::default(),
        }
    }

    /// The Hessian of a tensor, if there are any.
    pub fn hessian(&self, tensor: usize) -> Option<&'a Hessian> {
        self.hessian_of.get(tensor).map(|&h| self.hessians[h])
    }

    /// The curvature of some columns of a tensor.
    pub fn curvature(&self, tensor: usize, columns: &[u32]) -> Result<Arc<Curvature>, PruneError> {
        let h = self.hessian_of[tensor];
        let whole = &self.curvatures[h];
        let factor = loss_weight(&self.spec.tensors()[tensor]).sqrt();
        if columns.len() == whole.columns() && factor == 1.0 {
            return Ok(whole.clone());
        }
        let key = (h, factor.to_bits(), columns.to_vec());
        // The lock is not held while a submatrix is factored: a thread that waits for
        // rayon there may be given other work, which may take this lock.
        let known = || self.parts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(part) = known().get(&key) {
            return Ok(part.clone());
        }
        if columns.len() == whole.columns() {
            let weighted = Arc::new(whole.weighted(factor));
            return Ok(known().entry(key).or_insert(weighted).clone());
        }
        let all = self.hessians[h];
        let matrix = Matrix::from_fn(columns.len(), columns.len(), |i, j| {
            all.matrix().row(columns[i] as usize)[columns[j] as usize]
        });
        // The same amount as for the whole matrix, not a share of the submatrix's mean.
        let damping = match whole.damping() {
            Damping::Mean(share) => Damping::Absolute(share * all.mean_diagonal()),
            other => other,
        };
        let name = self.spec.tensors()[tensor].name();
        let part = Hessian::from_matrix(matrix, all.samples())
            .and_then(|h| h.damp(damping))
            .map_err(|error| PruneError::hessian(name, error))?;
        let part = if factor == 1.0 { part } else { part.weighted(factor) };
        Ok(known().entry(key).or_insert(Arc::new(part)).clone())
    }

    /// The rows of every tensor, grouped by the columns of their domain.
    pub fn groups(&self) -> Result<Vec<Group>, PruneError> {
        let mut groups = Vec::new();
        let domain = Domain::new(self.spec);
        for (tensor, weights) in self.weights.iter().enumerate() {
            let (rows, cols) = (weights.rows(), weights.cols());
            let mut by_columns: Vec<(Vec<u32>, Vec<usize>)> = Vec::new();
            match &domain.0[tensor] {
                None => by_columns.push(((0..cols as u32).collect(), (0..rows).collect())),
                Some(bits) => {
                    let mut known: HashMap<Vec<u32>, usize> = HashMap::new();
                    for row in 0..rows {
                        let columns: Vec<u32> = (0..cols as u32)
                            .filter(|&j| bits.get(row * cols + j as usize))
                            .collect();
                        if columns.is_empty() {
                            continue;
                        }
                        let at = *known.entry(columns).or_insert_with_key(|columns| {
                            by_columns.push((columns.clone(), Vec::new()));
                            by_columns.len() - 1
                        });
                        by_columns[at].1.push(row);
                    }
                }
            }
            for (columns, rows) in by_columns {
                let curvature = self.curvature(tensor, &columns)?;
                groups.push(Group { tensor, rows, columns, curvature });
            }
        }
        Ok(groups)
    }

    /// The scaled weights of a group's rows and columns.
    pub fn gather(&self, group: &Group) -> Matrix {
        gather(self.weights[group.tensor], &group.rows, &group.columns, &group.curvature)
    }

    /// Runs `work` on every unit in parallel and reports progress; results are in the
    /// order of the units.
    pub(crate) fn each_unit<T: Send>(
        &self,
        monitor: &dyn Monitor,
        work: impl Fn(&Unit, &[usize]) -> Result<Vec<T>, PruneError> + Sync,
    ) -> Result<Vec<T>, PruneError> {
        let units = self.spec.units()?;
        let finished = AtomicUsize::new(0);
        let done: Vec<Vec<T>> = (0..units.len())
            .into_par_iter()
            .map(|index| {
                if monitor.cancelled() {
                    return Err(PruneError::Stopped);
                }
                let done = units.with(index, &work)?;
                let finished = finished.fetch_add(1, Ordering::Relaxed) + 1;
                monitor.progress(finished as f64 / units.len() as f64);
                Ok(done)
            })
            .collect::<Result<_, _>>()?;
        Ok(done.into_iter().flatten().collect())
    }

    /// Copies of the weights, to be modified.
    pub fn copies(&self) -> Vec<Matrix> {
        self.weights
            .iter()
            .map(|w| Matrix::from_vec(w.rows(), w.cols(), w.values().to_f32()))
            .collect()
    }
}

impl Group {
    /// Writes scaled weights back into a whole tensor.
    pub fn scatter(&self, scaled: &Matrix, out: &mut Matrix) {
        for (i, &row) in self.rows.iter().enumerate() {
            scatter_row(scaled.row(i), &self.columns, self.curvature.scale(), out.row_mut(row));
        }
    }

    /// 1 where a weight is kept and 0 where it is dropped, over the group's rows and
    /// columns.
    pub fn keep(&self, mask: &Mask, cols: usize) -> Matrix {
        let bits = &mask.tensors()[self.tensor];
        Matrix::from_fn(self.rows.len(), self.columns.len(), |i, j| {
            f32::from(u8::from(bits.get(self.rows[i] * cols + self.columns[j] as usize)))
        })
    }
}

/// Rows and columns of `w` in units of the curvature.
pub(crate) fn gather(
    w: Weights<'_>,
    rows: &[usize],
    columns: &[u32],
    curvature: &Curvature,
) -> Matrix {
    let scale = curvature.scale();
    Matrix::from_fn(rows.len(), columns.len(), |i, j| {
        (f64::from(w.at(rows[i], columns[j] as usize)) * scale[j]) as f32
    })
}

/// Writes one scaled row back into its columns of `out`.
pub(crate) fn scatter_row(scaled: &[f32], columns: &[u32], scale: &[f64], out: &mut [f32]) {
    for ((&column, &w), &s) in columns.iter().zip(scaled).zip(scale) {
        let out = &mut out[column as usize];
        *out = unscaled(*out, w, s);
    }
}

/// A scaled weight in its original units. An unchanged weight keeps its bits; one in
/// a dead column, which has no scale and no effect, becomes zero.
pub(crate) fn unscaled(old: f32, w: f32, s: f64) -> f32 {
    if w == 0.0 || s == 0.0 {
        0.0
    } else if (f64::from(old) * s) as f32 == w {
        old
    } else {
        (f64::from(w) / s) as f32
    }
}

/// The domain of each tensor; `None` where it is the whole tensor.
struct Domain(Vec<Option<Bits>>);

impl Domain {
    fn new(spec: &Spec) -> Self {
        let mut domains: Vec<Option<Bits>> = spec
            .tensors()
            .iter()
            .map(|t| (t.domain_size() < t.size()).then(|| Bits::zeros(t.size())))
            .collect();
        if domains.iter().any(Option::is_some) {
            for scope in 0..spec.scopes() {
                for element in
                    (0..spec.blocks_per_scope()).flat_map(|block| spec.elements(scope, block))
                {
                    if let Some(bits) = &mut domains[element.tensor] {
                        bits.set(element.offset, true);
                    }
                }
            }
        }
        Self(domains)
    }
}
