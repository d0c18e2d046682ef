//! Reproducible random numbers: SplitMix64 (Steele, Lea and Flood 2014), small,
//! and the same on every machine.

/// 2^64 over the golden ratio: the step between successive states.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64: every bit of the result depends on every bit of
/// `z`.
pub fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Random bits as a number from 0 up to 1.
pub fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// A stream of random bits; the field is its state, at first the seed.
#[derive(Clone, Debug)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next 64 bits.
    ///
    /// ```
    /// // The first output of the authors' program for the seed 0.
    /// assert_eq!(openwork::random::SplitMix64(0).next_bits(), 0xe220_a839_7b1d_cdaf);
    /// ```
    pub fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `n`; the bias of the product is under n / 2^64.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_bits()) * u128::from(n)) >> 64) as u64
    }
}
