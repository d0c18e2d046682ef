//! The drawing of a spec as SVG: structure on top, an example mask below.

use super::scene::{COLOURS, Cell, Panel, Place, Scene};
use super::svg::Svg;
use super::{asked, layout, percent};
use crate::spec::{Coupling, Spec};
use std::collections::BTreeMap;

/// Fills of blocks; neighbours in the list differ in hue and in lightness, and
/// all stand out on white and on black.
const FILLS: [&str; COLOURS] =
    ["#7cbdf0", "#f2a541", "#52b788", "#d883b7", "#efd95b", "#4f7cc9", "#e0715c", "#a18be0"];

/// Fonts that need no download.
const SANS: &str = "system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif";
const MONO: &str = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace";

/// Space around everything, between panels, and for the numbers beside a panel.
const MARGIN: usize = 20;
const GAP: usize = 28;
const RULER: usize = 22;
/// Where panels of a coupling go to the next row.
const WIDEST: usize = 1000;
/// Width of a character of the sheet of facts, and height of its lines.
const CHAR: f64 = 7.3;
const LINE: usize = 19;

/// Draws a spec: for each tensor its structure (fill = block, outline and number
/// = scope, hatched = outside the domain, dotted = padding) and below it an
/// example mask (dark = pruned), then a legend. `seed` chooses the example.
///
/// ```
/// let spec = "2:4".parse::<openwork::Pattern>().unwrap().bind(&[8, 16]).unwrap();
/// assert!(openwork::viz::svg(&spec, 0).starts_with("<svg xmlns="));
/// ```
pub fn svg(spec: &Spec, seed: u64) -> String {
    let scene = Scene::new(spec, seed);
    let panels = placed(&scene);
    let drawn = panels.iter().map(|panel| panel.x + panel.width).max().unwrap_or(0);
    let columns = ((drawn.max(560) - 2 * MARGIN) as f64 / CHAR) as usize;
    let (facts, keys, notes) = (facts(spec, columns), keys(&scene), scene_notes(&scene));
    let below = panels.iter().map(|panel| panel.y + panel.height).max().unwrap_or(0);
    let longest = facts.iter().map(|(_, line)| line.chars().count() + 10).max().unwrap_or(0);
    let width = drawn.max((longest as f64 * CHAR) as usize + MARGIN).max(420) + MARGIN;
    let per_row = ((width - 2 * MARGIN) / KEY).max(1);
    let lines = keys.len().div_ceil(per_row) + notes.len() + facts.len();
    let height = below + GAP / 2 + lines * LINE + 10 + MARGIN;
    let mut svg = Svg::default();
    let view_box = format!("0 0 {width} {height}");
    let attributes: [(&str, &dyn std::fmt::Display); 6] = [
        ("xmlns", &"http://www.w3.org/2000/svg"),
        ("width", &width),
        ("height", &height),
        ("viewBox", &view_box),
        ("role", &"img"),
        ("class", &"ow"),
    ];
    svg.inside("svg", &attributes, |svg| {
        svg.text("title", &[], spec.text());
        svg.text("style", &[], &style());
        svg.inside("defs", &[], patterns);
        svg.empty("rect", &[("class", &"bg"), ("width", &width), ("height", &height)]);
        for placed in &panels {
            draw(svg, &scene, placed);
        }
        let mut y = below + GAP / 2 + 12;
        for (i, (class, text)) in keys.iter().enumerate() {
            let x = MARGIN + i % per_row * KEY;
            let y = y + i / per_row * LINE;
            svg.empty(
                "rect",
                &[("class", class), ("x", &x), ("y", &(y - 11)), ("width", &14), ("height", &13)],
            );
            svg.text("text", &[("class", &"s"), ("x", &(x + 21)), ("y", &y)], text);
        }
        y += keys.len().div_ceil(per_row) * LINE;
        for note in &notes {
            svg.text("text", &[("class", &"s d"), ("x", &MARGIN), ("y", &y)], note);
            y += LINE;
        }
        y += 6;
        for (name, text) in &facts {
            svg.text("text", &[("class", &"s d"), ("x", &MARGIN), ("y", &y)], name);
            svg.text(
                "text",
                &[("class", &"m"), ("x", &(MARGIN + 72)), ("y", &y), ("xml:space", &"preserve")],
                text,
            );
            y += LINE;
        }
    });
    svg.finish()
}

/// Width of one entry of the legend.
const KEY: usize = 176;

fn style() -> String {
    let mut css = format!(
        "\n.ow text{{font:12px {SANS};fill:#1f2328}}\n.ow .m{{font-family:{MONO}}}\n\
         .ow .h{{font-weight:600;font-size:13px}}\n.ow .d{{fill:#656d76}}\n\
         .ow .n{{font:600 9px {SANS};fill:#14181d;text-anchor:start}}\n\
         .ow .r{{font-size:9px;fill:#656d76}}\n\
         .ow .bg{{fill:#ffffff}}\n.ow .cut{{fill:#3a4048}}\n.ow .out{{fill:url(#ow-hatch)}}\n\
         .ow .pad{{fill:url(#ow-dots)}}\n.ow .hl{{stroke:#a5adb6}}\n.ow .hb{{fill:#f0f2f4}}\n.ow .dot{{fill:#1f2328}}\n\
         .ow .grid{{fill:none;stroke:#ffffff;stroke-width:.5;opacity:.45}}\n\
         .ow .edge{{fill:none;stroke:#ffffff;stroke-width:1.5}}\n\
         .ow .scope{{fill:none;stroke:#14181d;stroke-width:2;stroke-linecap:square}}\n\
         .ow .key{{fill:#ffffff;stroke:#14181d;stroke-width:2}}\n"
    );
    for (i, fill) in FILLS.iter().enumerate() {
        css.push_str(&format!(".ow .c{i}{{fill:{fill}}}\n"));
    }
    // Only what is not a block's fill changes in the dark: pruned cells sink
    // towards the background in both.
    css.push_str(
        "@media (prefers-color-scheme:dark){\n.ow text{fill:#e6edf3}\n.ow .d,.ow .r{fill:#9198a1}\n\
         .ow .n{fill:#0d1117}\n\
         .ow .bg{fill:#0d1117}\n.ow .cut{fill:#2b313a}\n.ow .hl{stroke:#4d555f}\n.ow .hb{fill:#171c23}\n\
         .ow .grid,.ow .edge{stroke:#0d1117}\n.ow .scope{stroke:#f0f6fc}\n\
         .ow .key{fill:#0d1117;stroke:#f0f6fc}\n}\n",
    );
    css
}

/// Hatching for what lies outside the domain, dots for padding.
fn patterns(svg: &mut Svg) {
    let size: [(&str, &dyn std::fmt::Display); 3] =
        [("width", &6), ("height", &6), ("patternUnits", &"userSpaceOnUse")];
    let with = |id: &'static str| -> Vec<(&str, &dyn std::fmt::Display)> {
        let mut all = size.to_vec();
        all.push(("id", if id == "ow-hatch" { &"ow-hatch" } else { &"ow-dots" }));
        all
    };
    svg.inside("pattern", &with("ow-hatch"), |svg| {
        svg.empty("rect", &[("class", &"hb"), ("width", &6), ("height", &6)]);
        svg.empty("path", &[("class", &"hl"), ("d", &"M-1 7L7-1M-1 1L1-1M5 7L7 5")]);
    });
    svg.inside("pattern", &with("ow-dots"), |svg| {
        svg.empty("circle", &[("class", &"dot"), ("cx", &3), ("cy", &3), ("r", &1.1)]);
    });
}

/// A panel and where it is drawn.
struct Placed<'a> {
    panel: &'a Panel,
    x: usize,
    y: usize,
    width: usize,
    height: usize,
    /// The side of a cell.
    side: usize,
}

/// Puts panels beside each other, and into further rows when they are many.
fn placed(scene: &Scene) -> Vec<Placed<'_>> {
    let largest = scene.panels.iter().map(|panel| panel.cols).max().unwrap_or(1);
    let side = match (largest, scene.panels.len()) {
        (..=16, 1) => 22,
        (..=16, _) => 16,
        (..=40, 1) => 18,
        (..=40, _) => 11,
        _ => 14,
    };
    let (mut x, mut y, mut tallest) = (MARGIN, MARGIN, 0);
    let mut all = Vec::new();
    for panel in &scene.panels {
        let heading =
            heading(panel).chars().count().max(panel.note().map_or(0, |n| n.chars().count()));
        let width = (RULER + panel.cols * side).max((heading as f64 * CHAR) as usize);
        let height = 2 * (panel.rows * side + LINE) + 3 * LINE + 10;
        if x > MARGIN && x + width > WIDEST {
            (x, y, tallest) = (MARGIN, y + tallest + GAP, 0);
        }
        all.push(Placed { panel, x, y, width, height, side });
        x += width + GAP;
        tallest = tallest.max(height);
    }
    all
}

/// `q  16 x 32`.
fn heading(panel: &Panel) -> String {
    let dims: Vec<_> = panel.dims.iter().map(ToString::to_string).collect();
    format!("{}  {}", panel.name, dims.join(" x "))
}

fn draw(svg: &mut Svg, scene: &Scene, placed: &Placed<'_>) {
    let Placed { panel, x, y, side, .. } = *placed;
    svg.text("text", &[("class", &"h"), ("x", &x), ("y", &(y + 11))], &heading(panel));
    if let Some(note) = panel.note() {
        svg.text("text", &[("class", &"d"), ("x", &x), ("y", &(y + 11 + LINE - 3))], &note);
    }
    let top = y + LINE + if panel.note().is_some() { LINE - 3 } else { 0 };
    for (what, top, mask) in
        [("structure", top, false), ("example mask", top + panel.rows * side + LINE + 12, true)]
    {
        let at = format!("translate({},{})", x + RULER, top + LINE - 4);
        ruler(svg, placed, what, (x, top + LINE - 4));
        svg.inside("g", &[("transform", &at)], |svg| {
            cells(svg, scene, placed, mask);
            lines(svg, panel, side);
            if !mask {
                numbers(svg, panel, side);
            }
        });
    }
}

/// Numbers of rows and columns beside a panel.
fn ruler(svg: &mut Svg, placed: &Placed<'_>, what: &str, (x, y): (usize, usize)) {
    let Placed { panel, side, .. } = *placed;
    let middle = side / 2 + 3;
    let step = if side < 14 { 8 } else { 4 };
    for row in (0..panel.rows).step_by(step) {
        let (x, y) = (x + RULER - 5, y + row * side + middle);
        svg.text(
            "text",
            &[("class", &"r"), ("x", &x), ("y", &y), ("text-anchor", &"end")],
            &row.to_string(),
        );
    }
    for col in (0..panel.cols).step_by(step) {
        let (x, y) = (x + RULER + col * side + side / 2, y - 4);
        svg.text(
            "text",
            &[("class", &"r"), ("x", &x), ("y", &y), ("text-anchor", &"middle")],
            &col.to_string(),
        );
    }
    let _ = what;
}

/// Fills: one path for each block, so that a browser names it under the pointer.
fn cells(svg: &mut Svg, scene: &Scene, placed: &Placed<'_>, mask: bool) {
    let Placed { panel, side, .. } = *placed;
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
                Some(Cell::Padding(place)) => {
                    padding.push_str(&run);
                    blocks.entry(place).or_default().push_str(&run);
                }
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
fn lines(svg: &mut Svg, panel: &Panel, side: usize) {
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
    for (class, d) in [("grid", grid), ("edge", edge), ("scope", scope)] {
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

/// Swatches that occur, with their meaning.
fn keys(scene: &Scene) -> Vec<(&'static str, &'static str)> {
    let mut keys =
        vec![("c0", "a colour: one block"), ("key", "an outline: one scope"), ("cut", "pruned")];
    if scene.any(|cell| cell == Cell::Outside) {
        keys.push(("out", "outside the domain"));
    }
    if scene.any(|cell| matches!(cell, Cell::Padding(_))) {
        keys.push(("pad", "padding"));
    }
    keys
}

fn scene_notes(scene: &Scene) -> Vec<String> {
    scene.notes.clone()
}

/// The facts of the legend, broken into lines of at most `columns` characters.
fn facts(spec: &Spec, columns: usize) -> Vec<(&'static str, String)> {
    let list = |values: &[usize]| {
        let values: Vec<_> = values.iter().map(ToString::to_string).collect();
        format!("({})", values.join(","))
    };
    let mut facts = Vec::new();
    let mut say = |name: &'static str, text: &str| {
        for (i, line) in wrapped(text, columns.saturating_sub(10).max(30)).into_iter().enumerate() {
            facts.push((if i == 0 { name } else { "" }, line));
        }
    };
    say("spec", spec.text());
    let tensors = spec.tensors();
    for (i, tensor) in tensors.iter().enumerate() {
        let name = if tensors.len() > 1 { format!("{}  ", tensor.name()) } else { String::new() };
        let blocks = tensor.blocks();
        let text = format!(
            "{name}{}  block {}  grid {}",
            layout(tensor.view()),
            list(blocks.tile()),
            list(blocks.counts())
        );
        say(if i == 0 { "view" } else { "" }, &text);
    }
    let tiles: Vec<_> = match spec.coupling() {
        Coupling::Blocks => vec![list(tensors[0].scope_tile())],
        Coupling::Scopes => tensors.iter().map(|tensor| list(tensor.scope_tile())).collect(),
    };
    say(
        "scope",
        &format!(
            "{}  grid {} = {} scopes",
            tiles.join(" & "),
            list(spec.scope_grid()),
            spec.scopes()
        ),
    );
    let asked = asked(spec).map_or(String::new(), |asked| format!("{asked} = "));
    say(
        "keep",
        &format!(
            "{asked}{} of {} blocks: density {}, sparsity {}",
            spec.keep(),
            spec.blocks_per_scope(),
            percent(spec.density()),
            percent(1.0 - spec.density())
        ),
    );
    facts
}

/// Breaks text at spaces, or anywhere in a word longer than a line.
pub(crate) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let word: Vec<char> = word.chars().collect();
        for (i, piece) in word.chunks(columns).enumerate() {
            let last = lines.last_mut().expect("there is always a line");
            let taken = last.chars().count();
            if taken > 0 && (i > 0 || taken + 1 + piece.len() > columns) {
                lines.push(String::new());
            } else if taken > 0 {
                last.push(' ');
            }
            lines.last_mut().expect("there is always a line").extend(piece);
        }
    }
    lines
}
