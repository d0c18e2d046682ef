//! Hardware for sparse products: whether every mask of a spec is one that it accepts.

use crate::spec::{Coupling, Locator, Spec};
use std::collections::BTreeMap;

/// Columns of a group of a sparse tensor core, and how many of them it keeps.
const GROUP: usize = 4;
const KEPT: usize = 2;

/// Most groups that are examined: the first ones of some rows. Patterns repeat.
const MAX_GROUPS: usize = 1 << 14;
/// Most columns of a row that are examined.
const MAX_COLUMNS: usize = 1 << 12;

/// Whether sparse tensor cores (2:4, from NVIDIA's Ampere on) accept every mask of a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SparseTensorCores {
    /// They do: no mask keeps more than two of four consecutive columns of a row.
    Accepted,
    /// A mask may keep too many.
    Refused {
        /// The row of the first such group.
        row: usize,
        /// Its first column.
        column: usize,
        /// Weights of it that a mask may keep.
        kept: usize,
    },
    /// The question does not arise.
    NotAMatrix(&'static str),
}

impl SparseTensorCores {
    /// Examines a spec.
    ///
    /// ```
    /// use openwork::{Pattern, hardware::SparseTensorCores};
    /// let of = |text: &str| {
    ///     let spec = text.parse::<Pattern>().unwrap().bind(&[16, 64]).unwrap();
    ///     SparseTensorCores::check(&spec)
    /// };
    /// // Pairs eight columns apart: two of four, twice.
    /// assert_eq!(of("2:4@8"), SparseTensorCores::Accepted);
    /// let refused = SparseTensorCores::Refused { row: 0, column: 0, kept: 4 };
    /// assert_eq!(of("2:4x2"), refused);
    /// ```
    pub fn check(spec: &Spec) -> Self {
        let [tensor] = spec.tensors() else {
            return Self::NotAMatrix("the spec couples several tensors; examine each");
        };
        if spec.has_levels() {
            return Self::NotAMatrix("the spec has levels; examine each");
        }
        if spec.coupling() != Coupling::Blocks || tensor.dims().len() < 2 {
            return Self::NotAMatrix("the tensor is not a matrix");
        }
        let (rows, cols) = tensor.matrix();
        if !cols.is_multiple_of(GROUP) {
            return Self::NotAMatrix("the number of columns is not a multiple of 4");
        }
        let locator = Locator::new(spec, 0);
        let groups = cols.min(MAX_COLUMNS) / GROUP;
        for row in 0..rows.min(MAX_GROUPS.div_ceil(groups)) {
            for group in 0..groups {
                let column = group * GROUP;
                let kept = most_kept(spec, &locator, row * cols + column);
                if kept > KEPT {
                    return Self::Refused { row, column, kept };
                }
            }
        }
        Self::Accepted
    }

    /// A sentence for a person.
    pub fn describe(&self) -> String {
        match self {
            Self::Accepted => {
                "every mask keeps at most 2 of 4 consecutive columns, as sparse tensor cores need"
                    .to_string()
            }
            Self::Refused { row, column, kept } => format!(
                "a mask may keep {kept} of columns {column}-{} in row {row}; sparse tensor cores take 2 of 4",
                column + GROUP - 1
            ),
            Self::NotAMatrix(why) => why.to_string(),
        }
    }
}

/// The most weights of the group at `first` that a mask keeps: in every scope that the group
/// meets, its blocks with most weights there. Weights outside the domain are kept.
fn most_kept(spec: &Spec, locator: &Locator<'_>, first: usize) -> usize {
    let mut scopes: BTreeMap<usize, BTreeMap<usize, usize>> = BTreeMap::new();
    let mut kept = 0;
    for offset in first..first + GROUP {
        match locator.locate(offset) {
            Some((scope, block)) => {
                *scopes.entry(scope).or_default().entry(block).or_default() += 1;
            }
            None => kept += 1,
        }
    }
    for blocks in scopes.into_values() {
        let mut weights: Vec<usize> = blocks.into_values().collect();
        weights.sort_unstable_by(|a, b| b.cmp(a));
        kept += weights.into_iter().take(spec.keep()).sum::<usize>();
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mask, Pattern};

    /// The answer agrees with masks: accepted specs have no mask that keeps too many, and of
    /// those refused some mask does.
    #[test]
    fn the_answer_agrees_with_masks() {
        let shape = [16, 64];
        for text in [
            "2:4",
            "1:4",
            "2:4@8",
            "2:4x2",
            "4:8",
            "rows16",
            "1:2",
            "unstructured(50%)",
            "2:4 in (4,0)+(12,K)",
        ] {
            let spec = text.parse::<Pattern>().unwrap().bind(&shape).unwrap();
            let answer = SparseTensorCores::check(&spec);
            let breaks = (0..200).any(|seed| {
                let mask = Mask::example(&spec, seed);
                let bits = &mask.tensors()[0];
                (0..shape[0] * shape[1] / GROUP)
                    .any(|group| (0..GROUP).filter(|i| bits.get(group * GROUP + i)).count() > KEPT)
            });
            assert_eq!(answer != SparseTensorCores::Accepted, breaks, "{text}: {answer:?}");
        }
    }

    #[test]
    fn what_is_not_a_matrix_is_said() {
        let of = |text: &str, dims: &[usize]| {
            SparseTensorCores::check(&text.parse::<Pattern>().unwrap().bind(dims).unwrap())
                .describe()
        };
        assert!(of("keep 1", &[4]).contains("not a matrix"));
        assert!(of("keep 1", &[4, 6]).contains("multiple of 4"));
        assert!(of("2:4 then 1:2", &[4, 8]).contains("levels"));
        assert!(of("4:8", &[4, 8]).starts_with("a mask may keep 4 of columns 0-3 in row 0"));
    }
}
