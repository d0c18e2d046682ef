//! From scores to what stays: exactly k blocks of a scope, ties by index.

/// The blocks that go when the `keep` of highest score stay, in rising order.
/// Equal scores go to the lower index; blocks for which `padding` holds stay
/// only after all others. A NaN ranks below every number; zeros of either sign
/// are equal.
///
/// ```
/// use openwork::select::dropped;
/// assert_eq!(dropped(&[1.0, 3.0, 3.0, 3.0], |_| false, 2), [0, 3]);
/// ```
///
/// # Panics
///
/// If `keep` is more than the scores.
pub fn dropped(scores: &[f64], padding: impl Fn(usize) -> bool, keep: usize) -> Vec<usize> {
    assert!(keep <= scores.len(), "keep {keep} of {} blocks", scores.len());
    let mut ranked: Vec<(bool, f64, usize)> = scores
        .iter()
        .enumerate()
        .map(|(block, &score)| {
            (padding(block), if score.is_nan() { f64::NEG_INFINITY } else { score + 0.0 }, block)
        })
        .collect();
    let before = |a: &(bool, f64, usize), b: &(bool, f64, usize)| {
        a.0.cmp(&b.0).then_with(|| b.1.total_cmp(&a.1)).then_with(|| a.2.cmp(&b.2))
    };
    if keep < ranked.len() {
        ranked.select_nth_unstable_by(keep, before);
    }
    let mut dropped: Vec<usize> = ranked[keep..].iter().map(|&(_, _, block)| block).collect();
    dropped.sort_unstable();
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn selection_is_a_stable_sort(scores in prop::collection::vec(0i32..5, 0..20), share in 0.0f64..=1.0) {
            let scores: Vec<f64> = scores.into_iter().map(f64::from).collect();
            let keep = (scores.len() as f64 * share) as usize;
            let mut order: Vec<usize> = (0..scores.len()).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            let mut want = order[keep..].to_vec();
            want.sort_unstable();
            prop_assert_eq!(dropped(&scores, |_| false, keep), want);
        }
    }

    #[test]
    fn padding_is_never_kept_before_a_real_block() {
        assert_eq!(dropped(&[0.0, 9.0, 0.0, 9.0], |block| block == 1, 2), [1, 2]);
        assert_eq!(dropped(&[0.0, 9.0, 0.0, 9.0], |block| block % 2 == 1, 3), [3]);
    }

    #[test]
    fn minus_zero_is_no_less_than_zero() {
        assert_eq!(dropped(&[-0.0, 0.0], |_| false, 1), [1]);
    }
}
