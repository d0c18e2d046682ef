//! `prune_folder`: a model on disk, by the pipeline of the command.

use crate::background;
use crate::error::raised;
use crate::executor::PyExecutor;
use openwork_llm::pipeline::estimate::Workers;
use openwork_llm::pipeline::{
    self, Event, Executor, LocalExecutor, Observer, PipelineError, Start,
};
use openwork_llm::report::summary;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// What was asked for, by name.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct RunOptions {
    spec: Option<String>,
    method: Option<String>,
    recipe: Option<PathBuf>,
    calib: PathBuf,
    samples: usize,
    seq_len: Option<usize>,
    single_tokens: Option<usize>,
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
    max_memory: Option<String>,
    dry_run: bool,
    events: bool,
    /// Bytes of hidden states in memory.
    state_memory_limit: Option<u64>,
    /// Workers, and threads of each.
    workers: Option<(usize, usize)>,
}

impl RunOptions {
    fn of(self, out: PathBuf) -> pipeline::RunOptions {
        pipeline::RunOptions {
            spec: self.spec,
            method: self.method,
            recipe: self.recipe,
            remove: self.remove,
            calib: self.calib,
            samples: self.samples,
            seq_len: self.seq_len,
            single_tokens: self.single_tokens,
            seed: self.seed,
            include: self.include,
            exclude: self.exclude,
            eval: self.eval,
            eval_every: self.eval_every,
            eval_tokens: self.eval_tokens,
            eval_seq_len: self.eval_seq_len,
            out,
            start: match (self.resume, self.force) {
                (true, _) => Start::Resume,
                (_, true) => Start::Force,
                _ => Start::Fresh,
            },
            dtype: self.dtype,
            sequential: self.sequential,
            max_memory: self.max_memory,
            state_memory_limit: self.state_memory_limit,
            workers: self.workers.map(|(count, threads)| Workers { count, threads }),
        }
    }
}

/// Prunes the model at `path` into the folder `out`; gives the record as JSON and
/// as text, or, of a dry run, what would be done. A `executor` does the steps, if there is one.
#[pyfunction]
#[pyo3(signature = (path, out, asked, progress=None, executor=None))]
pub fn prune_folder(
    py: Python<'_>,
    path: PathBuf,
    out: PathBuf,
    asked: RunOptions,
    progress: Option<Py<PyAny>>,
    executor: Option<Py<PyAny>>,
) -> PyResult<(String, String)> {
    let seen = Seen { events: asked.events, ..Seen::default() };
    let dry = asked.dry_run;
    let asked = asked.of(out);
    let tick = |py: Python<'_>| match &progress {
        Some(progress) => seen.tell(py, progress),
        None => Ok(()),
    };
    let stop = || {
        seen.stop();
        if let Some(executor) = &executor {
            // It may be waiting for others; one without the method ends when they do.
            Python::attach(|py| drop(executor.call_method0(py, "stop")));
        }
    };
    let work = || {
        let mut executor: Box<dyn Executor> = match &executor {
            Some(executor) => {
                Box::new(Python::attach(|py| PyExecutor::new(executor.clone_ref(py))))
            }
            None => Box::new(LocalExecutor::default()),
        };
        run(&path, &asked, dry, &seen, executor.as_mut())
    };
    let done = background::run(py, tick, stop, work)?;
    if let Some(progress) = &progress {
        seen.tell(py, progress)?;
    }
    done.map_err(|error| raised(&error))
}

fn run(
    path: &Path,
    asked: &pipeline::RunOptions,
    dry: bool,
    seen: &Seen,
    executor: &mut dyn Executor,
) -> Result<(String, String), PipelineError> {
    let source = asked.open(path)?;
    let ready = asked.prepare(&source, &|notes| seen.notes(notes))?;
    if dry {
        let dry_run = ready.dry_run();
        return Ok((dry_run.to_json().to_string(), dry_run.to_string()));
    }
    ready.passes.list.iter().for_each(|pass| seen.notes(&pass.plan.notes));
    let record = ready.run(seen, executor)?;
    let json = serde_json::to_string(&record)
        .map_err(|error| PipelineError::Executor(format!("the record: {error}")))?;
    Ok((json, summary(&record)))
}

/// What happened since Python was told last.
#[derive(Default)]
struct Seen {
    stopped: AtomicBool,
    /// Whether to print lines of JSON on stderr.
    events: bool,
    layers: Mutex<usize>,
    news: Mutex<Vec<News>>,
}

/// One thing to tell.
enum News {
    Progress { layer: usize, stage: &'static str, share: f64 },
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
        // Of a stage only the latest share matters.
        if let (Some(News::Progress { .. }), News::Progress { .. }) = (all.last(), &news) {
            all.pop();
        }
        all.push(news);
    }

    fn notes(&self, notes: &[String]) {
        notes.iter().for_each(|note| self.on_event(Event::Note(note)));
    }

    /// Calls `progress` with a dict for everything new.
    fn tell(&self, py: Python<'_>, progress: &Py<PyAny>) -> PyResult<()> {
        let news = std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner));
        let layers = *self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        for news in news {
            let event = PyDict::new(py);
            match news {
                News::Progress { layer, stage, share } => {
                    event.set_item("event", "progress")?;
                    event.set_item("layer", layer)?;
                    event.set_item("stage", stage)?;
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

impl Observer for Seen {
    fn on_event(&self, event: Event<'_>) {
        if let Some(line) = event.to_json().filter(|_| self.events) {
            eprintln!("{line}");
        }
        match event {
            Event::Start { layers, .. } => {
                *self.layers.lock().unwrap_or_else(PoisonError::into_inner) = layers;
            }
            Event::Progress { layer, stage, share } => {
                self.push(News::Progress { layer, stage: stage.name(), share });
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
