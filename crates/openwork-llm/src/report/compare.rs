//! The parts of a page that set runs side by side.

use super::chart::{Frame, legend, short};
use super::heat::{Cell, Heat};
use super::kinds::Kinds;
use super::record::Record;
use super::run::{card, decoder_error, perplexity};
use super::scale::Scale;
use crate::format::{format_bytes, format_seconds, number, percent};
use openwork::viz::escape_html;
use std::collections::HashMap;
use std::fmt::Write;

/// Everything that two or more runs show together.
pub(super) fn compare(runs: &[(String, Record)], kinds: &Kinds) -> String {
    let named: Vec<(String, &Record)> = runs.iter().map(|(n, r)| (n.clone(), r)).collect();
    let mut out = "<div class=\"cards\">".to_string();
    out.push_str(&card("Runs", "Bold is the best of its pattern.", true, &table(runs)));
    out.push_str(&perplexity(&named));
    out.push_str(&decoder_error(&named));
    out.push_str("</div>");
    out.push_str("<h2>Against each other</h2><div class=\"cards\">");
    for run in 1..runs.len() {
        if let Some(first) = baseline(runs, run) {
            out.push_str(&pair(&runs[first], &runs[run], kinds));
        }
    }
    out + "</div>"
}

/// The run to compare with: the first of the same spec. The first of a spec
/// that others share is compared with none; one that is alone, with the first of all.
fn baseline(runs: &[(String, Record)], run: usize) -> Option<usize> {
    let same = |other: &(String, Record)| other.1.spec == runs[run].1.spec;
    let first = runs.iter().position(same)?;
    match runs.iter().filter(|other| same(other)).count() {
        1 => Some(0),
        _ => (first != run).then_some(first),
    }
}

fn table(runs: &[(String, Record)]) -> String {
    // What matters most comes first: a phone shows three columns.
    const HEAD: [&str; 9] =
        ["run", "pruned", "mean error", "time", "memory", "dense", "density", "pattern", "method"];
    let pruned = |r: &Record| r.last().map_or(f64::NAN, |e| e.token_perplexity);
    // Least among the runs of the same spec.
    let best = |of: &dyn Fn(&Record) -> f64, one: &Record| {
        let same = runs.iter().filter(|(_, other)| other.spec == one.spec);
        let values: Vec<f64> = same.map(|(_, other)| of(other)).collect();
        values.len() > 1
            && of(one).is_finite()
            && values.iter().all(|v| v.is_nan() || of(one) <= *v)
    };
    let top = runs.iter().map(|(_, r)| pruned(r)).filter(|p| p.is_finite()).fold(0.0, f64::max);
    let mut out = "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Runs\"><table class=\"runs\"><thead><tr>".to_string();
    for name in HEAD {
        let _ = write!(out, "<th scope=\"col\">{name}</th>");
    }
    out.push_str("</tr></thead><tbody>");
    for (i, (name, record)) in runs.iter().enumerate() {
        let bold = |text: String, yes: bool| if yes { format!("<b>{text}</b>") } else { text };
        let missing = || "\u{2013}".to_string();
        let dense = record.dense().map_or_else(missing, |e| number(e.token_perplexity));
        let last = record.last().map_or_else(missing, |e| number(e.token_perplexity));
        let error = record.totals.mean_error;
        let share = if top > 0.0 { pruned(record) / top } else { 0.0 };
        let share = if share.is_finite() { 100.0 * share.clamp(0.0, 1.0) } else { 0.0 };
        let _ = write!(
            out,
            "<tr><th scope=\"row\"><svg class=\"swatch\" viewBox=\"0 0 20 10\" aria-hidden=\"true\"><path class=\"line {}\" d=\"M1 5H19\"/></svg>{}</th>\
             <td class=\"share\"><i style=\"width:{}%\"></i><span>{}</span></td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{dense}</td><td>{}</td><td class=\"left\"><code>{}</code></td><td class=\"left\"><code>{}</code></td></tr>",
            super::chart::class(i),
            escape_html(name),
            short(share),
            bold(last, best(&pruned, record)),
            bold(number(error), best(&|r| r.totals.mean_error, record)),
            format_seconds(record.totals.seconds),
            format_bytes(record.totals.peak_rss_bytes),
            percent(record.totals.density),
            escape_html(&record.spec),
            escape_html(&record.method),
        );
    }
    out + "</tbody></table></div>"
}

/// The errors of a linear that both runs pruned.
struct Point {
    layer: usize,
    kind: usize,
    a: f64,
    b: f64,
}

impl Point {
    /// Logarithm of a ratio: twice as good and half as good are equally far from even.
    fn gain(&self) -> f64 {
        (self.a / self.b).ln()
    }

    fn said(&self, a: &str, b: &str, kinds: &Kinds) -> String {
        let mut tip = format!("layer {}  {}", self.layer, kinds.names[self.kind]);
        let _ = write!(tip, "\n{}  {a}\n{}  {b}", number(self.a), number(self.b));
        if self.gain().is_finite() {
            let _ = write!(tip, "\n{:+.1}%", change(self.gain()));
        }
        tip
    }
}

fn both<'a>(a: &'a Record, b: &'a Record, kinds: &'a Kinds) -> impl Iterator<Item = Point> + 'a {
    let (a, b) = (kinds.cells(a), kinds.cells(b));
    let layers = a.layers.min(b.layers);
    (0..layers).flat_map(move |layer| {
        let point =
            |kind| Some(Point { layer, kind, a: a.error(layer, kind)?, b: b.error(layer, kind)? });
        (0..kinds.len()).filter_map(point).collect::<Vec<_>>()
    })
}

/// Two runs: every linear as a dot, and what was gained where.
fn pair(a: &(String, Record), b: &(String, Record), kinds: &Kinds) -> String {
    let title = format!("{} against {}", b.0, a.0);
    let points: Vec<Point> = both(&a.1, &b.1, kinds).collect();
    if points.is_empty() {
        return card(&title, "They have no pruned linear in common.", true, "");
    }
    let lower = points.iter().filter(|p| p.b < p.a).count();
    let mean = mean(points.iter().map(Point::gain));
    let said = match mean.is_finite() {
        true => format!("; {:+.1}% in geometric mean", change(mean)),
        false => String::new(),
    };
    let about =
        format!("{} has the lower error in {lower} of {} linears{said}.", b.0, points.len());
    let keys = legend(kinds.names.iter().map(String::as_str), "dot");
    let content = format!(
        "<div class=\"pair\"><div>{keys}{}</div><div>{}{}</div></div>",
        scatter(&a.0, &b.0, &points, kinds),
        gains(a, b, &points, kinds),
        by_kind(&points, kinds)
    );
    card(&title, &about, true, &content)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values
        .filter(|x| x.is_finite())
        .fold((0.0, 0usize), |(sum, count), x| (sum + x, count + 1));
    if count == 0 { f64::NAN } else { sum / count as f64 }
}

/// A gain as the percentage by which the error changed.
fn change(gain: f64) -> f64 {
    100.0 * ((-gain).exp() - 1.0)
}

/// One dot for each linear; below the diagonal `b` is better.
fn scatter(a: &str, b: &str, points: &[Point], kinds: &Kinds) -> String {
    let drawable = |x: f64| x.is_finite() && x > 0.0;
    let shown = || points.iter().filter(|p| drawable(p.a) && drawable(p.b));
    let axis = Scale::log(shown().flat_map(|p| [p.a, p.b]));
    let mut shapes = "<path class=\"level\" d=\"M0 1000L1000 0\"/>".to_string();
    for point in shown() {
        if let (Some(x), Some(y)) = (axis.place(point.a), axis.place(point.b)) {
            let at = format!("M{} {}h0", short(1000.0 * x), short(1000.0 * (1.0 - y)));
            let _ = write!(
                shapes,
                "<g data-tip=\"{}\"><path class=\"reach\" d=\"{at}\"/><path class=\"dots s{}\" d=\"{at}\"/></g>",
                escape_html(&point.said(a, b, kinds)),
                point.kind % super::chart::COLOURS
            );
        }
    }
    let (x_label, y_label) = (format!("error, {a}"), format!("error, {b}"));
    let frame = Frame {
        label: &format!("Errors of {b} against {a}; below the diagonal {b} is better"),
        x_label: &x_label,
        y_label: &y_label,
        x_ticks: axis.ticks(),
        y_ticks: axis.ticks(),
        height: "square",
    };
    frame.around(&shapes)
}

/// The heat map of gains.
fn gains(a: &(String, Record), b: &(String, Record), points: &[Point], kinds: &Kinds) -> String {
    let finite = points.iter().map(Point::gain).filter(|gain| gain.is_finite());
    let top = finite.fold(0.0, |top: f64, gain| top.max(gain.abs()));
    let layers = a.1.layers.len().min(b.1.layers.len());
    let heat = Heat {
        label: &format!("Change of error from {} to {} by layer and projection", a.0, b.0),
        rows: &kinds.names,
        columns: (0..layers).map(|layer| layer.to_string()).collect(),
        tone: "two",
        ends: (format!("worse, {:+.0}%", change(-top)), format!("better, {:+.0}%", change(top))),
    };
    let by_cell: HashMap<(usize, usize), &Point> =
        points.iter().map(|point| ((point.layer, point.kind), point)).collect();
    heat.draw(|layer, kind| {
        let point = by_cell.get(&(layer, kind))?;
        let strength = match point.gain() {
            gain if !gain.is_finite() => f64::NAN,
            gain if top > 0.0 => gain / top,
            _ => 0.0,
        };
        Some(Cell { strength, tip: point.said(&a.0, &b.0, kinds) })
    })
}

/// The mean change of each projection.
fn by_kind(points: &[Point], kinds: &Kinds) -> String {
    let (mut head, mut row) = (String::new(), String::new());
    for (kind, name) in kinds.names.iter().enumerate() {
        let mean = mean(points.iter().filter(|p| p.kind == kind).map(Point::gain));
        if mean.is_finite() {
            let _ = write!(head, "<th scope=\"col\">{}</th>", escape_html(name));
            let _ = write!(row, "<td>{:+.1}%</td>", change(mean));
        }
    }
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Change by projection\">\
         <table><thead><tr><th scope=\"col\">projection</th>{head}</tr></thead>\
         <tbody><tr><th scope=\"row\">error</th>{row}</tr></tbody></table></div>"
    )
}
