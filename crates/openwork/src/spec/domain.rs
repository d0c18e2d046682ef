//! Domains: the part of a tensor that a spec covers, as offsets into its storage.

use super::profile::whole;
use super::view::{modes, strided};
use crate::layout::{Layout, StridedLayout};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// The maximum number of runs of a union or complement (64 MB of table).
const MAX_RUNS: usize = 1 << 22;

/// The offsets of a tensor that a spec covers.
#[derive(Clone, Debug)]
pub(crate) enum Region {
    /// A start and strides: the whole tensor, a box, or a layout.
    Strided { first: usize, layout: Layout },
    /// A union or complement: offsets in ascending order.
    Set(Runs),
}

impl Region {
    /// The number of offsets.
    pub fn len(&self) -> usize {
        match self {
            Self::Strided { layout, .. } => layout.size() as usize,
            Self::Set(runs) => runs.len(),
        }
    }

    /// The smallest offset.
    pub fn first(&self) -> usize {
        match self {
            Self::Strided { first, .. } => *first,
            Self::Set(runs) => runs.at(0).unwrap_or(0),
        }
    }

    /// The same offsets as runs.
    pub fn runs(&self) -> Result<Runs, RunsError> {
        match self {
            Self::Set(runs) => Ok(runs.clone()),
            Self::Strided { first, layout } => Runs::new(*first, layout),
        }
    }
}

/// Why offsets cannot be listed as runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunsError {
    /// More than [`MAX_RUNS`].
    TooMany(usize),
    /// An offset occurs twice.
    Twice(usize),
}

/// A set of offsets as maximal contiguous runs. Holds: runs are ascending, separated by
/// gaps, and not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Runs {
    starts: Vec<usize>,
    /// The number of offsets before each run; one entry more than `starts`, the last being
    /// the size of the set.
    before: Vec<usize>,
}

impl Runs {
    /// Runs from `(start, length)` pairs that are ascending and do not overlap.
    fn from_sorted(pairs: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut runs = Self { starts: Vec::new(), before: vec![0] };
        let mut end = None;
        for (start, length) in pairs {
            if length == 0 {
                continue;
            }
            let total = runs.len() + length;
            if end == Some(start) {
                *runs.before.last_mut().expect("before is never empty") = total;
            } else {
                runs.starts.push(start);
                runs.before.push(total);
            }
            end = Some(start + length);
        }
        runs
    }

    /// The offsets of a layout, moved by `first`.
    pub fn new(first: usize, layout: &Layout) -> Result<Self, RunsError> {
        let modes = modes(&layout.sorted());
        // The modes that make up one contiguous run.
        let mut run = 1;
        let mut inner = 0;
        while inner < modes.len() && modes[inner].1 == run {
            run *= modes[inner].0;
            inner += 1;
        }
        let (shape, stride) = modes[inner..].iter().rev().copied().unzip();
        let outer = StridedLayout::new(shape, stride);
        if outer.len() > MAX_RUNS {
            return Err(RunsError::TooMany(outer.len()));
        }
        let mut starts: Vec<usize> = outer.iter().map(|offset| first + offset).collect();
        if !layout.is_nested() {
            starts.sort_unstable();
        }
        if let Some(pair) = starts.windows(2).find(|pair| pair[0] + run > pair[1]) {
            return Err(RunsError::Twice(pair[1]));
        }
        Ok(Self::from_sorted(starts.into_iter().map(|start| (start, run))))
    }

    /// The number of offsets.
    pub fn len(&self) -> usize {
        self.before[self.starts.len()]
    }

    /// The offset of rank `index`.
    pub fn at(&self, index: usize) -> Option<usize> {
        if index >= self.len() {
            return None;
        }
        let run = self.before.partition_point(|&before| before <= index) - 1;
        Some(self.starts[run] + index - self.before[run])
    }

    /// The rank of `offset`, if it is in the set.
    pub fn rank(&self, offset: usize) -> Option<usize> {
        let run = self.starts.partition_point(|&start| start <= offset).checked_sub(1)?;
        let rank = self.before[run] + offset - self.starts[run];
        (rank < self.before[run + 1]).then_some(rank)
    }

    /// Start and length of each run.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.starts
            .iter()
            .enumerate()
            .map(|(i, &start)| (start, self.before[i + 1] - self.before[i]))
    }

    /// The number of runs.
    pub fn runs(&self) -> usize {
        self.starts.len()
    }

    /// Offsets in any of the sets.
    pub fn union(sets: &[Self]) -> Self {
        let mut pairs: Vec<_> = sets.iter().flat_map(Self::pairs).collect();
        pairs.sort_unstable();
        let mut end = 0;
        Self::from_sorted(pairs.into_iter().map(|(start, length)| {
            let from = start.max(end);
            let to = (start + length).max(from);
            end = end.max(to);
            (from, to - from)
        }))
    }

    /// Offsets below `size` that are not in this set.
    pub fn complement(&self, size: usize) -> Self {
        let mut end = 0;
        let mut gaps = Vec::with_capacity(self.starts.len() + 1);
        for (start, length) in self.pairs() {
            gaps.push((end, start - end));
            end = start + length;
        }
        gaps.push((end, size.saturating_sub(end)));
        Self::from_sorted(gaps)
    }
}

/// How offsets of a view map to offsets of the tensor.
#[derive(Clone, Debug)]
pub(crate) enum Space {
    /// Offset `v` of the view is offset `first + v` of the tensor.
    Direct { first: usize },
    /// Offset `v` is the `v`-th of a set; positions beyond its end are padding.
    Ranked { runs: Runs },
    /// Offset `v` is a row-major index over padded extents; positions beyond the real
    /// extents are padding.
    Padded { first: usize, padded: Vec<usize>, real: StridedLayout },
    /// Offset `v` of a space over a compacted tensor, which a level above has placed.
    Placed(Placed),
}

/// The place of a position without a weight.
pub(crate) const PADDING: u32 = u32::MAX;

/// A space over a compacted tensor whose elements are scattered over another.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    inner: Box<Space>,
    /// The offset of every element of the compacted tensor in the other, or [`PADDING`].
    places: Arc<[u32]>,
    /// The number of positions that have a weight.
    real: usize,
    /// The inverse of `places`.
    inverse: Arc<OnceLock<HashMap<u32, u32>>>,
}

impl Placed {
    fn place(&self, v: usize) -> Option<usize> {
        let place = self.places[self.inner.place(v)?];
        (place != PADDING).then_some(place as usize)
    }

    fn unplace(&self, offset: usize) -> Option<usize> {
        let inverse = self.inverse.get_or_init(|| {
            let real = self.places.iter().zip(0u32..).filter(|(place, _)| **place != PADDING);
            real.map(|(&place, at)| (place, at)).collect()
        });
        self.inner.unplace(*inverse.get(&u32::try_from(offset).ok()?)? as usize)
    }
}

impl Space {
    /// A space of `positions` positions over a compacted tensor, at these places of another.
    pub fn placed(inner: Self, places: Arc<[u32]>, positions: usize) -> Self {
        let mut placed =
            Placed { inner: Box::new(inner), places, real: 0, inverse: Arc::default() };
        placed.real = (0..positions).filter(|&v| placed.place(v).is_some()).count();
        Self::Placed(placed)
    }

    /// The tensor's offset; `None` for a padded position.
    pub fn place(&self, v: usize) -> Option<usize> {
        match self {
            Self::Placed(placed) => placed.place(v),
            Self::Direct { first } => Some(first + v),
            Self::Ranked { runs } => runs.at(v),
            Self::Padded { first, padded, real } => {
                let (real, stride) = (real.shape(), real.stride());
                let mut v = v;
                let mut offset = *first;
                for axis in (0..padded.len()).rev() {
                    let at = v % padded[axis];
                    v /= padded[axis];
                    if at >= real[axis] {
                        return None;
                    }
                    offset += at * stride[axis];
                }
                Some(offset)
            }
        }
    }

    /// The view's offset of a tensor's offset; `None` outside the domain. `Direct` does not
    /// know the domain: any offset from `first` on has one.
    pub fn unplace(&self, offset: usize) -> Option<usize> {
        match self {
            Self::Placed(placed) => placed.unplace(offset),
            Self::Direct { first } => offset.checked_sub(*first),
            Self::Ranked { runs } => runs.rank(offset),
            Self::Padded { first, padded, real } => {
                let mut index = real.index_of(offset.checked_sub(*first)?)?;
                let (mut v, mut step) = (0, 1);
                for (extent, padded) in real.shape().iter().zip(padded).rev() {
                    v += index % extent * step;
                    (index, step) = (index / extent, step * padded);
                }
                Some(v)
            }
        }
    }

    /// Whether the lowest position of any tile of `view` is its lowest offset in the
    /// tensor, and tiles in the order of the one are in the order of the other.
    pub fn rises_along(&self, view: &Layout) -> bool {
        let (padded, real) = match self {
            Self::Padded { padded, real, .. } => (padded, real),
            Self::Placed(_) => return false,
            Self::Direct { .. } | Self::Ranked { .. } => return true,
        };
        // Offsets rise with positions if the region is row-major itself,
        // and a tile begins with a real position if it has one and every axis of the
        // view lies within one axis of the region.
        let steps = whole(strided(padded.iter().copied().collect(), None).stride());
        let within = |(extent, stride): (usize, usize)| {
            steps
                .iter()
                .zip(padded)
                .any(|(&step, padded)| step <= stride && stride * extent <= step * padded)
        };
        real.rises() && modes(view).into_iter().all(within)
    }

    /// The number of weights of a view with `positions` positions.
    pub fn weights(&self, positions: usize) -> usize {
        match self {
            Self::Direct { .. } => positions,
            Self::Ranked { runs } => runs.len(),
            Self::Padded { real, .. } => real.len(),
            Self::Placed(placed) => placed.real,
        }
    }

    /// Whether some positions are padding.
    pub fn has_padding(&self, positions: usize) -> bool {
        match self {
            Self::Direct { .. } => false,
            Self::Ranked { runs } => runs.len() < positions,
            Self::Padded { .. } => true,
            Self::Placed(placed) => placed.real < positions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_behave_as_sets() {
        let a = Runs::new(2, &"(3,2):(8,1)".parse().unwrap()).unwrap(); // 2,3 10,11 18,19
        let b = Runs::new(3, &"(2,3):(1,2)".parse().unwrap()).unwrap(); // 3..=8
        let list = |runs: &Runs| (0..runs.len()).map(|i| runs.at(i).unwrap()).collect::<Vec<_>>();
        assert_eq!(list(&a), [2, 3, 10, 11, 18, 19]);
        assert_eq!(list(&b), [3, 4, 5, 6, 7, 8]);
        let both = Runs::union(&[a.clone(), b.clone()]);
        assert_eq!(list(&both), [2, 3, 4, 5, 6, 7, 8, 10, 11, 18, 19]);
        assert_eq!(list(&both.complement(20)), [0, 1, 9, 12, 13, 14, 15, 16, 17]);
        assert_eq!(both.complement(20).complement(20), both);
        for (rank, offset) in list(&a).into_iter().enumerate() {
            assert_eq!(a.rank(offset), Some(rank));
        }
        assert_eq!((a.rank(0), a.rank(4), a.rank(20), a.at(6)), (None, None, None, None));
    }

    #[test]
    fn overlapping_offsets_are_named() {
        let twice = Runs::new(0, &"(2,2):(2,2)".parse().unwrap());
        assert_eq!(twice, Err(RunsError::Twice(2)));
    }
}
