//! The panels of an SVG drawing: structure and example mask of each tensor.

use super::legend::{CHAR, LINE};
use super::pattern::MARGIN;
use super::scene::{BlockId, Cell, Panel, Scene, State};
use super::svg::Svg;
use std::collections::BTreeMap;

/// Space between panels, and for row and column numbers beside one.
const GAP: usize = 28;
const LEFT: usize = 24;
const ABOVE: usize = 14;
/// Width at which the panels of a coupling wrap to the next row.
const WIDEST: usize = 1000;

/// A panel and its position in the drawing.
pub(crate) struct PositionedPanel<'a> {
    panel: &'a Panel,
    pub x: usize,
    pub y: usize,
    pub width: usize,
    pub height: usize,
    /// Side of a cell.
    side: usize,
    /// Headings of structure and mask, line by line.
    heads: [Vec<String>; 2],
}

/// Lays panels out from left to right, in several rows if there are many.
pub(crate) fn arrange(scene: &Scene) -> Vec<PositionedPanel<'_>> {
    let largest = scene.panels.iter().map(|panel| panel.cols).max().unwrap_or(1);
    let side = match (largest, scene.panels.len()) {
        (..=16, 1) if scene.panels[0].rows <= 12 => 22,
        (..=40, 1) => 18,
        (..=16, _) => 15,
        (..=40, _) => 12,
        _ => 14,
    };
    let notes = scene.panels.iter().any(|panel| panel.note().is_some());
    let (mut x, mut y, mut tallest) = (MARGIN, MARGIN, 0);
    let mut all = Vec::new();
    for panel in &scene.panels {
        let heads = heads(panel, notes);
        let longest = heads.iter().flatten().map(|head| head.chars().count()).max().unwrap_or(0);
        let width = (LEFT + panel.cols * side).max((longest as f64 * CHAR) as usize);
        let lines: usize = heads.iter().map(Vec::len).sum();
        let height = lines * LINE + 2 * (ABOVE + panel.rows * side) + LINE / 2;
        if x > MARGIN && x + width > WIDEST {
            (x, y, tallest) = (MARGIN, y + tallest + GAP, 0);
        }
        all.push(PositionedPanel { panel, x, y, width, height, side, heads });
        x += width + GAP;
        tallest = tallest.max(height);
    }
    all
}

/// `q: 16 x 32` and the part that is shown; then `example mask`.
fn heads(panel: &Panel, notes: bool) -> [Vec<String>; 2] {
    let dims: Vec<_> = panel.dims.iter().map(ToString::to_string).collect();
    let name = match panel.name.as_str() {
        "tensor" => String::new(),
        name => format!("{name}: "),
    };
    let mut structure = vec![format!("{name}{}", dims.join(" x "))];
    if notes {
        structure.push(panel.note().unwrap_or_default());
    }
    [structure, vec!["example mask".to_string()]]
}

/// Draws structure and example mask.
pub(crate) fn draw(svg: &mut Svg, scene: &Scene, positioned: &PositionedPanel<'_>) {
    let PositionedPanel { panel, x, mut y, side, .. } = *positioned;
    for (heads, mask) in positioned.heads.iter().zip([false, true]) {
        for (i, head) in heads.iter().enumerate() {
            let class = if i == 0 && !mask { "h" } else { "d" };
            svg.text("text", &[("class", &class), ("x", &x), ("y", &(y + 12))], head);
            y += LINE;
        }
        y += ABOVE;
        ruler(svg, panel, side, (x + LEFT, y));
        let at = format!("translate({},{y})", x + LEFT);
        svg.inside("g", &[("transform", &at)], |svg| {
            cells(svg, scene, panel, side, mask);
            lines(svg, panel, side, if mask { "gap" } else { "scope" });
            if !mask {
                numbers(svg, panel, side);
            }
        });
        y += panel.rows * side + LINE / 2;
    }
}

/// Row and column numbers beside a panel whose corner is at `(x, y)`.
fn ruler(svg: &mut Svg, panel: &Panel, side: usize, (x, y): (usize, usize)) {
    let step = if side < 14 { 8 } else { 4 };
    let mut number = |class: &str, n: usize, x: usize, y: usize| {
        svg.text("text", &[("class", &class), ("x", &x), ("y", &y)], &n.to_string());
    };
    for row in (0..panel.rows).step_by(step) {
        number("r e", row, x - 5, y + row * side + side / 2 + 3);
    }
    for col in (0..panel.cols).step_by(step) {
        number("r c", col, x + col * side + side / 2, y - 4);
    }
}

/// Fills, one path per block, so that a browser shows its title on hover.
fn cells(svg: &mut Svg, scene: &Scene, panel: &Panel, side: usize, mask: bool) {
    let mut blocks: BTreeMap<(BlockId, State), String> = BTreeMap::new();
    let state = |row: usize, col: usize| match panel.cell(row, col) {
        Some(Cell::Weight(block)) if mask => scene.state(block, row, col),
        _ => State::Kept,
    };
    let (mut outside, mut padding) = (String::new(), String::new());
    for row in 0..panel.rows {
        let mut col = 0;
        while col < panel.cols {
            let (cell, here) = (panel.cell(row, col), state(row, col));
            let start = col;
            while col < panel.cols && (panel.cell(row, col), state(row, col)) == (cell, here) {
                col += 1;
            }
            let run = format!(
                "M{} {}h{}v{side}h-{}z",
                start * side,
                row * side,
                (col - start) * side,
                (col - start) * side
            );
            match cell {
                Some(Cell::Weight(block)) => {
                    blocks.entry((block, here)).or_default().push_str(&run);
                }
                Some(Cell::Padding(_)) => padding.push_str(&run),
                _ => outside.push_str(&run),
            }
        }
    }
    for ((block, state), path) in &blocks {
        let class = match state {
            State::Kept => format!("c{}", scene.color(*block)),
            State::Dropped => "cut".to_string(),
            State::DroppedInside => "deep".to_string(),
        };
        let state = match state {
            _ if !mask => "",
            State::Kept => ": kept",
            State::Dropped => ": pruned",
            State::DroppedInside => ": pruned by an inner level",
        };
        svg.inside("path", &[("class", &class), ("d", path)], |svg| {
            svg.text("title", &[], &format!("scope {}, block {}{state}", block.0, block.1));
        });
    }
    for (class, path) in [("out", outside), ("pad", padding)] {
        if !path.is_empty() {
            svg.empty("path", &[("class", &class), ("d", &path)]);
        }
    }
}

/// Lines: faint between weights, clear between blocks, strong between scopes.
fn lines(svg: &mut Svg, panel: &Panel, side: usize, strong: &str) {
    let (mut grid, mut edge, mut scope) = (String::new(), String::new(), String::new());
    let mut line = |a: Option<Cell>, b: Option<Cell>, d: String| {
        if panel.is_border(a, b) {
            scope.push_str(&d);
        } else if a.and_then(Cell::block) != b.and_then(Cell::block) {
            edge.push_str(&d);
        } else if a.is_some() && b.is_some() {
            grid.push_str(&d);
        }
    };
    for row in 0..=panel.rows {
        for col in 0..=panel.cols {
            let here = panel.cell(row, col);
            let (x, y) = (col * side, row * side);
            if row < panel.rows {
                let left = col.checked_sub(1).and_then(|col| panel.cell(row, col));
                line(left, here, format!("M{x} {y}v{side}"));
            }
            if col < panel.cols {
                let above = row.checked_sub(1).and_then(|row| panel.cell(row, col));
                line(above, here, format!("M{x} {y}h{side}"));
            }
        }
    }
    for (class, d) in [("grid", grid), ("edge", edge), (strong, scope)] {
        if !d.is_empty() {
            svg.empty("path", &[("class", &class), ("d", &d)]);
        }
    }
}

/// The scope numbers.
fn numbers(svg: &mut Svg, panel: &Panel, side: usize) {
    // A digit is 5 wide, the margins are 5 together.
    for label in panel.labels(|digits, cells| digits * 5 + 5 <= cells * side) {
        let at = (label.col * side + 3, label.row * side + side.min(16) / 2 + 4);
        svg.text("text", &[("class", &"n"), ("x", &at.0), ("y", &at.1)], &label.text);
    }
}
