//! Numbers at random that depend on a seed and a place alone, so that a run can
//! be resumed and threads do not matter.

use crate::random::{STEP, mix, unit};

/// Numbers from 0 up to 1, one for each of `len` places (SplitMix64).
///
/// ```
/// let all = openwork::dynamic::numbers(1, 1000);
/// assert!(all.iter().all(|x| (0.0..1.0).contains(x)));
/// ```
pub fn numbers(seed: u64, len: usize) -> Vec<f64> {
    let start = mix((seed ^ 0x6F70_656E_776F_726B).wrapping_add(STEP));
    // The outputs of a generator that starts there, each by its place alone.
    let bits = |place: u64| mix(start.wrapping_add(place.wrapping_add(1).wrapping_mul(STEP)));
    (0..len as u64).map(|place| unit(bits(place))).collect()
}
