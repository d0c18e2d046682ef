//! The parts of a page that show one run.

use super::chart::{self, Frame, Hit, Series};
use super::heat::{Cell, Heat};
use super::kinds::Kinds;
use super::record::Record;
use super::scale::Scale;
use crate::format::{count, format_bytes, format_seconds, grouped, number, percent};
use openwork::viz::escape_html;
use std::fmt::Write;

/// A card of the page.
pub(super) fn card(title: &str, about: &str, wide: bool, content: &str) -> String {
    format!(
        "<section class=\"card{}\"><h3>{}</h3><p class=\"about\">{}</p>{content}</section>",
        if wide { " wide" } else { "" },
        escape_html(title),
        escape_html(about)
    )
}

/// Figures that come first.
pub(super) fn headline(record: &Record) -> String {
    let perplexity = |found: Option<&super::EvaluationRecord>| {
        found.map_or("not measured".to_string(), |e| number(e.token_perplexity))
    };
    let (dense, last) = (record.dense(), record.last());
    let factor = match (dense, last) {
        (Some(dense), Some(last)) => factor_of(last.token_perplexity / dense.token_perplexity),
        _ => String::new(),
    };
    let scored = dense.or(last).map_or(String::new(), |e| count(e.tokens, "token"));
    let totals = &record.totals;
    let tiles = [
        ("Perplexity, dense", perplexity(dense), scored),
        ("Perplexity, pruned", perplexity(last), factor),
        ("Mean error", number(totals.mean_error), "of all pruned linears".to_string()),
        ("Density", percent(totals.density), format!("of {} weights", grouped(totals.weights))),
        (
            "Time",
            format_seconds(totals.seconds),
            format!("on {}", count(record.options.threads, "thread")),
        ),
        ("Memory", format_bytes(totals.peak_rss_bytes), "at most resident".to_string()),
    ];
    let mut out = "<dl class=\"tiles\">".to_string();
    for (name, value, small) in tiles {
        let _ = write!(
            out,
            "<div><dt>{name}</dt><dd>{}</dd><dd class=\"small\">{}</dd></div>",
            escape_html(&value),
            escape_html(&small)
        );
    }
    out + "</dl>"
}

fn factor_of(ratio: f64) -> String {
    match ratio.is_finite() && ratio < 1e4 {
        true => format!("{ratio:.2}\u{d7} dense"),
        false => format!("{}\u{d7} dense", number(ratio)),
    }
}

/// The charts of one run.
pub(super) fn charts(record: &Record, kinds: &Kinds) -> String {
    let alone = [(String::new(), record)];
    let mut out = "<div class=\"cards\">".to_string();
    out.push_str(&perplexity(&alone));
    out.push_str(&decoder_error(&alone));
    if !record.layers.is_empty() {
        out.push_str(&projections(record, kinds));
        out.push_str(&times(record));
        out.push_str(&heat(record, kinds));
    }
    out + "</div>"
}

/// Perplexity against pruned layers, of one or more runs.
pub(super) fn perplexity(runs: &[(String, &Record)]) -> String {
    const TITLE: &str = "Perplexity";
    let pruned =
        |e: &super::EvaluationRecord| e.after_layer.map_or(0.0, |layer| layer as f64 + 1.0);
    let series: Vec<Series> = (runs.iter())
        .map(|(name, record)| Series {
            name: name.clone(),
            points: record.evaluations.iter().map(|e| (pruned(e), e.token_perplexity)).collect(),
        })
        .collect();
    if series.iter().all(|one| one.points.is_empty()) {
        return card(TITLE, "It was not measured.", false, "");
    }
    let points = || series.iter().flat_map(|one| &one.points);
    let last = points().map(|point| point.0).fold(1.0, f64::max);
    let x = Scale::exact(0.0, last);
    let y = Scale::around(points().map(|point| point.1));
    let mut places: Vec<f64> = points().map(|point| point.0).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let said = |place: f64| {
        let mut tip = match place {
            0.0 => "dense".to_string(),
            1.0 => "1 layer pruned".to_string(),
            _ => format!("{place} layers pruned"),
        };
        for one in &series {
            for point in one.points.iter().filter(|point| point.0 == place) {
                let _ = write!(tip, "\n{}  {}", number(point.1), one.name);
            }
        }
        tip
    };
    let middle = |a: f64, b: f64| (a + b) / 2.0;
    let hits: Vec<Hit> = (0..places.len())
        .map(|i| Hit {
            from: if i == 0 { 0.0 } else { middle(places[i - 1], places[i]) },
            to: places.get(i + 1).map_or(last, |&next| middle(places[i], next)),
            tip: said(places[i]),
        })
        .collect();
    let frame = Frame {
        label: "Perplexity after each measured layer",
        x_label: "layers pruned",
        y_label: "perplexity per token",
        x_ticks: whole(x.ticks()),
        y_ticks: y.ticks(),
        height: "plain",
    };
    let dense = runs.iter().find_map(|(_, record)| record.dense());
    let level = dense.map_or(String::new(), |e| chart::level(y, e.token_perplexity));
    let shapes = level + &chart::lines(&series, x, y) + &chart::hits(&hits, x);
    let axis = if y.is_log() { "Per token, on a logarithmic axis" } else { "Per token" };
    let about = match dense {
        Some(e) => {
            format!("{axis}; the dashed line is the dense model, {}.", number(e.token_perplexity))
        }
        None => format!("{axis}; the dense model was not measured."),
    };
    card(TITLE, &about, false, &(legend(&series) + &frame.around(&shapes)))
}

/// Only ticks that are whole numbers.
fn whole(ticks: Vec<(f64, String)>) -> Vec<(f64, String)> {
    ticks.into_iter().filter(|(_, label)| !label.contains('.')).collect()
}

fn legend(series: &[Series]) -> String {
    if series.len() < 2 {
        return String::new();
    }
    chart::legend(series.iter().map(|one| one.name.as_str()), "line")
}

/// An axis of `layers` layers, with half a layer of room at both ends.
fn layer_axis(layers: usize) -> (Scale, Vec<(f64, String)>) {
    let x = Scale::exact(-0.5, layers.max(1) as f64 - 0.5);
    let ticks = Scale::exact(0.0, layers.max(2) as f64 - 1.0).ticks();
    let ticks = whole(ticks).into_iter().filter_map(|(_, label)| {
        let layer: f64 = label.parse().ok()?;
        Some((x.place(layer)?, label))
    });
    (x, ticks.collect())
}

/// Values by layer as lines; `values[s][layer]`.
fn by_layer(frame: (&str, &str), names: &[String], values: &[Vec<f64>], tips: &[String]) -> String {
    let (x, x_ticks) = layer_axis(tips.len());
    let y = Scale::from_zero(values.iter().flatten().copied());
    let series: Vec<Series> = (names.iter().zip(values))
        .map(|(name, values)| Series {
            name: name.clone(),
            points: values.iter().enumerate().map(|(i, &v)| (i as f64, v)).collect(),
        })
        .collect();
    let hits: Vec<Hit> = (tips.iter().enumerate())
        .map(|(i, tip)| Hit { from: i as f64 - 0.5, to: i as f64 + 0.5, tip: tip.clone() })
        .collect();
    let frame = Frame {
        label: frame.0,
        x_label: "layer",
        y_label: frame.1,
        x_ticks,
        y_ticks: y.ticks(),
        height: "plain",
    };
    legend(&series) + &frame.around(&(chart::lines(&series, x, y) + &chart::hits(&hits, x)))
}

/// What is said of a layer: one line for each name that has a value there.
fn tips(layers: usize, names: &[String], values: &[Vec<f64>]) -> Vec<String> {
    let said = |layer: usize| {
        let mut tip = format!("layer {layer}");
        for (name, values) in names.iter().zip(values) {
            if let Some(value) = values.get(layer).filter(|v| !v.is_nan()) {
                let _ = write!(tip, "\n{}  {name}", number(*value));
            }
        }
        tip
    };
    (0..layers).map(said).collect()
}

/// Decoder output error by layer, of one or more runs.
pub(super) fn decoder_error(runs: &[(String, &Record)]) -> String {
    const TITLE: &str = "Decoder error";
    let layers = runs.iter().map(|(_, record)| record.layers.len()).max().unwrap_or(0);
    if layers == 0 {
        return card(TITLE, "No layer was pruned.", false, "");
    }
    let names: Vec<String> = runs.iter().map(|(name, _)| name.clone()).collect();
    let values: Vec<Vec<f64>> = (runs.iter())
        .map(|(_, record)| record.layers.iter().map(|layer| layer.decoder_error).collect())
        .collect();
    let tips = tips(layers, &names, &values);
    let plot =
        by_layer(("Decoder error by layer", "relative output error"), &names, &values, &tips);
    card(TITLE, "How far pruning moves a layer's output, relative to the output.", false, &plot)
}

fn projections(record: &Record, kinds: &Kinds) -> String {
    let cells = kinds.cells(record);
    let values: Vec<Vec<f64>> = (0..kinds.len())
        .map(|kind| (0..cells.layers).map(|l| cells.error(l, kind).unwrap_or(f64::NAN)).collect())
        .collect();
    let tips = tips(cells.layers, &kinds.names, &values);
    let plot = by_layer(
        ("Error of each projection by layer", "relative output error"),
        &kinds.names,
        &values,
        &tips,
    );
    card(
        "Error by projection",
        "Each linear on its own inputs; dense ones are left out.",
        false,
        &plot,
    )
}

fn heat(record: &Record, kinds: &Kinds) -> String {
    let cells = kinds.cells(record);
    let errors = record.linears().filter(|l| l.method.is_some()).map(|l| l.error);
    let worst = errors.filter(|e| e.is_finite()).fold(0.0, f64::max);
    let heat = Heat {
        label: "Error by layer and projection",
        rows: &kinds.names,
        columns: record.layers.iter().map(|layer| layer.index.to_string()).collect(),
        tone: "one",
        ends: ("0".to_string(), number(worst)),
    };
    let drawn = heat.draw(|layer, kind| {
        let linear = cells.get(layer, kind)?;
        let mut tip = format!("layer {}  {}\n", record.layers[layer].index, kinds.names[kind]);
        match &linear.method {
            None => tip.push_str("left dense"),
            Some(_) => {
                let _ = write!(
                    tip,
                    "error {}\ndensity {}",
                    number(linear.error),
                    percent(linear.density)
                );
            }
        }
        if let Some(damping) = &linear.damping {
            let _ = write!(tip, "\ndamping {damping}");
        }
        let strength = match linear.error {
            e if !e.is_finite() => f64::NAN,
            e if worst > 0.0 => e.max(0.0) / worst,
            _ => 0.0,
        };
        Some(Cell { strength, tip })
    });
    card(
        "Error, layer by projection",
        "The stronger the colour, the larger the error.",
        true,
        &drawn,
    )
}

fn times(record: &Record) -> String {
    const PARTS: [&str; 3] = ["forward passes", "pruning", "the rest"];
    let parts: Vec<Vec<f64>> = (record.layers.iter())
        .map(|l| {
            let rest = (l.seconds - l.forward_seconds - l.prune_seconds).max(0.0);
            vec![l.forward_seconds, l.prune_seconds, rest]
        })
        .collect();
    let sum = |bar: &Vec<f64>| bar.iter().filter(|s| s.is_finite()).sum::<f64>();
    let y = Scale::from_zero(parts.iter().map(sum));
    let (x, x_ticks) = layer_axis(parts.len());
    let hits: Vec<Hit> = (parts.iter().enumerate())
        .map(|(i, bar)| {
            let mut tip = format!(
                "layer {}  {}",
                record.layers[i].index,
                format_seconds(record.layers[i].seconds)
            );
            for (seconds, name) in bar.iter().zip(PARTS) {
                let _ = write!(tip, "\n{}  {name}", format_seconds(*seconds));
            }
            Hit { from: i as f64 - 0.5, to: i as f64 + 0.5, tip }
        })
        .collect();
    let frame = Frame {
        label: "Time of each layer",
        x_label: "layer",
        y_label: "seconds",
        x_ticks,
        y_ticks: y.ticks(),
        height: "plain",
    };
    let plot = frame.around(&(chart::stacks(&parts, x, y) + &chart::hits(&hits, x)));
    let about = "Where each layer's time went.";
    card("Time by layer", about, false, &(chart::legend(PARTS.into_iter(), "bar") + &plot))
}
