//! Spec text: read, print, read again, bind to small tensors, walk.

use openwork::{Mask, Pattern, Spec};

/// Patterns to start from.
pub const SEEDS: &[&str] = &[
    "2:4",
    "2:4x2@8",
    "unstructured(50%)",
    "block(4,4,25%)",
    "rows16",
    "head(h=4,75%)",
    "view (M,K/16,8,2):(K,16,1,8) block (1,1,1,2) scope (1,1,4,1) keep 2",
    "view m (g j i) -> m g i j, j=2 i=8 block (1,1,1,2) scope (1,1,4,1) keep 2",
    "in (M/4,0)+(M*3/4,K) scope (1,4) keep 2",
    "in (M/2,K):(2*K,1)@K pad (1,3) block (1,_) keep 50%",
    "in ~((0,0)+(2,4) | (4):(2)@9) block 2 keep 1 # rest",
    "on (A,B); view ((A/2,2),B):((2*B,B),1) block ((1,2),2) scope ((2,1)) keep 1",
    "blocks q: view (h d) k -> h d k, h=4 block (1,_,_) & o perm (1,0,2): view k (h d) -> k h d, h=4 block (_,1,_) scope (_,1,1) keep 50%",
    "scopes a: scope (1,4) & b perm (1,0): scope (4,1) keep 12.5%",
    "keep 9223372036854775807*2",
    "block (4,1) scope (1,8) keep 4 then 2:4",
    "columns(25%) else (2:4 then 1:2)",
    "block (4,4) scope (1,_) keep 50% then keep all else 1:2",
    "pad (1,4) scope (1,4) keep 2 then 1:2 else 1:2",
    "view (M,K):(K,1) o (M/2,2,K):(2,1,M) scope (1,2,1) keep 1",
    "view o i -> i o o a b -> b a scope (1,_) keep 50%",
];

/// Small tensors of one to four dims.
const SHAPES: &[&[usize]] = &[&[16], &[16, 16], &[8, 10], &[4, 2, 3, 3]];
/// The most blocks and elements that are walked.
const WALKED: usize = 300;

/// Must not panic nor take long, on any bytes.
pub fn spec_text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let pattern = match text.parse::<Pattern>() {
        Ok(pattern) => pattern,
        Err(error) => return drop(error.to_string()),
    };
    let printed = pattern.to_string();
    let again: Pattern = printed.parse().unwrap_or_else(|e| panic!("prints {printed}: {e}"));
    assert_eq!(again, pattern, "{printed}");
    assert_eq!(again.to_string(), printed);
    let members = pattern.members();
    for &dims in SHAPES {
        let turned: Vec<usize> = dims.iter().rev().copied().collect();
        let tensors: Vec<(&str, &[usize])> = match members.as_slice() {
            [] => vec![("tensor", dims)],
            members => members
                .iter()
                .enumerate()
                .map(|(i, &name)| (name, if i % 2 == 0 { dims } else { turned.as_slice() }))
                .collect(),
        };
        match pattern.bind_all(&tensors) {
            Ok(spec) => walk(&spec, text),
            Err(error) => drop(error.to_string()),
        }
    }
}

fn walk(spec: &Spec, text: &str) {
    assert!(spec.keep() <= spec.blocks_per_scope(), "{text}");
    let _ = spec.facts();
    let order: Vec<usize> = spec.order().take(WALKED).collect();
    for &scope in &order {
        for block in (0..spec.blocks_per_scope()).take(WALKED) {
            let _ = spec.block_index(scope, block);
            for element in spec.elements(scope, block).take(WALKED) {
                assert!(element.offset < spec.tensors()[element.tensor].size(), "{text}");
                assert_eq!(spec.locate(element), Some((scope, block)), "{text}");
            }
        }
    }
    // Padding may make far more positions than there are elements.
    if spec.blocks() <= WALKED {
        let mask = Mask::example(spec, 1);
        assert_eq!(mask.conforms(spec), Ok(()), "{text}");
    }
}
