//! The laws of local search.

mod common;

use common::{Case, cases};
use openwork::prune::{Recipe, prune};

/// So little that the undamped error is the one that steps lower.
const DAMPING: &str = "damping=diag:1e-5";
/// Relative rounding of an f32 fit.
const ROUNDING: f64 = 1e-4;

fn recipe(text: &str) -> Recipe {
    text.parse().unwrap()
}

#[test]
fn every_round_lowers_the_error_and_keeps_the_pattern() {
    for case in cases() {
        for base in ["magnitude", "s-obs"] {
            let mut last = f64::INFINITY;
            for rounds in [0, 1, 2, 20] {
                let text = format!("{base}[{DAMPING}]+swap[rounds={rounds}]");
                let pruned = prune(&recipe(&text), &case.task())
                    .unwrap_or_else(|e| panic!("{}: {e}", case.name));
                pruned
                    .mask
                    .conforms(&case.spec)
                    .unwrap_or_else(|breach| panic!("{}: {breach}", case.name));
                for (t, w) in pruned.weights.iter().enumerate() {
                    let bits = &pruned.mask.tensors()[t];
                    let zeros =
                        w.data().iter().enumerate().all(|(i, w)| bits.get(i) || w.to_bits() == 0);
                    assert!(zeros, "{}: a pruned weight is not zero", case.name);
                }
                assert!(
                    pruned.error <= last * (1.0 + ROUNDING),
                    "{} {base}, {rounds} rounds: {} after {last}",
                    case.name,
                    pruned.error
                );
                last = pruned.error;
            }
        }
    }
}

#[test]
fn the_search_helps_and_does_not_depend_on_threads() {
    let case = Case::new("2:4", &[("w", &[12, 64])], 7);
    let run = |text: &str, threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| prune(&recipe(text), &case.task()).unwrap())
    };
    let obs = run("s-obs[damping=diag:0.01]", 1);
    let swap = run("s-obs[damping=diag:0.01]+swap", 1);
    assert!(swap.error < 0.99 * obs.error, "{} against {}", swap.error, obs.error);
    for threads in [2, 3] {
        let more = run("s-obs[damping=diag:0.01]+swap", threads);
        assert_eq!((&swap.mask, &swap.weights), (&more.mask, &more.weights));
    }
}

#[test]
fn a_search_without_rounds_is_a_fit_and_s_obs_is_already_fitted() {
    for case in cases() {
        let obs = prune(&recipe("s-obs[damping=diag:0.1]"), &case.task()).unwrap();
        let fit = prune(&recipe("s-obs[damping=diag:0.1]+swap[rounds=0]"), &case.task()).unwrap();
        assert_eq!(obs.mask, fit.mask, "{}", case.name);
        for (a, b) in obs.weights.iter().zip(&fit.weights) {
            for (a, b) in a.data().iter().zip(b.data()) {
                assert!((a - b).abs() <= 2e-3 * (1.0 + a.abs()), "{}: {a} and {b}", case.name);
            }
        }
    }
}
