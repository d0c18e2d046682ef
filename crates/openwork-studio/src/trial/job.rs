//! Jobs: trials that run in the background, one at a time.

use super::measure::{Subject, measure};
use super::source::Tensor;
use openwork::Pattern;
use openwork::mask::Bits;
use openwork::prune::{Method, Monitor};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Jobs whose results are kept, and jobs that may still be stopping.
const KEPT: usize = 4;
const MAX_STOPPING: usize = 2;

/// One pattern by one method.
pub(super) struct Work {
    pub pattern: Pattern,
    pub text: String,
    pub method: Method,
}

/// What is known of a job.
#[derive(Debug, Default)]
struct State {
    doing: String,
    share: f64,
    results: Vec<Value>,
    masks: Vec<Option<Bits>>,
    ended: bool,
    error: Option<String>,
}

/// A trial.
#[derive(Debug)]
pub(crate) struct Job {
    id: u64,
    tensor: String,
    shape: Vec<usize>,
    count: usize,
    cancelled: AtomicBool,
    state: Mutex<State>,
}

/// The trials of a studio.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    last: AtomicU64,
    recent: Mutex<VecDeque<Arc<Job>>>,
}

impl Jobs {
    /// Starts a job and cancels the others; `None` if too many are still stopping.
    pub(super) fn start(&self, tensor: Tensor, work: Vec<Work>) -> Option<u64> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().for_each(|job| job.cancel());
        if recent.iter().filter(|job| !job.state().ended).count() >= MAX_STOPPING {
            return None;
        }
        let job = Arc::new(Job {
            id: self.last.fetch_add(1, Ordering::Relaxed) + 1,
            tensor: tensor.name().to_string(),
            shape: tensor.shape.clone(),
            count: work.len(),
            cancelled: AtomicBool::new(false),
            state: Mutex::default(),
        });
        recent.push_front(Arc::clone(&job));
        recent.truncate(KEPT);
        let id = job.id;
        std::thread::spawn(move || {
            // A panic ends the job and is reported.
            let run = std::panic::AssertUnwindSafe(|| run(&job, &tensor, &work));
            let error = match std::panic::catch_unwind(run) {
                Ok(result) => result.err(),
                Err(_) => Some("the trial failed; see the terminal".to_string()),
            };
            let mut state = job.state();
            (state.ended, state.error) = (true, error);
        });
        Some(id)
    }

    pub(super) fn find(&self, id: u64) -> Option<Arc<Job>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().find(|job| job.id == id).map(Arc::clone)
    }
}

impl Job {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Progress and results.
    pub(super) fn status(&self) -> Value {
        let cancelled = self.cancelled.load(Ordering::Relaxed);
        let state = self.state();
        json!({
            "tensor": self.tensor,
            "shape": self.shape,
            "doing": state.doing,
            "share": state.share,
            "count": self.count,
            "results": state.results,
            "ended": state.ended,
            "cancelled": cancelled,
            "error": state.error,
        })
    }

    /// The mask of a result, with the rows and columns.
    pub(super) fn mask(&self, result: usize) -> Option<(Bits, usize, usize)> {
        let state = self.state();
        let bits = state.masks.get(result)?.clone()?;
        Some((bits, self.shape[0], self.shape[1]))
    }
}

/// Progress of a part of a job, which has one or more steps: a method and its modifiers each
/// report from 0 to 1.
struct JobPart<'a> {
    job: &'a Job,
    from: f64,
    width: f64,
    steps: usize,
    /// The current step, and how much of it is done.
    at: Mutex<(usize, f64)>,
}

impl<'a> JobPart<'a> {
    fn new(job: &'a Job, from: f64, width: f64, steps: usize) -> Self {
        Self { job, from, width, steps, at: Mutex::default() }
    }
}

impl Monitor for JobPart<'_> {
    fn progress(&self, share: f64) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        // Threads may report out of order, but only by a little.
        if share < at.1 - 0.5 && at.0 + 1 < self.steps {
            *at = (at.0 + 1, share);
        }
        at.1 = at.1.max(share.clamp(0.0, 1.0));
        let share = self.from + self.width * (at.0 as f64 + at.1) / self.steps as f64;
        let mut state = self.job.state();
        state.share = state.share.max(share);
    }

    fn cancelled(&self) -> bool {
        self.job.cancelled.load(Ordering::Relaxed)
    }
}

fn run(job: &Job, tensor: &Tensor, work: &[Work]) -> Result<(), String> {
    const READING: f64 = 0.3;
    let say = |doing: String| job.state().doing = doing;
    // What stopped reports as its error is a consequence of the cancellation.
    let unless_cancelled = || match job.cancelled.load(Ordering::Relaxed) {
        true => Err("cancelled".to_string()),
        false => Ok(()),
    };
    say(tensor.capturing());
    let weights = tensor.weights()?;
    let hessian = tensor.hessian(&JobPart::new(job, 0.0, READING, 1));
    unless_cancelled()?;
    let subject = Subject::new(weights, hessian?);
    let width = (1.0 - READING) / work.len() as f64;
    for (i, work) in work.iter().enumerate() {
        say(format!("{} by {}", work.text, work.method));
        let steps = 1 + work.method.to_string().matches('+').count();
        let part = JobPart::new(job, READING + width * i as f64, width, steps);
        let (result, mask) = measure(work, &subject, &part);
        unless_cancelled()?;
        let mut state = job.state();
        state.results.push(result);
        state.masks.push(mask);
    }
    job.state().share = 1.0;
    Ok(())
}
