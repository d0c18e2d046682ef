//! Keeps the threads of the pool awake during many short parallel loops.

use rayon::Yield;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a thread looks for work before it may sleep: longer than the serial
/// work between two loops. It must be finite, because threads waiting for two
/// callers of one pool would otherwise wait for each other.
const PATIENCE: Duration = Duration::from_micros(300);

/// Runs `work` in the thread pool while the other threads spin looking for tasks.
/// A thread without tasks sleeps after a few microseconds, and waking it takes
/// longer than a loop over one small matrix.
pub(crate) fn keep_awake<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    if rayon::current_num_threads() == 1 {
        return work();
    }
    let finished = AtomicBool::new(false);
    rayon::scope(|scope| {
        let caller = rayon::current_thread_index();
        let finished = &finished;
        scope.spawn_broadcast(move |_, thread| {
            if Some(thread.index()) == caller {
                return;
            }
            let mut last = Instant::now();
            while !finished.load(Ordering::Relaxed) && last.elapsed() < PATIENCE {
                match rayon::yield_now() {
                    Some(Yield::Executed) => last = Instant::now(),
                    // Threads that poll without a pause slow down the working ones.
                    _ => (0..16).for_each(|_| std::hint::spin_loop()),
                }
            }
        });
        let result = work();
        finished.store(true, Ordering::Relaxed);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;

    /// Short loops, as in decoding.
    fn loops(seed: u64) -> u64 {
        keep_awake(|| {
            (0..50).fold(seed, |sum, i| sum + (0..64).into_par_iter().map(|j| i * j).sum::<u64>())
        })
    }

    #[test]
    fn work_is_done_once_without_deadlock() {
        let want = 64 * 63 / 2 * (50 * 49 / 2);
        for threads in 1..=4 {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            // Outside the pool, inside it, and several callers at once.
            assert_eq!(pool.install(|| loops(7)), want + 7);
            let many: Vec<u64> = pool.install(|| (0..20).into_par_iter().map(loops).collect());
            assert!(many.iter().zip(0..).all(|(&sum, seed)| sum == want + seed));
        }
        assert_eq!(loops(1), want + 1);
    }

    #[test]
    fn a_panic_propagates() {
        let caught = std::panic::catch_unwind(|| keep_awake(|| panic!("as it should")));
        assert!(caught.is_err());
    }
}
