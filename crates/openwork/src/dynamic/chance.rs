//! Numbers at random that depend on a seed and a place alone, so that a run can
//! be resumed and threads do not matter.

/// Numbers from 0 up to 1, one for each of `len` places (SplitMix64).
///
/// ```
/// let all = openwork::dynamic::numbers(1, 1000);
/// assert!(all.iter().all(|x| (0.0..1.0).contains(x)));
/// ```
pub fn numbers(seed: u64, len: usize) -> Vec<f64> {
    let start = mixed(seed ^ 0x6F70_656E_776F_726B);
    (0..len as u64)
        .map(|place| mixed(start.wrapping_add(place.wrapping_mul(GOLDEN))))
        .map(|bits| (bits >> 11) as f64 / (1u64 << 53) as f64)
        .collect()
}

/// 2^64 over the golden ratio: successive places fall far apart.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finaliser of SplitMix64: every bit of the result depends on every bit of
/// `z`.
fn mixed(z: u64) -> u64 {
    let z = z.wrapping_add(GOLDEN);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
