//! Random numbers that depend only on a seed and an index, so that runs can be resumed
//! and do not depend on the number of threads.

use crate::random::{STEP, mix, unit};

/// `len` uniform numbers in [0, 1) (SplitMix64).
///
/// ```
/// let all = openwork::dynamic::numbers(1, 1000);
/// assert!(all.iter().all(|x| (0.0..1.0).contains(x)));
/// ```
pub fn numbers(seed: u64, len: usize) -> Vec<f64> {
    let start = mix((seed ^ 0x6F70_656E_776F_726B).wrapping_add(STEP));
    // The outputs of a generator that starts there, each computed from its index.
    let bits = |place: u64| mix(start.wrapping_add(place.wrapping_add(1).wrapping_mul(STEP)));
    (0..len as u64).map(|place| unit(bits(place))).collect()
}
