//! Checks that a view is a bijection: a layout that visits every offset of its domain exactly
//! once.

use super::domain::{Region, Runs, RunsError};
use crate::layout::{IntTuple, Layout};
use std::cmp::Ordering;

/// The row-major layout of these extents.
pub(crate) fn row_major(extents: &[usize]) -> Layout {
    strided(extents.iter().copied().collect(), None)
}

/// The layout of a shape whose size, and of strides whose reach, are bounded by
/// [`MAX_ELEMENTS`](super::bind::MAX_ELEMENTS); row-major without strides.
pub(crate) fn strided(shape: IntTuple, stride: Option<IntTuple>) -> Layout {
    let layout = match stride {
        None => Layout::row_major(shape),
        Some(stride) => Layout::new(shape, stride),
    };
    layout.expect("extents from 1 on with one stride each, in range")
}

/// How a view fails to be a bijection; offsets are the tensor's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The first offset that the view visits twice.
    Twice(usize),
    /// The first offset that the view misses.
    Missed(usize),
    /// The first offset that the view visits outside the domain.
    Outside(usize),
    /// Too large to find the offset.
    Differs,
}

/// Whether `view` visits each of `0 .. len` exactly once.
///
/// Sort the modes by stride. If the modes so far visit each of `0 .. c` once, a next stride
/// of `c` extends that to `0 .. c s`; with a larger one no mode visits `c`; a smaller one is
/// an offset visited before. So the first fault is found without enumerating positions.
pub(crate) fn covers_interval(view: &Layout, len: usize) -> Result<(), Fault> {
    let mut covered = 1usize;
    for (extent, stride) in modes(&view.sorted()) {
        if stride > covered {
            return Err(match covered.cmp(&len) {
                Ordering::Less => Fault::Missed(covered),
                Ordering::Equal => Fault::Outside(stride),
                Ordering::Greater => Fault::Outside(len),
            });
        }
        if stride < covered {
            return Err(if stride < len { Fault::Twice(stride) } else { Fault::Outside(len) });
        }
        covered *= extent;
    }
    match covered.cmp(&len) {
        Ordering::Less => Err(Fault::Missed(covered)),
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(Fault::Outside(len)),
    }
}

/// Whether `view`, started at the region's first offset, visits each offset of the region
/// exactly once.
pub(crate) fn covers_region(view: &Layout, region: &Region) -> Result<(), Fault> {
    let shift = |fault| match fault {
        Fault::Twice(at) => Fault::Twice(at + region.first()),
        Fault::Missed(at) => Fault::Missed(at + region.first()),
        Fault::Outside(at) => Fault::Outside(at + region.first()),
        Fault::Differs => Fault::Differs,
    };
    if let Region::Strided { layout, .. } = region {
        let modes = coalesced(layout);
        if modes.is_empty() || (modes.len() == 1 && modes[0].1 == 1) {
            return covers_interval(view, region.len()).map_err(shift);
        }
        if layout.is_nested() && view.is_nested() {
            return same_offsets(&coalesced(view), &modes).map_err(shift);
        }
    }
    compare(view, region)
}

/// The modes by ascending stride, coalesced.
fn coalesced(layout: &Layout) -> Vec<(usize, usize)> {
    modes(&layout.sorted().coalesce().expect("strides are not negative"))
}

/// The leaves with more than one entry, as extents and strides.
pub(crate) fn modes(layout: &Layout) -> Vec<(usize, usize)> {
    let flat = layout.flat().into_iter().filter(|leaf| leaf.0 > 1);
    flat.map(|(s, d)| (s as usize, d as usize)).collect()
}

/// Whether coalesced, nested modes visit the same offsets.
///
/// Up to the first mode that differs both visit the same offsets, and each continues with
/// the multiples of its next stride `d`. Modes are nested and coalesced, so the lowest
/// offset that only one of them visits is the smaller `d` or, if the strides are equal, the
/// end of the shorter mode or the start of its successor.
fn same_offsets(view: &[(usize, usize)], region: &[(usize, usize)]) -> Result<(), Fault> {
    let differs = view.iter().zip(region).take_while(|(v, r)| v == r).count();
    // After the last mode there is no further offset.
    let mode =
        |modes: &[(usize, usize)], i: usize| modes.get(i).copied().unwrap_or((1, usize::MAX));
    let ((v_extent, v_stride), (r_extent, r_stride)) = (mode(view, differs), mode(region, differs));
    let (v_next, r_next) = if v_stride != r_stride {
        (v_stride, r_stride)
    } else if v_extent < r_extent {
        (mode(view, differs + 1).1, v_extent * v_stride)
    } else if v_extent > r_extent {
        (r_extent * v_stride, mode(region, differs + 1).1)
    } else {
        return Ok(());
    };
    Err(if v_next < r_next { Fault::Outside(v_next) } else { Fault::Missed(r_next) })
}

/// Compares run by run.
fn compare(view: &Layout, region: &Region) -> Result<(), Fault> {
    let Ok(wanted) = region.runs() else { return Err(Fault::Differs) };
    let met = match Runs::new(region.first(), view) {
        Ok(met) => met,
        Err(RunsError::Twice(at)) => return Err(Fault::Twice(at)),
        Err(RunsError::TooMany(_)) => return Err(Fault::Differs),
    };
    let (mut met, mut wanted) = (met.pairs(), wanted.pairs());
    loop {
        return Err(match (met.next(), wanted.next()) {
            (None, None) => return Ok(()),
            (m, w) if m == w => continue,
            (Some((at, _)), None) => Fault::Outside(at),
            (None, Some((at, _))) => Fault::Missed(at),
            (Some((m, _)), Some((w, _))) if m != w => {
                if m < w {
                    Fault::Outside(m)
                } else {
                    Fault::Missed(w)
                }
            }
            (Some((at, m)), Some((_, w))) => {
                if m < w {
                    Fault::Missed(at + m)
                } else {
                    Fault::Outside(at + w)
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::StridedLayout;
    use proptest::prelude::*;

    fn layout(modes: &[(usize, usize)]) -> Layout {
        let (shape, stride): (Vec<_>, Vec<_>) = modes.iter().copied().unzip();
        strided(shape.into_iter().collect(), Some(stride.into_iter().collect()))
    }

    /// All offsets, rising.
    fn offsets(view: &Layout) -> Vec<usize> {
        let mut met: Vec<usize> = StridedLayout::from(view).iter().collect();
        met.sort_unstable();
        met
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn reasoning_on_strides_equals_counting(
            modes in prop::collection::vec((1usize..5, 0usize..13), 0..4),
            len in 1usize..40,
        ) {
            let view = layout(&modes);
            let met = offsets(&view);
            prop_assert_eq!(covers_interval(&view, len).is_ok(), met.iter().copied().eq(0..len));
            // A fault names a real offset.
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
            let whole: Vec<_> = wide.iter().copied().zip(stride.iter().copied()).collect();
            let region = Region::Strided { first: 7, layout: layout(&whole) };
            let mut modes = Vec::new();
            for axis in 0..extents.len() {
                modes.push((extents[axis], stride[axis] * splits[axis]));
                modes.push((splits[axis], stride[axis]));
            }
            let by = turn % modes.len();
            modes.rotate_left(by);
            let view = layout(&modes);
            prop_assert_eq!(covers_region(&view, &region), Ok(()));
            prop_assert_eq!(compare(&view, &region), Ok(()));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn a_view_that_differs_from_a_region_is_told_by_its_first_offset(
            ours in prop::collection::vec((1usize..5, 1usize..30), 0..4),
            theirs in prop::collection::vec((1usize..5, 1usize..30), 0..4),
        ) {
            let (view, region) = (layout(&ours), Region::Strided { first: 5, layout: layout(&theirs) });
            if let Ok(runs) = region.runs() {
                let wanted: Vec<usize> = (0..runs.len()).filter_map(|i| runs.at(i)).collect();
                let met: Vec<usize> = offsets(&view).into_iter().map(|v| v + 5).collect();
                let twice = met.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
                let outside = met.iter().copied().find(|at| !wanted.contains(at));
                let missed = wanted.iter().copied().find(|at| !met.contains(at));
                match covers_region(&view, &region) {
                    Ok(()) => prop_assert_eq!(&met, &wanted),
                    Err(Fault::Twice(at)) => prop_assert_eq!(twice, Some(at)),
                    Err(Fault::Outside(at)) => prop_assert!(outside == Some(at)),
                    Err(Fault::Missed(at)) => prop_assert_eq!(missed, Some(at)),
                    Err(Fault::Differs) => prop_assert!(false, "too small to give up"),
                }
                if met == wanted {
                    prop_assert_eq!(covers_region(&view, &region), Ok(()));
                }
            }
        }
    }

    #[test]
    fn the_papers_block_view_meets_offset_512_twice() {
        let view = "(4,4,16,16):(512,16,64,1)".parse().unwrap();
        assert_eq!(covers_interval(&view, 4096), Err(Fault::Twice(512)));
    }
}
