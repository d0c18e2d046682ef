//! Views by composition: `A o B` is `A(B(c))`.

mod common;

use common::Numbers;
use openwork::prune::{Task, prune};
use openwork::random::mix;
use openwork::{Layout, Pattern, Spec};

impl Numbers {
    /// Splits the modes of a compact space and shuffles them; `step` is the stride of each.
    fn layout(&mut self, modes: &[(usize, usize)]) -> (Vec<usize>, Vec<usize>) {
        let mut parts = Vec::new();
        for &(extent, stride) in modes {
            let inner = self.divisor(extent);
            parts.push((inner, stride));
            parts.push((extent / inner, stride * inner));
        }
        for i in (1..parts.len()).rev() {
            let j = self.below(i + 1);
            parts.swap(i, j);
        }
        parts.retain(|&(extent, _)| extent > 1);
        parts.into_iter().unzip()
    }
}

fn text((shape, stride): &(Vec<usize>, Vec<usize>)) -> String {
    let list = |values: &[usize]| {
        let values: Vec<_> = values.iter().map(ToString::to_string).collect();
        format!("({})", values.join(","))
    };
    format!("{}:{}", list(shape), list(stride))
}

fn bound(text: &str, dims: &[usize]) -> Spec {
    let pattern: Pattern = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(pattern.to_string().parse::<Pattern>().unwrap(), pattern, "{text}");
    pattern.bind(dims).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// All offsets, by scope, block and element.
fn offsets(spec: &Spec) -> Vec<Vec<Vec<usize>>> {
    let block = |scope, block| spec.elements(scope, block).map(|e| e.offset).collect();
    let blocks = |scope| (0..spec.blocks_per_scope()).map(|b| block(scope, b)).collect();
    (0..spec.scopes()).map(blocks).collect()
}

#[test]
fn binding_a_composition_is_binding_the_composed_layout() {
    let mut numbers = Numbers(1);
    let mut nested = 0;
    for case in 0..600 {
        let [m, k] = [[4, 12], [8, 8], [16, 6], [2, 24]][case % 4];
        let a = numbers.layout(&[(k, 1), (m, k)]);
        let mut compact = Vec::new();
        let mut stride = 1;
        for &extent in &a.0 {
            compact.push((extent, stride));
            stride *= extent;
        }
        let b = numbers.layout(&compact);
        let (left, right): (Layout, Layout) =
            (text(&a).parse().unwrap(), text(&b).parse().unwrap());
        let composed = left.composition(&right).unwrap();
        nested += usize::from(composed.shape().depth() > 1);
        let view = format!("view {} o {}", text(&a), text(&b));
        for rest in ["scope (1) keep 50%", "scope (_) keep 1", "keep 3"] {
            let spec = bound(&format!("{view} {rest}"), &[m, k]);
            let plain = bound(&format!("view {composed} {rest}"), &[m, k]);
            assert_eq!(spec.tensors()[0].view(), &composed, "{view}");
            assert_eq!(offsets(&spec), offsets(&plain), "{view} {rest}");
            let w: Vec<f32> = (0..m * k).map(|i| (mix(i as u64) % 7) as f32).collect();
            let mask = |spec: &Spec| {
                prune(&"magnitude".parse().unwrap(), &Task::one(spec, &w, None)).unwrap().mask
            };
            assert_eq!(mask(&spec), mask(&plain), "{view} {rest}");
        }
    }
    assert!(nested < 600, "{nested}");
}

/// Any pair either composes and covers the tensor, or is refused.
#[test]
fn other_pairs_are_refused_with_the_reason() {
    let mut numbers = Numbers(2);
    let (mut refused, mut bound) = (0, 0);
    for _ in 0..3000 {
        let mut layout = |modes: usize| {
            let shape: Vec<usize> = (0..modes).map(|_| [1, 2, 3, 4][numbers.below(4)]).collect();
            let stride: Vec<usize> = (0..modes).map(|_| [1, 2, 3, 4][numbers.below(4)]).collect();
            text(&(shape, stride))
        };
        let (a, b) = (layout(2), layout(2));
        let (left, right): (Layout, Layout) = (a.parse().unwrap(), b.parse().unwrap());
        let pattern: Pattern = format!("view {a} o {b} keep 1").parse().unwrap();
        let found = pattern.bind(&[2, 4]);
        match left.composition(&right) {
            Err(error) => {
                let told = found.unwrap_err().to_string();
                assert!(told.starts_with(&format!("{a} o {b} is not a layout\n")), "{told}");
                let short: String = error.to_string().chars().take(60).collect();
                assert!(told.contains(&short), "{told}: {error}");
                refused += 1;
            }
            Ok(view) => {
                let mut image = view.image().unwrap();
                image.sort_unstable();
                let covers = image.into_iter().eq(0..8);
                assert_eq!(found.is_ok(), covers, "{a} o {b}");
                bound += usize::from(covers);
            }
        }
    }
    assert!(refused > 100 && bound > 2, "{refused} {bound}");
}

#[test]
fn the_papers_patterns_written_both_ways_prune_alike() {
    for (plain, composed, dims) in [
        // The appendix's two views of 2:4.
        ("2:4", "view (M,K/4,4):(K,4,1) o (M,K/4,4):(1,M,M*K/4) scope (1,1,4) keep 2", [8, 32]),
        ("2:4", "view (M,K/4,4):(K,4,1) o (4,K/4,M):(M*K/4,M,1) scope (4,1,1) keep 2", [8, 32]),
        (
            "rows16",
            "view (M,K):(K,1) o (M/16,8,2,K):(16,1,8,M) block (1,1,1,16) scope (1,1,2,1) keep 1",
            [32, 32],
        ),
        (
            "2:4@8",
            "view (M,K):(K,1) o (M,K/16,8,2):(1,16*M,M,8*M) block (1,1,1,2) scope (1,1,4,1) keep 2",
            [8, 32],
        ),
        (
            "2:4@8",
            "view m (g j i) -> m g j i, j=2 i=8 o m g j i -> m g i j \
             block (1,1,1,2) scope (1,1,4,1) keep 2",
            [8, 32],
        ),
        (
            "block(4,4)",
            "view (M,K):(K,1) o (r b) (c d) -> r c b d, b=4 d=4 \
             block (1,1,_,_) scope (1,_,1,1) keep 50%",
            [8, 32],
        ),
    ] {
        let w: Vec<f32> = (0..dims[0] * dims[1]).map(|i| (mix(i as u64) % 997) as f32).collect();
        let mask = |text: &str| {
            let spec = bound(text, &dims);
            prune(&"magnitude".parse().unwrap(), &Task::one(&spec, &w, None)).unwrap().mask
        };
        assert_eq!(mask(plain), mask(composed), "{composed}");
    }
}

#[test]
fn axes_of_a_composition_are_those_of_its_last_operand() {
    // The second axis of four is made of (2,2); a block of two of them is one of its parts.
    let spec = bound("view (2,2,2):(1,4,2) o (2,4):(1,2) block (1,2) scope (1,2) keep 1", &[1, 8]);
    assert_eq!(spec.tensors()[0].view().to_string(), "(2,(2,2)):(1,(4,2))");
    assert_eq!(offsets(&spec), [[[0, 4], [2, 6]], [[1, 5], [3, 7]]]);
    let told = "view (2,3,2):(1,4,2) o (2,6):(1,2) block (1,2) keep 1".parse::<Pattern>().unwrap();
    let told = told.bind(&[1, 12]).unwrap_err().to_string();
    assert!(told.starts_with("block 2 does not divide the view\n"), "{told}");
    assert!(told.contains("composition makes this axis (3,2)"), "{told}");
    // `o` may still name an axis or a tensor.
    bound("view o i -> i o block (1,1) scope (1,_) keep 50%", &[4, 8]);
    bound("view o i -> i o o a b -> b a scope (1,_) keep 50%", &[4, 8]);
    let carry = "view (M,K):(K,1) o (M,2):(1,2) keep 1".parse::<Pattern>().unwrap();
    let told = carry.bind(&[4, 8]).unwrap_err().to_string();
    assert!(told.starts_with("(M,K):(K,1) o (M,2):(1,2) is not a layout\n"), "{told}");
    assert!(told.lines().last().unwrap().contains('^'), "{told}");
}
