//! The legend below a drawing: what colours and lines mean, and the spec's facts.

use super::pattern::MARGIN;
use super::scene::{Cell, Scene};
use super::svg::Svg;
use super::{asked, layout, percent};
use crate::spec::{Coupling, Spec};

/// Width of a monospaced character and height of a line of text.
pub(crate) const CHAR: f64 = 7.3;
pub(crate) const LINE: usize = 18;
/// Width of the names of facts.
const NAMES: usize = 56;
/// The longest line of facts that makes a narrow drawing wider, in characters.
const LONGEST: usize = 72;

/// The text below a drawing.
pub(crate) struct Legend {
    /// Width of the whole drawing.
    pub width: usize,
    keys: Vec<Key>,
    key_lines: usize,
    notes: Vec<String>,
    facts: Vec<(&'static str, String)>,
}

/// A swatch with its meaning, and its place.
struct Key {
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
        let keys = keys(scene, width);
        let key_lines = keys.last().map_or(0, |key| key.line + 1);
        Self { width, keys, key_lines, notes: scene.notes.clone(), facts }
    }

    /// How high it is.
    pub fn height(&self) -> usize {
        (self.key_lines + self.notes.len() + self.facts.len()) * LINE + LINE / 2
    }

    /// Draws it from `y` down.
    pub fn draw(&self, svg: &mut Svg, y: usize) {
        let mut y = y + 12;
        for key in &self.keys {
            let at = y + key.line * LINE;
            svg.empty(
                "rect",
                &[
                    ("class", &key.class),
                    ("x", &key.x),
                    ("y", &(at - 11)),
                    ("width", &14),
                    ("height", &13),
                ],
            );
            svg.text("text", &[("x", &(key.x + 21)), ("y", &at)], key.text);
        }
        y += self.key_lines * LINE;
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

/// Swatches that occur, from left to right and line by line.
fn keys(scene: &Scene, width: usize) -> Vec<Key> {
    let mut kinds =
        vec![("c0", "colour: a block"), ("key", "outline, number: a scope"), ("cut", "pruned")];
    if scene.any(|cell| cell == Cell::Outside) {
        kinds.push(("out", "outside the domain"));
    }
    if scene.any(|cell| matches!(cell, Cell::Padding(_))) {
        kinds.push(("pad", "padding"));
    }
    let (mut x, mut line) = (MARGIN, 0);
    let mut keys = Vec::new();
    for (class, text) in kinds {
        let taken = 21 + (text.len() as f64 * 6.5) as usize;
        if x > MARGIN && x + taken + MARGIN > width {
            (x, line) = (MARGIN, line + 1);
        }
        keys.push(Key { class, text, x, line });
        x += taken + 18;
    }
    keys
}

/// The facts of the legend, broken into lines of at most `columns` characters.
fn facts(spec: &Spec, columns: usize) -> Vec<(&'static str, String)> {
    let list = |values: &[usize]| {
        let values: Vec<_> = values.iter().map(ToString::to_string).collect();
        format!("({})", values.join(","))
    };
    let mut facts = Vec::new();
    let mut say = |name: &'static str, text: &str| {
        for (i, line) in wrapped(text, columns).into_iter().enumerate() {
            facts.push((if i == 0 { name } else { "" }, line));
        }
    };
    say("spec", spec.text());
    let tensors = spec.tensors();
    for (i, tensor) in tensors.iter().enumerate() {
        let name = if tensors.len() > 1 { format!("{} ", tensor.name()) } else { String::new() };
        let blocks = tensor.blocks();
        let text = format!(
            "{name}{} · block {} · grid {}",
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
            "{} · grid {} = {} scope{}",
            tiles.join(" & "),
            list(spec.scope_grid()),
            spec.scopes(),
            if spec.scopes() == 1 { "" } else { "s" }
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
