//! Equivalence of specs that are written differently.

use super::domain::Space;
use super::{Coupling, Spec};
use crate::layout::Layout;
use std::ops::Range;

impl Spec {
    /// Whether both cover one whole tensor of the same dims and have the same blocks in the
    /// same scopes, of which they keep the same number. Decided by strides alone: unusual
    /// spellings may be reported as different.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let ([a], [b]) = (self.tensors(), other.tensors()) else { return false };
        let whole = |space: &Space| matches!(space, Space::Direct { first: 0 });
        a.dims == b.dims
            && !self.has_levels()
            && !other.has_levels()
            && whole(&a.space)
            && whole(&b.space)
            && a.positions() == a.size
            && b.positions() == b.size
            && self.keep == other.keep
            && merged(a.blocks.division()[0]) == merged(b.blocks.division()[0])
            && a.scopes.division().map(merged) == b.scopes.division().map(merged)
    }

    /// The blocks of a scope that are in tensor `tensor`.
    pub(crate) fn own_blocks(&self, tensor: usize) -> Range<usize> {
        match self.coupling {
            Coupling::Blocks => 0..self.blocks_per_scope,
            Coupling::Scopes => {
                let before: usize = self.tensors[..tensor].iter().map(|t| t.block().len()).sum();
                before..before + self.tensors[tensor].block().len()
            }
        }
    }
}

/// Layouts with the same offsets are equal in this form, if their strides nest.
fn merged(layout: &Layout) -> Layout {
    layout.sorted().coalesce().expect("strides are not negative")
}

#[cfg(test)]
mod tests {
    use crate::Pattern;

    #[test]
    fn spellings_are_alike_and_patterns_are_not() {
        let bind = |text: &str| text.parse::<Pattern>().unwrap().bind(&[32, 64]).unwrap();
        let like = |a: &str, b: &str| bind(a).is_like(&bind(b));
        assert!(like("2:4", "view (M,K/4,4) scope (1,1,4) keep 2"));
        assert!(like(
            "2:4@8",
            "view (M,K/16,8,2):(K,16,1,8) block (1,1,1,2) scope (1,1,4,1) keep 2"
        ));
        assert!(like(
            "rows16",
            "view (M/16,8,2,K):(16*K,K,8*K,1) block (1,1,1,16) scope (1,1,2,1) keep 1"
        ));
        assert!(!like("2:4", "1:4"));
        assert!(!like("2:4", "2:8"));
        assert!(!like("2:4@8", "2:4@4"));
        assert!(!like("2:4", "in (0,0)+(16,64) scope (1,4) keep 2"));
        assert!(!like("2:4", "scope (4,1) keep 2"));
    }
}
