//! A layout as a table for inner loops: flat, in `usize`, walked row-major.
//!
//! [`Layout`] is the algebra: nested, exact in `i64`, every operation checked. A
//! bound spec evaluates its layouts once for each weight, which a nested tuple
//! is too slow for; this table holds the same function, counted with the last
//! axis fastest, as specs count blocks and scopes.

use super::Layout;

/// The offsets of a layout in row-major order: position `(i_0, .., i_n)` is at
/// `i_0 d_0 + .. + i_n d_n`.
///
/// Holds: shape and stride have the same rank, and no offset overflows.
///
/// ```
/// use openwork::layout::{Layout, StridedLayout};
/// let layout: Layout = "(2,(2,3)):(10,(3,1))".parse()?;
/// let strided = StridedLayout::from(&layout);
/// assert_eq!(strided.shape(), [2, 2, 3]);
/// assert_eq!(strided.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]);
/// assert_eq!(strided.index_of(13), Some(9));
/// # Ok::<(), openwork::layout::LayoutError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StridedLayout {
    shape: Vec<usize>,
    stride: Vec<usize>,
    len: usize,
}

impl StridedLayout {
    /// Offsets of a shape with strides; the caller has checked that neither the
    /// product nor the largest offset overflows.
    pub(crate) fn new(shape: Vec<usize>, stride: Vec<usize>) -> Self {
        debug_assert_eq!(shape.len(), stride.len());
        let len = shape.iter().product();
        Self { shape, stride, len }
    }

    /// The sums of one offset of each layout, the last one varying fastest.
    pub(crate) fn concat(layouts: &[&Self]) -> Self {
        let shape = layouts.iter().flat_map(|layout| &layout.shape).copied().collect();
        let stride = layouts.iter().flat_map(|layout| &layout.stride).copied().collect();
        Self::new(shape, stride)
    }

    /// The number of offsets.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The strides.
    pub fn stride(&self) -> &[usize] {
        &self.stride
    }

    /// The offset of position `index`, counted row-major.
    pub fn at(&self, mut index: usize) -> usize {
        let mut offset = 0;
        for (&extent, &stride) in self.shape.iter().zip(&self.stride).rev() {
            if extent > 1 {
                offset += index % extent * stride;
                index /= extent;
            }
        }
        offset
    }

    /// The row-major index of a position at offset `v`, if there is one; the only
    /// one where offsets are distinct.
    ///
    /// [`Layout::left_inverse`] refuses modes that interleave, such as
    /// `(2,3):(3,2)`, which a domain may have; so the digits are searched for. Axes
    /// of larger strides come first, within what the others can still make up:
    /// strides that nest need no second try.
    pub fn index_of(&self, v: usize) -> Option<usize> {
        let mut axes: Vec<usize> =
            (0..self.shape.len()).filter(|&axis| self.shape[axis] > 1).collect();
        axes.sort_by_key(|&axis| std::cmp::Reverse(self.stride[axis]));
        let mut at = vec![0; self.shape.len()];
        let reach = axes.iter().map(|&axis| (self.shape[axis] - 1) * self.stride[axis]).sum();
        let found = self.find(&axes, reach, v, &mut at);
        found.then(|| at.iter().zip(&self.shape).fold(0, |index, (at, extent)| index * extent + at))
    }

    /// Sets `at` along `axes`, which reach up to `reach`, so that they add up to `v`.
    fn find(&self, axes: &[usize], reach: usize, v: usize, at: &mut [usize]) -> bool {
        let Some((&axis, rest)) = axes.split_first() else { return v == 0 };
        if v > reach {
            return false;
        }
        let (last, stride) = (self.shape[axis] - 1, self.stride[axis]);
        let below = reach - last * stride;
        // A stride of 0 makes up nothing: any entry does.
        let from = v.saturating_sub(below).div_ceil(stride.max(1));
        let to = v.checked_div(stride).map_or(0, |to| to.min(last));
        (from..=to).rev().any(|i| {
            at[axis] = i;
            self.find(rest, below, v - i * stride, at)
        })
    }

    /// Whether each stride exceeds all that the axes after it add up to, so that
    /// offsets rise with the index.
    pub(crate) fn rises(&self) -> bool {
        let mut reach = 0;
        let mut axes = self.shape.iter().zip(&self.stride).rev().filter(|(extent, _)| **extent > 1);
        axes.all(|(extent, &stride)| {
            let above = stride > reach;
            reach += (extent - 1) * stride;
            above
        })
    }

    /// All offsets, row-major.
    pub fn iter(&self) -> StridedIter<'_> {
        self.iter_from(0)
    }

    /// The offsets from position `index` on, row-major; `index` is at most the length.
    pub(crate) fn iter_from(&self, index: usize) -> StridedIter<'_> {
        let (mut at, mut rest) = (vec![0; self.shape.len()], index);
        for axis in (0..self.shape.len()).rev() {
            at[axis] = rest % self.shape[axis].max(1);
            rest /= self.shape[axis].max(1);
        }
        StridedIter { layout: self, at, offset: self.at(index), left: self.len - index }
    }
}

impl From<&Layout> for StridedLayout {
    /// # Panics
    ///
    /// If a stride is negative.
    fn from(layout: &Layout) -> Self {
        let number = |n: i64| usize::try_from(n).expect("sizes and strides are not negative");
        let (shape, stride) =
            layout.flat().into_iter().map(|(s, d)| (number(s), number(d))).unzip();
        Self::new(shape, stride)
    }
}

/// Walks the offsets of a [`StridedLayout`] like an odometer, without a division.
#[derive(Clone, Debug)]
pub struct StridedIter<'a> {
    layout: &'a StridedLayout,
    at: Vec<usize>,
    offset: usize,
    left: usize,
}

impl Iterator for StridedIter<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let offset = self.offset;
        for axis in (0..self.at.len()).rev() {
            self.at[axis] += 1;
            self.offset += self.layout.stride[axis];
            if self.at[axis] < self.layout.shape[axis] {
                break;
            }
            self.offset -= self.at[axis] * self.layout.stride[axis];
            self.at[axis] = 0;
        }
        Some(offset)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for StridedIter<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walking_and_addressing_agree() {
        for (shape, stride) in
            [(vec![], vec![]), (vec![3], vec![5]), (vec![2, 1, 3, 2], vec![100, 7, 1, 10])]
        {
            let layout = StridedLayout::new(shape, stride);
            let walked: Vec<_> = layout.iter().collect();
            let addressed: Vec<_> = (0..layout.len()).map(|i| layout.at(i)).collect();
            assert_eq!(walked, addressed);
            for i in 0..layout.len() {
                assert_eq!(layout.iter_from(i).collect::<Vec<_>>(), addressed[i..]);
            }
        }
    }

    #[test]
    fn indices_invert_offsets_that_interleave() {
        let layout = StridedLayout::new(vec![2, 1, 3], vec![3, 9, 2]); // 0 2 4 3 5 7
        for index in 0..layout.len() {
            assert_eq!(layout.index_of(layout.at(index)), Some(index));
        }
        assert_eq!([1, 6, 8, 100].map(|v| layout.index_of(v)), [None, None, None, None]);
    }
}
