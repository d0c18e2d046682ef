//! Weights of a coupling's members: what is lost in a tensor counts that much.

mod common;

use common::{Random, every_method, hessian, rounds};
use openwork::hessian::Hessian;
use openwork::prune::{Member, Method, Pruned, Task, prune};
use openwork::{Matrix, Pattern};

/// A damping for every method, so that none is chosen by the weights.
const DAMPING: &str = "damping=diag:0.1";

/// Rows of `a` and of `b` go with columns of `c`.
fn text(weights: [&str; 3]) -> String {
    let [a, b, c] =
        weights.map(|w| if w.is_empty() { String::new() } else { format!(" weight {w}") });
    format!("blocks a{a}: block (1,_) & b{b}: block (1,_) & c perm (1,0){c}: block (_,1) keep 50%")
}

fn tensors() -> [Matrix; 3] {
    let mut random = Random::new(1);
    [random.matrix(12, 8), random.matrix(12, 8), random.matrix(10, 12)]
}

fn pruned(text: &str, method: &str, w: &[Matrix; 3], h: &[&Hessian; 3]) -> Pruned {
    let pattern: Pattern = text.parse().unwrap();
    assert_eq!(pattern.to_string(), text);
    let shapes: Vec<[usize; 2]> = w.iter().map(|w| [w.rows(), w.cols()]).collect();
    let named = [("a", &shapes[0][..]), ("b", &shapes[1][..]), ("c", &shapes[2][..])];
    let spec = pattern.bind_all(&named).unwrap();
    let members = w
        .iter()
        .zip(h)
        .map(|(w, h)| Member { weights: w.data().into(), hessian: Some(*h) })
        .collect();
    let method: Method = method.parse().unwrap();
    prune(&method, &Task { spec: &spec, members, monitor: &() }).unwrap()
}

#[test]
fn equal_weights_are_no_weights() {
    let (w, h, g) = (tensors(), hessian(40, 8, 4), hessian(40, 12, 5));
    for method in every_method(DAMPING) {
        let plain = pruned(&text(["", "", ""]), &method, &w, &[&h, &h, &g]);
        for weight in ["1", "4"] {
            let same = pruned(&text([weight; 3]), &method, &w, &[&h, &h, &g]);
            assert!(same.mask == plain.mask, "{method}, weight {weight}");
        }
    }
}

#[test]
fn weight_zero_leaves_the_choice_to_the_others() {
    let (w, h, g) = (tensors(), hessian(40, 8, 6), hessian(40, 12, 7));
    for method in every_method(DAMPING).into_iter().filter(|method| !rounds(method)) {
        let both = pruned(&text(["0", "0", ""]), &method, &w, &[&h, &h, &g]);
        let pattern: Pattern = "block (_,1) keep 50%".parse().unwrap();
        let spec = pattern.bind(&[10, 12]).unwrap();
        let method: Method = method.parse().unwrap();
        let alone = prune(&method, &Task::one(&spec, w[2].data(), Some(&g))).unwrap();
        assert!(both.mask.tensors()[2] == alone.mask.tensors()[0], "{method}");
        // Kept rows have not changed: bit by bit without a modifier, whose fits round.
        let rounding = if method.to_string().contains('+') { 1e-5 } else { 0.0 };
        for t in 0..2 {
            for row in 0..12 {
                let (old, new) = (w[t].row(row), both.weights[t].row(row));
                let same = old.iter().zip(new).all(|(o, n)| (o - n).abs() <= rounding * o.abs());
                assert!(same || new.iter().all(|w| *w == 0.0), "{method}: row {row}");
            }
        }
    }
}

#[test]
fn a_weight_is_a_scale_of_its_tensor() {
    let (w, h, g) = (tensors(), hessian(40, 8, 8), hessian(40, 12, 9));
    let mut scaled = w.clone();
    scaled[0].data_mut().iter_mut().for_each(|w| *w *= 2.0);
    // Wanda scores are linear in the weights, errors quadratic.
    for method in every_method(DAMPING).into_iter().filter(|text| !text.starts_with("wanda")) {
        let weighted = pruned(&text(["4", "", ""]), &method, &w, &[&h, &h, &g]);
        let plain = pruned(&text(["", "", ""]), &method, &scaled, &[&h, &h, &g]);
        assert!(weighted.mask == plain.mask, "{method}");
    }
}

#[test]
fn weights_that_mean_nothing_are_refused() {
    let bind = |text: &str| {
        let pattern: Result<Pattern, _> = text.parse();
        let named = [("a", &[4, 4][..]), ("b", &[4, 4][..])];
        pattern.and_then(|pattern| pattern.bind_all(&named)).unwrap_err().to_string()
    };
    assert!(bind("blocks a weight 0: & b weight 0: keep 50%").contains("every member"));
    assert!(bind("blocks a weight x: & b: keep 50%").contains("a weight is a number"));
    assert!(bind("blocks a weight -1: & b: keep 50%").contains("a weight is a number"));
}
