//! The drawing of a spec in a terminal, in colours or in plain characters.

use super::scene::{COLOURS, Cell, Panel, Scene};

/// The widest drawing: structure and example stand side by side if they fit.
const WIDTH: usize = 100;
/// Colours of blocks among the 256 of a terminal, in the order of the SVG's.
const FILLS: [u8; COLOURS] = [117, 215, 78, 175, 221, 69, 173, 141];
/// The colour of pruned weights.
const PRUNED: u8 = 237;

/// Draws a scene. In colour, a block is its background; plain, a letter, which
/// is its number within the scope (a, b, .. z, then A .. Z, then again).
///
/// ```
/// use openwork::viz;
/// let spec = "2:4".parse::<openwork::Pattern>().unwrap().bind(&[1, 8]).unwrap();
/// let drawing = viz::terminal(&viz::Scene::new(&spec, 1), false);
/// assert!(drawing.contains("|abcd|abcd|"));
/// ```
pub fn terminal(scene: &Scene, colour: bool) -> String {
    let mut out = String::new();
    for panel in &scene.panels {
        let (left, right) = (lines(scene, panel, false, colour), lines(scene, panel, true, colour));
        let dims: Vec<_> = panel.dims.iter().map(ToString::to_string).collect();
        out.push_str(&format!("{} {}", panel.name, dims.join("x")));
        if let Some(note) = panel.note() {
            out.push_str(&format!(" ({note})"));
        }
        out.push('\n');
        let width = left.iter().map(|line| line.width).max().unwrap_or(0);
        if 2 * width + 4 <= WIDTH {
            out.push_str(&format!("{:width$}    example mask\n", "structure"));
            for (left, right) in left.iter().zip(&right) {
                let gap = " ".repeat(width.max("structure".len()) - left.width + 4);
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
    out.push_str(&legend(scene, colour));
    for note in &scene.notes {
        out.push_str(&format!("{note}\n"));
    }
    out
}

fn legend(scene: &Scene, colour: bool) -> String {
    let mut parts = vec![
        if colour {
            "a colour: one block of its scope"
        } else {
            "a letter: one block of its scope"
        },
        "lines: scopes",
        if colour { "dark: pruned" } else { ". pruned" },
    ];
    if scene.any(|cell| cell == Cell::Outside) {
        parts.push("/ outside the domain");
    }
    if scene.any(|cell| matches!(cell, Cell::Padding(_))) {
        parts.push("* padding");
    }
    format!("{}\n", parts.join(", "))
}

/// A line of the drawing and how many columns it takes.
struct Line {
    text: String,
    width: usize,
}

impl Line {
    fn push(&mut self, text: &str, width: usize) {
        self.text.push_str(text);
        self.width += width;
    }
}

/// The rows of a panel, with lines where scopes end.
fn lines(scene: &Scene, panel: &Panel, mask: bool, colour: bool) -> Vec<Line> {
    let border = |row: usize, col: usize, below: bool| {
        let next = if below { panel.cell(row + 1, col) } else { panel.cell(row, col + 1) };
        panel.is_border(panel.cell(row, col), next)
    };
    // A column of line characters stands where some row has a border.
    let gaps: Vec<bool> =
        (0..panel.cols).map(|col| (0..panel.rows).any(|row| border(row, col, false))).collect();
    let (bar, dash, cell_width) = if colour { ("│", "─", 2) } else { ("|", "-", 1) };
    let starts = |row: usize| panel.cell(row, 0).and_then(Cell::scope).is_some();
    // Where every row ends its scopes, lines between rows would say nothing.
    let ends = (0..panel.rows)
        .map(|row| (0..panel.cols).any(|col| border(row, col, true)))
        .collect::<Vec<_>>();
    let between = ends.iter().filter(|&&end| end).count() * 2 <= panel.rows;
    let mut out = Vec::new();
    for row in 0..panel.rows {
        let mut line = Line { text: String::new(), width: 0 };
        line.push(if starts(row) { bar } else { " " }, 1);
        for col in 0..panel.cols {
            line.push(&shown(scene, panel.cell(row, col), mask, colour), cell_width);
            if gaps[col] {
                let inner = col + 1 < panel.cols;
                let mark = match panel.cell(row, col) {
                    _ if border(row, col, false) => bar,
                    Some(Cell::Outside) if inner => "/",
                    _ => " ",
                };
                line.push(mark, 1);
            }
        }
        out.push(line);
        if between && ends[row] && row + 1 < panel.rows {
            let mut line = Line { text: " ".to_string(), width: 1 };
            for col in 0..panel.cols {
                let mark = if border(row, col, true) { dash } else { " " };
                line.push(&mark.repeat(cell_width), cell_width);
                if gaps[col] {
                    line.push(" ", 1);
                }
            }
            out.push(line);
        }
    }
    out
}

/// One cell: a character, or two on a coloured ground.
fn shown(scene: &Scene, cell: Option<Cell>, mask: bool, colour: bool) -> String {
    let Some(cell) = cell else { return String::new() };
    let Some(place) = cell.place() else {
        return if colour { "\x1b[2m//\x1b[0m".to_string() } else { "/".to_string() };
    };
    let pruned = mask && !scene.keeps(place);
    let padding = matches!(cell, Cell::Padding(_));
    if colour {
        let (ground, sign) = match (pruned, padding) {
            (_, true) => (PRUNED, "**"),
            (true, _) => (PRUNED, "  "),
            _ => (FILLS[scene.colour(place)], "  "),
        };
        return format!("\x1b[48;5;{ground}m{sign}\x1b[0m");
    }
    match (pruned, padding) {
        (_, true) => "*".to_string(),
        (true, _) => ".".to_string(),
        _ => {
            let letters = ('a'..='z').chain('A'..='Z');
            letters.clone().nth(place.1 % letters.count()).expect("below the count").to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pattern;

    fn plain(text: &str, dims: &[usize]) -> String {
        let spec = text.parse::<Pattern>().unwrap().bind(dims).unwrap();
        terminal(&Scene::new(&spec, 1), false)
    }

    #[test]
    fn plain_drawings_say_blocks_scopes_and_domain() {
        let drawn = plain("in (1,0)+(2,8) block (1,2) scope (1,2) keep 1", &[3, 8]);
        assert!(drawn.contains(" /////////"), "{drawn}");
        assert!(drawn.contains("|aabb|aabb|"), "{drawn}");
        assert!(drawn.contains("/ outside the domain"), "{drawn}");
        let drawn = plain("pad (1,4) scope (1,4) keep 2", &[2, 6]);
        assert!(drawn.contains("|abcd|ab**|"), "{drawn}");
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
    fn colours_are_put_back() {
        let spec = "2:4".parse::<Pattern>().unwrap().bind(&[2, 8]).unwrap();
        let drawn = terminal(&Scene::new(&spec, 1), true);
        assert_eq!(drawn.matches("\x1b[48").count(), drawn.matches("\x1b[0m").count());
    }
}
