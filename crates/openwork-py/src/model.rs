//! `prune_folder`: a model on disk, by the pipeline of the command.

use crate::background;
use crate::error::{OpenworkError, raised_as};
use crate::executor::PyExecutor;
use openwork_llm::pipeline::estimate::Workers;
use openwork_llm::pipeline::{
    self, Event, Executor, LocalExecutor, OPTIONS, Observer, OptionValue, PipelineError,
    RunOptions, Spelling,
};
use openwork_llm::report::summary;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// A value of an option, as Python gives it.
#[derive(FromPyObject)]
enum Given {
    #[pyo3(transparent)]
    Flag(bool),
    #[pyo3(transparent)]
    Count(u64),
    #[pyo3(transparent)]
    Text(PathBuf),
    #[pyo3(transparent)]
    Texts(Vec<PathBuf>),
}

/// The options of a run: a list of dicts, from the library's table.
#[pyfunction]
pub fn run_options(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let row = |option: &pipeline::RunOption| {
        let row = PyDict::new(py);
        row.set_item("name", option.name)?;
        row.set_item("flag", option.flag())?;
        row.set_item("kind", option.kind.name())?;
        row.set_item("value", option.value)?;
        row.set_item("default", option.default)?;
        row.set_item("required", option.required)?;
        row.set_item("short", option.short)?;
        row.set_item("aliases", option.aliases)?;
        row.set_item("group", option.group)?;
        row.set_item("help", option.help)?;
        Ok(row)
    };
    OPTIONS.iter().map(row).collect()
}

/// The options of a run that are not None.
fn options(given: &Bound<'_, PyDict>, spelling: Spelling) -> PyResult<RunOptions> {
    let mut values = Vec::new();
    for (name, value) in given {
        if value.is_none() {
            continue;
        }
        let name: String = name.extract()?;
        let value = match value.extract() {
            Ok(Given::Flag(on)) => OptionValue::Flag(on),
            Ok(Given::Count(count)) => OptionValue::Count(count),
            Ok(Given::Text(text)) => OptionValue::Text(text.into_os_string()),
            Ok(Given::Texts(texts)) => {
                OptionValue::Texts(texts.into_iter().map(PathBuf::into_os_string).collect())
            }
            Err(_) => {
                let words = format!("{name}={}: this value cannot be used", value.repr()?);
                return Err(OpenworkError::new_err(words));
            }
        };
        values.push((name, value));
    }
    let values = values.iter().map(|(name, value)| (name.as_str(), value.clone()));
    RunOptions::from_values(values).map_err(|error| raised_as(&error, spelling))
}

/// Prunes the model at `path`; the record as JSON and as text, or, of a dry run,
/// the plan. `executor` computes the stages, if given. Errors spell options as
/// flags if asked to.
#[pyfunction]
#[pyo3(signature = (path, options, progress=None, executor=None, flags=false))]
pub fn prune_folder(
    py: Python<'_>,
    path: PathBuf,
    options: &Bound<'_, PyDict>,
    progress: Option<Py<PyAny>>,
    executor: Option<Py<PyAny>>,
    flags: bool,
) -> PyResult<(String, String)> {
    let spelling = if flags { Spelling::Flags } else { Spelling::Keywords };
    let options = self::options(options, spelling)?;
    let workers = match &executor {
        Some(executor) => Some(executor.call_method0(py, "size")?.extract(py)?),
        None => None,
    };
    let workers = workers.map(|(count, threads)| Workers { count, threads });
    let queue = EventQueue { print: options.events, ..EventQueue::default() };
    let tick = |py: Python<'_>| match &progress {
        Some(progress) => queue.deliver(py, progress),
        None => Ok(()),
    };
    let stop = || {
        queue.cancelled.store(true, Ordering::Relaxed);
        if let Some(executor) = &executor {
            // It may be waiting for workers; one without the method ends when they do.
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
        run(&path, &options, workers, &queue, executor.as_mut())
    };
    let done = background::run(py, tick, stop, work)?;
    if let Some(progress) = &progress {
        queue.deliver(py, progress)?;
    }
    done.map_err(|error| raised_as(&error, spelling))
}

fn run(
    path: &Path,
    options: &RunOptions,
    workers: Option<Workers>,
    observer: &EventQueue,
    executor: &mut dyn Executor,
) -> Result<(String, String), PipelineError> {
    let source = options.open(path)?;
    let run = options.prepare(&source, workers)?;
    run.notes.iter().for_each(|note| observer.on_event(Event::Note(note)));
    if options.dry_run {
        let dry_run = run.dry_run();
        return Ok((dry_run.to_json().to_string(), dry_run.to_string()));
    }
    let record = run.run(observer, executor)?;
    let json = serde_json::to_string(&record)
        .map_err(|error| PipelineError::Executor(format!("the record: {error}")))?;
    Ok((json, summary(&record)))
}

/// Events that Python has not received yet, as JSON.
#[derive(Default)]
struct EventQueue {
    cancelled: AtomicBool,
    /// Whether to print events on stderr.
    print: bool,
    /// With whether an event is mere progress.
    events: Mutex<Vec<(bool, String)>>,
}

impl EventQueue {
    /// Calls `progress` with a dict for every new event.
    fn deliver(&self, py: Python<'_>, progress: &Py<PyAny>) -> PyResult<()> {
        let events =
            std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner));
        let loads = py.import("json")?.getattr("loads")?;
        for (_, event) in events {
            progress.call1(py, (loads.call1((event,))?,))?;
        }
        Ok(())
    }
}

impl Observer for EventQueue {
    fn on_event(&self, event: Event<'_>) {
        let progress = event.is_progress();
        let event = event.to_json().to_string();
        if self.print && !progress {
            eprintln!("{event}");
        }
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        // Of a stage only the latest share matters.
        if progress && events.last().is_some_and(|(progress, _)| *progress) {
            events.pop();
        }
        events.push((progress, event));
    }

    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}
