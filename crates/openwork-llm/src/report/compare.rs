//! The sections of the page that compare runs.

use super::chart::{Frame, legend, short};
use super::groups::{describe_text, groups, rankable, warnings};
use super::heat::{Cell, Heat};
use super::html::spec_code;
use super::projections::Projections;
use super::record::{Record, SizeChange};
use super::run::{Charted, card, cards, decoder_error, perplexity};
use super::scale::Scale;
use super::tasks::tasks;
use crate::format::{format_bytes, format_seconds, number, percent, tick};
use openwork::viz::escape_html;
use std::collections::HashMap;
use std::fmt::Write;

/// Everything that two or more runs show together.
pub(super) fn compare(runs: &[(String, Record)], projections: &Projections) -> String {
    let mut out = String::new();
    for warning in warnings(runs) {
        let _ = write!(out, "<p class=\"warning\">Warning: {}.</p>", escape_html(&warning));
    }
    let groups = groups(runs);
    let mut shown = String::new();
    for group in &groups {
        let title = match (groups.len(), describe_text(&runs[group[0]].1)) {
            (2.., Some(text)) => format!("Runs evaluated on {text}"),
            (2.., None) => "Runs that were not evaluated".to_string(),
            _ => "Runs".to_string(),
        };
        let bars = Bars::new(group.iter().map(|&i| increase(&runs[i].1)));
        let mut about = String::new();
        if let Some(Bars { low, high }) = bars {
            let (low, high) = (tick(low), number(high));
            about = format!(
                "Bars: increase over the dense perplexity, log scale from {low} to {high}. "
            );
        }
        if group.len() > 1 {
            about.push_str("Bold: lowest perplexity and mean error among runs of one spec.");
        }
        shown.push_str(&card(&title, &about, true, &table(runs, group, bars)));
    }
    for group in &groups {
        let title = match (groups.len(), describe_text(&runs[group[0]].1)) {
            (2.., Some(text)) => format!("Perplexity on {text}"),
            _ => "Perplexity".to_string(),
        };
        let charted: Vec<Charted<'_>> =
            group.iter().map(|&i| (i, runs[i].0.clone(), &runs[i].1)).collect();
        shown.push_str(&perplexity(&title, &charted));
    }
    let named: Vec<(String, &Record)> =
        runs.iter().map(|(name, record)| (name.clone(), record)).collect();
    shown.push_str(&tasks(&named));
    let all: Vec<Charted<'_>> =
        runs.iter().enumerate().map(|(i, (name, record))| (i, name.clone(), record)).collect();
    shown.push_str(&decoder_error(&all));
    out.push_str(&cards(&shown));
    let pairs: String = (1..runs.len())
        .filter_map(|run| Some(pair(&runs[baseline(runs, run)?], &runs[run], projections)))
        .collect();
    if !pairs.is_empty() {
        out.push_str(&format!("<h2>Pairwise comparison</h2>{}", cards(&pairs)));
    }
    out
}

/// The run to compare with: the first of the same spec and model. The first of a
/// spec that others share has no baseline; the baseline of a spec that occurs
/// once is the first run of the model.
fn baseline(runs: &[(String, Record)], run: usize) -> Option<usize> {
    let of_model = |other: &(String, Record)| other.1.model == runs[run].1.model;
    let same = |other: &(String, Record)| of_model(other) && other.1.spec == runs[run].1.spec;
    let first = match runs.iter().filter(|other| same(other)).count() {
        1 => runs.iter().position(of_model)?,
        _ => runs.iter().position(same)?,
    };
    (first != run).then_some(first)
}

/// Bars of a table: the increase of perplexity over the dense model on a
/// logarithmic axis, which separates 5.3 from 5.6 beside 191.
#[derive(Clone, Copy)]
struct Bars {
    low: f64,
    high: f64,
}

impl Bars {
    /// The axis for some increases: from the power of ten below the least one to
    /// the largest. `None` if none is positive.
    fn new(increases: impl Iterator<Item = f64>) -> Option<Self> {
        let (mut least, mut high) = (f64::INFINITY, 0f64);
        for x in increases.filter(|x| x.is_finite() && *x > 0.0) {
            (least, high) = (least.min(x), high.max(x));
        }
        // Slightly below the least, so that its bar is never empty.
        let low = 10f64.powf((0.999 * least).log10().floor());
        (low.is_finite() && low > 0.0 && high > low).then_some(Self { low, high })
    }

    /// Length in percent.
    fn length(&self, increase: f64) -> f64 {
        let at = (increase.log10() - self.low.log10()) / (self.high.log10() - self.low.log10());
        if at.is_finite() { 100.0 * at.clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// The final perplexity; NaN if it was not measured.
fn pruned(record: &Record) -> f64 {
    record.last().map_or(f64::NAN, |e| e.token_perplexity)
}

/// The increase of perplexity over the dense model.
fn increase(record: &Record) -> f64 {
    pruned(record) - record.dense().map_or(f64::NAN, |e| e.token_perplexity)
}

/// The density of the linears, or the fraction of parameters that is left where
/// structures were removed from dense ones.
fn kept(record: &Record) -> String {
    match record.sizes {
        Some(SizeChange { before, after }) if percent(record.totals.density) == "100%" => {
            let left = after.parameters as f64 / before.parameters as f64;
            format!("{}<br><small>of parameters</small>", percent(left))
        }
        _ => percent(record.totals.density),
    }
}

/// The table of some of the runs, which may be ranked together.
fn table(runs: &[(String, Record)], group: &[usize], bars: Option<Bars>) -> String {
    // The least among the runs that it can be ranked with.
    let best = |of: &dyn Fn(&Record) -> f64, one: &Record| {
        let others = group.iter().map(|&i| &runs[i].1).filter(|other| rankable(one, other));
        let values: Vec<f64> = others.map(of).collect();
        values.len() > 1
            && of(one).is_finite()
            && values.iter().all(|v| v.is_nan() || of(one) <= *v)
    };
    let mut out = "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Runs\"><table class=\"runs\"><thead><tr>".to_string();
    for name in [
        "run, spec and method",
        "perplexity",
        "dense perplexity",
        "mean error",
        "density",
        "time",
        "peak memory",
    ] {
        let _ = write!(out, "<th scope=\"col\">{name}</th>");
    }
    out.push_str("</tr></thead><tbody>");
    for &i in group {
        let (name, record) = &runs[i];
        let bold = |text: String, yes: bool| if yes { format!("<b>{text}</b>") } else { text };
        let missing = || "\u{2013}".to_string();
        let measured = |e: Option<&super::EvaluationRecord>| {
            e.map_or_else(missing, |e| number(e.token_perplexity))
        };
        let length = bars.as_ref().map_or(0.0, |bars| bars.length(increase(record)));
        let _ = write!(
            out,
            "<tr><th scope=\"row\"><svg class=\"swatch\" viewBox=\"0 0 20 10\" aria-hidden=\"true\"><path class=\"line {}\" d=\"M1 5H19\"/></svg>{}\
             <small>{} {}</small></th>\
             <td class=\"share\"><i style=\"--bar:{}\"></i><span>{}</span></td>\
             <td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            super::chart::class(i),
            escape_html(name),
            spec_code(record),
            escape_html(&record.method),
            short(length),
            match &record.similarity {
                Some(found) => format!("cosine {:.4}", found.mean),
                None => bold(measured(record.last()), best(&pruned, record)),
            },
            measured(record.dense()),
            bold(number(record.totals.mean_error), best(&|r| r.totals.mean_error, record)),
            kept(record),
            format_seconds(record.totals.seconds),
            format_bytes(record.totals.peak_rss_bytes),
        );
    }
    out + "</tbody></table></div>"
}

/// The errors of a linear that two runs pruned.
struct ErrorPair {
    layer: usize,
    projection: usize,
    a: f64,
    b: f64,
}

impl ErrorPair {
    /// Logarithm of the ratio, so that twice and half the error are equally far from 0.
    fn gain(&self) -> f64 {
        (self.a / self.b).ln()
    }

    fn tip(&self, a: &str, b: &str, projections: &Projections) -> String {
        let mut tip = format!("layer {}  {}", self.layer, projections.names[self.projection]);
        let _ = write!(tip, "\n{}  {a}\n{}  {b}", number(self.a), number(self.b));
        if self.gain().is_finite() {
            let _ = write!(tip, "\n{:+.1}%", change(self.gain()));
        }
        tip
    }
}

fn error_pairs<'a>(
    a: &'a Record,
    b: &'a Record,
    projections: &'a Projections,
) -> impl Iterator<Item = ErrorPair> + 'a {
    let (a, b) = (projections.cells(a), projections.cells(b));
    let layers = a.layers.min(b.layers);
    (0..layers).flat_map(move |layer| {
        let point = |projection| {
            Some(ErrorPair {
                layer,
                projection,
                a: a.error(layer, projection)?,
                b: b.error(layer, projection)?,
            })
        };
        (0..projections.len()).filter_map(point).collect::<Vec<_>>()
    })
}

/// Two runs: a scatter plot of their errors, and the change by layer and projection;
/// nothing if they have no pruned linear in common.
fn pair(a: &(String, Record), b: &(String, Record), projections: &Projections) -> String {
    let title = format!("{} vs. {}", b.0, a.0);
    let points: Vec<ErrorPair> = error_pairs(&a.1, &b.1, projections).collect();
    if points.is_empty() {
        return String::new();
    }
    let lower = points.iter().filter(|p| p.b < p.a).count();
    let mean = mean(points.iter().map(ErrorPair::gain));
    let average = match mean.is_finite() {
        true => format!("; geometric mean {:+.1}%", change(mean)),
        false => String::new(),
    };
    let about =
        format!("{} has a lower error in {lower} of {} linear layers{average}.", b.0, points.len());
    let keys = legend(projections.names.iter().map(String::as_str).enumerate(), "dot", None);
    let content = format!(
        "<div class=\"pair\"><div>{keys}{}</div><div>{}{}</div></div>",
        scatter(&a.0, &b.0, &points, projections),
        gains(a, b, &points, projections),
        by_kind(&points, projections)
    );
    card(&title, &about, true, &content)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values
        .filter(|x| x.is_finite())
        .fold((0.0, 0usize), |(sum, count), x| (sum + x, count + 1));
    if count == 0 { f64::NAN } else { sum / count as f64 }
}

/// The change of the error in percent that a gain stands for.
fn change(gain: f64) -> f64 {
    100.0 * ((-gain).exp() - 1.0)
}

/// One dot per linear; below the diagonal `b` has the lower error.
fn scatter(a: &str, b: &str, points: &[ErrorPair], projections: &Projections) -> String {
    let drawable = |x: f64| x.is_finite() && x > 0.0;
    let shown = || points.iter().filter(|p| drawable(p.a) && drawable(p.b));
    let axis = Scale::log(shown().flat_map(|p| [p.a, p.b]));
    let mut shapes = "<path class=\"even\" d=\"M0 1000L1000 0\"/>".to_string();
    for point in shown() {
        if let (Some(x), Some(y)) = (axis.place(point.a), axis.place(point.b)) {
            let at = format!("M{} {}h0", short(1000.0 * x), short(1000.0 * (1.0 - y)));
            let _ = write!(
                shapes,
                "<g data-tip=\"{}\"><path class=\"reach\" d=\"{at}\"/><path class=\"dots s{}\" d=\"{at}\"/></g>",
                escape_html(&point.tip(a, b, projections)),
                point.projection % super::chart::COLORS
            );
        }
    }
    let (x_label, y_label) = (format!("error, {a}"), format!("error, {b}"));
    let frame = Frame {
        label: &format!("Errors of {b} against {a}; below the diagonal {b} has the lower error"),
        x_label: &x_label,
        y_label: &y_label,
        x_ticks: axis.ticks(),
        y_ticks: axis.ticks(),
        level: None,
        height: "square",
    };
    frame.around(&shapes)
}

/// The change of error as a heat map.
fn gains(
    a: &(String, Record),
    b: &(String, Record),
    points: &[ErrorPair],
    projections: &Projections,
) -> String {
    let finite = points.iter().map(ErrorPair::gain).filter(|gain| gain.is_finite());
    let top = finite.fold(0.0, |top: f64, gain| top.max(gain.abs()));
    let layers = a.1.layers.len().min(b.1.layers.len());
    let heat = Heat {
        label: &format!("Change of error from {} to {} by layer and projection", a.0, b.0),
        rows: &projections.names,
        columns: (0..layers).map(|layer| layer.to_string()).collect(),
        tone: "two",
        ends: (format!("worse, {:+.0}%", change(-top)), format!("better, {:+.0}%", change(top))),
    };
    let by_cell: HashMap<(usize, usize), &ErrorPair> =
        points.iter().map(|point| ((point.layer, point.projection), point)).collect();
    heat.draw(|layer, projection| {
        let point = by_cell.get(&(layer, projection))?;
        let strength = match point.gain() {
            gain if !gain.is_finite() => f64::NAN,
            gain if top > 0.0 => gain / top,
            _ => 0.0,
        };
        Some(Cell { strength, tip: point.tip(&a.0, &b.0, projections) })
    })
}

/// The mean change of error of each projection.
fn by_kind(points: &[ErrorPair], projections: &Projections) -> String {
    let (mut head, mut row) = (String::new(), String::new());
    for (projection, name) in projections.names.iter().enumerate() {
        let mean = mean(points.iter().filter(|p| p.projection == projection).map(ErrorPair::gain));
        if mean.is_finite() {
            let _ = write!(head, "<th scope=\"col\">{}</th>", escape_html(name));
            let _ = write!(row, "<td>{:+.1}%</td>", change(mean));
        }
    }
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Change by projection\">\
         <table><thead><tr><th scope=\"col\">projection</th>{head}</tr></thead>\
         <tbody><tr><th scope=\"row\">mean change</th>{row}</tr></tbody></table></div>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_separate_small_increases_beside_a_huge_one() {
        let increases = [0.3, 0.6, 186.0];
        let bars = Bars::new(increases.into_iter()).unwrap();
        let lengths = increases.map(|x| bars.length(x));
        assert!(lengths[0] > 5.0 && lengths[1] - lengths[0] > 5.0, "{lengths:?}");
        assert_eq!(lengths[2], 100.0);
        assert_eq!(bars.length(-1.0), 0.0);
        assert!(Bars::new([f64::NAN, 0.0, -2.0, f64::INFINITY].into_iter()).is_none());
    }
}
