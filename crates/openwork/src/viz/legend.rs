//! The legend below an SVG drawing: meaning of colors and lines, facts of the spec.

use super::pattern::MARGIN;
use super::scene::{Cell, Scene, State};
use super::svg::Svg;
use super::{layout, percent, written_keep};
use crate::spec::{Coupling, Spec, level_name};

/// Width of a monospaced character and height of a line of text.
pub(crate) const CHAR: f64 = 7.3;
pub(crate) const LINE: usize = 18;
/// Width of the column of fact names.
const NAMES: usize = 56;
/// Longest line of facts, in characters, that widens a narrow drawing.
const LONGEST: usize = 72;

/// The text below a drawing.
pub(crate) struct Legend {
    /// Width of the whole drawing.
    pub width: usize,
    swatches: Vec<Swatch>,
    swatch_lines: usize,
    notes: Vec<String>,
    facts: Vec<(String, String)>,
}

/// A swatch with its meaning and position.
struct Swatch {
    class: &'static str,
    text: &'static str,
    x: usize,
    line: usize,
}

impl Legend {
    /// The legend of a drawing at least `width` wide.
    pub fn new(spec: &Spec, scene: &Scene, width: usize) -> Self {
        let fits = ((width - 2 * MARGIN - NAMES) as f64 / CHAR) as usize;
        let facts = facts(spec, fits.max(LONGEST));
        let longest = facts.iter().map(|(_, line)| line.chars().count()).max().unwrap_or(0);
        let width = width.max(2 * MARGIN + NAMES + (longest as f64 * CHAR) as usize);
        let swatches = swatches(scene, width);
        let swatch_lines = swatches.last().map_or(0, |swatch| swatch.line + 1);
        Self { width, swatches, swatch_lines, notes: scene.notes.clone(), facts }
    }

    /// Its height.
    pub fn height(&self) -> usize {
        (self.swatch_lines + self.notes.len() + self.facts.len()) * LINE + LINE / 2
    }

    /// Draws it from `y` down.
    pub fn draw(&self, svg: &mut Svg, y: usize) {
        let mut y = y + 12;
        for swatch in &self.swatches {
            let at = y + swatch.line * LINE;
            svg.empty(
                "rect",
                &[
                    ("class", &swatch.class),
                    ("x", &swatch.x),
                    ("y", &(at - 11)),
                    ("width", &14),
                    ("height", &13),
                ],
            );
            svg.text("text", &[("x", &(swatch.x + 21)), ("y", &at)], swatch.text);
        }
        y += self.swatch_lines * LINE;
        for note in &self.notes {
            svg.text("text", &[("class", &"d"), ("x", &MARGIN), ("y", &y)], note);
            y += LINE;
        }
        y += LINE / 2;
        for (name, text) in &self.facts {
            svg.text("text", &[("class", &"d"), ("x", &MARGIN), ("y", &y)], name);
            svg.text("text", &[("class", &"m"), ("x", &(MARGIN + NAMES)), ("y", &y)], text);
            y += LINE;
        }
    }
}

/// The swatches that the drawing needs, from left to right and line by line.
fn swatches(scene: &Scene, width: usize) -> Vec<Swatch> {
    let color = match scene.colors_are_unique() {
        true => "color: block of the scope",
        false => "colors repeat, adjacent blocks differ",
    };
    let mut kinds = vec![("c0", color), ("key", "outline, number: scope")];
    match scene.has_levels() {
        false => kinds.push(("cut", "pruned")),
        true => {
            if scene.any_state(State::Dropped) {
                kinds.push(("cut", "pruned by level 1"));
            }
            kinds.push(("deep", "pruned by an inner level"));
        }
    }
    if scene.any(|cell| cell == Cell::Outside) {
        kinds.push(("out", "outside the domain"));
    }
    if scene.any(|cell| matches!(cell, Cell::Padding(_))) {
        kinds.push(("pad", "padding"));
    }
    let (mut x, mut line) = (MARGIN, 0);
    let mut swatches = Vec::new();
    for (class, text) in kinds {
        let taken = 21 + (text.len() as f64 * 6.5) as usize;
        if x > MARGIN && x + taken + MARGIN > width {
            (x, line) = (MARGIN, line + 1);
        }
        swatches.push(Swatch { class, text, x, line });
        x += taken + 18;
    }
    swatches
}

/// The facts of the spec, wrapped to `columns` characters.
fn facts(spec: &Spec, columns: usize) -> Vec<(String, String)> {
    let list = |values: &[usize]| {
        let values: Vec<_> = values.iter().map(ToString::to_string).collect();
        format!("({})", values.join(","))
    };
    let mut facts = Vec::new();
    let mut say = |name: &str, text: &str| {
        for (i, line) in wrapped(text, columns).into_iter().enumerate() {
            facts.push((if i == 0 { name } else { "" }.to_string(), line));
        }
    };
    say("spec", spec.text());
    let tensors = spec.tensors();
    for (i, tensor) in tensors.iter().enumerate() {
        let name = if tensors.len() > 1 { format!("{} ", tensor.name()) } else { String::new() };
        let blocks = tensor.blocks();
        let text = format!(
            "{name}{} · block {} · grid {}",
            layout(tensor),
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
            "{} · grid {} = {} scope{}",
            tiles.join(" & "),
            list(spec.scope_grid()),
            spec.scopes(),
            if spec.scopes() == 1 { "" } else { "s" }
        ),
    );
    let written = written_keep(spec).map_or(String::new(), |keep| format!("{keep} = "));
    let kept = format!("{written}{} of {} blocks", spec.keep(), spec.blocks_per_scope());
    let density =
        format!("density {}, sparsity {}", percent(spec.density()), percent(1.0 - spec.density()));
    if !spec.has_levels() {
        say("keep", &format!("{kept}: {density}"));
        return facts;
    }
    say("keep", &kept);
    for (path, level) in spec.levels().into_iter().skip(1) {
        let dims = list(level.tensors()[0].dims());
        let name = level_name(&path);
        say("", &format!("{name} on {dims}: {}", level.level_text()));
    }
    say("whole", &density);
    facts
}

/// Wraps text at spaces, or inside a word that is longer than a line.
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
