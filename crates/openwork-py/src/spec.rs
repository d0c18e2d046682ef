//! `Spec` and `BoundSpec`: a pattern, and a pattern bound to the shapes of tensors.

use crate::array::{Tensor, as_pair};
use crate::error;
use openwork::spec::{Coupling, Element};
use openwork::{Mask, Pattern, viz};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Seed of the example mask in drawings.
const SEED: u64 = 0;

/// A sparsity pattern; `bind` checks it against the shapes of tensors.
///
/// >>> from openwork import Spec
/// >>> Spec.parse("2:4").bind((16, 32)).num_scopes
/// 128
#[pyclass(frozen, eq, module = "openwork", name = "Spec")]
#[derive(PartialEq)]
pub struct Spec(pub Pattern);

#[pymethods]
impl Spec {
    /// Parses a pattern.
    ///
    /// >>> print(Spec.parse("scope (1,4)  keep 2  # two of four"))
    /// scope (1,4) keep 2
    #[staticmethod]
    fn parse(text: &str) -> PyResult<Self> {
        text.parse().map(Self).map_err(error::spec)
    }

    /// Binds the pattern to the shape of a tensor, or to one shape per name for coupled
    /// tensors.
    ///
    /// >>> Spec.parse("channel(50%)").bind((8, 4)).keep
    /// 4
    /// >>> pair = Spec.parse("blocks a: block (1,_) & b perm (1,0): block (_,1) keep 50%")
    /// >>> pair.bind(a=(8, 3), b=(3, 8)).num_blocks
    /// 8
    #[pyo3(signature = (shape=None, /, **shapes))]
    fn bind(
        &self,
        shape: Option<&Bound<'_, PyAny>>,
        shapes: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<BoundSpec> {
        let given = match (shape, shapes) {
            (Some(_), Some(_)) => {
                return Err(PyTypeError::new_err("give one shape or named shapes, not both"));
            }
            (Some(shape), None) => match shape.cast::<PyDict>() {
                Ok(shapes) => Some(shapes.clone()),
                Err(_) => {
                    let dims = dims(shape)?;
                    return self.0.bind(&dims).map(BoundSpec).map_err(error::spec);
                }
            },
            (None, shapes) => shapes.cloned(),
        };
        let mut named: Vec<(String, Vec<usize>)> = Vec::new();
        for (name, shape) in given.into_iter().flatten() {
            named.push((name.extract()?, dims(&shape)?));
        }
        let tensors: Vec<(&str, &[usize])> =
            named.iter().map(|(name, dims)| (name.as_str(), dims.as_slice())).collect();
        self.0.bind_all(&tensors).map(BoundSpec).map_err(error::spec)
    }

    /// Names of the tensors that the pattern couples; empty if it is for one tensor.
    #[getter]
    fn members(&self) -> Vec<String> {
        self.0.members().into_iter().map(str::to_string).collect()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Spec.parse({:?})", self.0.to_string())
    }

    fn __hash__(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.0.to_string().hash(&mut hasher);
        hasher.finish()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let text = slf.get().0.to_string();
        Ok((slf.get_type().getattr("parse")?, (text,)))
    }
}

/// Any sequence of integers as a shape, such as `tensor.shape`.
fn dims(shape: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    shape.extract::<Vec<usize>>().map_err(|_| {
        let shown = shape.repr().map_or_else(|_| "that".to_string(), |repr| repr.to_string());
        let shown: String = shown.chars().take(60).collect();
        error::SpecError::new_err(format!(
            "{shown} is not a shape; give a tuple of non-negative integers"
        ))
    })
}

/// A pattern bound to the shapes of tensors, with all conditions checked.
///
/// >>> spec = Spec.parse("rows16").bind((32, 64))
/// >>> spec.num_scopes, spec.blocks_per_scope, spec.keep, spec.density
/// (64, 2, 1, 0.5)
#[pyclass(frozen, module = "openwork", name = "BoundSpec")]
pub struct BoundSpec(pub openwork::Spec);

#[pymethods]
impl BoundSpec {
    /// The text of the pattern.
    #[getter]
    fn text(&self) -> &str {
        self.0.text()
    }

    /// The text of the pattern with presets expanded.
    #[getter]
    fn expanded(&self) -> &str {
        self.0.expanded()
    }

    /// Names of the tensors, in the order of the pattern.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.0.tensors().iter().map(|tensor| tensor.name().to_string()).collect()
    }

    /// Shapes of the tensors, in the order of the pattern.
    #[getter]
    fn shapes<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        self.0.tensors().iter().map(|tensor| PyTuple::new(py, tensor.dims())).collect()
    }

    /// Rows and columns of each tensor as a matrix.
    #[getter]
    fn matrices(&self) -> Vec<(usize, usize)> {
        self.0.tensors().iter().map(openwork::spec::Tensor::matrix).collect()
    }

    /// `"blocks"` or `"scopes"` for coupled tensors, otherwise `None`.
    #[getter]
    fn coupling(&self) -> Option<String> {
        let alone = self.0.tensors().len() == 1 && self.0.coupling() == Coupling::Blocks;
        (!alone).then(|| self.0.coupling().to_string())
    }

    /// Shape of the common grid: of blocks, or of scopes if scopes are coupled.
    #[getter]
    fn grid<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.grid())
    }

    /// Number of scopes along each axis.
    #[getter]
    fn scope_grid<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.scope_grid())
    }

    /// Number of blocks; a coupled block counts once.
    #[getter]
    fn num_blocks(&self) -> usize {
        self.0.blocks()
    }

    /// Number of scopes.
    #[getter]
    fn num_scopes(&self) -> usize {
        self.0.scopes()
    }

    /// Number of blocks of a scope.
    #[getter]
    fn blocks_per_scope(&self) -> usize {
        self.0.blocks_per_scope()
    }

    /// Number of blocks kept in each scope.
    #[getter]
    fn keep(&self) -> usize {
        self.0.keep()
    }

    /// Whether the spec has a `then` or an `else`; blocks, scopes and `keep` are then those
    /// of its first level.
    ///
    /// >>> Spec.parse("columns(25%) else 2:4").bind((4, 16)).has_levels
    /// True
    #[getter]
    fn has_levels(&self) -> bool {
        self.0.has_levels()
    }

    /// Fraction of the domain that is kept, by all levels.
    ///
    /// >>> Spec.parse("columns(25%) else 2:4").bind((4, 16)).density
    /// 0.625
    #[getter]
    fn density(&self) -> f64 {
        self.0.density()
    }

    /// Fraction of the domain that is pruned.
    #[getter]
    fn sparsity(&self) -> f64 {
        1.0 - self.0.density()
    }

    /// The same spec with another number of blocks kept.
    ///
    /// >>> Spec.parse("2:4").bind((4, 8)).with_keep(1).density
    /// 0.25
    fn with_keep(&self, keep: usize) -> PyResult<Self> {
        if self.0.has_levels() {
            return Err(error::SpecError::new_err(format!(
                "the levels of `{}` depend on its keep; bind another spec",
                self.0.text()
            )));
        }
        let blocks = self.0.blocks_per_scope();
        if keep > blocks {
            return Err(error::SpecError::new_err(format!(
                "keep is {keep}, but a scope has {blocks} blocks"
            )));
        }
        Ok(Self(self.0.with_keep(keep)))
    }

    /// The output of `openwork show --json` as a dict.
    ///
    /// >>> Spec.parse("2:4").bind((16, 32)).show()["facts"]["storage"][0]["ratio"]
    /// 0.5625
    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let text = openwork_llm::spec_json(&self.0).to_string();
        Ok(py.import("json")?.call_method1("loads", (text,))?.cast_into()?)
    }

    /// The output of `openwork show` as text, without the drawing.
    fn describe(&self) -> String {
        viz::sheet(&self.0)
    }

    /// A drawing of the structure and an example mask, as SVG.
    ///
    /// >>> Spec.parse("2:4").bind((8, 16)).svg().startswith("<svg")
    /// True
    #[pyo3(signature = (seed=0))]
    fn svg(&self, seed: u64) -> String {
        viz::svg(&self.0, seed)
    }

    fn _repr_svg_(&self) -> String {
        self.svg(SEED)
    }

    fn _repr_html_(&self) -> String {
        self.svg(SEED)
    }

    /// The row-major offsets of the weights of a block in each tensor. Scopes are
    /// numbered row-major over their grid, blocks within their scope.
    ///
    /// >>> Spec.parse("rows16").bind((32, 64)).elements(0, 1)[0][:3]
    /// [512, 513, 514]
    fn elements(&self, scope: usize, block: usize) -> PyResult<Vec<Vec<usize>>> {
        self.check_block(scope, block)?;
        let mut offsets = vec![Vec::new(); self.0.tensors().len()];
        for element in self.0.elements(scope, block) {
            offsets[element.tensor].push(element.offset);
        }
        Ok(offsets)
    }

    /// The scope of a weight and its block in that scope; `None` outside the domain.
    ///
    /// >>> Spec.parse("rows16").bind((32, 64)).locate(512)
    /// (0, 1)
    #[pyo3(signature = (offset, tensor=0))]
    fn locate(&self, offset: usize, tensor: usize) -> PyResult<Option<(usize, usize)>> {
        let tensors = self.0.tensors();
        if tensor >= tensors.len() || offset >= tensors[tensor].size() {
            let sizes: Vec<usize> = tensors.iter().map(openwork::spec::Tensor::size).collect();
            return Err(error::SpecError::new_err(format!(
                "weight {offset} of tensor {tensor} does not exist; the tensors have {sizes:?} weights"
            )));
        }
        Ok(self.0.locate(Element { tensor, offset }))
    }

    /// The tensor of a block (`None` unless scopes are coupled) and its row-major index
    /// in the grid of blocks.
    fn block_index(&self, scope: usize, block: usize) -> PyResult<(Option<usize>, usize)> {
        self.check_block(scope, block)?;
        Ok(self.0.block_index(scope, block))
    }

    /// Describes the first violation of the pattern by these weights; `None` if they
    /// conform.
    ///
    /// >>> import numpy
    /// >>> Spec.parse("2:4").bind((1, 4)).breach(numpy.ones((1, 4), "float32"))
    /// 'scope 0 keeps 4 blocks, expected 2'
    #[pyo3(signature = (*weights))]
    fn breach(&self, weights: &Bound<'_, PyTuple>) -> PyResult<Option<String>> {
        let mut values = Vec::new();
        for tensor in weights {
            let (kind, array) = as_pair(&tensor)?;
            values.push(Tensor::borrow(&kind, &array, false)?);
        }
        crate::blocks::check_shapes(&self.0, &values)?;
        let read = values.iter().map(Tensor::read).collect::<PyResult<Vec<_>>>()?;
        let slices: Vec<&[f32]> = read.iter().map(|cow| &cow[..]).collect();
        let allowed = weights.py().detach(|| Mask::nonzero(&slices).allows(&self.0));
        Ok(allowed.err().map(|breach| breach.to_string()))
    }

    fn __repr__(&self) -> String {
        let shapes: Vec<String> =
            self.0.tensors().iter().map(|t| format!("{} {:?}", t.name(), t.dims())).collect();
        format!("BoundSpec({:?} on {})", self.0.text(), shapes.join(", "))
    }
}

impl BoundSpec {
    fn check_block(&self, scope: usize, block: usize) -> PyResult<()> {
        let (scopes, blocks) = (self.0.scopes(), self.0.blocks_per_scope());
        if scope < scopes && block < blocks {
            return Ok(());
        }
        Err(error::SpecError::new_err(format!(
            "block {block} of scope {scope} does not exist; there are {scopes} scopes of {blocks} blocks"
        )))
    }
}
