//! The laws of specs, on random patterns, against a slow twin.

mod generate;
mod twin;

use generate::{Case, Choices, Kind};
use openwork::{Breach, Element, Mask, Pattern, Spec};
use proptest::prelude::*;
use std::collections::BTreeSet;
use twin::{Block, coupled_blocks, coupled_scopes};

/// Enough choices for the largest pattern.
fn choices() -> impl Strategy<Value = Vec<u16>> {
    prop::collection::vec(any::<u16>(), 120)
}

fn expected(case: &Case) -> Vec<Vec<Block>> {
    match case.kind {
        Kind::Scopes => coupled_scopes(&case.parts),
        _ => coupled_blocks(&case.parts, &case.tile),
    }
}

fn bind(text: &str, case: &Case) -> Spec {
    let pattern: Pattern = text.parse().unwrap_or_else(|e| panic!("{text}\n{e}"));
    pattern.bind_all(&case.shapes()).unwrap_or_else(|e| panic!("{case:?}\n{text}\n{e}"))
}

/// A spec as sets of sets of elements, in the order of visiting.
fn visited(spec: &Spec) -> Vec<BTreeSet<BTreeSet<Element>>> {
    spec.order()
        .map(|scope| {
            (0..spec.blocks_per_scope())
                .map(|block| spec.elements(scope, block).collect())
                .collect()
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn a_spec_is_what_its_definition_says(numbers in choices()) {
        let mut c = Choices::new(&numbers);
        let case = generate::any(&mut c);
        let text = case.text(&mut c);
        let spec = bind(&text, &case);
        let expected = expected(&case);
        prop_assert_eq!(spec.scopes(), expected.len(), "{}", text);
        prop_assert_eq!(spec.keep(), case.keep, "{}", text);
        for (scope, blocks) in expected.iter().enumerate() {
            prop_assert_eq!(spec.blocks_per_scope(), blocks.len(), "{}", text);
            for (b, block) in blocks.iter().enumerate() {
                let found: Vec<_> = spec.elements(scope, b).map(|e| (e.tensor, e.offset)).collect();
                prop_assert_eq!(&found, &block.elements, "{} {:?} scope {} block {}", text, case.shapes(), scope, b);
                prop_assert_eq!(spec.block_index(scope, b), (block.tensor, block.index), "{}", text);
                prop_assert_eq!(spec.is_padding(scope, b), block.elements.is_empty(), "{}", text);
            }
        }
    }

    #[test]
    fn every_element_of_the_domain_is_in_one_block_and_the_rest_in_none(numbers in choices()) {
        let mut c = Choices::new(&numbers);
        let case = generate::any(&mut c);
        let text = case.text(&mut c);
        let spec = bind(&text, &case);
        let mut seen = BTreeSet::new();
        let mut indices = BTreeSet::new();
        for scope in 0..spec.scopes() {
            for block in 0..spec.blocks_per_scope() {
                prop_assert!(indices.insert(spec.block_index(scope, block)));
                for element in spec.elements(scope, block) {
                    prop_assert!(seen.insert(element), "{}: {:?} twice", text, element);
                    prop_assert_eq!(spec.locate(element), Some((scope, block)), "{} {:?}", text, element);
                }
            }
        }
        for (tensor, part) in case.parts.iter().enumerate() {
            let domain = part.domain.set(&part.dims);
            for offset in 0..part.dims.iter().product() {
                let element = Element { tensor, offset };
                prop_assert_eq!(seen.contains(&element), domain.contains(&offset), "{} {:?}", text, element);
                prop_assert_eq!(spec.locate(element).is_some(), domain.contains(&offset), "{} {:?}", text, element);
            }
        }
    }

    #[test]
    fn scopes_are_visited_once_by_rising_base_offset(numbers in choices()) {
        let mut c = Choices::new(&numbers);
        let case = generate::any(&mut c);
        let text = case.text(&mut c);
        let spec = bind(&text, &case);
        let order: Vec<usize> = spec.order().collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..spec.scopes()).collect::<Vec<_>>());
        // A scope's base is its lowest offset in the first tensor; one of padding alone has none.
        let bases: Vec<usize> = order
            .iter()
            .filter_map(|&scope| {
                (0..spec.blocks_per_scope())
                    .flat_map(|block| spec.elements(scope, block))
                    .filter(|e| e.tensor == 0)
                    .map(|e| e.offset)
                    .min()
            })
            .collect();
        prop_assert!(bases.windows(2).all(|pair| pair[0] < pair[1]), "{}: {:?}", text, bases);
    }

    #[test]
    fn two_spellings_of_one_pattern_are_one_spec(numbers in choices()) {
        let mut c = Choices::new(&numbers);
        let case = generate::one(&mut c);
        if let Some(other) = generate::respelled(&case, &mut c) {
            let (a, b) = (case.text(&mut c), other.text(&mut c));
            prop_assert_eq!(visited(&bind(&a, &case)), visited(&bind(&b, &other)), "{} against {}", a, b);
        }
    }

    #[test]
    fn print_reads_back(numbers in choices()) {
        let mut c = Choices::new(&numbers);
        let case = generate::any(&mut c);
        let text = case.text(&mut c);
        let pattern: Pattern = text.parse().unwrap();
        let printed = pattern.to_string();
        prop_assert!(!printed.contains('\n'));
        let again: Pattern = printed.parse().unwrap_or_else(|e| panic!("{text} prints {printed}\n{e}"));
        prop_assert_eq!(&again, &pattern);
        prop_assert_eq!(again.to_string(), printed);
        let (a, b) = (bind(&text, &case), bind(&pattern.to_string(), &case));
        prop_assert_eq!(a.text(), b.text());
        // What presets expand to, reads back too.
        prop_assert_eq!(visited(&bind(a.expanded(), &case)), visited(&a));
    }

    #[test]
    fn a_coupling_of_one_is_no_coupling(numbers in choices(), blocks in any::<bool>()) {
        let mut c = Choices::new(&numbers);
        let case = generate::one(&mut c);
        let alone = bind(&case.text(&mut c), &case);
        let kind = if blocks { Kind::Blocks } else { Kind::Scopes };
        let mut coupled = Case { kind, ..case.clone() };
        coupled.parts[0].scope = case.tile.clone();
        let text = coupled.text(&mut c);
        let together = bind(&text, &coupled);
        prop_assert_eq!(visited(&alone), visited(&together), "{}", text);
        prop_assert_eq!(alone.order().collect::<Vec<_>>(), together.order().collect::<Vec<_>>());
        prop_assert_eq!(alone.keep(), together.keep());
        for scope in 0..alone.scopes() {
            for block in 0..alone.blocks_per_scope() {
                prop_assert_eq!(alone.block_index(scope, block).1, together.block_index(scope, block).1);
            }
        }
    }

    #[test]
    fn selection_keeps_exactly_k_with_ties_to_the_lower_index(numbers in choices(), scores in prop::collection::vec(0u8..3, 16)) {
        let mut c = Choices::new(&numbers);
        let case = generate::any(&mut c);
        let text = case.text(&mut c);
        let spec = bind(&text, &case);
        let score = |scope: usize, block: usize| f64::from(scores[(scope * 7 + block) % scores.len()]);
        let mask = Mask::select(&spec, score);
        prop_assert_eq!(mask.conforms(&spec), Ok(()), "{}", text);
        prop_assert_eq!(mask.allows(&spec), Ok(()), "{}", text);
        for (scope, blocks) in expected(&case).iter().enumerate() {
            // By falling score, then by row-major index; blocks of padding alone last.
            let mut ranked: Vec<usize> = (0..blocks.len()).collect();
            ranked.sort_by_key(|&b| {
                (blocks[b].elements.is_empty(), -(score(scope, b) as i64), blocks[b].tensor, blocks[b].index)
            });
            for (rank, &b) in ranked.iter().enumerate() {
                for &(tensor, offset) in &blocks[b].elements {
                    prop_assert_eq!(mask.keeps(Element { tensor, offset }), rank < spec.keep(), "{}", text);
                }
            }
        }
        // Nothing outside the domain is dropped.
        for (tensor, part) in case.parts.iter().enumerate() {
            let domain = part.domain.set(&part.dims);
            for offset in (0..part.dims.iter().product()).filter(|offset| !domain.contains(offset)) {
                prop_assert!(mask.keeps(Element { tensor, offset }), "{}", text);
            }
        }
    }

    #[test]
    fn the_first_breach_is_named(numbers in choices(), flips in prop::collection::vec(any::<u16>(), 0..4)) {
        let mut c = Choices::new(&numbers);
        let case = generate::any(&mut c);
        let text = case.text(&mut c);
        let spec = bind(&text, &case);
        let mut mask = Mask::select(&spec, |scope, block| ((scope + 3 * block) % 5) as f64);
        for flip in flips {
            let tensor = usize::from(flip) % case.parts.len();
            let size: usize = case.parts[tensor].dims.iter().product();
            let element = Element { tensor, offset: usize::from(flip) / case.parts.len() % size };
            mask.set(element, !mask.keeps(element));
        }
        prop_assert_eq!(mask.conforms(&spec), naive_breach(&case, &mask, true), "{}", text);
        prop_assert_eq!(mask.allows(&spec), naive_breach(&case, &mask, false), "{}", text);
    }
}

/// The first breach by the definition: scope by scope, block by block.
fn naive_breach(case: &Case, mask: &Mask, exact: bool) -> Result<(), Breach> {
    for (scope, blocks) in expected(case).iter().enumerate() {
        let mut found = 0;
        for block in blocks {
            let size = block.elements.len();
            let kept = block
                .elements
                .iter()
                .filter(|&&(tensor, offset)| mask.keeps(Element { tensor, offset }))
                .count();
            if exact && kept != 0 && kept != size {
                let (tensor, block) = (block.tensor, block.index);
                return Err(Breach::Split { scope, tensor, block, kept, size });
            }
            found += usize::from(kept > 0);
        }
        let real = blocks.iter().filter(|block| !block.elements.is_empty()).count();
        let expected = case.keep.min(real);
        if found > expected || (exact && found < expected) {
            return Err(Breach::Count { scope, expected, found });
        }
    }
    if exact {
        for (tensor, part) in case.parts.iter().enumerate() {
            let domain = part.domain.set(&part.dims);
            let outside = (0..part.dims.iter().product()).filter(|o| !domain.contains(o));
            if outside.into_iter().any(|offset| !mask.keeps(Element { tensor, offset })) {
                let tensor = case.shapes()[tensor].0.to_string();
                return Err(Breach::Outside { tensor });
            }
        }
    }
    Ok(())
}
