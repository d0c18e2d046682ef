//! `prune_folder`: a model on disk, by the pipeline of the command.

use crate::crew::Remote;
use crate::error::OpenworkError;
use crate::watch;
use openwork_llm::checkpoint::Checkpoint;
use openwork_llm::model::Model;
use openwork_llm::pipeline::{
    self, Calibration, Choice, Crew, Evaluation, Event, Job, Local, Passes, PipelineError, Recipe,
    Start, check_folder, written_dtype,
};
use openwork_llm::tokens::{join, read_text};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// What was asked for, by name.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Asked {
    spec: Option<String>,
    method: Option<String>,
    recipe: Option<PathBuf>,
    calib: PathBuf,
    samples: usize,
    seq_len: Option<usize>,
    seed: u64,
    include: Option<String>,
    exclude: Option<String>,
    eval: Option<PathBuf>,
    eval_every: Option<usize>,
    eval_tokens: Option<usize>,
    eval_seq_len: Option<usize>,
    resume: bool,
    force: bool,
    remove: bool,
    dtype: Option<String>,
    sequential: bool,
    spill: bool,
}

/// Prunes the model at `path` into the folder `out`; gives the record as JSON. A
/// `crew` does the steps, if there is one.
#[pyfunction]
#[pyo3(signature = (path, out, asked, progress=None, crew=None))]
pub fn prune_folder(
    py: Python<'_>,
    path: PathBuf,
    out: PathBuf,
    asked: Asked,
    progress: Option<Py<PyAny>>,
    crew: Option<Py<PyAny>>,
) -> PyResult<String> {
    let seen = Seen::default();
    let tick = |py: Python<'_>| match &progress {
        Some(progress) => seen.tell(py, progress),
        None => Ok(()),
    };
    let stop = || {
        seen.stop();
        if let Some(crew) = &crew {
            // It may be waiting for others; one without the method ends when they do.
            Python::attach(|py| drop(crew.call_method0(py, "stop")));
        }
    };
    let work = || {
        let mut crew: Box<dyn Crew> = match &crew {
            Some(crew) => Box::new(Python::attach(|py| Remote::new(crew.clone_ref(py)))),
            None => Box::new(Local::default()),
        };
        run(&path, &out, &asked, &seen, crew.as_mut())
    };
    let done = watch::run(py, tick, stop, work)?;
    if let Some(progress) = &progress {
        seen.tell(py, progress)?;
    }
    done.map_err(|failure| match failure {
        Failure::Input(words) => OpenworkError::new_err(words),
        Failure::Running(words) => PyRuntimeError::new_err(words),
    })
}

/// Why a model was not pruned.
enum Failure {
    /// What was given is at fault.
    Input(String),
    /// The run is.
    Running(String),
}

impl Failure {
    fn input(error: impl std::fmt::Display) -> Self {
        Self::Input(error.to_string())
    }
}

impl From<PipelineError> for Failure {
    fn from(error: PipelineError) -> Self {
        let words = error.to_string();
        if error.is_input() { Self::Input(words) } else { Self::Running(words) }
    }
}

fn run(
    path: &Path,
    out: &Path,
    asked: &Asked,
    seen: &Seen,
    crew: &mut dyn Crew,
) -> Result<String, Failure> {
    let start = match (asked.resume, asked.force) {
        (true, _) => Start::Resume,
        (_, true) => Start::Force,
        _ => Start::Fresh,
    };
    check_folder(out, start)?;
    let mut recipe = match &asked.recipe {
        None => Recipe::default(),
        Some(path) => {
            let at =
                |why: &dyn std::fmt::Display| Failure::Input(format!("{}: {why}", path.display()));
            let text = std::fs::read_to_string(path).map_err(|error| at(&error))?;
            Recipe::parse(&text).map_err(|error| at(&error))?
        }
    };
    recipe.spec = asked.spec.clone().or(recipe.spec);
    recipe.method = asked.method.clone().or(recipe.method);
    recipe.remove |= asked.remove;
    let choice = Choice::new(asked.include.as_deref(), asked.exclude.as_deref())?;
    let source = Checkpoint::open(path).map_err(Failure::input)?;
    let dtype = written_dtype(asked.dtype.as_deref(), &source)?;
    let source = source.rounded(dtype);
    let model = Model::open(&source).map_err(Failure::input)?;
    seen.notes(&model.config().notes);
    let passes = Passes::new(&recipe, &choice, model.config(), asked.sequential)?;
    passes.list.iter().for_each(|pass| seen.notes(&pass.plan.notes));
    let job = Job {
        calibration: calibration(asked, &model)?,
        evaluation: evaluation(asked, &model)?,
        source: &source,
        plan: passes.list[0].plan.clone(),
        dtype,
        sequential: asked.sequential,
        spill: asked.spill,
        include: asked.include.clone(),
        exclude: asked.exclude.clone(),
    };
    let record = pipeline::run_passes(&job, &passes, out, start, seen, crew)?;
    serde_json::to_string(&record).map_err(|error| Failure::Running(error.to_string()))
}

fn calibration(asked: &Asked, model: &Model<'_>) -> Result<Calibration, Failure> {
    let text = join(&read_text(&asked.calib).map_err(Failure::input)?);
    let name = asked.calib.file_name().unwrap_or_default().to_string_lossy();
    Ok(Calibration::of(model, (&name, &text), asked.samples, asked.seq_len, asked.seed)?)
}

fn evaluation(asked: &Asked, model: &Model<'_>) -> Result<Option<Evaluation>, Failure> {
    let Some(path) = &asked.eval else { return Ok(None) };
    let text = join(&read_text(path).map_err(Failure::input)?);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (every, tokens, seq_len) = (asked.eval_every, asked.eval_tokens, asked.eval_seq_len);
    Ok(Some(Evaluation::of(model, (&name, &text), every, tokens, seq_len)?))
}

/// What happened since Python was told last.
#[derive(Default)]
struct Seen {
    stopped: AtomicBool,
    layers: Mutex<usize>,
    news: Mutex<Vec<News>>,
}

/// One thing to tell.
enum News {
    Step { layer: usize, step: &'static str, share: f64 },
    Layer { layer: usize, error: f64, seconds: f64 },
    Evaluated { after_layer: Option<usize>, token_perplexity: f64 },
    Note(String),
}

impl Seen {
    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn push(&self, news: News) {
        let mut all = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        // Of a step only the latest share matters.
        if let (Some(News::Step { .. }), News::Step { .. }) = (all.last(), &news) {
            all.pop();
        }
        all.push(news);
    }

    fn notes(&self, notes: &[String]) {
        notes.iter().for_each(|note| self.push(News::Note(note.clone())));
    }

    /// Calls `progress` with a dict for everything new.
    fn tell(&self, py: Python<'_>, progress: &Py<PyAny>) -> PyResult<()> {
        let news = std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner));
        let layers = *self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        for news in news {
            let event = PyDict::new(py);
            match news {
                News::Step { layer, step, share } => {
                    event.set_item("event", "step")?;
                    event.set_item("layer", layer)?;
                    event.set_item("step", step)?;
                    event.set_item("share", share)?;
                }
                News::Layer { layer, error, seconds } => {
                    event.set_item("event", "layer")?;
                    event.set_item("layer", layer)?;
                    event.set_item("error", error)?;
                    event.set_item("seconds", seconds)?;
                }
                News::Evaluated { after_layer, token_perplexity } => {
                    event.set_item("event", "evaluated")?;
                    event.set_item("after_layer", after_layer)?;
                    event.set_item("token_perplexity", token_perplexity)?;
                }
                News::Note(text) => {
                    event.set_item("event", "note")?;
                    event.set_item("text", text)?;
                }
            }
            event.set_item("layers", layers)?;
            progress.call1(py, (event,))?;
        }
        Ok(())
    }
}

impl pipeline::Watch for Seen {
    fn see(&self, event: Event<'_>) {
        match event {
            Event::Start { layers, .. } => {
                *self.layers.lock().unwrap_or_else(PoisonError::into_inner) = layers;
            }
            Event::Step { layer, step, share } => {
                self.push(News::Step { layer, step: step.name(), share });
            }
            Event::Layer(record) => self.push(News::Layer {
                layer: record.index,
                error: record.decoder_error,
                seconds: record.seconds,
            }),
            Event::Evaluated(record) => self.push(News::Evaluated {
                after_layer: record.after_layer,
                token_perplexity: record.token_perplexity,
            }),
            Event::Note(text) => self.push(News::Note(text.to_string())),
            Event::Pruned { .. } => {}
        }
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}
