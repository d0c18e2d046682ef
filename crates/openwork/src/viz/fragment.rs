//! Drawings of a tensor core fragment, in the terminal and as SVG: the lane
//! that owns each element, and an example mask.

use super::svg::Svg;
use crate::fragment::{
    Fragment, GROUP, KeptRange, LANES, NAME, NARROW, SIDE, lane_of_a, lane_of_b, lane_of_c,
};
use crate::spec::Spec;

/// Colors of the thread groups in the 256-color palette, from dark to light
/// by lane.
const FILLS: [[u8; GROUP]; 8] = [
    [24, 31, 38, 45],
    [94, 136, 178, 220],
    [22, 28, 34, 40],
    [53, 90, 127, 164],
    [58, 100, 142, 184],
    [18, 20, 62, 69],
    [88, 124, 160, 203],
    [54, 92, 98, 141],
];

/// The drawing and its statistics for a terminal, in color or plain text.
pub fn fragment_terminal(fragment: &Fragment, color: bool) -> String {
    let cell = |lane: usize, kept: bool| match (color, kept) {
        (false, true) => format!("{lane:>3}"),
        (false, false) => "  .".to_string(),
        (true, true) => {
            let fill = FILLS[lane / GROUP][lane % GROUP];
            format!("\x1b[48;5;{fill}m\x1b[38;5;231m{lane:>3}\x1b[0m")
        }
        (true, false) => format!("\x1b[48;5;237m\x1b[38;5;245m{lane:>3}\x1b[0m"),
    };
    let mut out = format!(
        "{NAME}: the lane that owns each element of A (weights, example mask), B and C\n{:49}{:25}C\n",
        "A", "B"
    );
    for row in 0..SIDE {
        let a: String =
            (0..SIDE).map(|col| cell(lane_of_a(row, col), fragment.keeps(row, col))).collect();
        let b: String = (0..NARROW).map(|col| cell(lane_of_b(row, col), true)).collect();
        let c: String = (0..NARROW).map(|col| cell(lane_of_c(row, col), true)).collect();
        out += &format!("{a} {b} {c}\n");
    }
    out += if color { "gray: pruned\n" } else { ". pruned\n" };
    for (name, text) in facts(fragment) {
        out += &format!("{name:13}{text}\n");
    }
    out
}

/// The statistics, one name and text per line.
fn facts(fragment: &Fragment) -> Vec<(&'static str, String)> {
    let held = |held: &KeptRange| {
        let range = |(least, most): (usize, usize)| match least == most {
            true => least.to_string(),
            false => format!("{least} to {most}"),
        };
        let balance = if held.is_balanced() { "balanced" } else { "not balanced" };
        format!(
            "{} of {} kept by any mask ({balance}), {} in the example",
            range(held.structure),
            held.owned,
            range(held.example)
        )
    };
    let [whole, gone, split] = fragment.pairs;
    let words = format!("{:.3}", fragment.index_words);
    vec![
        ("fragments", format!("{} x {}", fragment.grid.0, fragment.grid.1)),
        ("lane", held(&fragment.lanes)),
        ("thread group", held(&fragment.groups)),
        ("fragment", held(&fragment.fragments)),
        ("block", fragment.block.describe().to_string()),
        ("scope", fragment.scope.describe().to_string()),
        (
            "pairs",
            format!(
                "{whole} kept whole, {gone} pruned whole, {split} split (adjacent columns of a lane, example)"
            ),
        ),
        (
            "metadata",
            format!(
                "{} bits per fragment, {} words of 32 bits",
                fragment.index_bits,
                words.trim_end_matches('0').trim_end_matches('.')
            ),
        ),
    ]
}

/// Side of a cell, margin and line height of the SVG.
const CELL: usize = 22;
const MARGIN: usize = 24;
const LINE: usize = 18;

/// The drawing as SVG: A with pruned weights faded, B, C, and the statistics.
pub fn fragment_svg(spec: &Spec, fragment: &Fragment) -> String {
    let facts = facts(fragment);
    let width = (SIDE + 2 * NARROW) * CELL + 4 * MARGIN;
    let top = 3 * MARGIN;
    let below = top + SIDE * CELL + MARGIN;
    let height = below + LINE * facts.len() + MARGIN;
    Svg::document((width, height), "owf", |svg| {
        svg.text("title", &[], &format!("{} on {NAME}", spec.text()));
        svg.text("style", &[], STYLE);
        svg.empty("rect", &[("class", &"bg"), ("width", &width), ("height", &height)]);
        let title =
            format!("{} on {NAME}: numbers are the lanes that own the elements", spec.text());
        svg.text("text", &[("x", &MARGIN), ("y", &MARGIN), ("class", &"h")], &title);
        let mut x = MARGIN;
        for (name, cols, lane) in [
            (
                "A: weights, 16 x 16 (faded: pruned in the example)",
                SIDE,
                lane_of_a as fn(usize, usize) -> usize,
            ),
            ("B: 16 x 8", NARROW, lane_of_b),
            ("C: 16 x 8", NARROW, lane_of_c),
        ] {
            svg.text("text", &[("x", &x), ("y", &(top - 8))], name);
            for row in 0..SIDE {
                for col in 0..cols {
                    let kept = cols != SIDE || fragment.keeps(row, col);
                    draw_cell(svg, x + col * CELL, top + row * CELL, lane(row, col), kept);
                }
            }
            x += cols * CELL + MARGIN;
        }
        for (i, (name, text)) in facts.iter().enumerate() {
            let y = below + LINE * i;
            svg.text("text", &[("x", &MARGIN), ("y", &y), ("class", &"h")], name);
            svg.text("text", &[("x", &(MARGIN + 110)), ("y", &y)], text);
        }
    })
}

const STYLE: &str = "\n.owf text{font:12px system-ui,sans-serif;fill:#1f2328}\n\
    .owf .h{font-weight:600}\n.owf .n{font-size:10px;text-anchor:middle}\n.owf .bg{fill:#ffffff}\n";

fn draw_cell(svg: &mut Svg, x: usize, y: usize, lane: usize, kept: bool) {
    // Hue by thread group, lightness by lane in the group.
    let fill =
        format!("hsl({},65%,{}%)", lane / GROUP * 360 / (LANES / GROUP), 58 + 9 * (lane % GROUP));
    let opacity = if kept { "1" } else { "0.12" };
    svg.empty(
        "rect",
        &[
            ("x", &x),
            ("y", &y),
            ("width", &(CELL - 1)),
            ("height", &(CELL - 1)),
            ("fill", &fill),
            ("opacity", &opacity),
        ],
    );
    let (cx, cy) = (x + CELL / 2, y + CELL / 2 + 4);
    let shown = if kept { "1" } else { "0.35" };
    svg.text(
        "text",
        &[("x", &cx), ("y", &cy), ("class", &"n"), ("opacity", &shown)],
        &lane.to_string(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawings_name_every_lane_and_the_figures() {
        let spec = "rows16".parse::<crate::Pattern>().unwrap().bind(&[16, 32]).unwrap();
        let fragment = Fragment::new(&spec, NAME, 1).unwrap();
        let plain = fragment_terminal(&fragment, false);
        assert!(plain.contains("thread group 16 of 32 kept by any mask (balanced)"), "{plain}");
        assert_eq!(plain.lines().filter(|line| line.starts_with("  .")).count(), 8);
        let drawn = fragment_svg(&spec, &fragment);
        assert_eq!(drawn.matches("<rect").count(), 1 + SIDE * (SIDE + 2 * NARROW));
        let colored = fragment_terminal(&fragment, true);
        assert_eq!(colored.matches("\x1b[48").count(), colored.matches("\x1b[0m").count());
    }
}
