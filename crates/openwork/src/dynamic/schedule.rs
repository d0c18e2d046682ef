//! The update schedule of dynamic masks.

/// When a mask is updated, and the share of blocks that change:
///
/// ```text
/// fraction(t) = fraction / 2 (1 + cos(pi t / end))     at t = every, 2 every, .. < end
/// ```
///
/// ```
/// use openwork::dynamic::Schedule;
/// let schedule = Schedule { fraction: 0.3, every: 100, end: 1000 };
/// assert_eq!(schedule.at(50), None);
/// assert!((schedule.at(500).unwrap() - 0.15).abs() < 1e-12);
/// assert_eq!(schedule.at(1000), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The share at the start, from 0 to 1.
    pub fraction: f64,
    /// Steps between updates; 0 for never.
    pub every: u64,
    /// The step from which masks no longer change.
    pub end: u64,
}

impl Schedule {
    /// The share that changes at step `t`, if it is an update step.
    pub fn at(&self, t: u64) -> Option<f64> {
        let due = t > 0 && t < self.end && t.checked_rem(self.every) == Some(0);
        due.then(|| {
            let turn = std::f64::consts::PI * t as f64 / self.end as f64;
            self.fraction / 2.0 * (1.0 + turn.cos())
        })
    }
}
