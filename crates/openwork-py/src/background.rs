//! Long calls: run in the background with the interpreter released; Ctrl-C stops
//! them, and a callback hears of their progress.

use openwork::prune::Monitor;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Interval at which a call looks for signals and reports progress.
const TICK: Duration = Duration::from_millis(40);

/// Progress and cancellation of a call, shared with its threads.
#[derive(Default)]
pub struct Flag {
    stopped: AtomicBool,
    share: AtomicU64,
}

impl Flag {
    /// Asks the work to stop.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// The share of the work that is done.
    pub fn share(&self) -> f64 {
        f64::from_bits(self.share.load(Ordering::Relaxed))
    }
}

impl Monitor for Flag {
    fn progress(&self, share: f64) {
        self.share.store(share.to_bits(), Ordering::Relaxed);
    }

    fn cancelled(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// Runs `work` on another thread with the interpreter released. This thread looks
/// for signals and calls `tick`; if either raises, `stop` is called to end the work,
/// and the exception is raised once it has ended.
pub fn run<T: Send>(
    py: Python<'_>,
    mut tick: impl FnMut(Python<'_>) -> PyResult<()> + Send,
    stop: impl Fn() + Sync,
    work: impl FnOnce() -> T + Send,
) -> PyResult<T> {
    let (raised, done) = py.detach(|| {
        std::thread::scope(|scope| {
            let (tell, told) = channel();
            scope.spawn(move || {
                let done = work();
                // The other end waits for it, or is past waiting.
                let _ = tell.send(done);
            });
            let mut raised = None;
            loop {
                match told.recv_timeout(TICK) {
                    Ok(done) => return (raised, Some(done)),
                    Err(RecvTimeoutError::Disconnected) => return (raised, None),
                    Err(RecvTimeoutError::Timeout) if raised.is_some() => {}
                    Err(RecvTimeoutError::Timeout) => {
                        let looked = Python::attach(|py| {
                            py.check_signals()?;
                            tick(py)
                        });
                        if let Err(error) = looked {
                            stop();
                            raised = Some(error);
                        }
                    }
                }
            }
        })
    });
    if let Some(error) = raised {
        return Err(error);
    }
    // A panic in `work` has been raised by the scope already.
    done.ok_or_else(|| pyo3::exceptions::PyRuntimeError::new_err("the work ended early"))
}
