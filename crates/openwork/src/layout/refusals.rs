//! The words of every refusal, and the limits that keep bad text harmless.

use super::ops::{OPS, Value, find};
use super::*;

fn refusal(op: &str, texts: &[&str]) -> String {
    find(op).unwrap().run(texts).unwrap_err().to_string()
}

#[test]
fn errors_say_what_where_and_what_to_do() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("parse", &["(2,3"], "character 5 of \"(2,3\": expected ',' or ')', found the end"),
        (
            "parse",
            &["(2,x)"],
            "character 4 of \"(2,x)\": expected a number, '_', '(' or '<', found 'x'",
        ),
        ("parse", &[""], "character 1 of \"\": expected a number, '_', '(' or '<', found the end"),
        ("parse", &["4:1:2"], "character 4 of \"4:1:2\": expected the end of the text, found ':'"),
        ("parse", &["(2,-):1"], "character 5 of \"(2,-):1\": expected digits after '-', found ')'"),
        (
            "parse",
            &["(2,_):(1,2)"],
            "character 4 of \"(2,_):(1,2)\": expected a number or a tuple of numbers, found '_'",
        ),
        (
            "parse",
            &["<2,3>"],
            "character 1 of \"<2,3>\": expected a layout like (4,8):(1,4), found a tiler",
        ),
        (
            "parse",
            &["(4,9223372036854775808)"],
            "character 4: the number 9223372036854775808 does not fit in 64 bits",
        ),
        (
            "parse",
            &["(2,3):(1)"],
            "shape (2,3) and stride (1) differ in profile; give one stride for each size",
        ),
        (
            "parse",
            &["(4):4"],
            "shape (4) and stride 4 differ in profile; give one stride for each size",
        ),
        ("parse", &["(2,0):(1,2)"], "shape (2,0) has a mode of size 0; sizes start at 1"),
        (
            "parse",
            &["(4294967296,4294967296):(1,1)"],
            "the size of (4294967296,4294967296) does not fit in 64 bits",
        ),
        (
            "parse",
            &["4:9223372036854775807"],
            "the cosize of 4:9223372036854775807 does not fit in 64 bits",
        ),
        (
            "inner_product",
            &["(1,2)", "3"],
            "inner_product needs tuples of one profile, found (1,2) and 3",
        ),
        ("shape_div", &["(3,4)", "5"], "shape_div: neither of 3 and 5 divides the other"),
        (
            "shape_div",
            &["(3,4)", "(3,4,5)"],
            "shape_div needs tuples of one profile, found (3,4) and (3,4,5)",
        ),
        (
            "eval",
            &["(4,8):(1,4)", "(1,2,3)"],
            "coordinate (1,2,3) does not fit shape (4,8); give an index, or a tuple of its rank",
        ),
        (
            "eval",
            &["4:1", "(3)"],
            "coordinate (3) does not fit shape 4; give an index, or a tuple of its rank",
        ),
        ("eval", &["4:1", "-1"], "coordinate -1 is negative; coordinates start at 0"),
        (
            "eval",
            &["(4,8):(1,4)", "(_,1)"],
            "a coordinate with _ names no single element; use slice_and_offset to keep modes",
        ),
        (
            "eval",
            &["4:4", "9223372036854775807"],
            "the offset of coordinate 9223372036854775807 does not fit in 64 bits",
        ),
        (
            "image",
            &["(8192,8192)"],
            "the image of (8192,8192):(1,8192) has 67108864 entries, more than the limit of 16777216",
        ),
        ("coalesce", &["4:-1"], "coalesce takes no negative strides, found -1 in 4:-1"),
        (
            "coalesce_profile",
            &["(2,6):(1,2)", "(1,1,1)"],
            "the profile has 3 modes, (2,6):(1,2) has 2; leave out the last 1",
        ),
        (
            "composition_tiler",
            &["(2,6):(1,2)", "<2,_,3,4>"],
            "the tiler has 4 modes, (2,6):(1,2) has 2; leave out the last 2",
        ),
        (
            "composition",
            &["(4,3):(1,8)", "3:3"],
            "composition: 3:3 does not step evenly through mode 0 of size 4 in (4,3):(1,8): its step 3 there does not divide 4",
        ),
        (
            "composition",
            &["(4,3):(1,8)", "2:6"],
            "composition: 2:6 does not step evenly through mode 0 of size 4 in (4,3):(1,8): its step 6 there is not a multiple of 4",
        ),
        (
            "composition",
            &["(4,3):(1,8)", "6:1"],
            "composition: 6:1 does not step evenly through mode 0 of size 4 in (4,3):(1,8): 6 entries do not fill rows of 4",
        ),
        (
            "composition",
            &["(4,3):(1,100)", "(4,2):(1,2)"],
            "composition: the modes of (4,2):(1,2) together reach digit 5 in mode 0 of size 4 of (4,3):(1,100) and carry, so no layout adds them",
        ),
        (
            "complement",
            &["(4,2):(1,2)", "24"],
            "complement: modes 4:1 and 2:2 of (4,2):(1,2) overlap; the stride 2 should be at least 4",
        ),
        ("complement", &["4:1", "0"], "complement: the cotarget is 0; it starts at 1"),
        (
            "left_inverse",
            &["(4,2):(1,0)"],
            "left_inverse: mode 2:0 of (4,2):(1,0) repeats its offset, so no inverse exists",
        ),
        (
            "left_inverse",
            &["(2,3):(2,5)"],
            "left_inverse: stride 2 does not divide stride 5 in (2,3):(2,5), and no layout was found that undoes it",
        ),
        (
            "logical_product",
            &["4:1", "4:-1"],
            "logical_product takes no negative strides, found -1 in 4:-1",
        ),
        (
            "logical_product",
            &["4294967296:1", "4294967296:1"],
            "size 4294967296 times cosize 4294967296 does not fit in 64 bits",
        ),
    ];
    for (op, texts, words) in cases {
        assert_eq!(refusal(op, texts), *words, "{op} {texts:?}");
    }
}

#[test]
fn deep_long_and_wide_texts_are_refused_at_once() {
    let deep = "(".repeat(10_000);
    assert_eq!(
        refusal("parse", &[&deep]),
        "character 65: more than 64 levels of brackets; write the tuple flatter"
    );
    let long = "1,".repeat(1 << 19);
    assert_eq!(
        refusal("parse", &[&long]),
        "the text has 1048576 bytes, more than the limit of 65536"
    );
    let wide = format!("({}1)", "1,".repeat(5000));
    assert_eq!(
        refusal("parse", &[&wide]),
        "character 8192: more than 4096 entries; merge modes or split the layout"
    );
    let digits = "9".repeat(50_000);
    assert!(refusal("parse", &[&digits]).len() < 200);
    // As deep as may be, every operation still ends.
    let deepest = format!("{}2{}", "(".repeat(64), ")".repeat(64));
    for op in OPS {
        let _ = op.run(&vec![deepest.as_str(); op.inputs.len()]);
    }
}

#[test]
fn every_operation_is_listed_once_and_runs_its_example() {
    for (i, op) in OPS.iter().enumerate() {
        assert!(OPS[..i].iter().all(|other| other.name != op.name), "{} twice", op.name);
        assert!(op.run(op.example).is_ok(), "{}", op.name);
    }
}

#[test]
fn a_size_one_leaf_prints_stride_zero_and_extends_as_typed() {
    let layout: Layout = "(4,1):(1,100)".parse().unwrap();
    assert_eq!(layout.to_string(), "(4,1):(1,0)");
    assert_eq!(layout, "(4,1):(1,7)".parse().unwrap());
    assert_eq!(layout.at(4).unwrap(), 100);
    let run = |op: &str, texts: &[&str]| find(op).unwrap().run(texts).unwrap();
    let text = |s: &str| Value::Text(s.into());
    assert_eq!(run("composition", &["(4,3,1):(3,1,0)", "24:1"]), text("(4,3,2):(3,1,0)"));
    assert_eq!(run("composition", &["(4,3):(3,1)", "24:1"]), text("(4,6):(3,1)"));
}
