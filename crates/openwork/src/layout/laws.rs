//! The laws of the algebra on random nested layouts, against plain
//! evaluation of every index.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Cases for each law.
const CASES: u32 = 1500;

/// The same cases in every run.
fn repeatable() -> ProptestConfig {
    ProptestConfig {
        cases: CASES,
        rng_seed: proptest::test_runner::RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Nested shapes of at most five leaves and depth three.
fn shapes() -> impl Strategy<Value = IntTuple> {
    let leaf =
        prop_oneof![1 => Just(1_i64), 4 => 2_i64..=4, 1 => 5_i64..=6].prop_map(IntTuple::Int);
    leaf.prop_recursive(3, 5, 3, |inner| {
        prop::collection::vec(inner, 1..=3).prop_map(IntTuple::Tuple)
    })
    .prop_filter("few elements", |shape| shape.size().is_ok_and(|size| size <= 400))
}

/// Replaces the leaves of `shape` by `leaves`, which are as many.
fn fill(shape: &IntTuple, leaves: &mut impl Iterator<Item = i64>) -> IntTuple {
    match shape {
        IntTuple::Int(_) => IntTuple::Int(leaves.next().unwrap()),
        IntTuple::Tuple(modes) => modes.iter().map(|mode| fill(mode, leaves)).collect(),
    }
}

/// Layouts with any strides from 0 to 12.
fn loose() -> impl Strategy<Value = Layout> {
    (shapes(), prop::collection::vec(0_i64..=12, 32)).prop_map(|(shape, strides)| {
        let stride = fill(&shape, &mut strides.into_iter().cycle());
        Layout::new(shape, stride).unwrap()
    })
}

/// Layouts that repeat no offset: leaves stacked in random order with gaps.
fn injective(gap: i64) -> impl Strategy<Value = Layout> {
    let keys = prop::collection::vec((any::<u16>(), 1..=gap), 32);
    (shapes(), keys).prop_map(|(shape, keys)| {
        let sizes = shape.leaves();
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by_key(|&leaf| keys[leaf % 32].0);
        let mut strides = vec![0; sizes.len()];
        let mut extent = 1;
        for leaf in order {
            strides[leaf] = extent * keys[leaf % 32].1;
            extent = strides[leaf] * sizes[leaf];
        }
        let stride = fill(&shape, &mut strides.into_iter());
        Layout::new(shape, stride).unwrap()
    })
}

fn layouts() -> impl Strategy<Value = Layout> {
    prop_oneof![loose(), injective(1), injective(3)]
}

/// A tiler for some of the modes, of sizes that often divide.
fn tilers() -> impl Strategy<Value = Tiler> {
    let mode = prop_oneof![
        1 => Just(Tiler::Keep),
        4 => (1_i64..=4, 1_i64..=4)
            .prop_map(|(s, d)| Tiler::Layout(Layout::from_flat(&[(s, d)]).unwrap())),
    ];
    prop::collection::vec(mode, 1..=3).prop_map(Tiler::Modes)
}

fn distinct(layout: &Layout) -> bool {
    let image = layout.image().unwrap();
    image.iter().collect::<BTreeSet<_>>().len() == image.len()
}

proptest! {
    #![proptest_config(repeatable())]

    #[test]
    fn printing_then_reading_is_the_identity(layout in layouts(), tiler in tilers()) {
        prop_assert_eq!(layout.to_string().parse::<Layout>().unwrap(), layout.clone());
        prop_assert_eq!(layout.stride().to_string().parse::<IntTuple>().unwrap(), layout.stride().clone());
        prop_assert_eq!(tiler.to_string().parse::<Tiler>().unwrap(), tiler);
        let coord = Coord::Tuple(vec![Coord::Keep, Coord::from(layout.shape())]);
        prop_assert_eq!(coord.to_string().parse::<Coord>().unwrap(), coord);
    }

    #[test]
    fn all_kinds_of_coordinates_agree(layout in layouts(), past in 0_i64..9) {
        let image = layout.image().unwrap();
        for i in 0..layout.size() + past {
            let crd = IntTuple::Int(i).idx2crd(layout.shape()).unwrap();
            prop_assert!(crd.congruent(layout.shape()));
            let offset = layout.at(i).unwrap();
            prop_assert_eq!(offset, layout.eval(&Coord::from(&crd)).unwrap());
            prop_assert_eq!(offset, crd.inner_product(layout.stride()).unwrap());
            if let Some(&listed) = image.get(i as usize) {
                prop_assert_eq!(offset, listed);
                prop_assert!(offset < layout.cosize());
            }
        }
    }

    #[test]
    fn row_major_coordinates_count_from_the_right(shape in shapes(), past in 0_i64..9) {
        let sizes = shape.leaves();
        for i in 0..shape.size().unwrap() + past {
            let crd = IntTuple::Int(i).idx2crd_rowmajor(&shape).unwrap();
            let back = crd.leaves().iter().zip(&sizes).fold(0, |i, (c, s)| i * s + c);
            prop_assert_eq!(back, i);
            prop_assert!(crd.leaves().iter().zip(&sizes).skip(1).all(|(c, s)| c < s));
        }
    }

    #[test]
    fn a_slice_and_its_offset_are_the_layout_there(layout in layouts(), keep in any::<u8>(), at in 0_i64..400) {
        let parts = layout.modes();
        let chosen: Vec<_> = parts.iter().enumerate().map(|(k, mode)| {
            if keep >> (k % 8) & 1 == 1 { Coord::Keep } else { Coord::Int(at % mode.size()) }
        }).collect();
        if let IntTuple::Tuple(_) = layout.shape() {
            let (kept, offset) = layout.slice(&Coord::Tuple(chosen.clone())).unwrap();
            for i in 0..kept.size() {
                let mut crd = IntTuple::Int(i).idx2crd(kept.shape()).unwrap().modes().to_vec().into_iter();
                let full = chosen.iter().map(|c| match c {
                    Coord::Keep => Coord::from(&crd.next().unwrap()),
                    other => other.clone(),
                });
                let full = Coord::Tuple(full.collect());
                prop_assert_eq!(layout.eval(&full).unwrap(), offset + kept.at(i).unwrap());
            }
        }
    }

    #[test]
    fn coalescing_keeps_the_function_and_the_size(layout in layouts()) {
        let image = layout.image().unwrap();
        let flat = layout.coalesce().unwrap();
        prop_assert_eq!(&image, &flat.image().unwrap());
        prop_assert!(flat == layout.coalesce().unwrap().coalesce().unwrap());
        prop_assert!(flat.flat().windows(2).all(|w| w[0].0 * w[0].1 != w[1].1));
        let profile: IntTuple = layout.modes().iter().map(|_| 1_i64).collect();
        let by_mode = layout.coalesce_profile(&profile).unwrap();
        prop_assert_eq!(&image, &by_mode.image().unwrap());
        prop_assert_eq!(by_mode.rank(), layout.rank());
    }

    #[test]
    fn filtering_keeps_the_set_of_offsets(layout in layouts()) {
        let filtered = layout.filter().unwrap();
        let set = |l: &Layout| l.image().unwrap().into_iter().collect::<BTreeSet<_>>();
        prop_assert_eq!(set(&layout), set(&filtered));
        prop_assert!(filtered.size() == 1 || filtered.flat().iter().all(|&(s, d)| s > 1 && d > 0));
    }

    #[test]
    fn composition_is_a_after_b_or_refused(a in layouts(), b in layouts()) {
        if let Ok(r) = a.composition(&b) {
            prop_assert!(b.shape().compatible(r.shape()));
            for i in 0..b.size() {
                prop_assert_eq!(r.at(i).unwrap(), a.at(b.at(i).unwrap()).unwrap(), "{} o {} = {}", a, b, r);
            }
        }
    }

    #[test]
    fn a_layout_composed_with_its_own_coordinates_is_itself(a in layouts()) {
        let b = Layout::column_major(a.shape().clone()).unwrap();
        let r = a.composition(&b).unwrap();
        prop_assert!(a.shape().compatible(r.shape()));
        prop_assert_eq!(r.image().unwrap(), a.image().unwrap());
        let flat = Layout::column_major(IntTuple::Int(a.size())).unwrap();
        prop_assert_eq!(a.composition(&flat).unwrap(), a.coalesce().unwrap());
    }

    #[test]
    fn a_complement_is_ordered_and_disjoint(layout in layouts(), m in 1_i64..300) {
        match layout.complement(m) {
            Ok(rest) => {
                let image = rest.image().unwrap();
                prop_assert!(image.windows(2).all(|w| w[0] < w[1]));
                let taken: BTreeSet<_> = layout.image().unwrap().into_iter().collect();
                prop_assert!(image[1..].iter().all(|offset| !taken.contains(offset)));
                let both = Layout::from_modes([layout.filter().unwrap(), rest]).unwrap();
                prop_assert!(distinct(&both));
                // Where strides divide evenly, the two together reach the cotarget.
                let mut flat = layout.filter().unwrap().flat();
                flat.sort_by_key(|leaf| leaf.1);
                if flat.windows(2).all(|w| w[1].1 % (w[0].0 * w[0].1) == 0) {
                    prop_assert!(both.cosize() >= m);
                }
            }
            Err(_) => {
                let mut flat = layout.filter().unwrap().flat();
                flat.sort_by_key(|leaf| leaf.1);
                prop_assert!(flat.windows(2).any(|w| w[1].1 < w[0].0 * w[0].1));
            }
        }
    }

    #[test]
    fn a_right_inverse_is_undone_by_the_layout(layout in layouts()) {
        let inverse = layout.right_inverse().unwrap();
        for i in 0..inverse.size() {
            prop_assert_eq!(layout.at(inverse.at(i).unwrap()).unwrap(), i);
        }
    }

    #[test]
    fn a_compact_layout_has_a_full_right_inverse(layout in injective(1)) {
        prop_assert_eq!(layout.right_inverse().unwrap().size(), layout.size());
    }

    #[test]
    fn a_left_inverse_undoes_the_layout(layout in injective(4)) {
        let inverse = layout.left_inverse().unwrap();
        for i in 0..layout.size() {
            prop_assert_eq!(inverse.at(layout.at(i).unwrap()).unwrap(), i);
        }
    }

    #[test]
    fn any_left_inverse_given_is_one(layout in loose()) {
        if let Ok(inverse) = layout.left_inverse() {
            for i in 0..layout.size() {
                prop_assert_eq!(inverse.at(layout.at(i).unwrap()).unwrap(), i);
            }
        }
    }

    #[test]
    fn a_divided_layout_is_the_layout_at_tile_and_rest(a in layouts(), b in injective(2)) {
        if let Ok(r) = a.logical_divide(&b) {
            let rest = b.complement(a.size()).unwrap();
            prop_assert_eq!(r.rank(), 2);
            prop_assert!(b.shape().compatible(r.modes()[0].shape()));
            let both = Layout::from_modes([b, rest]).unwrap();
            let ends_in_one = a.flat().last().unwrap().0 == 1;
            for i in 0..both.size() {
                let at = both.at(i).unwrap();
                if at < a.size() || !ends_in_one {
                    prop_assert_eq!(r.at(i).unwrap(), a.at(at).unwrap());
                }
            }
        }
    }

    #[test]
    fn the_forms_of_division_hold_the_same_modes(a in layouts(), tiler in tilers()) {
        let Ok(logical) = a.logical_divide_tiler(&tiler) else { return Ok(()) };
        let Tiler::Modes(tilers) = &tiler else { unreachable!() };
        let zipped = a.zipped_divide(&tiler).unwrap().modes();
        let (tiles, rests) = (zipped[0].modes(), zipped[1].modes());
        prop_assert_eq!(tiles.len(), tilers.len());
        prop_assert_eq!(rests.len(), a.rank());
        for (k, mode) in logical.modes().iter().enumerate() {
            match tilers.get(k) {
                Some(Tiler::Layout(_)) => {
                    prop_assert_eq!(mode, &Layout::from_modes([tiles[k].clone(), rests[k].clone()]).unwrap());
                }
                Some(_) => prop_assert!(tiles[k] == Layout::one() && &rests[k] == mode),
                None => prop_assert_eq!(&rests[k], mode),
            }
        }
        let unpacked = [vec![zipped[0].clone()], rests.clone()].concat();
        prop_assert_eq!(a.tiled_divide(&tiler).unwrap().modes(), unpacked);
        prop_assert_eq!(a.flat_divide(&tiler).unwrap().modes(), [tiles, rests].concat());
    }

    #[test]
    fn a_product_repeats_the_block_where_the_complement_says(a in injective(2), b in layouts()) {
        if let Ok(r) = a.logical_product(&b) {
            let modes = r.modes();
            prop_assert_eq!(&modes[0], &a);
            prop_assert!(b.shape().compatible(modes[1].shape()));
            let free = a.complement(a.size() * b.cosize()).unwrap();
            for i in 0..b.size() {
                prop_assert_eq!(modes[1].at(i).unwrap(), free.at(b.at(i).unwrap()).unwrap());
            }
            if r.size() <= 4096 && distinct(&b) {
                prop_assert!(distinct(&r), "{} x {} = {}", a, b, r);
            }
        }
    }

    #[test]
    fn blocked_and_raked_products_pair_the_modes_of_the_product(a in injective(2), b in injective(1)) {
        if let Ok(blocked) = a.blocked_product(&b) {
            let raked = a.raked_product(&b).unwrap();
            prop_assert_eq!(blocked.rank(), a.rank().max(b.rank()));
            prop_assert_eq!(blocked.size(), a.size() * b.size());
            for (mode, (x, y)) in blocked.modes().iter().zip(raked.modes()).enumerate()
                .map(|(k, (x, y))| (k, (x.modes(), y.modes())))
            {
                prop_assert_eq!(&x[0], &y[1]);
                prop_assert_eq!(&x[1], &y[0]);
                if let Some(block) = a.modes().get(mode) {
                    prop_assert_eq!(&x[0], block);
                }
            }
        }
    }
}

/// Whether some layout of size `f.len()` has these offsets.
fn fits(f: &[i64]) -> bool {
    let n = f.len();
    n == 1
        || (2..=n).filter(|p| n.is_multiple_of(*p)).any(|p| {
            let rows: Vec<i64> = f.iter().step_by(p).copied().collect();
            let even =
                |i: usize| f[i] == f[i % p] + rows[i / p] && f[i % p] == (i % p) as i64 * f[1];
            (0..n).all(even) && fits(&rows)
        })
}

/// Whether some layout compatible with the leaves `b` is `a` after them.
fn composable(a: &Layout, b: &Layout) -> bool {
    let after: Vec<i64> = b.image().unwrap().iter().map(|&i| a.at(i).unwrap()).collect();
    let mut before = 1;
    let mut parts: Vec<Vec<i64>> = Vec::new();
    for (n, _) in b.flat() {
        parts.push((0..n as usize).map(|c| after[c * before]).collect());
        before *= n as usize;
    }
    let sum = |mut i: usize| {
        parts.iter().fold(0, |sum, part| {
            let digit = i % part.len();
            i /= part.len();
            sum + part[digit]
        })
    };
    parts.iter().all(|part| fits(part)) && (0..after.len()).all(|i| sum(i) == after[i])
}

fn flat_layouts(sizes: &[i64], strides: &[i64], rank: usize) -> Vec<Layout> {
    let mut all = vec![vec![]];
    for _ in 0..rank {
        let longer = all.iter().flat_map(|flat: &Vec<(i64, i64)>| {
            let leaves = sizes.iter().flat_map(|&s| strides.iter().map(move |&d| (s, d)));
            leaves.map(move |leaf| [flat.clone(), vec![leaf]].concat())
        });
        all = longer.collect();
    }
    all.iter().map(|flat| Layout::from_flat(flat).unwrap()).collect()
}

/// Every pair of a two-mode A and a leaf B: none wrong. The rule is plain
/// rather than complete: it refuses leaves whose steps pass the first mode of
/// A unevenly, though some of them add up (two entries always do). The counts
/// by size of B are pinned, so that a change of the rule shows.
#[test]
fn of_all_small_pairs_none_is_wrong() {
    let (mut right, mut none) = (0, 0);
    let mut missed = std::collections::BTreeMap::new();
    for a in flat_layouts(&[2, 3, 4, 6], &[0, 1, 2, 3, 4, 8, 12], 2) {
        for b in flat_layouts(&[2, 3, 4, 6, 8, 12], &[1, 2, 3, 4, 6, 8], 1) {
            match (a.composition(&b), composable(&a, &b)) {
                (Ok(r), fits) => {
                    assert!(fits);
                    assert!(
                        (0..b.size()).all(|i| r.at(i) == a.at(b.at(i).unwrap())),
                        "{a} o {b} = {r}"
                    );
                    right += 1;
                }
                (Err(_), true) => *missed.entry(b.size()).or_insert(0) += 1,
                (Err(_), false) => none += 1,
            }
        }
    }
    let missed: Vec<(i64, i32)> = missed.into_iter().collect();
    assert_eq!((right, none), (18_308, 6_444));
    assert_eq!(missed, [(2, 916), (3, 372), (4, 360), (6, 732), (8, 360), (12, 732)]);
}

/// Where every leaf of B composes alone, the sum is refused exactly if no
/// layout fits it.
#[test]
fn a_carry_is_refused_exactly_where_no_layout_fits() {
    let (mut right, mut refused) = (0, 0);
    for a in flat_layouts(&[2, 3, 4], &[0, 1, 2, 4, 9], 2) {
        for b in flat_layouts(&[1, 2, 3, 4], &[0, 1, 2, 3, 4, 8], 2) {
            let alone = b.modes().iter().all(|leaf| a.composition(leaf).is_ok());
            let composed = a.composition(&b);
            if alone {
                assert_eq!(composed.is_ok(), composable(&a, &b), "{a} o {b}");
                *(if composed.is_ok() { &mut right } else { &mut refused }) += 1;
            } else {
                assert!(composed.is_err());
            }
        }
    }
    assert!(right > 10_000 && refused > 1_000, "right {right}, refused {refused}");
}
