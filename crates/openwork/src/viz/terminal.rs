//! Draws a spec in a terminal, in color or in plain characters.

use super::scene::{COLORS, Cell, Label, Panel, Scene, State};

/// Widest drawing in columns: structure and example mask stand side by side if
/// they fit.
const WIDTH: usize = 100;
/// Fill colors of blocks in the 256-color palette, in the order of the SVG's.
const FILLS: [u8; COLORS] = [117, 215, 78, 175, 221, 69, 173, 141];
/// Fill color of pruned weights.
const PRUNED: u8 = 237;
/// Color of the hatching of weights that an inner level prunes.
const HATCH: u8 = 245;
/// Color of the scope numbers.
const INK: u8 = 16;
/// Letters of blocks; more blocks use them again.
const LETTERS: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Draws a scene: structure and example mask of each tensor.
///
/// In color, a block is a background color and a scope's number stands in its
/// first cell. In plain text, a block is a letter (its index within the scope)
/// and a scope's number stands on the line above it. A scope whose weights are
/// not adjacent has its number at each of its pieces.
///
/// ```
/// use openwork::viz;
/// let spec = "2:4".parse::<openwork::Pattern>().unwrap().bind(&[1, 8]).unwrap();
/// let drawing = viz::terminal(&viz::Scene::new(&spec, 1), false);
/// assert!(drawing.contains(" 0--- 1---"));
/// assert!(drawing.contains("|abcd|abcd|"));
/// ```
pub fn terminal(scene: &Scene, color: bool) -> String {
    let mut out = String::new();
    for panel in &scene.panels {
        let (left, right) = (lines(scene, panel, false, color), lines(scene, panel, true, color));
        let dims: Vec<_> = panel.dims.iter().map(ToString::to_string).collect();
        out.push_str(&format!("{} {}", panel.name, dims.join("x")));
        if let Some(note) = panel.note() {
            out.push_str(&format!(" ({note})"));
        }
        out.push('\n');
        let width = left.iter().map(|line| line.width).max().unwrap_or(0).max("structure".len());
        if 2 * width + 4 <= WIDTH {
            out.push_str(&format!("{:width$}    example mask\n", "structure"));
            for (left, right) in left.iter().zip(&right) {
                let gap = " ".repeat(width - left.width + 4);
                out.push_str(format!("{}{gap}{}", left.text, right.text).trim_end());
                out.push('\n');
            }
        } else {
            for (what, lines) in [("structure", &left), ("example mask", &right)] {
                out.push_str(&format!("{what}\n"));
                for line in lines {
                    out.push_str(line.text.trim_end());
                    out.push('\n');
                }
            }
        }
    }
    out.push_str(&legend(scene, color));
    for note in &scene.notes {
        out.push_str(&format!("{note}\n"));
    }
    out
}

fn legend(scene: &Scene, color: bool) -> String {
    let unique = if color { scene.colors_are_unique() } else { scene.fewer_blocks(LETTERS.len()) };
    let mut parts = vec![match (color, unique) {
        (true, true) => "color: block of the scope",
        (true, false) => "colors repeat, adjacent blocks differ",
        (false, true) => "letter: block of the scope",
        (false, false) => "letter: block of the scope (letters repeat)",
    }];
    let numbered = scene.panels.iter().any(|panel| !labels(panel, cell_width(color)).is_empty());
    parts.push(if numbered { "number, lines: scope" } else { "lines: scopes" });
    if !scene.has_levels() {
        parts.push(if color { "dark: pruned" } else { ".: pruned" });
    } else {
        if scene.any_state(State::Dropped) {
            parts.push(if color { "dark: pruned by level 1" } else { ".: pruned by level 1" });
        }
        parts.push(match color {
            true => "dark with //: pruned by an inner level",
            false => "-: pruned by an inner level",
        });
    }
    if scene.any(|cell| cell == Cell::Outside) {
        parts.push("/: outside the domain");
    }
    if scene.any(|cell| matches!(cell, Cell::Padding(_))) {
        parts.push("*: padding");
    }
    format!("{}\n", parts.join("; "))
}

/// Characters of a cell.
fn cell_width(color: bool) -> usize {
    if color { 2 } else { 1 }
}

fn labels(panel: &Panel, cell_width: usize) -> Vec<Label> {
    panel.labels(|digits, cells| digits <= cells * cell_width)
}

/// A line of the drawing and the columns it takes.
struct Line {
    text: String,
    width: usize,
}

impl Line {
    fn new() -> Self {
        Self { text: String::new(), width: 0 }
    }

    fn push(&mut self, text: &str, width: usize) {
        self.text.push_str(text);
        self.width += width;
    }
}

/// The rows of a panel, with lines where scopes end.
fn lines(scene: &Scene, panel: &Panel, mask: bool, color: bool) -> Vec<Line> {
    let right =
        |row: usize, col: usize| panel.is_border(panel.cell(row, col), panel.cell(row, col + 1));
    let above = |row: usize, col: usize| {
        let before = row.checked_sub(1).and_then(|row| panel.cell(row, col));
        panel.is_border(before, panel.cell(row, col))
    };
    // A column of line characters stands where some row has a border.
    let gaps: Vec<bool> =
        (0..panel.cols).map(|col| (0..panel.rows).any(|row| right(row, col))).collect();
    let (bar, dash) = if color { ("│", "─") } else { ("|", "-") };
    let width = cell_width(color);
    let labels = if mask { Vec::new() } else { labels(panel, width) };
    let starts = |row: usize| (0..panel.cols).any(|col| above(row, col));
    // In color the numbers stand inside the cells, so lines between all rows
    // would only make the drawing longer.
    let ruled = (1..panel.rows).filter(|&row| starts(row)).count();
    let ruled = |row: usize| match color {
        true => row > 0 && 2 * ruled <= panel.rows && starts(row),
        false => starts(row),
    };
    let mut out = Vec::new();
    for row in 0..panel.rows {
        // The characters of the row's labels, by column of characters.
        let mut text = vec![None; width * panel.cols];
        for label in labels.iter().filter(|label| label.row == row) {
            for (i, digit) in label.text.chars().enumerate() {
                text[width * label.col + i] = Some(digit);
            }
        }
        let at = |col: usize, blank: &str| -> String {
            let cells = text[width * col..][..width].iter().zip(blank.chars());
            cells.map(|(digit, blank)| digit.unwrap_or(blank)).collect()
        };
        if ruled(row) {
            let mut line = Line::new();
            line.push(" ", 1);
            for col in 0..panel.cols {
                let mark = if above(row, col) { dash } else { " " }.repeat(width);
                let mark = if color { mark } else { at(col, &mark) };
                line.push(&mark, width);
                if gaps[col] {
                    line.push(" ", 1);
                }
            }
            out.push(line);
        }
        let mut line = Line::new();
        let inside = panel.cell(row, 0).and_then(Cell::scope).is_some();
        line.push(if inside { bar } else { " " }, 1);
        for col in 0..panel.cols {
            let cell = panel.cell(row, col);
            let drawn = match color {
                true => colored(scene, cell, mask.then_some((row, col)), &at(col, "  ")),
                false => plain(scene, cell, mask.then_some((row, col))).to_string(),
            };
            line.push(&drawn, width);
            if gaps[col] {
                let mark = match cell {
                    _ if right(row, col) => bar,
                    Some(Cell::Outside) if col + 1 < panel.cols => "/",
                    _ => " ",
                };
                line.push(mark, 1);
            }
        }
        out.push(line);
    }
    out
}

/// The state of a weight of the example mask; kept in a drawing of the structure.
fn state(scene: &Scene, block: (usize, usize), at: Option<(usize, usize)>) -> State {
    at.map_or(State::Kept, |(row, col)| scene.state(block, row, col))
}

/// A cell as two characters on a colored background; `at` is its place in an example mask.
fn colored(scene: &Scene, cell: Option<Cell>, at: Option<(usize, usize)>, text: &str) -> String {
    let Some(block) = cell.and_then(Cell::block) else {
        return "\x1b[2m//\x1b[0m".to_string();
    };
    if matches!(cell, Some(Cell::Padding(_))) {
        return format!("\x1b[48;5;{PRUNED}m**\x1b[0m");
    }
    match state(scene, block, at) {
        State::Dropped => return format!("\x1b[48;5;{PRUNED}m  \x1b[0m"),
        State::DroppedInside => return format!("\x1b[48;5;{PRUNED};38;5;{HATCH}m//\x1b[0m"),
        State::Kept => {}
    }
    format!("\x1b[48;5;{};38;5;{INK}m{text}\x1b[0m", FILLS[scene.color(block)])
}

/// A cell as one character.
fn plain(scene: &Scene, cell: Option<Cell>, at: Option<(usize, usize)>) -> char {
    match (cell, cell.and_then(Cell::block)) {
        (Some(Cell::Padding(_)), _) => '*',
        (_, Some(block)) => match state(scene, block, at) {
            State::Kept => char::from(LETTERS[block.1 % LETTERS.len()]),
            State::Dropped => '.',
            State::DroppedInside => '-',
        },
        (_, None) => '/',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pattern;

    fn drawn(text: &str, dims: &[usize], color: bool) -> String {
        let spec = text.parse::<Pattern>().unwrap().bind(dims).unwrap();
        terminal(&Scene::new(&spec, 1), color)
    }

    fn plain(text: &str, dims: &[usize]) -> String {
        drawn(text, dims, false)
    }

    #[test]
    fn plain_drawings_show_blocks_scopes_and_domain() {
        let drawn = plain("in (1,0)+(2,8) block (1,2) scope (1,2) keep 1", &[3, 8]);
        assert!(drawn.contains(" /////////"), "{drawn}");
        assert!(drawn.contains(" 0--- 1---"), "{drawn}");
        assert!(drawn.contains("|aabb|aabb|"), "{drawn}");
        assert!(drawn.contains("/: outside the domain"), "{drawn}");
        let drawn = plain("pad (1,4) scope (1,4) keep 2", &[2, 6]);
        assert!(drawn.contains("|abcd|ab**|"), "{drawn}");
    }

    /// Rows 0 and 8 of `rows16` are one scope, rows 0 and 1 are not: a reader
    /// must not take eight rows for one block.
    #[test]
    fn scopes_that_span_distant_rows_or_columns_are_numbered() {
        for (text, dims, rows) in [
            ("rows16", [16, 32], [(0, "0 1"), (1, "2 3"), (8, "0 1"), (9, "2 3")]),
            (
                "2:4@8",
                [12, 16],
                [(0, "0 1 0 1"), (1, "2 3 2 3"), (8, "16 17 16 17"), (9, "18 19 18 19")],
            ),
        ] {
            let numbers = |line: &str, until: usize| {
                let line: String = line.chars().take(until).collect();
                line.split(|c: char| !c.is_ascii_digit())
                    .filter(|word| !word.is_empty())
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            let plain = plain(text, &dims);
            let body: Vec<&str> = plain.lines().skip(2).collect();
            let width = body[1].find("    ").unwrap();
            for (row, wanted) in rows {
                assert_eq!(numbers(body[2 * row], width), wanted, "{text} row {row}\n{plain}");
            }
            // Escape codes hold digits of their own.
            let color = drawn(text, &dims, true);
            let body: Vec<String> = color.lines().skip(2).map(without_escapes).collect();
            for (row, wanted) in rows {
                let structure: String = body[row].chars().take(2 * dims[1] + 6).collect();
                assert_eq!(numbers(&structure, 200), wanted, "{text} row {row}");
            }
        }
    }

    fn without_escapes(line: &str) -> String {
        let mut parts = line.split('\x1b');
        let first = parts.next().unwrap_or_default().to_string();
        first
            + &parts
                .filter_map(|part| part.split_once('m'))
                .map(|(_, text)| text)
                .collect::<String>()
    }

    #[test]
    fn the_legend_claims_one_color_per_block_only_where_it_is_so() {
        assert!(drawn("2:4", &[4, 16], true).contains("color: block of the scope"));
        assert!(drawn("unstructured", &[4, 16], true).contains("colors repeat"));
        assert!(plain("2:4", &[4, 16]).contains("letter: block of the scope;"));
        assert!(plain("unstructured", &[4, 16]).contains("letters repeat"));
    }

    #[test]
    fn no_drawing_is_wider_than_a_hundred_columns() {
        for (text, dims) in [
            ("2:4", &[64, 64][..]),
            ("1:2", &[32, 64]),
            ("2:4", &[4096, 4096]),
            ("channel", &[36, 64]),
        ] {
            let widest = plain(text, dims).lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(WIDTH), "{text}: {widest:?}");
        }
    }

    #[test]
    fn colors_are_reset() {
        let drawn = drawn("2:4", &[2, 8], true);
        assert_eq!(drawn.matches("\x1b[48").count(), drawn.matches("\x1b[0m").count());
    }
}
