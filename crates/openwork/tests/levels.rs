//! Specs inside specs: masks against a slow twin, conformity against all choices, and the
//! laws of `then` and `else`.

mod common;

use common::Numbers;
use openwork::mask::Bits;
use openwork::prune::{METHODS, Method, Pruned, Task, prune};
use openwork::random::mix;
use openwork::{Breach, Mask, Matrix, Pattern, Spec, hessian::HessianSum};
use std::collections::BTreeSet;

/// A level over a matrix, as the twin sees it: scopes of `count` blocks along one axis.
#[derive(Clone, Debug)]
struct Twin {
    block: [usize; 2],
    axis: usize,
    count: usize,
    keep: usize,
    then: Option<Box<Twin>>,
    otherwise: Option<Box<Twin>>,
}

/// The offsets of a matrix, row by row.
type Offsets = Vec<Vec<usize>>;

impl Twin {
    fn random(numbers: &mut Numbers, dims: [usize; 2], depth: usize) -> Self {
        let block = [numbers.divisor(dims[0]), numbers.divisor(dims[1])];
        let axis = numbers.below(2);
        let count = numbers.divisor(dims[axis] / block[axis]);
        let keep = numbers.below(count + 1);
        let mut inner = |left: usize| {
            let mut dims = dims;
            dims[axis] = dims[axis] / count * left;
            let wanted = depth > 0 && left > 0 && numbers.below(3) > 0;
            wanted.then(|| Box::new(Self::random(numbers, dims, depth - 1)))
        };
        let (then, otherwise) = (inner(keep), inner(count - keep));
        Self { block, axis, count, keep, then, otherwise }
    }

    fn text(&self) -> String {
        let mut scope = [1, 1];
        scope[self.axis] = self.count;
        let [b, c] = self.block;
        let mut text =
            format!("block ({b},{c}) scope ({},{}) keep {}", scope[0], scope[1], self.keep);
        for (word, inner) in [("then", &self.then), ("else", &self.otherwise)] {
            if let Some(inner) = inner {
                text += &format!(" {word} ({})", inner.text());
            }
        }
        text
    }

    fn density(&self) -> f64 {
        let side = |inner: &Option<Box<Self>>, without| {
            inner.as_ref().map_or(without, |inner| inner.density())
        };
        let share = self.keep as f64 / self.count as f64;
        share * side(&self.then, 1.0) + (1.0 - share) * side(&self.otherwise, 0.0)
    }

    /// The offsets of every block, by scope.
    fn scopes(&self, offsets: &Offsets) -> Vec<Vec<Vec<usize>>> {
        let (rows, cols) = (offsets.len() / self.block[0], offsets[0].len() / self.block[1]);
        let block = |i: usize, j: usize| -> Vec<usize> {
            let rows = i * self.block[0]..(i + 1) * self.block[0];
            let cols = j * self.block[1]..(j + 1) * self.block[1];
            rows.flat_map(|r| cols.clone().map(move |c| offsets[r][c])).collect()
        };
        let along = if self.axis == 0 { rows } else { cols } / self.count;
        let across = if self.axis == 0 { cols } else { rows };
        let mut scopes = Vec::new();
        for (i, j) in (0..along * across).map(|n| match self.axis {
            0 => (n / across, n % across),
            _ => (n % along, n / along),
        }) {
            scopes.push(
                (0..self.count)
                    .map(|b| match self.axis {
                        0 => block(i * self.count + b, j),
                        _ => block(j, i * self.count + b),
                    })
                    .collect(),
            );
        }
        scopes
    }

    /// The matrix of the lines along the axis whose block, counted over the whole axis, is
    /// in `chosen` for the line across that it is on.
    fn closed(&self, offsets: &Offsets, chosen: &BTreeSet<usize>) -> Offsets {
        let lines = |matrix: &Offsets| -> Offsets {
            matrix
                .iter()
                .map(|l| l.iter().copied().filter(|o| chosen.contains(o)).collect())
                .collect()
        };
        match self.axis {
            1 => lines(offsets),
            _ => transposed(&lines(&transposed(offsets))),
        }
    }

    /// The kept offsets, by magnitude.
    fn select(&self, offsets: &Offsets, w: &[f32]) -> BTreeSet<usize> {
        let square = |o: &usize| f64::from(w[*o]) * f64::from(w[*o]);
        let scopes = self.scopes(offsets);
        let mut lost: Vec<Vec<f64>> = scopes
            .iter()
            .map(|blocks| blocks.iter().map(|b| b.iter().map(square).sum()).collect())
            .collect();
        if let Some(inner) = &self.otherwise {
            // As many blocks of each scope as will be dropped, from the first on.
            let many = self.count - self.keep;
            let mut done = 0;
            while done < self.count {
                let first = done.min(self.count - many);
                let window =
                    scopes.iter().flat_map(|blocks| blocks[first..first + many].concat()).collect();
                let kept = inner.select(&self.closed(offsets, &window), w);
                for (lost, blocks) in lost.iter_mut().zip(&scopes) {
                    let fresh = done..first + many;
                    for (lost, block) in lost[fresh.clone()].iter_mut().zip(&blocks[fresh]) {
                        *lost = block.iter().filter(|o| !kept.contains(o)).map(square).sum();
                    }
                }
                done = first + many;
            }
        }
        let (mut kept, mut dropped) = (BTreeSet::new(), BTreeSet::new());
        for (lost, blocks) in lost.iter().zip(&scopes) {
            let mut order: Vec<usize> = (0..self.count).collect();
            // An empty sum is -0, which adding 0 turns into 0.
            order.sort_by(|&a, &b| (lost[b] + 0.0).total_cmp(&(lost[a] + 0.0)).then(a.cmp(&b)));
            for (rank, &b) in order.iter().enumerate() {
                let side = if rank < self.keep { &mut kept } else { &mut dropped };
                side.extend(&blocks[b]);
            }
        }
        let mut all = match &self.then {
            Some(inner) => inner.select(&self.closed(offsets, &kept), w),
            None => kept.clone(),
        };
        if let Some(inner) = &self.otherwise {
            all.extend(inner.select(&self.closed(offsets, &dropped), w));
        }
        all
    }

    /// Whether some choice of blocks lets the weights that are set conform; tries all.
    fn allows(&self, offsets: &Offsets, set: &BTreeSet<usize>, exact: bool) -> bool {
        let scopes = self.scopes(offsets);
        let choices = subsets(self.count, self.keep);
        let mut pick = vec![0; scopes.len()];
        loop {
            let (mut kept, mut dropped) = (BTreeSet::new(), BTreeSet::new());
            for (blocks, &pick) in scopes.iter().zip(&pick) {
                for (b, block) in blocks.iter().enumerate() {
                    let side = if choices[pick].contains(&b) { &mut kept } else { &mut dropped };
                    side.extend(block);
                }
            }
            let then = match &self.then {
                Some(inner) => inner.allows(&self.closed(offsets, &kept), set, exact),
                None => !exact || kept.is_subset(set),
            };
            let otherwise = |inner: &Option<Box<Self>>| match inner {
                Some(inner) => inner.allows(&self.closed(offsets, &dropped), set, exact),
                None => dropped.is_disjoint(set),
            };
            if then && otherwise(&self.otherwise) {
                return true;
            }
            let Some(at) = pick.iter().position(|&p| p + 1 < choices.len()) else { return false };
            pick[..at].fill(0);
            pick[at] += 1;
        }
    }

    /// How many choices of blocks there are, or more than a test can try.
    fn choices(&self, dims: [usize; 2]) -> f64 {
        let scopes = dims[0] * dims[1] / self.block[0] / self.block[1] / self.count;
        let own = (subsets(self.count, self.keep).len() as f64).powi(scopes as i32);
        let inner = |inner: &Option<Box<Self>>, left: usize| {
            let mut dims = dims;
            dims[self.axis] = dims[self.axis] / self.count * left;
            inner.as_ref().map_or(1.0, |inner| inner.choices(dims))
        };
        own * (inner(&self.then, self.keep) + inner(&self.otherwise, self.count - self.keep))
    }
}

fn transposed(matrix: &Offsets) -> Offsets {
    (0..matrix[0].len()).map(|j| matrix.iter().map(|line| line[j]).collect()).collect()
}

fn subsets(count: usize, keep: usize) -> Vec<BTreeSet<usize>> {
    (0..1usize << count)
        .filter(|bits| bits.count_ones() as usize == keep)
        .map(|bits| (0..count).filter(|b| bits >> b & 1 == 1).collect())
        .collect()
}

fn matrix(dims: [usize; 2]) -> Offsets {
    (0..dims[0]).map(|r| (r * dims[1]..(r + 1) * dims[1]).collect()).collect()
}

fn bound(text: &str, dims: &[usize]) -> Spec {
    let pattern: Pattern = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    pattern.bind(dims).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn kept(mask: &Mask) -> BTreeSet<usize> {
    let bits = &mask.tensors()[0];
    (0..bits.len()).filter(|&o| bits.get(o)).collect()
}

fn mask_of(set: &BTreeSet<usize>, len: usize) -> Mask {
    let mut bits = Bits::zeros(len);
    set.iter().for_each(|&o| bits.set(o, true));
    Mask::from_bits(vec![bits])
}

fn pruned(method: &str, spec: &Spec, w: &[f32]) -> Pruned {
    let method: Method = method.parse().unwrap();
    let cols = spec.tensors()[0].matrix().1;
    let mut sum = HessianSum::new(cols);
    let x = Matrix::from_fn(4 * cols, cols, |i, j| {
        let noise = (mix((i * cols + j) as u64) % 2001) as f32 / 1000.0 - 1.0;
        noise + 0.3 * (i % 5) as f32
    });
    sum.add(x.view()).unwrap();
    let h = sum.finish().unwrap();
    prune(&method, &Task::one(spec, w, Some(&h))).unwrap()
}

fn w_of(pruned: &Pruned) -> Vec<f32> {
    pruned.weights[0].data().to_vec()
}

/// Small whole numbers, so that sums are exact and ties are common.
fn small(numbers: &mut Numbers, len: usize) -> Vec<f32> {
    (0..len).map(|_| numbers.below(9) as f32 - 4.0).collect()
}

const DIMS: [[usize; 2]; 4] = [[4, 12], [8, 8], [6, 4], [2, 24]];

#[test]
fn masks_by_magnitude_are_those_of_the_twin() {
    let mut numbers = Numbers(1);
    let (mut levels, mut undecided) = ([0; 5], 0);
    for case in 0..1500 {
        let dims = DIMS[case % DIMS.len()];
        let twin = Twin::random(&mut numbers, dims, 1 + case % 3);
        let text = twin.text();
        let spec = bound(&text, &dims);
        levels[spec.levels().len().min(4)] += 1;
        let w = small(&mut numbers, dims[0] * dims[1]);
        let found = prune(&"magnitude".parse().unwrap(), &Task::one(&spec, &w, None)).unwrap();
        let wanted = twin.select(&matrix(dims), &w);
        assert_eq!(kept(&found.mask), wanted, "{text} on {dims:?}: {w:?}");
        assert_eq!(found.mask.density(), spec.density(), "{text}");
        assert!((spec.density() - twin.density()).abs() < 1e-12, "{text}");
        assert_eq!(found.mask.conforms(&spec), Ok(()), "{text}");
        for (o, new) in found.weights[0].data().iter().enumerate() {
            assert_eq!(*new, if wanted.contains(&o) { w[o] } else { 0.0 }, "{text}");
        }
        // The bits alone conform, too: some choice explains them.
        let bits = Mask::from_bits(found.mask.tensors().to_vec());
        for told in [bits.conforms(&spec), Mask::nonzero(&[&w_of(&found)]).allows(&spec)] {
            match told {
                Err(Breach::Undecided { .. }) => undecided += 1,
                told => assert_eq!(told, Ok(()), "{text} on {dims:?}"),
            }
        }
    }
    assert!(undecided < 30, "{undecided} were given up");
    assert!(levels[2..].iter().all(|&n| n > 100), "{levels:?}");
}

/// What `else` loses on a block is decided within the block if its scopes are.
#[test]
fn a_block_costs_what_the_else_level_would_lose_on_it() {
    let mut numbers = Numbers(2);
    for case in 0..200 {
        let (rows, cols) = (8, 32);
        let w = small(&mut numbers, rows * cols);
        let (keep, inner) = (1 + case % 3, [(2, 4), (1, 2), (3, 4), (1, 4)][case % 4]);
        let text = format!("block (4,8) scope (1,4) keep {keep} else {}:{}", inner.0, inner.1);
        let spec = bound(&text, &[rows, cols]);
        let found = prune(&"magnitude".parse().unwrap(), &Task::one(&spec, &w, None)).unwrap();
        for strip in 0..rows / 4 {
            let mut loss = Vec::new();
            for block in 0..4 {
                let mut total = 0.0;
                for (row, group) in (0..4).flat_map(|r| (0..8 / inner.1).map(move |g| (r, g))) {
                    let first = (strip * 4 + row) * cols + block * 8 + group * inner.1;
                    let mut squares: Vec<f32> =
                        w[first..first + inner.1].iter().map(|w| w * w).collect();
                    squares.sort_by(f32::total_cmp);
                    total += squares[..inner.1 - inner.0].iter().sum::<f32>();
                }
                loss.push(total);
            }
            let mut order: Vec<usize> = (0..4).collect();
            order.sort_by(|&a, &b| loss[b].total_cmp(&loss[a]).then(a.cmp(&b)));
            for (rank, &block) in order.iter().enumerate() {
                let bits = &found.mask.tensors()[0];
                let offset = |i: usize| (strip * 4 + i / 8) * cols + block * 8 + i % 8;
                let kept = (0..32).filter(|&i| bits.get(offset(i))).count();
                let wanted = if rank < keep { 32 } else { 32 * inner.0 / inner.1 };
                assert_eq!(kept, wanted, "{text}: block {block} of strip {strip}, {loss:?}");
            }
        }
    }
}

#[test]
fn conformity_is_decided_as_by_trying_all_choices() {
    let mut numbers = Numbers(3);
    let mut counts = [[0; 2]; 2];
    for case in 0..4000 {
        let dims = [[2, 6], [4, 4], [1, 8], [2, 4]][case % 4];
        let twin = Twin::random(&mut numbers, dims, 1 + case % 2);
        if twin.choices(dims) > 3000.0 {
            continue;
        }
        let (text, len) = (twin.text(), dims[0] * dims[1]);
        let spec = bound(&text, &dims);
        // A mask of the spec with a few changes, so that about half conform.
        let w = small(&mut numbers, len);
        let mut set = twin.select(&matrix(dims), &w);
        for _ in 0..numbers.below(4) {
            let at = numbers.below(len);
            if !set.remove(&at) && numbers.below(2) == 0 {
                set.insert(at);
            }
        }
        let mask = mask_of(&set, len);
        for exact in [false, true] {
            let found = if exact { mask.conforms(&spec) } else { mask.allows(&spec) };
            let wanted = twin.allows(&matrix(dims), &set, exact);
            assert_eq!(
                found.is_ok(),
                wanted,
                "{text} on {dims:?}, exact {exact}: {set:?} {found:?}"
            );
            counts[usize::from(exact)][usize::from(wanted)] += 1;
        }
        if let Ok(choice) = mask.find_choice(&spec) {
            // The choice covers what is set.
            assert!(set.is_subset(&kept(&choice.mask(&spec))), "{text}");
        }
    }
    assert!(counts.iter().flatten().all(|&n| n > 200), "{counts:?}");
}

fn noise(len: usize, seed: u64) -> Vec<f32> {
    (0..len).map(|i| (mix(i as u64 * 31 + seed) % 20_001) as f32 / 1000.0 - 10.0).collect()
}

/// Every base method, and those with modifiers.
fn methods() -> Vec<String> {
    let base = METHODS.iter().map(|method| method.name.to_string());
    base.chain(["sparsegpt+refit", "s-obs+swap"].map(String::from)).collect()
}

#[test]
fn every_method_prunes_every_level() {
    for (text, dims) in [
        ("block (4,1) scope (1,8) keep 4 then 2:4", [8, 32]),
        ("block (4,8) scope (1,_) keep 50% then 2:4", [8, 32]),
        ("block (4,8) scope (1,_) keep 50% else 2:4", [8, 32]),
        ("columns(25%) else 2:4", [8, 32]),
        ("rows16 then 2:4x2", [16, 32]),
        ("columns(50%) then (block (4,4) scope (1,_) keep 50% else 1:2)", [8, 32]),
        ("2:4 then 1:2", [8, 32]),
        ("scope (1,4) keep 2 then 1:2 else 1:2", [8, 32]),
        ("in (2,0)+(4,M*4) scope (1,4) keep 2 then 1:2", [8, 32]),
        ("pad (1,8) scope (1,8) keep 4 then 2:4", [4, 28]),
        ("channel(50%) then 2:4", [8, 32]),
    ] {
        let spec = bound(text, &dims);
        let w = noise(dims[0] * dims[1], 7);
        for method in methods() {
            let found = pruned(&method, &spec, &w);
            assert_eq!(found.mask.conforms(&spec), Ok(()), "{method} on {text}");
            let zeros = Mask::nonzero(&[found.weights[0].data()]);
            assert_eq!(zeros.allows(&spec), Ok(()), "{method} on {text}");
            for (o, new) in found.weights[0].data().iter().enumerate() {
                assert!(found.mask.tensors()[0].get(o) || *new == 0.0, "{method} on {text}");
            }
            if !text.contains("pad") && !text.contains("in (") {
                assert_eq!(found.mask.density(), spec.density(), "{method} on {text}");
            }
            assert!(found.error > 0.0 && found.error < 1.0, "{method} on {text}: {}", found.error);
        }
    }
}

#[test]
fn then_keep_all_changes_nothing_but_the_fit() {
    for (outer, dims) in [("2:4", [8, 16]), ("block(4,4)", [8, 32]), ("rows16", [16, 32])] {
        let (plain, all) = (bound(outer, &dims), bound(&format!("{outer} then (keep all)"), &dims));
        assert_eq!(plain.density_ratio(), all.density_ratio());
        let w = noise(dims[0] * dims[1], 3);
        for method in methods() {
            let (a, b) = (pruned(&method, &plain, &w), pruned(&method, &all, &w));
            assert_eq!(a.mask, b.mask, "{method} on {outer}");
            assert!(b.error <= a.error * 1.0001, "{method} on {outer}: {} {}", a.error, b.error);
        }
    }
}

#[test]
fn two_spellings_prune_alike() {
    for (a, b, dims) in [
        (
            "scope (1,4) keep 2 then 1:2",
            "view m (g i) -> m g i, i=4 scope (1,1,4) keep 2 then scope (1,1,2) keep 1",
            [8, 32],
        ),
        (
            "block (4,1) scope (1,8) keep 4 then 2:4",
            "view (v r) (g i) -> v g r i, r=4 i=8 block (1,1,4,1) scope (1,1,1,8) keep 4 \
             then scope (1,1,1,4) keep 2",
            [8, 32],
        ),
        (
            "block (4,8) scope (1,_) keep 50% else 2:4",
            "block(4,8) else (scope (1,4) keep 2)",
            [8, 32],
        ),
    ] {
        let (x, y) = (bound(a, &dims), bound(b, &dims));
        let w = noise(dims[0] * dims[1], 5);
        for method in methods() {
            let (x, y) = (pruned(&method, &x, &w), pruned(&method, &y, &w));
            assert_eq!(x.mask, y.mask, "{method} on {a} and {b}");
            assert!((x.error - y.error).abs() <= 1e-6 * x.error, "{method} on {a}");
        }
    }
}

/// Least squares on the final mask: no other weights on it have a smaller error.
#[test]
fn weights_are_fitted_to_the_whole_mask() {
    let spec = bound("block (4,8) scope (1,_) keep 50% else 2:4", &[8, 32]);
    let w = noise(256, 9);
    let fitted = pruned("s-obs[damping=diag:0.000001]", &spec, &w);
    for scale in [0.999, 1.001] {
        for at in (0..256).filter(|&o| fitted.mask.tensors()[0].get(o)) {
            let mut other = fitted.weights[0].clone();
            other.data_mut()[at] *= scale;
            // The same statistics as in `pruned`.
            let x = Matrix::from_fn(128, 32, |i, j| {
                let noise = (mix((i * 32 + j) as u64) % 2001) as f32 / 1000.0 - 1.0;
                noise + 0.3 * (i % 5) as f32
            });
            let mut sum = HessianSum::new(32);
            sum.add(x.view()).unwrap();
            let h = sum.finish().unwrap();
            let old = Matrix::from_vec(8, 32, w.clone());
            let error =
                openwork::prune::measure::output_error(old.view(), other.view(), h.matrix().view());
            assert!(error.relative() >= fitted.error * (1.0 - 1e-6), "{at}");
        }
    }
}

#[test]
fn else_belongs_to_the_nearest_open_then() {
    for (text, printed) in [
        ("2:4 then 1:2", "2:4 then 1:2"),
        ("(2:4 then (1:2))", "2:4 then 1:2"),
        ("4:8 then 2:4 then 1:2", "4:8 then 2:4 then 1:2"),
        ("2:4 then 1:2 else 1:2", "2:4 then 1:2 else 1:2"),
        ("4:8 then 2:4 then 1:2 else 1:2", "4:8 then (2:4 then 1:2 else 1:2)"),
        ("4:8 then (2:4 then 1:2) else 1:2", "4:8 then (2:4 then 1:2) else 1:2"),
        ("4:8 then 2:4 then 1:2 else 1:2 else 1:4", "4:8 then (2:4 then 1:2 else 1:2) else 1:4"),
        ("4:8 else 2:4 else 1:2", "4:8 else (2:4 else 1:2)"),
        ("4:8 else 2:4 then 1:2", "4:8 else (2:4 then 1:2)"),
        ("block(4,4) then 2:4", "block(4,4) then 2:4"),
        (
            "block (4,4) scope (1,_) keep 50%; else\n2:4 # rest",
            "block (4,4) scope (1,_) keep 50% else 2:4",
        ),
        ("2:4 then keep all", "2:4 then keep all"),
    ] {
        let pattern: Pattern = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(pattern.to_string(), printed);
        assert_eq!(printed.parse::<Pattern>().unwrap(), pattern, "{text}");
    }
    let both = bound("scope (1,4) keep 1 then scope (1,_) keep all else 1:3", &[2, 8]);
    assert!(both.then().is_some() && both.otherwise().is_some());
    assert_eq!(both.density_ratio().unwrap().to_string(), "1/2");
}

#[test]
fn refusals_name_the_place_and_the_way_out() {
    let told = |text: &str, dims: &[usize]| match text.parse::<Pattern>() {
        Err(error) => error.to_string(),
        Ok(pattern) => pattern.bind(dims).unwrap_err().to_string(),
    };
    assert_eq!(
        told("unstructured(50%) then 2:4", &[8, 16]),
        "`then` needs scopes that run along one axis\n  unstructured(50%) then 2:4\n  \
         \u{20}                 ^ these span axes 0 (`M`) and 1 (`K`); axis 1 would do: `scope (1,_)`"
    );
    assert_eq!(
        told("scope (1,4) keep 0 then 2:4", &[8, 16]),
        "`keep 0` cannot be followed by `then`: no block is left\n  scope (1,4) keep 0 then 2:4\n  \
         \u{20}                  ^ keep at least one block of each scope"
    );
    for text in ["4:4 else 1:2", "scope (1,4) keep 99% else 1:2", "scope (1,4) keep all else 1:2"] {
        let told = told(text, &[8, 16]);
        assert!(
            told.contains("`keep all` cannot be followed by `else`: all 4 blocks stay"),
            "{told}"
        );
    }
    assert_eq!(
        told("scope (1,8) keep 3 then scope (1,4) keep 2", &[8, 16]),
        "scope (1,4) does not divide the grid of blocks (after `then`, on a tensor of (8,6))\n  \
         scope (1,8) keep 3 then scope (1,4) keep 2\n  \
         \u{20}                                ^ axis 1 has 6 entries, not a multiple of 4; pad it or narrow the domain"
    );
    for (text, part) in [
        ("2:4 then", "expected a pattern, found the end"),
        ("then 2:4", "expected a pattern, found `then`"),
        ("2:4 else else 2:4", "expected a pattern, found `else`"),
        ("(2:4 then 1:2", "expected `)`"),
        ("(2:4 then 1:2) else 1:4", "`else` does not belong here"),
        ("2:4 then 1:2)", "`)` does not belong here"),
        (
            "blocks a: block (1,_) & b: block (1,_) keep 50% then 2:4",
            "a coupling cannot be followed by `then`",
        ),
        ("2:4 then blocks a: block (1,_) keep 50%", "a coupling (`blocks`) cannot be a level"),
    ] {
        let told = told(text, &[8, 16]);
        assert!(told.starts_with(part), "{text}: {told}");
    }
    let deep = |n: usize| "scope (1,2) keep 1 then ".repeat(n) + "keep all";
    assert!(deep(32).parse::<Pattern>().is_ok());
    assert!(told(&deep(33), &[1, 4]).starts_with("this is nested too deeply"));
    let wide = "(".repeat(40) + "2:4" + &")".repeat(40);
    assert!(told(&wide, &[1, 4]).starts_with("this is nested too deeply"));
}

#[test]
fn a_breach_names_level_scope_and_block() {
    let spec = bound("block (2,1) scope (1,4) keep 2 then 1:2", &[2, 8]);
    let told = |w: [f32; 16]| Mask::nonzero(&[&w]).allows(&spec).unwrap_err().to_string();
    let mut w = [0.0; 16];
    (w[0], w[1], w[2]) = (1.0, 1.0, 1.0);
    assert_eq!(told(w), "level 1: scope 0 keeps 3 blocks, expected 2");
    let mut w = [0.0; 16];
    (w[4], w[6]) = (1.0, 1.0);
    assert_eq!(
        told(w),
        "no choice of blocks fits; with the closest, level 2 (then), in block 6 of scope 1: \
         scope 1 keeps 2 blocks, expected 1"
    );
}

/// Each row may have its own columns, so a wide search is possible; it ends.
#[test]
fn large_tensors_are_decided_or_given_up() {
    for text in ["columns(25%) else 2:4", "block (16,16) scope (1,_) keep 50% else 2:4"] {
        let spec = bound(text, &[64, 128]);
        let mask = Mask::example(&spec, 3);
        let bits = Mask::from_bits(mask.tensors().to_vec());
        assert_eq!(bits.allows(&spec), Ok(()), "{text}");
        let dense = Mask::full(&spec);
        assert!(dense.allows(&spec).is_err(), "{text}");
    }
}
