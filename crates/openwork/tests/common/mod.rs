//! Shared by all tests of pruning: random problems, and every method by its table.
#![allow(dead_code)] // Each test binary uses a part.

use openwork::hessian::{Hessian, HessianSum};
use openwork::prune::{METHODS, MODIFIERS, Member, Method, Pruned, Task, prune};
use openwork::random::{STEP, SplitMix64, mix, unit};
use openwork::spec::PRESETS;
use openwork::{Matrix, Pattern, Spec};

/// Every method of the table, alone and with every modifier; `options` are added to
/// the base, in brackets.
pub fn every_method(options: &str) -> Vec<String> {
    let base = |name: &str| match options {
        "" => name.to_string(),
        options => format!("{name}[{options}]"),
    };
    let modified = |base: String| {
        let each = MODIFIERS.iter().map(|modifier| format!("+{}", modifier.name));
        std::iter::once(String::new()).chain(each).map(move |plus| format!("{base}{plus}"))
    };
    METHODS.iter().map(|method| base(method.name)).flat_map(modified).collect()
}

/// Whether a method rounds all weights of a tensor to codes.
pub fn rounds(method: &str) -> bool {
    method.parse::<Method>().unwrap().encoding().is_some()
}

/// Reproducible numbers, roughly normal.
pub struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64(seed.wrapping_mul(STEP) ^ 0x1234_5678_9abc_def0))
    }

    pub fn uniform(&mut self) -> f64 {
        unit(self.0.next_bits())
    }

    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f64>() as f32 - 6.0
    }

    pub fn matrix(&mut self, rows: usize, cols: usize) -> Matrix {
        Matrix::from_fn(rows, cols, |_, _| self.normal())
    }
}

/// A generator of small numbers.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = mix(self.0.wrapping_add(STEP));
        (self.0 % n as u64) as usize
    }

    pub fn divisor(&mut self, n: usize) -> usize {
        let all: Vec<usize> = (1..=n).filter(|d| n.is_multiple_of(*d)).collect();
        all[self.below(all.len())]
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
    hessian_of(&inputs(samples, columns, seed))
}

/// H of some inputs.
pub fn hessian_of(x: &Matrix) -> Hessian {
    let mut sum = HessianSum::new(x.cols());
    sum.add(x.view()).unwrap();
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
            // Enough that some are held out, for damping `auto`.
            .map(|(i, t)| hessian(4 * t.matrix().1 + 600, t.matrix().1, seed + 10 * i as u64))
            .collect();
        Self { name: format!("{text} on {shapes:?}"), spec, weights, hessians }
    }

    /// tr(D Hd D') over all tensors, with a share of the diagonal added to H.
    pub fn damped_error(&self, weights: &[Matrix], share: f64) -> f64 {
        let mut sum = 0.0;
        for ((w, new), h) in self.weights.iter().zip(weights).zip(&self.hessians) {
            let k = h.columns();
            for (w, new) in w.data().chunks(k).zip(new.data().chunks(k)) {
                let d: Vec<f64> =
                    w.iter().zip(new).map(|(&w, &n)| f64::from(n) - f64::from(w)).collect();
                for i in 0..k {
                    let h_i = h.matrix().row(i);
                    sum += d[i] * d.iter().zip(h_i).map(|(d, h)| d * h).sum::<f64>();
                    sum += share * h_i[i] * d[i] * d[i];
                }
            }
        }
        sum
    }

    pub fn task(&self) -> Task<'_> {
        let members = self.weights.iter().zip(&self.hessians);
        let members =
            members.map(|(w, h)| Member { weights: w.data().into(), hessian: Some(h) }).collect();
        Task { spec: &self.spec, members, monitor: &() }
    }

    pub fn prune(&self, method: &str) -> Pruned {
        let parsed: Method = method.parse().unwrap();
        prune(&parsed, &self.task())
            .unwrap_or_else(|error| panic!("{method} on {}: {error}", self.name))
    }
}

/// Every preset on its own sample shape, and specs with domains, padding,
/// couplings, strange views and tensors of other ranks.
pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = PRESETS
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
        ("pad (2,3) block (2,3) scope (1,_) keep 50%", &[7, 10]),
        ("block (1,_,1,1) scope (1,1,_,_) keep 4", &[4, 4, 3, 3]),
        ("view m (a b) -> b m a, a=2 b=8 block (1,2,1) scope (1,_,2) keep 3", &[8, 16]),
        ("view m (a b) -> m b a, a=2 b=32 scope (1,1,2) keep 1", &[100, 64]),
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
            "blocks a: block (1,4) & b: block (1,2) scope (1,_) keep 1",
            &[("a", &[6, 16]), ("b", &[6, 8])],
        ),
        ("scopes a: scope (1,4) & b: scope (1,8) keep 5", &[("a", &[4, 8]), ("b", &[4, 16])]),
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
