//! Ranks of combinations: `k` of `n` items as one integer.
//!
//! The items `b_0 < b_1 < ..` have the rank
//!
//! ```text
//! C(b_0, 1) + C(b_1, 2) + .. + C(b_{k-1}, k)
//! ```
//!
//! which numbers the combinations from 0 to `C(n, k) - 1` (the combinatorial number
//! system).

/// Largest size of a rank in bits: ranks are computed in `u64`.
const MAX_BITS: usize = 63;

/// Ranks of `k` of `n` items.
#[derive(Clone, Debug)]
pub(super) struct Ranks {
    n: usize,
    k: usize,
    /// `C(b, i)` at `b * (k + 1) + i`.
    binomials: Vec<u64>,
    bits: usize,
}

impl Ranks {
    /// `None` if a rank does not fit 63 bits.
    pub fn new(n: usize, k: usize) -> Option<Self> {
        // C(n, k) >= 2^min(k, n - k): larger ones are not computed.
        if k > n || k.min(n - k) > MAX_BITS || n > 1 << 16 {
            return None;
        }
        if k > n - k && n > 4 * MAX_BITS {
            return None; // the table would be large for a pattern that drops next to nothing
        }
        let total = choose(n, k).filter(|&c| c <= 1 << MAX_BITS)?;
        let mut binomials = vec![0u64; (n + 1) * (k + 1)];
        for b in 0..=n {
            for i in 0..=k.min(b) {
                let above = |i: usize| binomials[(b - 1) * (k + 1) + i];
                binomials[b * (k + 1) + i] = match i {
                    0 => 1,
                    _ => above(i - 1).saturating_add(above(i)),
                };
            }
        }
        let bits = (u64::BITS - (total - 1).leading_zeros()) as usize;
        Some(Self { n, k, binomials, bits })
    }

    /// `ceil(log2 C(n, k))`.
    pub fn bits(&self) -> usize {
        self.bits
    }

    fn choose(&self, b: usize, i: usize) -> u64 {
        self.binomials[b * (self.k + 1) + i]
    }

    /// The rank of the `k` items for which `kept` holds.
    pub fn rank(&self, kept: impl Fn(usize) -> bool) -> u64 {
        (0..self.n).filter(|&b| kept(b)).enumerate().map(|(i, b)| self.choose(b, i + 1)).sum()
    }

    /// Calls `keep` with the items of a rank, the largest first; returns whether there
    /// is such a rank.
    pub fn unrank(&self, mut rank: u64, mut keep: impl FnMut(usize)) -> bool {
        if rank >= self.choose(self.n, self.k) {
            return false;
        }
        let mut b = self.n;
        for i in (1..=self.k).rev() {
            // The largest b with C(b, i) <= rank; b falls from item to item.
            b -= 1;
            while self.choose(b, i) > rank {
                b -= 1;
            }
            rank -= self.choose(b, i);
            keep(b);
        }
        true
    }
}

/// `C(n, k)`, if it fits 64 bits.
fn choose(n: usize, k: usize) -> Option<u64> {
    let mut c = 1u128;
    for i in 0..k.min(n - k) {
        c = c * (n - i) as u128 / (i as u128 + 1);
        if c > u128::from(u64::MAX) {
            return None;
        }
    }
    Some(c as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_count_all_combinations() {
        for n in 1..=9usize {
            for k in 0..=n {
                let ranks = Ranks::new(n, k).unwrap();
                let mut met = Vec::new();
                for set in 0u32..1 << n {
                    if set.count_ones() as usize != k {
                        continue;
                    }
                    let rank = ranks.rank(|b| set >> b & 1 == 1);
                    let mut back = 0u32;
                    assert!(ranks.unrank(rank, |b| back |= 1 << b));
                    assert_eq!(back, set);
                    met.push(rank);
                }
                met.sort_unstable();
                assert_eq!(met, (0..met.len() as u64).collect::<Vec<_>>());
                assert!(!ranks.unrank(met.len() as u64, |_| {}));
                assert!(met.len() as u64 <= 1 << ranks.bits());
            }
        }
    }

    #[test]
    fn wide_ranks_are_refused_and_narrow_ones_fit() {
        assert_eq!(Ranks::new(4, 2).unwrap().bits(), 3);
        assert_eq!(Ranks::new(64, 32).unwrap().bits(), 61);
        assert!(Ranks::new(80, 40).is_none());
        assert!(Ranks::new(1 << 20, 1).is_none());
        let ranks = Ranks::new(1000, 3).unwrap();
        let rank = ranks.rank(|b| b >= 997);
        let mut kept = Vec::new();
        assert!(ranks.unrank(rank, |b| kept.push(b)));
        assert_eq!(kept, [999, 998, 997]);
    }
}
