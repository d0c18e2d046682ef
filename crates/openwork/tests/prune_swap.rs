//! The laws of local search.

mod common;

use common::{Case, Random, cases, hessian_of};
use openwork::prune::{METHODS, Method, Needs};

/// So little that the undamped error is the one that steps lower.
const DAMPING: &str = "damping=diag:1e-5";
/// Relative rounding of an f32 fit.
const ROUNDING: f64 = 1e-4;

#[test]
fn every_round_lowers_the_error_and_keeps_the_pattern() {
    for case in cases() {
        for base in METHODS.iter().map(|method| method.name) {
            let mut last = f64::INFINITY;
            for rounds in [0, 1, 2, 20] {
                let text = format!("{base}[{DAMPING}]+swap[rounds={rounds}]");
                let pruned = case.prune(&text);
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
        pool.install(|| case.prune(text))
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
fn kicks_only_ever_help() {
    let (mut helped, mut before) = (0, 0.0);
    let wide = Case::new("2:4", &[("w", &[24, 96])], 11);
    for case in cases().into_iter().chain([wide]) {
        for kicks in [0, 1, 6] {
            let text = format!("s-obs[{DAMPING}]+swap[kicks={kicks}]");
            let pruned = case.prune(&text);
            pruned.mask.conforms(&case.spec).unwrap();
            if kicks > 0 {
                let bound = before * (1.0 + ROUNDING);
                assert!(pruned.error <= bound, "{}: {} after {before}", case.name, pruned.error);
                helped += usize::from(pruned.error < before * (1.0 - ROUNDING));
            }
            before = pruned.error;
        }
    }
    assert!(helped > 0, "no kick found anything");
}

#[test]
fn a_search_without_rounds_is_a_fit_and_s_obs_is_already_fitted() {
    for case in cases() {
        let obs = case.prune("s-obs[damping=diag:0.1]");
        let fit = case.prune("s-obs[damping=diag:0.1]+swap[rounds=0]");
        assert_eq!(obs.mask, fit.mask, "{}", case.name);
        for (a, b) in obs.weights.iter().zip(&fit.weights) {
            for (a, b) in a.data().iter().zip(b.data()) {
                assert!((a - b).abs() <= 2e-3 * (1.0 + a.abs()), "{}: {a} and {b}", case.name);
            }
        }
    }
}

/// Inputs of a first layer: a few directions hold nearly all of them.
#[test]
fn rounding_does_not_lead_the_search_astray_where_inputs_nearly_depend_on_each_other() {
    let (rows, k) = (24, 192);
    let mut random = Random::new(3);
    let (few, spread) = (random.matrix(2000, 12), random.matrix(12, k));
    let mut x = random.matrix(2000, k);
    for i in 0..2000 {
        for j in 0..k {
            let main: f32 = (0..12).map(|l| few.row(i)[l] * spread.row(l)[j]).sum();
            x.row_mut(i)[j] = main + 3e-3 * x.row(i)[j];
        }
    }
    let mut case = Case::new("2:4", &[("w", &[rows, k])], 5);
    case.hessians = vec![hessian_of(&x)];
    // The search lowers the damped error; from masks that ignore H the undamped one may rise.
    let uses_h = |name: &&str| name.parse::<Method>().unwrap().needs() == Needs::Hessian;
    // With 1e-6 even f64 only has A rounded to f32: the mask is left unchanged.
    for (damping, limit) in [("diag:1e-3", 0.99), ("diag:1e-5", 0.99), ("diag:1e-6", 1.0)] {
        for base in METHODS.iter().map(|method| method.name).filter(uses_h) {
            let run = |steps: &str| {
                let text = format!("{base}[damping={damping}]{steps}");
                case.prune(&text).error
            };
            let (before, after) = (run("+refit"), run("+swap"));
            assert!(after <= limit * before, "{base}, {damping}: {after} after {before}");
        }
    }
}
