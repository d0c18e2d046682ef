//! What is fuzzed. Every function takes any bytes and must not panic.

pub mod checkpoint;
mod spec;
mod studio;

pub use spec::spec_text;
pub use studio::studio_request;

use openwork::layout::{Coord, IntTuple, Layout, Tiler, ops::OPS};

/// A function under test and texts to start from.
pub struct Target {
    /// Its name, also that of the libFuzzer target.
    pub name: &'static str,
    /// Takes any bytes.
    pub run: fn(&[u8]),
    /// Well-formed inputs to mutate.
    pub seeds: &'static [&'static str],
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target {
        name: "layout_text",
        run: layout_text,
        seeds: &[
            "(6,2):(8,2)\n(4,3):(3,1)",
            "(9,(4,8)):(59,(13,1))\n<3:3,(2,4):(1,8)>",
            "((2,2),(2,1)):((1,4),(8,32))\n(_,(1,_))",
            "(4,2,1):(0,1,9)\n24",
            "9223372036854775807:1\n(2,-9223372036854775808)",
        ],
    },
    Target { name: "spec_text", run: spec_text, seeds: spec::SEEDS },
    Target { name: "studio_request", run: studio_request, seeds: studio::SEEDS },
];

/// Elements up to which laws are checked by evaluation.
const SMALL: i64 = 4096;

/// Reads two lines as tuples, coordinates, layouts and tilers, checks that
/// printing and reading agree, and runs every operation on them.
pub fn layout_text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut lines = text.split('\n');
    let first = lines.next().unwrap_or("");
    let second = lines.next().unwrap_or(first);
    for text in [first, second] {
        round_trip::<IntTuple>(text);
        round_trip::<Coord>(text);
        round_trip::<Layout>(text);
        round_trip::<Tiler>(text);
    }
    for op in OPS {
        let large = op.name == "image" && first.parse::<Layout>().is_ok_and(|l| l.size() > SMALL);
        if !large {
            let _ = op.run(&[first, second][..op.inputs.len()]);
        }
    }
    let (Ok(a), Ok(b)) = (first.parse::<Layout>(), second.parse::<Layout>()) else { return };
    if let Ok(r) = a.composition(&b) {
        assert!(b.shape().compatible(r.shape()), "{a} o {b} = {r}");
        for i in 0..b.size().min(SMALL) {
            // The offset of A may leave 64 bits only where that of R does.
            let expected = b.at(i).and_then(|at| a.at(at)).ok();
            assert_eq!(expected, r.at(i).ok(), "{a} o {b} = {r} at {i}");
        }
    }
}

fn round_trip<T>(text: &str)
where
    T: std::str::FromStr + std::fmt::Display + PartialEq + std::fmt::Debug,
    T::Err: std::fmt::Debug,
{
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().unwrap(), value);
    }
}
