//! Interleaved timing: what is compared runs in turn, so that other load on the
//! machine affects all alike.

use std::time::Instant;

/// Seconds of several tasks in each of some turns.
pub struct Turns<const N: usize>(Vec<[f64; N]>);

/// Runs the tasks one after the other, in every turn.
pub fn interleave<const N: usize>(turns: usize, mut tasks: [&mut dyn FnMut(); N]) -> Turns<N> {
    let turn = |_| {
        let mut seconds = [0.0; N];
        for (task, seconds) in tasks.iter_mut().zip(&mut seconds) {
            let started = Instant::now();
            task();
            *seconds = started.elapsed().as_secs_f64();
        }
        seconds
    };
    Turns((0..turns).map(turn).collect())
}

impl<const N: usize> Turns<N> {
    /// The shortest time of each task.
    pub fn least(&self) -> [f64; N] {
        let shorter = |a: [f64; N], b: &[f64; N]| std::array::from_fn(|i| a[i].min(b[i]));
        self.0.iter().fold([f64::INFINITY; N], shorter)
    }

    /// How much faster the first task is than the second: the median over all turns.
    pub fn median_speedup(&self) -> f64 {
        let mut ratios: Vec<f64> = self.0.iter().map(|turn| turn[1] / turn[0]).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN)
    }
}
