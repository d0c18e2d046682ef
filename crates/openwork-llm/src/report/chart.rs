//! Charts that stretch with the page: shapes are SVG without a fixed aspect
//! ratio, labels are HTML, so that text keeps its size on a phone.

use super::scale::Scale;
use openwork::viz::escape_html;
use std::fmt::Write;

/// Number of series colors, defined in `page.css`.
pub(super) const COLORS: usize = 8;
/// Width and height of a drawing in its own units.
const SIZE: f64 = 1000.0;

/// The class of series `i`: a color, and a dash pattern once all colors are used.
pub(super) fn class(i: usize) -> String {
    format!("s{} d{}", i % COLORS, (i / COLORS).min(3))
}

/// A line, its points from left to right.
pub(super) struct Series {
    /// Its color: the number of its run or projection on the page.
    pub number: usize,
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// A strip of a chart that shows `tip` when pointed at.
pub(super) struct Hit {
    pub from: f64,
    pub to: f64,
    pub tip: String,
}

/// The axes and labels around a plot.
pub(super) struct Frame<'a> {
    /// Description for screen readers.
    pub label: &'a str,
    pub x_label: &'a str,
    pub y_label: &'a str,
    pub x_ticks: Vec<(f64, String)>,
    pub y_ticks: Vec<(f64, String)>,
    /// Position of a horizontal reference line, drawn as a band that no series looks
    /// like.
    pub level: Option<f64>,
    /// A class for the plot's height: `plain` or `square`.
    pub height: &'a str,
}

impl Frame<'_> {
    /// The figure around shapes in a box of 1000 by 1000.
    pub fn around(&self, shapes: &str) -> String {
        self.around_with_names(shapes, "")
    }

    /// The same with names over the shapes: spans placed in percent of the box.
    pub fn around_with_names(&self, shapes: &str, names: &str) -> String {
        let mut out = format!(
            "<figure class=\"plot {}\"><div class=\"yl\">{}</div><div class=\"frame\"><div class=\"ya\" aria-hidden=\"true\">",
            self.height,
            escape_html(self.y_label)
        );
        // The widest label makes the gutter.
        let widest = self.y_ticks.iter().map(|(_, label)| label.chars().count()).max();
        let _ = write!(out, "<b style=\"width:{}ch\"></b>", widest.unwrap_or(1));
        for (at, label) in &self.y_ticks {
            let _ = write!(
                out,
                "<span style=\"top:{}%\">{}</span>",
                short(100.0 * (1.0 - at)),
                escape_html(label)
            );
        }
        let _ = write!(
            out,
            "</div><svg viewBox=\"0 0 {SIZE} {SIZE}\" preserveAspectRatio=\"none\" role=\"img\" tabindex=\"0\" aria-label=\"{}\">",
            escape_html(self.label)
        );
        for (at, _) in &self.y_ticks {
            let y = short(SIZE * (1.0 - at));
            let _ = write!(out, "<path class=\"rule\" d=\"M0 {y}H{SIZE}\"/>");
        }
        if let Some(at) = self.level {
            let y = short(SIZE * (1.0 - at));
            let _ = write!(out, "<path class=\"level\" d=\"M0 {y}H{SIZE}\"/>");
        }
        out.push_str(shapes);
        out.push_str("</svg>");
        if !names.is_empty() {
            let _ = write!(out, "<div class=\"names\" aria-hidden=\"true\">{names}</div>");
        }
        out.push_str("<div class=\"xa\" aria-hidden=\"true\">");
        for (at, label) in &self.x_ticks {
            let _ = write!(
                out,
                "<span style=\"left:{}%\">{}</span>",
                short(100.0 * at),
                escape_html(label)
            );
        }
        let _ = write!(
            out,
            "</div></div><div class=\"xl\">{}</div></figure>",
            escape_html(self.x_label)
        );
        out
    }
}

/// A coordinate with two decimals.
pub(super) fn short(x: f64) -> String {
    let text = format!("{x:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_string() } else { text.to_string() }
}

/// Lines and dots; a point that is not on the axes leaves a gap.
pub(super) fn lines(series: &[Series], x: Scale, y: Scale) -> String {
    // Dots of many points would hide the lines.
    const DOTTED: usize = 48;
    let points = series.iter().map(|one| one.points.len()).sum::<usize>();
    let mut out = String::new();
    for one in series {
        let (mut path, mut dots, mut joined) = (String::new(), String::new(), false);
        for &(px, py) in &one.points {
            let (Some(px), Some(py)) = (x.place(px), y.place(py)) else {
                joined = false;
                continue;
            };
            let at = format!("{} {}", short(SIZE * px), short(SIZE * (1.0 - py)));
            let _ = write!(path, "{}{at}", if joined { "L" } else { "M" });
            let _ = write!(dots, "M{at}h0");
            joined = true;
        }
        let class = class(one.number);
        let _ = write!(out, "<path class=\"line {class}\" d=\"{path}\"/>");
        if points <= DOTTED || one.points.len() == 1 {
            let _ = write!(out, "<path class=\"dots {class}\" d=\"{dots}\"/>");
        }
    }
    out
}

/// Invisible vertical strips that show their tips on hover.
pub(super) fn hits(hits: &[Hit], x: Scale) -> String {
    let mut out = String::new();
    for hit in hits {
        if let (Some(from), Some(to)) = (x.place(hit.from), x.place(hit.to)) {
            let _ = write!(
                out,
                "<rect class=\"hit\" x=\"{}\" width=\"{}\" height=\"{SIZE}\" data-tip=\"{}\"/>",
                short(SIZE * from),
                short(SIZE * (to - from)),
                escape_html(&hit.tip)
            );
        }
    }
    out
}

/// Stacked bars: `parts[i]` is one bar.
pub(super) fn stacks(parts: &[Vec<f64>], x: Scale, y: Scale) -> String {
    const GAP: f64 = 0.1;
    let mut out = String::new();
    for (i, bar) in parts.iter().enumerate() {
        let mut sum = 0.0;
        for (part, height) in bar.iter().enumerate() {
            let below = sum;
            sum += if height.is_finite() { height.max(0.0) } else { 0.0 };
            let place = (
                x.place(i as f64 - 0.5 + GAP),
                x.place(i as f64 + 0.5 - GAP),
                y.place(below),
                y.place(sum),
            );
            if let (Some(left), Some(right), Some(bottom), Some(top)) = place {
                let _ = write!(
                    out,
                    "<rect class=\"bar f{part}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
                    short(SIZE * left),
                    short(SIZE * (1.0 - top)),
                    short(SIZE * (right - left)),
                    short(SIZE * (top - bottom))
                );
            }
        }
    }
    out
}

/// Names with the colors of their series, as `line`, `dot` or `bar`, and the
/// reference line.
pub(super) fn legend<'a>(
    names: impl Iterator<Item = (usize, &'a str)>,
    kind: &str,
    level: Option<&str>,
) -> String {
    let mut out = "<ul class=\"legend\">".to_string();
    if let Some(name) = level {
        let _ = write!(
            out,
            "<li><svg class=\"swatch\" viewBox=\"0 0 20 10\" aria-hidden=\"true\"><path class=\"level\" d=\"M0 5H20\"/></svg>{}</li>",
            escape_html(name)
        );
    }
    for (i, name) in names {
        let class = if kind == "line" { class(i) } else { format!("f{}", i % COLORS) };
        let _ = write!(
            out,
            "<li><svg class=\"swatch\" viewBox=\"0 0 20 10\" aria-hidden=\"true\">{}</svg>{}</li>",
            match kind {
                "line" => format!("<path class=\"line {class}\" d=\"M1 5H19\"/>"),
                "dot" => format!("<circle class=\"{class}\" cx=\"12\" cy=\"5\" r=\"4\"/>"),
                _ =>
                    format!("<rect class=\"{class}\" x=\"8\" width=\"10\" height=\"10\" rx=\"2\"/>"),
            },
            escape_html(name)
        );
    }
    out + "</ul>"
}
