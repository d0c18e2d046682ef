//! The panels of a drawing: structure and example mask of each tensor.

use super::legend::{CHAR, LINE};
use super::pattern::MARGIN;
use super::scene::{Cell, Panel, Place, Scene};
use super::svg::Svg;
use std::collections::BTreeMap;

/// Space between panels, and for the numbers of rows and of columns beside one.
const GAP: usize = 28;
const LEFT: usize = 24;
const ABOVE: usize = 14;
/// Where panels of a coupling go to the next row.
const WIDEST: usize = 1000;

/// A panel and where it is drawn.
pub(crate) struct Placed<'a> {
    panel: &'a Panel,
    pub x: usize,
    pub y: usize,
    pub width: usize,
    pub height: usize,
    /// The side of a cell.
    side: usize,
    /// What stands above structure and mask, line by line.
    heads: [Vec<String>; 2],
}

/// Puts panels beside each other, and into further rows when they are many.
pub(crate) fn placed(scene: &Scene) -> Vec<Placed<'_>> {
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
        all.push(Placed { panel, x, y, width, height, side, heads });
        x += width + GAP;
        tallest = tallest.max(height);
    }
    all
}

/// `q: 16 x 32`, what part of it is shown, and what is drawn.
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
pub(crate) fn draw(svg: &mut Svg, scene: &Scene, placed: &Placed<'_>) {
    let Placed { panel, x, mut y, side, .. } = *placed;
    for (heads, mask) in placed.heads.iter().zip([false, true]) {
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

/// Numbers of rows and columns beside a panel whose corner is at `(x, y)`.
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

/// Fills: one path for each block, so that a browser names it under the pointer.
fn cells(svg: &mut Svg, scene: &Scene, panel: &Panel, side: usize, mask: bool) {
    let mut blocks: BTreeMap<Place, String> = BTreeMap::new();
    let (mut outside, mut padding) = (String::new(), String::new());
    for row in 0..panel.rows {
        let mut col = 0;
        while col < panel.cols {
            let cell = panel.cell(row, col);
            let start = col;
            while col < panel.cols && panel.cell(row, col) == cell {
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
                Some(Cell::Weight(place)) => blocks.entry(place).or_default().push_str(&run),
                Some(Cell::Padding(_)) => padding.push_str(&run),
                _ => outside.push_str(&run),
            }
        }
    }
    for (place, path) in &blocks {
        let stays = scene.keeps(*place);
        let class = match mask && !stays {
            true => "cut".to_string(),
            false => format!("c{}", scene.colour(*place)),
        };
        let state = if !mask {
            ""
        } else if stays {
            ": kept"
        } else {
            ": pruned"
        };
        svg.inside("path", &[("class", &class), ("d", path)], |svg| {
            svg.text("title", &[], &format!("scope {}, block {}{state}", place.0, place.1));
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
        } else if a.and_then(Cell::place) != b.and_then(Cell::place) {
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

/// The number of a scope in the first cell of each of its parts.
fn numbers(svg: &mut Svg, panel: &Panel, side: usize) {
    for row in 0..panel.rows {
        for col in 0..panel.cols {
            let here = panel.cell(row, col);
            let Some(scope) = here.and_then(Cell::scope) else { continue };
            let before = |row: Option<usize>, col: Option<usize>| match (row, col) {
                (Some(row), Some(col)) => panel.cell(row, col),
                _ => None,
            };
            let first = panel.is_border(before(Some(row), col.checked_sub(1)), here)
                && panel.is_border(before(row.checked_sub(1), Some(col)), here);
            let mut width = side;
            while col + width / side < panel.cols
                && !panel.is_border(here, panel.cell(row, col + width / side))
            {
                width += side;
            }
            let text = scope.to_string();
            if first && text.len() * 5 + 5 <= width {
                let at = (col * side + 3, row * side + side.min(16) / 2 + 4);
                svg.text("text", &[("class", &"n"), ("x", &at.0), ("y", &at.1)], &text);
            }
        }
    }
}
