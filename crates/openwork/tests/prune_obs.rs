//! S-OBS against the paper's Algorithm 1, written down naively in f64.

mod common;

use common::{Case, cases};
use openwork::hessian::Damping;
use openwork::{Element, Mask};
use std::collections::{BTreeMap, HashMap};

/// Damping under which f32 and f64 choose alike.
const DAMPING: f64 = 0.1;

/// A row's inverse Hessian on its domain, whole, and its weights.
struct Row {
    columns: Vec<usize>,
    c: Vec<Vec<f64>>,
    w: Vec<f64>,
}

/// Gauss-Jordan; `a` is positive definite.
fn inverse(a: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let n = a.len();
    let mut a: Vec<Vec<f64>> = a.to_vec();
    let mut b: Vec<Vec<f64>> =
        (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect();
    for k in 0..n {
        let p = a[k][k];
        (0..n).for_each(|j| {
            a[k][j] /= p;
            b[k][j] /= p;
        });
        for i in (0..n).filter(|&i| i != k) {
            let f = a[i][k];
            for j in 0..n {
                a[i][j] -= f * a[k][j];
                b[i][j] -= f * b[k][j];
            }
        }
    }
    b
}

/// The state of every row that the spec touches.
fn rows(case: &Case) -> HashMap<(usize, usize), Row> {
    let mut columns: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for scope in 0..case.spec.scopes() {
        for element in
            (0..case.spec.blocks_per_scope()).flat_map(|block| case.spec.elements(scope, block))
        {
            let width = case.weights[element.tensor].cols();
            columns
                .entry((element.tensor, element.offset / width))
                .or_default()
                .push(element.offset % width);
        }
    }
    let state = |((tensor, row), mut columns): ((usize, usize), Vec<usize>)| {
        columns.sort_unstable();
        let h = &case.hessians[tensor];
        let damped: Vec<Vec<f64>> = columns
            .iter()
            .map(|&i| {
                columns
                    .iter()
                    .map(|&j| h.matrix().row(i)[j] * if i == j { 1.0 + DAMPING } else { 1.0 })
                    .collect()
            })
            .collect();
        let w = columns.iter().map(|&j| f64::from(case.weights[tensor].row(row)[j])).collect();
        ((tensor, row), Row { c: inverse(&damped), columns, w })
    };
    columns.into_iter().map(state).collect()
}

/// The places of a block in each row it touches.
fn places(
    case: &Case,
    rows: &HashMap<(usize, usize), Row>,
    scope: usize,
    blocks: &[usize],
) -> BTreeMap<(usize, usize), Vec<usize>> {
    let mut places: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for element in blocks.iter().flat_map(|&block| case.spec.elements(scope, block)) {
        let width = case.weights[element.tensor].cols();
        let key = (element.tensor, element.offset / width);
        let at = rows[&key].columns.binary_search(&(element.offset % width)).unwrap();
        places.entry(key).or_default().push(at);
    }
    places
}

fn part(c: &[Vec<f64>], p: &[usize]) -> Vec<Vec<f64>> {
    p.iter().map(|&i| p.iter().map(|&j| c[i][j]).collect()).collect()
}

/// sum over rows of w_p' (C_pp)^-1 w_p.
fn cost(case: &Case, rows: &HashMap<(usize, usize), Row>, scope: usize, blocks: &[usize]) -> f64 {
    places(case, rows, scope, blocks)
        .iter()
        .map(|(key, p)| {
            let row = &rows[key];
            let inverse = inverse(&part(&row.c, p));
            let pairs = (0..p.len()).flat_map(|i| (0..p.len()).map(move |j| (i, j)));
            pairs.map(|(i, j)| row.w[p[i]] * inverse[i][j] * row.w[p[j]]).sum::<f64>()
        })
        .sum()
}

/// w <- w - C_:p (C_pp)^-1 w_p and C <- C - C_:p (C_pp)^-1 C_p:.
fn remove(case: &Case, rows: &mut HashMap<(usize, usize), Row>, scope: usize, blocks: &[usize]) {
    for (key, p) in places(case, rows, scope, blocks) {
        let row = rows.get_mut(&key).unwrap();
        let n = row.w.len();
        if p.len() == n {
            row.w.fill(0.0);
            continue;
        }
        let inverse = inverse(&part(&row.c, &p));
        let old = row.c.clone();
        let solved: Vec<f64> =
            (0..p.len()).map(|i| (0..p.len()).map(|j| inverse[i][j] * row.w[p[j]]).sum()).collect();
        for a in 0..n {
            row.w[a] -= (0..p.len()).map(|i| old[a][p[i]] * solved[i]).sum::<f64>();
            for b in 0..n {
                let pairs = (0..p.len()).flat_map(|i| (0..p.len()).map(move |j| (i, j)));
                row.c[a][b] -=
                    pairs.map(|(i, j)| old[a][p[i]] * inverse[i][j] * old[p[j]][b]).sum::<f64>();
            }
        }
        // Removed columns have no effect any more.
        for &q in &p {
            row.w[q] = 0.0;
            (0..n).for_each(|a| {
                row.c[a][q] = 0.0;
                row.c[q][a] = 0.0;
            });
            row.c[q][q] = 1.0;
        }
    }
}

fn subsets(n: usize, k: usize) -> Vec<Vec<usize>> {
    match (n, k) {
        (_, 0) => vec![vec![]],
        (0, _) => vec![],
        _ => {
            let mut with: Vec<Vec<usize>> = subsets(n - 1, k - 1);
            with.iter_mut().for_each(|s| s.push(n - 1));
            with.extend(subsets(n - 1, k));
            with
        }
    }
}

/// Algorithm 1: scopes by rising offset; all subsets where they are few, else
/// the cheapest block repeatedly.
fn naive(case: &Case) -> (Mask, HashMap<(usize, usize), Row>) {
    let mut rows = rows(case);
    let mut mask = Mask::full(&case.spec);
    for scope in case.spec.order() {
        let real: Vec<usize> = (0..case.spec.blocks_per_scope())
            .filter(|&b| case.spec.elements(scope, b).next().is_some())
            .collect();
        let dropped = real.len().saturating_sub(case.spec.keep());
        let count: f64 = (0..dropped.min(real.len() - dropped))
            .map(|i| (real.len() - i) as f64 / (i + 1) as f64)
            .product();
        let gone: Vec<usize> = if count <= 80.5 {
            let choices = subsets(real.len(), dropped)
                .into_iter()
                .map(|s| s.iter().map(|&i| real[i]).collect::<Vec<_>>());
            choices
                .min_by(|a, b| cost(case, &rows, scope, a).total_cmp(&cost(case, &rows, scope, b)))
                .unwrap()
        } else {
            let mut left = real.clone();
            let mut gone = Vec::new();
            let mut ahead = rows_clone(&rows);
            for _ in 0..dropped {
                let &block = left
                    .iter()
                    .min_by(|&&a, &&b| {
                        cost(case, &ahead, scope, &[a]).total_cmp(&cost(case, &ahead, scope, &[b]))
                    })
                    .unwrap();
                remove(case, &mut ahead, scope, &[block]);
                left.retain(|&b| b != block);
                gone.push(block);
            }
            gone
        };
        for &block in &gone {
            mask.drop_block(&case.spec, scope, block);
        }
        remove(case, &mut rows, scope, &gone);
    }
    (mask, rows)
}

fn rows_clone(rows: &HashMap<(usize, usize), Row>) -> HashMap<(usize, usize), Row> {
    rows.iter()
        .map(|(k, r)| (*k, Row { columns: r.columns.clone(), c: r.c.clone(), w: r.w.clone() }))
        .collect()
}

#[test]
fn masks_and_weights_are_those_of_algorithm_1() {
    for case in cases() {
        let pruned = case.prune(&format!("s-obs[damping=diag:{DAMPING}]"));
        assert_eq!(pruned.damping, Some(Damping::Diag(DAMPING)), "{}", case.name);
        let (mask, rows) = naive(&case);
        assert_eq!(pruned.mask, mask, "{}", case.name);
        pruned.mask.conforms(&case.spec).unwrap_or_else(|breach| panic!("{}: {breach}", case.name));
        for ((tensor, row), state) in rows {
            for (&column, &want) in state.columns.iter().zip(&state.w) {
                let got = pruned.weights[tensor].row(row)[column];
                let offset = row * case.weights[tensor].cols() + column;
                if mask.keeps(Element { tensor, offset }) {
                    let scale =
                        case.weights[tensor].row(row).iter().fold(1.0f32, |m, w| m.max(w.abs()));
                    assert!(
                        (f64::from(got) - want).abs() <= 2e-3 * f64::from(scale),
                        "{}: {got} for {want}",
                        case.name
                    );
                } else {
                    assert_eq!(got.to_bits(), 0, "{}: an exact zero", case.name);
                }
            }
        }
    }
}

#[test]
fn nothing_outside_the_domain_changes_a_bit() {
    for case in cases() {
        let pruned = case.prune("s-obs");
        for (tensor, w) in case.weights.iter().enumerate() {
            for offset in 0..w.data().len() {
                if case.spec.locate(Element { tensor, offset }).is_none() {
                    let (old, new) = (w.data()[offset], pruned.weights[tensor].data()[offset]);
                    assert_eq!(old.to_bits(), new.to_bits(), "{} offset {offset}", case.name);
                }
            }
        }
    }
}

#[test]
fn the_panel_and_the_number_of_threads_change_no_bit_of_the_mask() {
    for case in cases() {
        let run = |text: &str, threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| case.prune(text))
        };
        let one = run("s-obs[damping=diag:0.1]", 1);
        for threads in [2, 3] {
            let more = run("s-obs[damping=diag:0.1]", threads);
            assert_eq!((&one.mask, &one.weights), (&more.mask, &more.weights), "{}", case.name);
        }
        assert_eq!(one.mask, run("s-obs[damping=diag:0.1,panel=3]", 2).mask, "{}", case.name);
    }
}

#[test]
fn wide_scopes_are_chosen_greedily_with_scores_always_fresh() {
    let wide: &[(&str, &[usize])] = &[
        ("scope (1,_) keep 250", &[2, 264]),
        ("block (2,4) scope (1,_) keep 64", &[4, 272]),
        ("keep 516", &[2, 264]),
        ("block (_,1) scope (1,_) keep 250", &[3, 264]),
        ("block (1,_) scope (_,1) keep 2", &[4, 264]),
    ];
    for (i, (text, dims)) in wide.iter().enumerate() {
        let case = Case::new(text, &[("w", dims)], 300 + i as u64);
        let pruned = case.prune(&format!("s-obs[damping=diag:{DAMPING}]"));
        let (mask, rows) = naive(&case);
        assert_eq!(pruned.mask, mask, "{}", case.name);
        for ((tensor, row), state) in rows {
            for (&column, &want) in state.columns.iter().zip(&state.w) {
                let got = pruned.weights[tensor].row(row)[column];
                assert!((f64::from(got) - want).abs() <= 5e-3, "{}: {got} for {want}", case.name);
            }
        }
    }
}
