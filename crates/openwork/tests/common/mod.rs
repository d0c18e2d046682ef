//! Problems that the laws of pruning are tried on.
#![allow(dead_code)] // Each test binary uses a part.

use openwork::hessian::{Hessian, HessianSum};
use openwork::{Matrix, Pattern, Spec};

/// Reproducible numbers, roughly normal.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def0)
    }

    pub fn uniform(&mut self) -> f64 {
        // SplitMix64 (Steele, Lea and Flood 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f64>() as f32 - 6.0
    }

    pub fn matrix(&mut self, rows: usize, cols: usize) -> Matrix {
        Matrix::from_fn(rows, cols, |_, _| self.normal())
    }
}

/// Inputs whose columns are correlated and differ in scale.
pub fn inputs(samples: usize, columns: usize, seed: u64) -> Matrix {
    let mut random = Random::new(seed);
    let base = random.matrix(samples, columns);
    let mixing = random.matrix(columns, columns);
    Matrix::from_fn(samples, columns, |i, j| {
        let mixed: f32 =
            (0..columns.min(6)).map(|k| base.row(i)[(j + k) % columns] * mixing.row(j)[k]).sum();
        mixed * (1.0 + j as f32 % 5.0)
    })
}

pub fn hessian(samples: usize, columns: usize, seed: u64) -> Hessian {
    let mut sum = HessianSum::new(columns);
    sum.add(inputs(samples, columns, seed).view()).unwrap();
    sum.finish().unwrap()
}

/// Names and dims of tensors.
type Shapes = &'static [(&'static str, &'static [usize])];

/// A spec with weights and statistics for each of its tensors.
pub struct Case {
    pub name: String,
    pub spec: Spec,
    pub weights: Vec<Matrix>,
    pub hessians: Vec<Hessian>,
}

impl Case {
    pub fn new(text: &str, shapes: &[(&str, &[usize])], seed: u64) -> Self {
        let spec = text
            .parse::<Pattern>()
            .unwrap()
            .bind_all(shapes)
            .unwrap_or_else(|e| panic!("{text}: {e}"));
        let mut random = Random::new(seed);
        let weights =
            spec.tensors().iter().map(|t| random.matrix(t.matrix().0, t.matrix().1)).collect();
        let hessians = spec
            .tensors()
            .iter()
            .enumerate()
            .map(|(i, t)| hessian(4 * t.matrix().1 + 8, t.matrix().1, seed + 10 * i as u64))
            .collect();
        Self { name: format!("{text} on {shapes:?}"), spec, weights, hessians }
    }

    pub fn task(&self) -> openwork::prune::Task<'_> {
        let members = self.weights.iter().zip(&self.hessians);
        openwork::prune::Task {
            spec: &self.spec,
            members: members
                .map(|(w, h)| openwork::prune::Member {
                    weights: w.data().into(),
                    hessian: Some(h),
                })
                .collect(),
            monitor: &(),
        }
    }
}

/// Every preset on its own sample shape, and specs with domains, padding,
/// couplings, strange views and tensors of other ranks.
pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = openwork::spec::PRESETS
        .iter()
        .enumerate()
        .map(|(i, p)| Case::new(p.example, &[("w", p.shape)], i as u64))
        .collect();
    let one: &[(&str, &[usize])] = &[
        ("in (2,4)+(4,8) scope (1,4) keep 2", &[8, 16]),
        ("in (0,0)+(2,4) | (4,8)+(4,4) scope (4) keep 1", &[8, 16]),
        ("in ~((0,0)+(2,16)) scope (8) keep 3", &[8, 16]),
        ("in (4,4,4):(68,16,1) scope (1,1,4) keep 2", &[16, 16]),
        ("pad (1,4) scope (1,4) keep 2", &[5, 10]),
        ("pad (4,4) block (2,2) scope (1,2) keep 1", &[6, 10]),
        ("2:4", &[6, 4, 2, 2]),
        ("2:4", &[16]),
        ("block (2,1) scope (1,4) keep 2", &[6, 12]),
        ("scope (2,3) keep 2", &[4, 12]),
        ("block (1,2) scope (2,_) keep 5", &[4, 12]),
        ("view (4,2,6,2):(24,12,1,6) block (1,1,1,2) scope (1,2,3,1) keep 3", &[8, 12]),
        ("view (M*K/6,6) scope (1,6) keep 3", &[5, 12]),
        ("keep 0 scope (1,4)", &[2, 8]),
        ("keep 4 scope (1,4)", &[2, 8]),
        ("16:32", &[3, 64]),
    ];
    cases.extend(
        one.iter()
            .enumerate()
            .map(|(i, (text, dims))| Case::new(text, &[("w", dims)], 100 + i as u64)),
    );
    let heads = "blocks q: view (h d) k -> h d k, h=4 block (1,_,_) & v: view (h d) k -> h d k, h=4 block (1,_,_) \
                 & o perm (1,0,2): view k (h d) -> k h d, h=4 block (_,1,_) scope (_,1,1) keep 50%";
    let coupled: &[(&str, Shapes)] = &[
        (heads, &[("q", &[8, 6]), ("v", &[8, 6]), ("o", &[6, 8])]),
        ("blocks a: 2:4 & b: 2:4 scope (1,4) keep 2", &[("a", &[4, 8]), ("b", &[4, 8])]),
        ("scopes a: scope (1,4) & b: scope (1,4) keep 4", &[("a", &[4, 8]), ("b", &[4, 8])]),
        ("blocks a: 2:4 scope (1,4) keep 2", &[("a", &[4, 8])]),
        (
            "blocks up: block (1,_) & down perm (1,0): block (_,1) scope (_,1) keep 5",
            &[("up", &[8, 6]), ("down", &[6, 8])],
        ),
    ];
    cases.extend(
        coupled
            .iter()
            .enumerate()
            .map(|(i, (text, shapes))| Case::new(text, shapes, 200 + i as u64)),
    );
    cases
}
