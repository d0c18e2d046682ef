//! A view must meet every offset of its domain exactly once.

use super::domain::{Region, is_nested, sorted_modes};
use super::steps::Steps;

/// The most positions that are compared one by one where reasoning on strides
/// does not decide (a fraction of a second).
const MAX_COMPARED: usize = 1 << 26;

/// How a view fails to be a bijection; offsets are the tensor's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The first offset that the view meets twice.
    Twice(usize),
    /// The first offset that the view misses.
    Missed(usize),
    /// The first offset that the view meets outside the domain.
    Outside(usize),
    /// Too large to say where.
    Differs,
}

/// Whether `view` meets each of `0 .. len` exactly once.
///
/// Sort the modes by stride. If the modes so far meet each of `0 .. c` once, a
/// next stride of `c` extends that to `0 .. c s`; a larger one leaves `c` to
/// nobody; a smaller one meets itself again. So the first fault is found
/// without looking at a position.
pub(crate) fn covers_interval(view: &Steps, len: usize) -> Result<(), Fault> {
    let mut covered = 1usize;
    for (extent, stride) in sorted_modes(view) {
        if stride > covered {
            return Err(if covered < len {
                Fault::Missed(covered)
            } else {
                Fault::Outside(stride)
            });
        }
        if stride < covered {
            return Err(if stride < len { Fault::Twice(stride) } else { Fault::Outside(stride) });
        }
        covered *= extent;
    }
    match covered.cmp(&len) {
        std::cmp::Ordering::Less => Err(Fault::Missed(covered)),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(Fault::Outside(len)),
    }
}

/// Whether `view`, started at the region's first offset, meets each offset of
/// the region exactly once.
pub(crate) fn covers_region(view: &Steps, region: &Region) -> Result<(), Fault> {
    let shift = |fault| match fault {
        Fault::Twice(at) => Fault::Twice(at + region.first()),
        Fault::Missed(at) => Fault::Missed(at + region.first()),
        Fault::Outside(at) => Fault::Outside(at + region.first()),
        Fault::Differs => Fault::Differs,
    };
    if let Region::Strided { steps, .. } = region {
        let modes = coalesced(steps);
        if modes.is_empty() || (modes.len() == 1 && modes[0].1 == 1) {
            return covers_interval(view, steps.len()).map_err(shift);
        }
        if is_nested(&modes) && refines(&sorted_modes(view), &modes) {
            return Ok(());
        }
    }
    compare(view, region)
}

/// The modes by rising stride, with neighbours joined where one continues the
/// other.
fn coalesced(steps: &Steps) -> Vec<(usize, usize)> {
    let mut modes: Vec<(usize, usize)> = Vec::new();
    for (extent, stride) in sorted_modes(steps) {
        match modes.last_mut() {
            Some(last) if last.0 * last.1 == stride => last.0 *= extent,
            _ => modes.push((extent, stride)),
        }
    }
    modes
}

/// Whether the view's modes split each of the region's modes exactly: enough
/// for a bijection.
fn refines(view: &[(usize, usize)], region: &[(usize, usize)]) -> bool {
    let mut next = view.iter();
    for &(extent, stride) in region {
        let mut covered = 1;
        while covered < extent {
            match next.next() {
                Some(&(s, d)) if d == stride * covered => covered *= s,
                _ => return false,
            }
        }
        if covered != extent {
            return false;
        }
    }
    next.next().is_none()
}

/// Compares offset by offset.
fn compare(view: &Steps, region: &Region) -> Result<(), Fault> {
    let Ok(runs) = region.runs() else { return Err(Fault::Differs) };
    if view.len() > MAX_COMPARED || runs.len() > MAX_COMPARED {
        return Err(Fault::Differs);
    }
    let first = region.first();
    let mut seen = vec![0u64; runs.len().div_ceil(64)];
    let (mut twice, mut outside) = (None::<usize>, None::<usize>);
    let lower =
        |slot: &mut Option<usize>, at: usize| *slot = Some(slot.map_or(at, |old| old.min(at)));
    for v in view.iter() {
        match runs.rank(first + v) {
            None => lower(&mut outside, first + v),
            Some(rank) if seen[rank / 64] >> (rank % 64) & 1 == 1 => lower(&mut twice, first + v),
            Some(rank) => seen[rank / 64] |= 1 << (rank % 64),
        }
    }
    if let Some(at) = twice {
        return Err(Fault::Twice(at));
    }
    if let Some(at) = outside {
        return Err(Fault::Outside(at));
    }
    let missed = (0..runs.len()).find(|rank| seen[rank / 64] >> (rank % 64) & 1 == 0);
    missed.map_or(Ok(()), |rank| Err(Fault::Missed(runs.at(rank).unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn brute(view: &Steps, len: usize) -> bool {
        let mut met: Vec<usize> = view.iter().collect();
        met.sort_unstable();
        met == (0..len).collect::<Vec<_>>()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn reasoning_on_strides_equals_counting(
            modes in prop::collection::vec((1usize..5, 0usize..13), 0..4),
            len in 1usize..40,
        ) {
            let view = Steps::new(modes.iter().map(|m| m.0).collect(), modes.iter().map(|m| m.1).collect());
            prop_assert_eq!(covers_interval(&view, len).is_ok(), brute(&view, len));
            // A fault names a real offset.
            let mut met: Vec<usize> = view.iter().collect();
            met.sort_unstable();
            match covers_interval(&view, len) {
                Err(Fault::Twice(at)) => prop_assert!(met.iter().filter(|&&m| m == at).count() > 1),
                Err(Fault::Missed(at)) => prop_assert!(at < len && !met.contains(&at)),
                Err(Fault::Outside(at)) => prop_assert!(at >= len && met.contains(&at)),
                _ => {}
            }
        }

        #[test]
        fn a_permuted_and_split_box_is_covered(
            extents in prop::collection::vec(1usize..4, 1..4),
            gaps in prop::collection::vec(0usize..4, 4),
            splits in prop::collection::vec(1usize..4, 4),
            turn in 0usize..6,
        ) {
            // A box of a row-major tensor, each axis being split in two and the modes turned.
            let mut stride = vec![1; extents.len()];
            let wide: Vec<_> = extents.iter().zip(&splits).map(|(e, s)| e * s).collect();
            for axis in (0..extents.len().saturating_sub(1)).rev() {
                stride[axis] = stride[axis + 1] * (wide[axis + 1] + gaps[axis + 1]);
            }
            let region = Region::Strided { first: 7, steps: Steps::new(wide.clone(), stride.clone()) };
            let mut modes = Vec::new();
            for axis in 0..extents.len() {
                modes.push((extents[axis], stride[axis] * splits[axis]));
                modes.push((splits[axis], stride[axis]));
            }
            let by = turn % modes.len();
            modes.rotate_left(by);
            let view = Steps::new(modes.iter().map(|m| m.0).collect(), modes.iter().map(|m| m.1).collect());
            prop_assert_eq!(covers_region(&view, &region), Ok(()));
            prop_assert_eq!(compare(&view, &region), Ok(()));
        }
    }

    #[test]
    fn the_papers_block_view_meets_offset_512_twice() {
        let view = Steps::new(vec![4, 4, 16, 16], vec![512, 16, 64, 1]);
        assert_eq!(covers_interval(&view, 4096), Err(Fault::Twice(512)));
    }
}
