//! Addresses as sums: a short table of extents and strides instead of an index
//! per weight.

/// A row-major family of offsets: position `(i_0, .., i_n)` is at
/// `i_0 d_0 + .. + i_n d_n`.
///
/// Holds: shape and stride have the same rank, and no offset overflows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    shape: Vec<usize>,
    stride: Vec<usize>,
    len: usize,
}

impl Steps {
    /// Offsets of a shape with strides; the caller has checked that neither the
    /// product nor the largest offset overflows.
    pub(crate) fn new(shape: Vec<usize>, stride: Vec<usize>) -> Self {
        debug_assert_eq!(shape.len(), stride.len());
        let len = shape.iter().product();
        Self { shape, stride, len }
    }

    /// How many offsets there are.
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

    /// A coordinate whose offset is `v`, if there is one; the only one where
    /// offsets are distinct. Axes of larger strides are tried first, within what
    /// the others can still make up, so strides that nest need no second try.
    pub(crate) fn coordinates(&self, v: usize) -> Option<Vec<usize>> {
        let mut axes: Vec<usize> =
            (0..self.shape.len()).filter(|&axis| self.shape[axis] > 1).collect();
        axes.sort_by_key(|&axis| std::cmp::Reverse(self.stride[axis]));
        let mut at = vec![0; self.shape.len()];
        let reach = axes.iter().map(|&axis| (self.shape[axis] - 1) * self.stride[axis]).sum();
        self.find(&axes, reach, v, &mut at).then_some(at)
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

    /// All offsets, row-major.
    pub fn iter(&self) -> StepsIter<'_> {
        StepsIter { steps: self, at: vec![0; self.shape.len()], offset: 0, left: self.len }
    }
}

impl Steps {
    /// The offsets from position `index` on, row-major; `index` is at most the length.
    pub(crate) fn iter_from(&self, index: usize) -> StepsIter<'_> {
        let (mut at, mut rest) = (vec![0; self.shape.len()], index);
        for axis in (0..self.shape.len()).rev() {
            at[axis] = rest % self.shape[axis].max(1);
            rest /= self.shape[axis].max(1);
        }
        StepsIter { steps: self, at, offset: self.at(index), left: self.len - index }
    }
}

/// Walks the offsets of [`Steps`] like an odometer, without a division.
#[derive(Clone, Debug)]
pub struct StepsIter<'a> {
    steps: &'a Steps,
    at: Vec<usize>,
    offset: usize,
    left: usize,
}

impl Iterator for StepsIter<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let offset = self.offset;
        for axis in (0..self.at.len()).rev() {
            self.at[axis] += 1;
            self.offset += self.steps.stride[axis];
            if self.at[axis] < self.steps.shape[axis] {
                break;
            }
            self.offset -= self.at[axis] * self.steps.stride[axis];
            self.at[axis] = 0;
        }
        Some(offset)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for StepsIter<'_> {}

/// The strides of a row-major tensor of these dims.
pub(crate) fn row_major(dims: &[usize]) -> Vec<usize> {
    let mut stride = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        stride[axis - 1] = stride[axis] * dims[axis];
    }
    stride
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walking_and_addressing_agree() {
        for (shape, stride) in
            [(vec![], vec![]), (vec![3], vec![5]), (vec![2, 1, 3, 2], vec![100, 7, 1, 10])]
        {
            let steps = Steps::new(shape, stride);
            let walked: Vec<_> = steps.iter().collect();
            let addressed: Vec<_> = (0..steps.len()).map(|i| steps.at(i)).collect();
            assert_eq!(walked, addressed);
            for i in 0..steps.len() {
                assert_eq!(steps.iter_from(i).collect::<Vec<_>>(), addressed[i..]);
            }
        }
    }

    #[test]
    fn coordinates_invert_offsets_that_interleave() {
        let steps = Steps::new(vec![2, 1, 3], vec![3, 9, 2]); // 0 2 4 3 5 7
        for (index, at) in [[0, 0, 0], [0, 0, 1], [0, 0, 2], [1, 0, 0], [1, 0, 1], [1, 0, 2]]
            .into_iter()
            .enumerate()
        {
            assert_eq!(steps.coordinates(steps.at(index)), Some(at.to_vec()));
        }
        assert_eq!([1, 6, 8, 100].map(|v| steps.coordinates(v)), [None, None, None, None]);
    }
}
