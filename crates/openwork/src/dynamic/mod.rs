//! Dynamic sparse training: the mask changes while the network is trained.
//!
//! At intervals, the kept blocks of least saliency are dropped and as many are grown in
//! the same scopes: where the gradient is large (RigL) or at random (SET). Every scope
//! keeps exactly `keep` blocks after every update.
//!
//! ```
//! use openwork::{Pattern, dynamic::{random, update}};
//!
//! let spec = "2:4".parse::<Pattern>().unwrap().bind(&[1, 8]).unwrap();
//! let mut stays = vec![true, true, false, false, true, true, false, false];
//! let w = [0.1, 2.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0]; // saliency of each block
//! let g = [0.0, 0.0, 5.0, 1.0, 0.0, 0.0, 1.0, 2.0]; // size of its gradient
//! let moved = update(&spec, &mut stays, &w, &g, 0.25);
//! assert_eq!(moved, 1);
//! assert_eq!(stays, [false, true, true, false, true, true, false, false]);
//! assert_eq!(random(&spec, 7).iter().filter(|&&s| s).count(), 4);
//! ```

mod chance;
mod schedule;

pub use chance::numbers;
pub use schedule::Schedule;

use crate::blocks::Blocks;
use crate::spec::Spec;
use rayon::prelude::*;

/// A random mask that keeps exactly `keep` blocks of every scope. Blocks are numbered as in
/// [`Blocks`].
pub fn random(spec: &Spec, seed: u64) -> Vec<bool> {
    Blocks::new(spec).kept_by(&numbers(seed, spec.blocks()))
}

/// Drops the share `fraction` of all kept blocks, those of least `saliency` in the whole
/// spec, then grows as many in each scope as it lost, those of highest `growth`. Returns
/// the number of blocks that are newly kept.
///
/// A block that was just dropped may be grown again, as in RigL; it then keeps
/// its weights. Of ties the lower index is kept; padding never changes.
///
/// # Panics
///
/// If there is not one entry per block.
pub fn update(
    spec: &Spec,
    stays: &mut [bool],
    saliency: &[f64],
    growth: &[f64],
    fraction: f64,
) -> usize {
    let lengths = [stays.len(), saliency.len(), growth.len()];
    assert_eq!(lengths, [spec.blocks(); 3], "one entry for each block");
    let count = spec.blocks_per_scope();
    let mut kept: Vec<usize> = (0..stays.len())
        .filter(|&block| stays[block] && !spec.is_padding(block / count, block % count))
        .collect();
    let drop = (fraction.clamp(0.0, 1.0) * kept.len() as f64).round() as usize;
    if drop == 0 {
        return 0;
    }
    // The lowest index is kept among equals, as everywhere.
    let rank = |&a: &usize, &b: &usize| {
        number(saliency[a]).total_cmp(&number(saliency[b])).then(b.cmp(&a))
    };
    if drop < kept.len() {
        kept.select_nth_unstable_by(drop, rank);
    }
    let mut dropped = vec![false; stays.len()];
    kept[..drop].iter().for_each(|&block| dropped[block] = true);

    let scopes = stays.par_chunks_mut(count).zip(dropped.par_chunks(count));
    scopes
        .zip(growth.par_chunks(count))
        .enumerate()
        .map(|(scope, ((stays, dropped), growth))| {
            let lost = dropped.iter().filter(|&&d| d).count();
            if lost == 0 {
                return 0;
            }
            let mut free: Vec<usize> = (0..count)
                .filter(|&b| (!stays[b] || dropped[b]) && !spec.is_padding(scope, b))
                .collect();
            free.sort_by(|&a, &b| number(growth[b]).total_cmp(&number(growth[a])).then(a.cmp(&b)));
            let mut moved = 0;
            for &block in &free[..lost] {
                moved += usize::from(!stays[block]);
            }
            (0..count).filter(|&b| dropped[b]).for_each(|b| stays[b] = false);
            free[..lost].iter().for_each(|&b| stays[b] = true);
            moved
        })
        .sum()
}

/// NaN ranks below every number; zeros of either sign are equal.
fn number(x: f64) -> f64 {
    if x.is_nan() { f64::NEG_INFINITY } else { x + 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pattern;
    use crate::spec::PRESETS;
    use proptest::prelude::*;

    /// Specs beyond the presets; see [`bound`].
    const OTHERS: &[(&str, &[usize])] = &[
        ("1:4", &[6, 16]),
        ("2:4@8", &[3, 32]),
        ("block(2,4,25%)", &[4, 32]),
        ("unstructured(25%)", &[5, 7]),
        ("pad (1,4) scope (1,4) keep 2", &[3, 10]),
        ("blocks a: block (1,_) & b perm (1,0): block (_,1) scope (4,1) keep 2", &[]),
    ];

    /// The others, then every preset.
    fn bound(case: usize) -> Spec {
        let (text, dims) = match case.checked_sub(OTHERS.len()) {
            None => OTHERS[case],
            Some(preset) => (PRESETS[preset].example, PRESETS[preset].shape),
        };
        let pattern: Pattern = text.parse().unwrap();
        if dims.is_empty() {
            pattern.bind_all(&[("a", &[8, 3]), ("b", &[3, 8])]).unwrap()
        } else {
            pattern.bind(dims).unwrap()
        }
    }

    /// Kept blocks of each scope, and whether padding is among them.
    fn kept(spec: &Spec, stays: &[bool]) -> Vec<usize> {
        let count = spec.blocks_per_scope();
        let scope = |s: usize| {
            (0..count).filter(|&b| stays[s * count + b] && !spec.is_padding(s, b)).count()
        };
        (0..spec.scopes()).map(scope).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn the_budget_of_every_scope_is_kept(
            case in 0..OTHERS.len() + PRESETS.len(), seed in 0u64..1000, fraction in 0.0f64..=1.0,
        ) {
            let spec = bound(case);
            let mut stays = random(&spec, seed);
            let budget = kept(&spec, &stays);
            for round in 1..4 {
                let before = stays.clone();
                let (w, g) = (numbers(seed + round, spec.blocks()), numbers(seed * 31 + round, spec.blocks()));
                let moved = update(&spec, &mut stays, &w, &g, fraction);
                prop_assert_eq!(kept(&spec, &stays), &budget[..]);
                let new = stays.iter().zip(&before).filter(|(now, then)| **now && !**then).count();
                prop_assert_eq!(moved, new);
                let all = before.iter().filter(|&&s| s).count();
                prop_assert!(moved <= (fraction * all as f64).round() as usize);
                // Dropped blocks have no higher saliency than those kept throughout.
                let gone = (0..before.len()).filter(|&b| before[b] && !stays[b]);
                let most = gone.map(|b| w[b]).fold(f64::NEG_INFINITY, f64::max);
                let lower = (0..before.len()).filter(|&b| before[b] && w[b] < most).count();
                prop_assert!(lower < (fraction * all as f64).round().max(1.0) as usize);
            }
        }
    }

    #[test]
    fn masks_at_random_depend_on_the_seed_alone_and_differ() {
        let spec = bound(0);
        assert_eq!(random(&spec, 3), random(&spec, 3));
        assert_ne!(random(&spec, 3), random(&spec, 4));
        // Every block of a scope occurs: 24 scopes of four.
        let met: Vec<usize> = (0..4)
            .map(|b| random(&spec, 1).iter().skip(b).step_by(4).filter(|&&s| s).count())
            .collect();
        assert!(met.iter().all(|&n| n > 1), "{met:?}");
    }
}
