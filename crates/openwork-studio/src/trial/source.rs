//! Where matrices come from: the built-in model, models and files given on the command line.
//! Requests name them by number.

use openwork::Matrix;
use openwork::hessian::Hessian;
use openwork::prune::Monitor;
use openwork_llm::model::{Input, LayerInfo, Model, ModelError, Site};
use openwork_llm::pipeline::{Calibration, PipelineError, Sampling, site_hessian};
use openwork_llm::tensors::{FLOATS, TensorError, TensorFile, hessian};
use openwork_llm::tokens::{TextUse, load_text};
use openwork_llm::{Checkpoint, CheckpointError};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Windows and tokens per window that a model's inputs are captured on: enough to compare
/// patterns, few enough to wait for.
const SAMPLES: usize = 32;
const SEQ_LEN: usize = 128;
/// Most weights, and columns, of a matrix that is tried.
const MAX_WEIGHTS: usize = 1 << 24;
const MAX_COLUMNS: usize = 1 << 13;
/// Hessians that are kept for the next trial.
const KEPT: usize = 4;
/// Names of the Hessian, and of inputs, of a file with one matrix; for several, the name of
/// the matrix, a dot and these.
const HESSIANS: &[&str] = &["hessian", "h", "H"];
const INPUTS: &[&str] = &["inputs", "x", "X"];

/// Why a source cannot be opened.
#[derive(Debug)]
pub enum SourceError {
    /// A model.
    Checkpoint(CheckpointError),
    /// A model.
    Model(Box<ModelError>),
    /// A file with weights.
    Tensors(Box<TensorError>),
    /// A file without a matrix that can be tried.
    Empty(PathBuf),
    /// The calibration text.
    Text(String),
}

impl std::fmt::Display for SourceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Checkpoint(error) => error.fmt(f),
            Self::Model(error) => error.fmt(f),
            Self::Tensors(error) => error.fmt(f),
            Self::Empty(path) => write!(
                f,
                "{}: found no matrix of floating-point numbers with at most {MAX_WEIGHTS} weights",
                path.display()
            ),
            Self::Text(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for SourceError {}

/// A model or a file.
#[derive(Debug)]
struct Source {
    name: String,
    kind: Kind,
    tensors: Vec<Entry>,
    hessians: Mutex<Vec<(usize, Arc<Hessian>)>>,
}

#[derive(Debug)]
enum Kind {
    Model { checkpoint: Checkpoint, text: String },
    File(TensorFile),
}

/// A matrix of a source.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    shape: Vec<usize>,
    /// The layer of a model and the input that it reads there.
    inputs: Option<(usize, Site)>,
    /// Whether inputs are known.
    has_inputs: bool,
}

/// A matrix to try patterns on.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    source: Arc<Source>,
    index: usize,
    pub shape: Vec<usize>,
}

/// Everything that can be tried.
#[derive(Debug)]
pub(crate) struct Sources {
    all: Vec<Arc<Source>>,
}

impl Sources {
    /// Opens files and models; the built-in model comes last.
    pub fn open(paths: &[PathBuf], calibration: &Path) -> Result<Self, SourceError> {
        let given = |path: &PathBuf| match path.extension().is_some_and(|e| e == "safetensors") {
            true => Source::file(path),
            false => {
                let text = load_text(calibration, TextUse::Calibrate);
                Source::model(path, text.map_err(|error| SourceError::Text(error.to_string()))?)
            }
        };
        let mut all = paths.iter().map(given).collect::<Result<Vec<_>, _>>()?;
        if !paths.iter().any(|path| path == Path::new("demo")) {
            let text = openwork_llm::demo::CALIBRATION.to_string();
            all.push(Source::model(Path::new("demo"), text)?);
        }
        Ok(Self { all: all.into_iter().map(Arc::new).collect() })
    }

    /// Names, and the tensors of each.
    pub fn to_json(&self) -> Value {
        let tensor = |entry: &Entry| json!({"name": entry.name, "shape": entry.shape, "has_inputs": entry.has_inputs});
        let source = |source: &Arc<Source>| {
            let tensors: Vec<Value> = source.tensors.iter().map(tensor).collect();
            json!({"name": source.name, "tensors": tensors})
        };
        self.all.iter().map(source).collect()
    }

    /// A tensor by the numbers of its source and in it.
    pub(super) fn tensor(&self, source: usize, index: usize) -> Option<Tensor> {
        let source = self.all.get(source)?;
        let shape = source.tensors.get(index)?.shape.clone();
        Some(Tensor { source: Arc::clone(source), index, shape })
    }
}

impl Source {
    fn model(path: &Path, text: String) -> Result<Self, SourceError> {
        let checkpoint = Checkpoint::open(path).map_err(SourceError::Checkpoint)?;
        let model =
            Model::open(&checkpoint).map_err(|error| SourceError::Model(Box::new(error)))?;
        let mut tensors = Vec::new();
        for layer in 0..model.config().layers {
            let info = LayerInfo::new(model.config(), layer);
            for (i, linear) in info.linears.iter().enumerate() {
                let shape = linear.shape;
                let fits = shape[0] * shape[1] <= MAX_WEIGHTS && shape[1] <= MAX_COLUMNS;
                tensors.extend(fits.then(|| Entry {
                    name: info.weight_name(i),
                    shape: shape.to_vec(),
                    inputs: Some((layer, linear.site())),
                    has_inputs: true,
                }));
            }
        }
        drop(model);
        let (name, kind) = (checkpoint.name(), Kind::Model { checkpoint, text });
        Ok(Self { name, kind, tensors, hessians: Mutex::default() })
    }

    fn file(path: &Path) -> Result<Self, SourceError> {
        let file = TensorFile::open(path).map_err(|error| SourceError::Tensors(Box::new(error)))?;
        let names = file.names();
        let known = |name: &str| HESSIANS.contains(&name) || INPUTS.contains(&name);
        let statistics = |name: &str| known(name.rsplit('.').next().unwrap_or(name));
        let mut tensors = Vec::new();
        for name in &names {
            let Some(&[rows, cols]) = file.shape(name) else { continue };
            let fits = rows.saturating_mul(cols) <= MAX_WEIGHTS && cols <= MAX_COLUMNS;
            let empty = rows == 0 || cols == 0 || file.entry(name, "weights", FLOATS).is_err();
            if statistics(name) || name.ends_with(".held_out") || !fits || empty {
                continue;
            }
            let has_inputs = statistics_of(&file, name, cols).is_some();
            let (name, shape) = (name.clone(), vec![rows, cols]);
            tensors.push(Entry { name, shape, inputs: None, has_inputs });
        }
        if tensors.is_empty() {
            return Err(SourceError::Empty(path.to_path_buf()));
        }
        let name = path.file_name().map_or("file".into(), |name| name.to_string_lossy());
        let (name, kind) = (name.into_owned(), Kind::File(file));
        Ok(Self { name, kind, tensors, hessians: Mutex::default() })
    }
}

/// The tensor of a file that has the Hessian of a matrix, or its inputs: its name, and whether
/// it is a Hessian.
fn statistics_of(file: &TensorFile, matrix: &str, cols: usize) -> Option<(String, bool)> {
    let find = |kinds: &[&str], fits: &dyn Fn(&[usize]) -> bool| {
        let names = kinds.iter().flat_map(|kind| [format!("{matrix}.{kind}"), kind.to_string()]);
        names.into_iter().find(|name| file.shape(name).is_some_and(fits))
    };
    let square = find(HESSIANS, &|shape| shape == [cols, cols]).map(|name| (name, true));
    square.or_else(|| {
        find(INPUTS, &|shape| shape.len() >= 2 && shape.last() == Some(&cols))
            .map(|name| (name, false))
    })
}

impl Tensor {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.source.tensors[self.index].name
    }

    /// What happens while its inputs are captured.
    pub fn capturing(&self) -> String {
        match (&self.source.kind, self.source.tensors[self.index].inputs) {
            (Kind::Model { .. }, Some((layer, _))) if layer > 0 => format!(
                "capturing inputs: {} tokens through layers 0 to {layer}",
                SAMPLES * SEQ_LEN
            ),
            _ => "capturing inputs".to_string(),
        }
    }

    /// Its weights.
    pub fn weights(&self) -> Result<Matrix, String> {
        let [rows, cols] = [self.shape[0], self.shape[1]];
        let values = match &self.source.kind {
            Kind::Model { checkpoint, .. } => {
                let tensor = checkpoint.tensor(self.name()).map_err(|error| error.to_string())?;
                tensor.to_f32()
            }
            Kind::File(file) => {
                let entry = file.entry(self.name(), "weights", FLOATS);
                entry.and_then(|entry| entry.to_f32()).map_err(|error| error.to_string())?
            }
        };
        if values.len() != rows * cols {
            return Err(format!(
                "{} has {} weights, not {rows} x {cols}",
                self.name(),
                values.len()
            ));
        }
        Ok(Matrix::from_vec(rows, cols, values))
    }

    /// The statistics of its inputs, computed now or for an earlier trial; `None` if a file has
    /// none.
    pub fn hessian(&self, monitor: &dyn Monitor) -> Result<Option<Arc<Hessian>>, String> {
        let entry = &self.source.tensors[self.index];
        // Tensors that read the same input have the same statistics.
        let alike = |other: &Entry| other.inputs.is_some() && other.inputs == entry.inputs;
        let key = self.source.tensors.iter().position(alike).unwrap_or(self.index);
        let kept = || self.source.hessians.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = kept().iter().find(|(of, _)| *of == key) {
            return Ok(Some(Arc::clone(known)));
        }
        let found = match &self.source.kind {
            Kind::Model { checkpoint, text } => {
                let captured = self.captured(checkpoint, text, monitor);
                captured.map_err(|error| error.to_string())?
            }
            Kind::File(file) => match statistics_of(file, &entry.name, self.shape[1]) {
                None => return Ok(None),
                Some((name, true)) => hessian::load(file, &name).map_err(|e| e.to_string())?,
                Some((name, false)) => {
                    let columns = Some(self.shape[1]);
                    let sum = hessian::sum_inputs(file, &name, columns, &|s| monitor.progress(s));
                    sum.map_err(|error| error.to_string())?
                }
            },
        };
        let found = Arc::new(found);
        let mut kept = kept();
        kept.insert(0, (key, Arc::clone(&found)));
        kept.truncate(KEPT);
        Ok(Some(found))
    }

    fn captured(
        &self,
        checkpoint: &Checkpoint,
        text: &str,
        monitor: &dyn Monitor,
    ) -> Result<Hessian, PipelineError> {
        let model = Model::open(checkpoint)?;
        let tokenizer = checkpoint.tokenizer().map_err(ModelError::from)?;
        let how = Sampling { samples: SAMPLES, length: SEQ_LEN, single_tokens: None, seed: 0 };
        let calibration = Calibration::draw(&tokenizer, ("calibration", text), how)?;
        let inputs = self.source.tensors[self.index].inputs;
        site_hessian(&model, &calibration, inputs.unwrap_or((0, Input::Qkv.into())), monitor)
    }
}
