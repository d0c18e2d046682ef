//! Heat maps over layers and projections.

use super::chart::short;
use openwork::viz::escape_html;
use std::fmt::Write;

/// A cell: the strength of its color from -1 to 1, and its tip. Positive and
/// negative strengths have different hues.
pub(super) struct Cell {
    pub strength: f64,
    pub tip: String,
}

/// A heat map.
pub(super) struct Heat<'a> {
    /// Description for screen readers.
    pub label: &'a str,
    pub rows: &'a [String],
    /// Column names.
    pub columns: Vec<String>,
    /// Class: `one` for one hue, `two` for two that meet at zero.
    pub tone: &'a str,
    /// Labels of the two ends of the color ramp.
    pub ends: (String, String),
}

impl Heat<'_> {
    /// The figure; `cell(column, row)` is `None` where a layer lacks the projection.
    pub fn draw(&self, cell: impl Fn(usize, usize) -> Option<Cell>) -> String {
        let (width, height) = (self.columns.len(), self.rows.len());
        let mut out = format!(
            "<figure class=\"heat {}\"><div class=\"frame\"><div class=\"rows\" aria-hidden=\"true\">",
            self.tone
        );
        for row in self.rows {
            let _ = write!(out, "<span>{}</span>", escape_html(row));
        }
        let _ = write!(
            out,
            "</div><svg viewBox=\"0 0 {width} {height}\" preserveAspectRatio=\"none\" role=\"img\" tabindex=\"0\" aria-label=\"{}\" style=\"height:{}px\">",
            escape_html(self.label),
            26 * height
        );
        for row in 0..height {
            for column in 0..width {
                let _ = match cell(column, row) {
                    None => Ok(()),
                    Some(cell) => write!(
                        out,
                        "<rect class=\"{}\" x=\"{column}\" y=\"{row}\" width=\"1\" height=\"1\"{} data-tip=\"{}\"/>",
                        class(cell.strength),
                        opacity(cell.strength),
                        escape_html(&cell.tip)
                    ),
                };
            }
        }
        out.push_str("</svg><div class=\"xa\" aria-hidden=\"true\">");
        let every = every(width);
        for (i, name) in self.columns.iter().enumerate().step_by(every) {
            let at = short(100.0 * (i as f64 + 0.5) / width as f64);
            let _ = write!(out, "<span style=\"left:{at}%\">{}</span>", escape_html(name));
        }
        let _ = write!(
            out,
            "</div></div><div class=\"xl\">layer</div><div class=\"ramp\"><span>{}</span><i></i><span>{}</span></div></figure>",
            escape_html(&self.ends.0),
            escape_html(&self.ends.1)
        );
        out
    }
}

/// Distance between named columns: 1, 2, 5, 10, ..
fn every(columns: usize) -> usize {
    const MOST: usize = 12;
    let mut power = 1;
    loop {
        if let Some(by) = [1, 2, 5].map(|m| m * power).into_iter().find(|by| columns <= MOST * by) {
            return by;
        }
        power *= 10;
    }
}

/// Not finite, above or below zero.
fn class(strength: f64) -> &'static str {
    match strength {
        s if s.is_nan() => "cell odd",
        s if s < 0.0 => "cell lo",
        _ => "cell hi",
    }
}

fn opacity(strength: f64) -> String {
    // The weakest color still differs from an empty cell.
    const FAINTEST: f64 = 0.05;
    if strength.is_nan() {
        return String::new();
    }
    let at = FAINTEST + (1.0 - FAINTEST) * strength.abs().min(1.0);
    format!(" fill-opacity=\"{}\"", short(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_named_at_round_distances() {
        let found = [0, 1, 12, 13, 30, 100, 300].map(every);
        assert_eq!(found, [1, 1, 1, 2, 5, 10, 50]);
    }
}
