//! Designs: specs bound to shapes, with what the page asks about them.

mod drawing;
mod element;
mod facts;
mod share;
mod tile;

pub(crate) use drawing::{DrawingRequest, drawing};
pub(crate) use element::{ElementRequest, element};
pub(crate) use facts::facts;
pub(crate) use share::{page as export_page, snippets};
pub(crate) use tile::{TileRequest, tile};

use openwork::example::{ExampleMask, kept_blocks};
use openwork::mask::{Bits, Choice, Mask};
use openwork::spec::{Side, Tensor, level_name};
use openwork::{Pattern, Spec, SpecError};
use openwork_llm::NamedShape;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Most weights of all tensors together: 8192 x 8192.
const MAX_WEIGHTS: usize = 1 << 26;
/// Most tensors.
const MAX_TENSORS: usize = 64;
/// Weights from which designs are computed one at a time, because they may need lists of
/// hundreds of megabytes.
const LARGE: usize = 1 << 20;
/// Most weights of a tensor with levels for which an example is chosen.
const MAX_CHOSEN: usize = 1 << 24;
/// Blocks up to which the example ranks every scope at once, rather than those of the cells
/// that are drawn; where scopes are large, all cells need the same few.
const MAX_RANKED: usize = 1 << 20;
const MAX_RANKED_LARGE: usize = 1 << 22;
/// Blocks of a large scope.
const MANY_BLOCKS: usize = 1 << 10;
/// Designs that are kept for the next request; of large ones, the last.
const KEPT: usize = 24;

/// A spec as the page sends it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct SpecRequest {
    pub spec: String,
    /// `16,32`, or `q=16,32` for each tensor of a coupling.
    pub shapes: Vec<String>,
    /// The seed of the example mask.
    #[serde(default = "first_seed")]
    pub seed: u64,
}

fn first_seed() -> u64 {
    1
}

/// Why there is no design.
#[derive(Debug)]
pub(crate) enum DesignError {
    Spec(Box<SpecError>, String),
    Other(String),
}

impl DesignError {
    /// `{"what", "detail", "at", "line", "column"}`; `at` counts UTF-16 code units, as the
    /// browser does.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Other(why) => json!({"what": why, "detail": "", "at": null}),
            Self::Spec(error, text) => {
                let at = error.position_in(text).map(|at| text[..at].encode_utf16().count());
                let line = error.line();
                json!({
                    "what": error.what(),
                    "detail": error.detail(),
                    "at": at,
                    "line": line.map(|(line, _)| line),
                    "column": line.map(|(_, column)| column),
                })
            }
        }
    }
}

/// A bound spec, and its example mask once asked for.
#[derive(Debug)]
pub(crate) struct Design {
    pub request: SpecRequest,
    pub pattern: Pattern,
    pub spec: Spec,
    pub panels: Vec<Panel>,
    example: OnceLock<Example>,
}

/// One picture: a tensor of a coupling, or the tensor that a level is bound to.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub path: Vec<Side>,
    pub tensor: usize,
}

/// Which blocks the example keeps.
#[derive(Debug)]
enum Example {
    /// Computed scope by scope, where asked.
    Lazy,
    /// By scope, then by block.
    Blocks(Bits),
    /// Of a spec with levels.
    Levels(Box<(Choice, Mask)>),
    /// Too large.
    None,
}

/// Tells for one panel which blocks are kept.
pub(crate) enum Keeps<'a> {
    Lazy(ExampleMask<'a>),
    Blocks(&'a Bits, usize),
    Unknown,
}

impl Keeps<'_> {
    /// Whether a block is kept; `None` if that is not known.
    pub fn keeps(&mut self, scope: usize, block: usize) -> Option<bool> {
        match self {
            Self::Lazy(mask) => Some(mask.keeps((scope, block))),
            Self::Blocks(bits, count) => Some(bits.get(scope * *count + block)),
            Self::Unknown => None,
        }
    }
}

impl Design {
    /// Parses, checks the size, binds.
    pub fn new(request: &SpecRequest) -> Result<Self, DesignError> {
        let spec_error = |error| DesignError::Spec(Box::new(error), request.spec.clone());
        let pattern: Pattern = request.spec.parse().map_err(spec_error)?;
        if request.shapes.len() > MAX_TENSORS {
            return Err(DesignError::Other(format!("more than {MAX_TENSORS} tensors")));
        }
        let shapes = NamedShape::parse_all(&request.shapes, &pattern);
        let shapes = shapes.map_err(|why| DesignError::Other(format!("shape {why}")))?;
        let tensors: Vec<_> = shapes.iter().map(NamedShape::named).collect();
        let weights = weights(&tensors);
        if weights > MAX_WEIGHTS {
            return Err(DesignError::Other(format!(
                "the studio draws at most {MAX_WEIGHTS} weights (8192 x 8192); give smaller shapes"
            )));
        }
        let spec = pattern.bind_all(&tensors).map_err(spec_error)?;
        // Padding may make far more positions than there are weights.
        let positions = |spec: &Spec| {
            spec.tensors().iter().fold(0usize, |sum, t| sum.saturating_add(t.positions()))
        };
        if spec.levels().into_iter().any(|(_, level)| positions(level) > MAX_WEIGHTS) {
            return Err(DesignError::Other(format!(
                "the studio draws at most {MAX_WEIGHTS} positions, padding included; pad to smaller multiples"
            )));
        }
        let panels = match spec.has_levels() {
            true => spec.levels().into_iter().map(|(path, _)| Panel { path, tensor: 0 }).collect(),
            false => {
                (0..spec.tensors().len()).map(|tensor| Panel { path: vec![], tensor }).collect()
            }
        };
        let (request, example) = (request.clone(), OnceLock::new());
        Ok(Self { request, pattern, spec, panels, example })
    }

    /// Names and dims of the tensors, in the order of the spec.
    pub fn tensors(&self) -> Vec<(&str, &[usize])> {
        self.spec.tensors().iter().map(|tensor| (tensor.name(), tensor.dims())).collect()
    }

    /// A panel by its number, with its spec and tensor.
    pub fn panel(&self, number: usize) -> Option<(&Panel, &Spec, &Tensor)> {
        let panel = self.panels.get(number)?;
        let spec =
            panel.path.iter().try_fold(&self.spec, |spec, &side| Some(spec.level(side)?.spec()))?;
        Some((panel, spec, &spec.tensors()[panel.tensor]))
    }

    fn example(&self) -> &Example {
        self.example.get_or_init(|| {
            let (spec, seed) = (&self.spec, self.request.seed);
            if spec.has_levels() {
                if spec.tensors()[0].size() > MAX_CHOSEN {
                    return Example::None;
                }
                let choice = Choice::example(spec, seed);
                let mask = choice.mask(spec);
                return Example::Levels(Box::new((choice, mask)));
            }
            let large = spec.blocks_per_scope() >= MANY_BLOCKS;
            match spec.blocks() <= if large { MAX_RANKED_LARGE } else { MAX_RANKED } {
                true => Example::Blocks(kept_blocks(spec, seed)),
                false => Example::Lazy,
            }
        })
    }

    /// Which blocks of a panel the example keeps.
    fn keeps<'a>(&'a self, panel: &Panel, spec: &'a Spec) -> Keeps<'a> {
        match self.example() {
            Example::Lazy => Keeps::Lazy(ExampleMask::new(spec, self.request.seed)),
            Example::Blocks(bits) => Keeps::Blocks(bits, spec.blocks_per_scope()),
            Example::Levels(both) => {
                let choice =
                    panel.path.iter().try_fold(&both.0, |choice, &side| choice.level(side));
                choice.map_or(Keeps::Unknown, |c| Keeps::Blocks(c.kept(), spec.blocks_per_scope()))
            }
            Example::None => Keeps::Unknown,
        }
    }

    /// The weights that all levels of the example keep.
    fn mask(&self) -> Option<&Mask> {
        match self.example() {
            Example::Levels(both) => Some(&both.1),
            _ => None,
        }
    }

    /// The title of a panel.
    pub fn title(&self, panel: &Panel, tensor: &Tensor) -> String {
        let dims: Vec<_> = tensor.dims().iter().map(ToString::to_string).collect();
        let dims = dims.join(" × ");
        match (self.spec.has_levels(), tensor.name()) {
            (true, _) => format!("{}: {dims}", level_name(&panel.path)),
            (false, "tensor") => dims,
            (false, name) => format!("{name}: {dims}"),
        }
    }
}

/// The number of weights, or the largest number if that overflows.
fn weights(tensors: &[(&str, &[usize])]) -> usize {
    let size = |dims: &[usize]| dims.iter().fold(1usize, |size, &dim| size.saturating_mul(dim));
    tensors.iter().fold(0, |sum: usize, (_, dims)| sum.saturating_add(size(dims)))
}

/// The rows and columns of a tensor as a matrix, padding included: the first dim is the rows.
pub(crate) fn matrix(tensor: &Tensor) -> (usize, usize) {
    match tensor.padded_dims().unwrap_or(tensor.dims()) {
        [cols] => (1, *cols),
        [rows, rest @ ..] => (*rows, rest.iter().product()),
        [] => (1, 1),
    }
}

/// Designs of the last requests.
#[derive(Debug, Default)]
pub(crate) struct Designs {
    recent: Mutex<VecDeque<Arc<Design>>>,
    large: Mutex<()>,
}

impl Designs {
    /// The design of a request, bound now or before.
    pub fn get(&self, request: &SpecRequest) -> Result<Arc<Design>, DesignError> {
        if let Some(known) = self.known(request) {
            return Ok(known);
        }
        // Padding may make a small tensor large.
        let shapes: Vec<NamedShape> =
            request.shapes.iter().take(MAX_TENSORS).filter_map(|text| text.parse().ok()).collect();
        let tensors: Vec<_> = shapes.iter().map(NamedShape::named).collect();
        let large = weights(&tensors) > LARGE || request.spec.contains("pad");
        let _one_at_a_time =
            large.then(|| self.large.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(known) = self.known(request).filter(|_| large) {
            return Ok(known);
        }
        let design = Arc::new(Design::new(request)?);
        let is_large = |design: &Design| {
            design.spec.tensors().iter().map(Tensor::positions).sum::<usize>() > LARGE
        };
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if is_large(&design) {
            recent.retain(|known| !is_large(known));
        }
        recent.push_front(Arc::clone(&design));
        recent.truncate(KEPT);
        Ok(design)
    }

    fn known(&self, request: &SpecRequest) -> Option<Arc<Design>> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let at = recent.iter().position(|design| design.request == *request)?;
        let found = recent.remove(at)?;
        recent.push_front(Arc::clone(&found));
        Some(found)
    }
}
