//! Storage cost and memory access of a spec.

use super::{Coupling, Level, Side, Spec, Tensor};

/// The storage of a pruned tensor's domain for one value width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Storage {
    /// Bits of one value.
    pub value_bits: usize,
    /// Bits per weight of the dense tensor, values and index together.
    pub bits_per_weight: f64,
    /// Packed size over dense size.
    pub ratio: f64,
}

/// Facts that follow from a spec's shape alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Elements of a block in each tensor.
    pub block_sizes: Vec<usize>,
    /// Index bits per scope of the outermost level: a mask, or the number of each kept block,
    /// whichever is shorter.
    pub index_bits: usize,
    /// Their information-theoretic minimum: the rank of the combination.
    pub least_index_bits: usize,
    /// Index bits of all levels per kept weight.
    pub index_bits_per_kept: f64,
    /// Sizes for values of 16, 8 and 4 bits.
    pub storage: [Storage; 3],
    /// The length of the contiguous runs of a block, for each tensor.
    pub runs: Vec<usize>,
    /// Whether the innermost axis of a block steps through memory by 1.
    pub contiguous: Vec<bool>,
}

impl Facts {
    /// Bits per weight of the dense tensor, with values of so many bits.
    ///
    /// ```
    /// let facts = "2:4".parse::<openwork::Pattern>().unwrap().bind(&[16, 32]).unwrap().facts();
    /// assert_eq!(facts.bits_per_weight(4.5), 3.25); // 4 bits, and a 16-bit scale for 32
    /// ```
    pub fn bits_per_weight(&self, value_bits: f64) -> f64 {
        let [wide, narrow, _] = self.storage;
        let kept = (wide.bits_per_weight - narrow.bits_per_weight)
            / (wide.value_bits - narrow.value_bits) as f64;
        wide.bits_per_weight + kept * (value_bits - wide.value_bits as f64)
    }
}

impl Spec {
    /// Facts that follow from the spec's shape alone.
    ///
    /// ```
    /// let facts = "2:4".parse::<openwork::Pattern>().unwrap().bind(&[16, 32]).unwrap().facts();
    /// assert_eq!((facts.index_bits, facts.storage[0].ratio), (4, 9.0 / 16.0));
    /// ```
    pub fn facts(&self) -> Facts {
        let block_sizes: Vec<usize> =
            self.tensors().iter().map(|t| t.blocks().tile_size()).collect();
        let blocks = self.blocks_per_scope();
        let index_bits = index_bits(blocks, self.keep());
        // If coupled scopes have blocks of several sizes, the kept share counts blocks.
        let scope_weights: usize = match self.coupling() {
            Coupling::Blocks => block_sizes.iter().sum::<usize>() * blocks,
            Coupling::Scopes => {
                self.tensors().iter().map(|t| t.blocks().tile_size() * t.block().len()).sum()
            }
        };
        let kept = scope_weights as f64 * self.density();
        // The index of the inner levels, for one scope of this one.
        let inner: u128 =
            Side::BOTH.iter().filter_map(|&side| self.level(side)).map(inner_bits).sum();
        let all_bits = index_bits as f64 + inner as f64 / self.scopes() as f64;
        let storage = [16, 8, 4].map(|value_bits| {
            let bits_per_weight = (kept * value_bits as f64 + all_bits) / scope_weights as f64;
            Storage { value_bits, bits_per_weight, ratio: bits_per_weight / value_bits as f64 }
        });
        Facts {
            index_bits,
            least_index_bits: combination_bits(blocks, self.keep()),
            index_bits_per_kept: if kept > 0.0 { all_bits / kept } else { 0.0 },
            storage,
            runs: self.tensors().iter().map(run).collect(),
            contiguous: self.tensors().iter().map(is_contiguous).collect(),
            block_sizes,
        }
    }
}

/// The bits of the index of a level and of those inside it.
fn inner_bits(level: &Level) -> u128 {
    let spec = level.spec();
    let own = spec.scopes() as u128 * index_bits(spec.blocks_per_scope(), spec.keep()) as u128;
    own + Side::BOTH.iter().filter_map(|&side| spec.level(side)).map(inner_bits).sum::<u128>()
}

/// The bits to encode which `keep` of `blocks` are kept: one per block, or the number of
/// each kept block.
pub fn index_bits(blocks: usize, keep: usize) -> usize {
    if keep == 0 || keep == blocks {
        return 0;
    }
    let number = usize::BITS as usize - (blocks - 1).leading_zeros() as usize;
    blocks.min(keep.saturating_mul(number))
}

/// `ceil(log2(blocks choose keep))`.
fn combination_bits(blocks: usize, keep: usize) -> usize {
    // Exact while it fits 128 bits, then by logarithms, whose error is far below
    // one bit.
    let fewer = keep.min(blocks - keep);
    let mut exact = Some(1u128);
    for i in 0..fewer.min(128) {
        exact =
            exact.and_then(|c| c.checked_mul((blocks - i) as u128)).map(|c| c / (i as u128 + 1));
    }
    match exact {
        Some(c) if fewer <= 128 => (128 - (c - 1).leading_zeros()) as usize,
        _ => {
            let ln_factorial = |n: usize| {
                let n = n as f64;
                if n < 1.0 {
                    0.0
                } else {
                    n * n.ln() - n + 0.5 * (std::f64::consts::TAU * n).ln() + 1.0 / (12.0 * n)
                }
            };
            let nats = ln_factorial(blocks) - ln_factorial(keep) - ln_factorial(blocks - keep);
            (nats / std::f64::consts::LN_2).ceil() as usize
        }
    }
}

/// The length of the longest contiguous run of one block.
fn run(tensor: &Tensor) -> usize {
    tensor.blocks().division()[0].run() as usize
}

fn is_contiguous(tensor: &Tensor) -> bool {
    let element = tensor.blocks().division()[0].flat();
    element.iter().rev().find(|leaf| leaf.0 > 1).is_none_or(|leaf| leaf.1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(text: &str, dims: &[usize]) -> Facts {
        text.parse::<crate::Pattern>().unwrap().bind(dims).unwrap().facts()
    }

    #[test]
    fn the_papers_ratios_hold() {
        assert_eq!(facts("2:4", &[16, 32]).storage[0].ratio, 9.0 / 16.0);
        assert_eq!(facts("2:4@8", &[16, 32]).storage[0].ratio, 17.0 / 32.0);
        // One bit for a pair of rows and 16 columns.
        assert_eq!(facts("rows16", &[16, 32]).index_bits, 1);
        assert_eq!(facts("2:4", &[16, 32]).storage[2].bits_per_weight, 3.0);
    }

    #[test]
    fn combination_bits_are_the_ceiling_of_the_logarithm() {
        assert_eq!(combination_bits(4, 2), 3); // 6
        assert_eq!(combination_bits(2, 1), 1);
        assert_eq!(combination_bits(8, 8), 0);
        assert_eq!(combination_bits(60, 30), 57); // 1.18e17
        assert!((combination_bits(4096, 2048) as i64 - 4089).abs() <= 1);
    }

    #[test]
    fn runs_are_what_memory_sees() {
        assert_eq!(
            (facts("rows16", &[16, 32]).runs, facts("rows16", &[16, 32]).contiguous),
            (vec![16], vec![true])
        );
        assert_eq!(
            (facts("2:4@8", &[16, 32]).runs, facts("2:4@8", &[16, 32]).contiguous),
            (vec![1], vec![false])
        );
        assert_eq!(facts("channel", &[16, 32]).runs, [32]);
    }
}
