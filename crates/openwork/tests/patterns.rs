//! The shared cases of `testdata/patterns.toml`, and input that only a program
//! would write.

use openwork::spec::Coupling;
use openwork::{Pattern, Spec, SpecError};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    why: String,
    spec: String,
    shape: Option<Vec<usize>>,
    shapes: Option<BTreeMap<String, Vec<usize>>>,
    refused: Option<String>,
    blocks: Option<usize>,
    block_size: Option<usize>,
    scopes: Option<usize>,
    per_scope: Option<usize>,
    keep: Option<usize>,
    grid: Option<Vec<usize>>,
    scope_grid: Option<Vec<usize>>,
    elements: Option<Vec<Vec<usize>>>,
    members: Option<Vec<Vec<Index>>>,
}

/// A block, or a tensor and a block of it.
#[derive(Deserialize, Debug, PartialEq)]
#[serde(untagged)]
enum Index {
    Block(usize),
    Of(usize, usize),
}

impl Case {
    fn bind(&self) -> Result<Spec, SpecError> {
        let pattern: Pattern = self.spec.parse()?;
        match (&self.shape, &self.shapes) {
            (Some(shape), None) => pattern.bind(shape),
            (None, Some(shapes)) => {
                let shapes: Vec<_> =
                    shapes.iter().map(|(name, dims)| (name.as_str(), dims.as_slice())).collect();
                pattern.bind_all(&shapes)
            }
            _ => panic!("{}: give `shape` or `shapes`", self.why),
        }
    }

    fn check(&self, spec: &Spec) {
        let why = &self.why;
        let is = |what: &str, found: usize, expected: Option<usize>| {
            let expected = expected.unwrap_or_else(|| panic!("{why}: say {what}"));
            assert_eq!(found, expected, "{why}: {what}");
        };
        let sizes: Vec<_> = spec.tensors().iter().map(|t| t.blocks().tile_size()).collect();
        let block_size = match spec.coupling() {
            Coupling::Blocks => sizes.iter().sum(),
            Coupling::Scopes => sizes[0],
        };
        is("blocks", spec.blocks(), self.blocks);
        is("block_size", block_size, self.block_size);
        is("scopes", spec.scopes(), self.scopes);
        is("per_scope", spec.blocks_per_scope(), self.per_scope);
        is("keep", spec.keep(), self.keep);
        if let Some(grid) = &self.grid {
            assert_eq!(spec.tensors()[0].blocks().counts(), grid, "{why}: grid");
        }
        if let Some(grid) = &self.scope_grid {
            assert_eq!(spec.scope_grid(), grid, "{why}: scope_grid");
        }
        if let Some(elements) = &self.elements {
            let tensors = spec.tensors().len();
            let mut found = vec![Vec::new(); spec.blocks() * tensors];
            for (scope, block) in every_block(spec) {
                let (_, index) = spec.block_index(scope, block);
                for e in spec.elements(scope, block) {
                    found[index * tensors + e.tensor].push(e.offset);
                }
            }
            assert_eq!(&found, elements, "{why}: elements");
        }
        if let Some(members) = &self.members {
            let found: Vec<Vec<Index>> = (0..spec.scopes())
                .map(|scope| {
                    (0..spec.blocks_per_scope())
                        .map(|block| match spec.block_index(scope, block) {
                            (None, index) => Index::Block(index),
                            (Some(tensor), index) => Index::Of(tensor, index),
                        })
                        .collect()
                })
                .collect();
            assert_eq!(&found, members, "{why}: members");
        }
    }
}

fn every_block(spec: &Spec) -> impl Iterator<Item = (usize, usize)> + '_ {
    (0..spec.scopes()).flat_map(|scope| (0..spec.blocks_per_scope()).map(move |b| (scope, b)))
}

fn cases() -> Vec<Case> {
    let text = include_str!("../../../testdata/patterns.toml");
    toml::from_str::<Cases>(text).expect("patterns.toml is well formed").case
}

#[test]
fn every_case_comes_to_what_it_says() {
    let mut wrong = Vec::new();
    for case in cases() {
        match (case.bind(), &case.refused) {
            (Ok(spec), None) => {
                let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    case.check(&spec);
                    // What it prints means the same.
                    let again = Case { spec: spec.text().to_string(), ..case };
                    again.check(&again.bind().unwrap());
                    let again = Case { spec: spec.expanded().to_string(), ..again };
                    again.check(&again.bind().unwrap());
                }));
                if let Err(panic) = checked {
                    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                    wrong.push(text);
                }
            }
            (Err(error), Some(words)) if error.to_string().contains(words) => {}
            (Err(error), _) => wrong.push(format!("{}: {}\n{error}", case.why, case.spec)),
            (Ok(_), Some(_)) => wrong.push(format!("{}: {} is accepted", case.why, case.spec)),
        }
    }
    assert!(wrong.is_empty(), "{} cases\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_error_of_the_languages_page_is_as_printed() {
    let pattern: Pattern = "view (4,10):(10,1) block (1,4) scope (1,1) keep 1".parse().unwrap();
    let page = "\
error: block (1,4) does not divide the view
  view (4,10):(10,1) block (1,4) scope (1,1) keep 1
                              ^ axis 1 has 10 entries, not a multiple of 4; pad it or narrow the domain";
    assert_eq!(format!("error: {}", pattern.bind(&[4, 10]).unwrap_err()), page);
}

/// Reads and binds, and gives the words of the refusal.
fn refused(text: &str, dims: &[usize]) -> String {
    let error = text
        .parse::<Pattern>()
        .and_then(|pattern| pattern.bind(dims))
        .map(|spec| spec.text().len())
        .expect_err("this is refused");
    let words = error.to_string();
    assert!(words.len() < 1000, "{} bytes of error", words.len());
    words
}

#[test]
fn deep_nesting_is_refused() {
    for (open, inner, close) in
        [("(", "1", ")"), ("(", "", ""), ("(", "(0)+(4)", ")"), ("~", "(0)+(4)", "")]
    {
        let deep = format!("{}{inner}{}", open.repeat(10_000), close.repeat(10_000));
        for word in ["view", "block", "scope", "keep", "in", "pad"] {
            let words = refused(&format!("{word} {deep} keep 1"), &[4]);
            let known = ["nested too deeply", "expected a number", "expected an"];
            assert!(known.iter().any(|k| words.contains(k)), "{word}: {words}");
        }
    }
}

#[test]
fn a_megabyte_of_text_is_refused() {
    for piece in
        ["a", " ", "(", "1*", "~", "1|", "keep 1 ", "é", "#\n", "blocks a: & ", "2:4", "->"]
    {
        let words = refused(&piece.repeat((1 << 20) / piece.len()), &[4, 4]);
        assert!(words.contains("is too long"), "{words}");
    }
}

/// As long as is read at all, made of what takes longest.
#[test]
fn the_longest_text_that_is_read_is_answered() {
    let names: Vec<String> = (0..8000).map(|i| format!("n{i}")).collect();
    let sizes: String = names[1..].iter().map(|name| format!(" {name}=1")).collect();
    let joined = names.join(" ");
    let half: Vec<_> = names[..3000].to_vec();
    let texts = [
        format!("on ({}) keep 1", names.join(",")),
        format!("view ({joined}) -> a keep 1"),
        format!("view k -> {joined} keep 1"),
        format!("view k -> k,{} keep 1", &sizes[..60_000]),
        format!("view ({}) -> {} keep 1", half.join(" "), half.join(" ")),
        format!("blocks {}: keep 1", names.join(":&")),
        format!("view ({}) keep 5", "1,".repeat(30_000)),
        format!("view ({}) keep 2", "2,".repeat(30_000)),
        format!("block ({}) keep 1", "1,".repeat(30_000)),
        format!("keep {}9", "1*".repeat(30_000)),
        format!("in {}3@7 keep 9", "1|".repeat(30_000)),
        format!("in {}3@7 keep 9", "1@3|".repeat(15_000)),
        format!("in {}(1|2) keep 9", "(1|2)|".repeat(10_000)),
        format!("magic({}1)", "1,".repeat(30_000)),
        format!("unstructured({}1)", "1,".repeat(30_000)),
    ];
    for text in texts {
        assert!(text.len() <= 1 << 16, "{} bytes: {}", text.len(), &text[..40]);
        refused(&text, &[4]);
    }
}

/// Small texts that ask for much.
#[test]
fn large_tensors_are_answered_without_listing_their_elements() {
    let side = 1 << 20;
    let hard = [
        // Each part has more runs than are listed.
        "in (1048576,524288):(1048576,2) | (4):(1) keep 1".to_string(),
        // Parts that cancel, many times.
        format!("in {} keep 3", ["((2000000):(2)|~(2000000):(2))"; 500].join("|")),
        // Interleaved strides over an enormous run.
        "in (2,3,1073741824):(3221225472,2147483648,1) keep 7".to_string(),
        // Views that differ from their domain far away.
        "in (0,0)+(1048576,1048575) view (1048576,1048575):(1048575,1) keep 1".to_string(),
        "in (0,0)+(1048576,1048575) view (1048575,1048576):(1048576,1) keep 1".to_string(),
        "view (1048576,1048576):(1,1048575) keep 1".to_string(),
        "in ~(0,0)+(1,1) view (1048576,1048575):(1048576,1) keep 1".to_string(),
    ];
    for text in &hard {
        refused(text, &[side, side]);
    }
    let fine = [
        "2:4",
        "2:4@8",
        "rows16",
        "block(16,16)",
        "in (0,0)+(1048576,1048575) view (1048575,1048576):(1,1048576) scope (1,_) keep 1",
        "in (524288,524288):(2097152,2)@1048577 scope (1,4) keep 2",
        "in ~(0,0)+(4096,4096) keep 50%",
        "pad (1,48) scope (1,48) keep 2",
        "unstructured(33.3%)",
    ];
    for text in fine {
        let spec = text.parse::<Pattern>().unwrap().bind(&[side, side]).unwrap();
        for scope in spec.order().take(3) {
            for element in spec.elements(scope, spec.blocks_per_scope() - 1).take(3) {
                assert_eq!(spec.locate(element), Some((scope, spec.blocks_per_scope() - 1)));
            }
        }
    }
}

#[test]
fn a_caret_stands_under_the_character_at_fault() {
    let at = |text: &str, dims: &[usize]| {
        let words = refused(text, dims);
        let lines: Vec<&str> = words.lines().collect();
        lines[2].find('^').unwrap() - 2
    };
    assert_eq!(at("scope (1,3) keep 2", &[4, 4]), 9);
    assert_eq!(at("scope (1,4) keep 5", &[4, 4]), 17);
    assert_eq!(at("scope (1,4)", &[4, 4]), 11);
    assert_eq!(at("block (1,4) on (A,B,C) keep 1", &[4, 4]), 15);
    assert_eq!(at("block (1,X) keep 1", &[4, 4]), 9);
    assert_eq!(at("view (4,4):(4,0) keep 1", &[4, 4]), 14);
    assert_eq!(at("view (4,4):(3,1) keep 1", &[4, 4]), 5);
    assert_eq!(at("in (0,0)+(4,4) | (0,3)+(4,2) keep 1", &[4, 4]), 20);
    assert_eq!(at("keep 2 keep 3", &[4, 4]), 7);
    assert_eq!(at("3:2", &[4, 4]), 0);
}
