//! The sections of the page that show one run: headline figures and charts.

use super::chart::{self, Frame, Hit, Series};
use super::heat::{Cell, Heat};
use super::projections::Projections;
use super::record::{EvaluationRecord, Record};
use super::recovery;
use super::scale::Scale;
use super::tasks::tasks;
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

/// Cards in two columns; nothing if there are none.
pub(super) fn cards(content: &str) -> String {
    match content.is_empty() {
        true => String::new(),
        false => format!("<div class=\"cards\">{content}</div>"),
    }
}

/// The headline figures.
pub(super) fn headline(record: &Record) -> String {
    let perplexity = |found: Option<&EvaluationRecord>| {
        found.map_or("not measured".to_string(), |e| number(e.token_perplexity))
    };
    let (dense, last) = (record.dense(), record.last());
    let factor = match (dense, last) {
        (Some(dense), Some(last)) => factor_of(last.token_perplexity / dense.token_perplexity),
        _ => String::new(),
    };
    let scored = dense.or(last).map_or(String::new(), |e| count(e.tokens, "token"));
    let totals = &record.totals;
    let mut tiles = match &record.similarity {
        Some(found) => vec![
            (
                "Similarity, mean",
                format!("{:.4}", found.mean),
                "cosine to the dense vectors".to_string(),
            ),
            (
                "Similarity, least",
                format!("{:.4}", found.least),
                format!("of {}", count(found.texts, "text")),
            ),
        ],
        None => vec![
            ("Perplexity, dense", perplexity(dense), scored),
            ("Perplexity, pruned", perplexity(last), factor),
        ],
    };
    tiles.push((
        "Mean error",
        number(totals.mean_error),
        "over all pruned linear layers".to_string(),
    ));
    if let Some(sizes) = record.sizes.filter(|sizes| sizes.before != sizes.after) {
        let (before, after) = (sizes.before, sizes.after);
        let from = |text: String, before: u64, after: u64| {
            format!("from {text} ({})", change(after as f64 / before as f64 - 1.0))
        };
        tiles.push((
            "Parameters",
            grouped(after.parameters),
            from(grouped(before.parameters), before.parameters, after.parameters),
        ));
        tiles.push((
            "Model size",
            format_bytes(after.bytes),
            from(format_bytes(before.bytes), before.bytes, after.bytes),
        ));
    }
    // Where structures were removed, the linears that are left are often dense.
    if record.sizes.is_none() || percent(totals.density) != "100%" {
        let weights = format!("of {} weights in linear layers", grouped(totals.weights));
        tiles.push(("Density", percent(totals.density), weights));
    }
    let threads = format!("on {}", count(record.options.threads, "thread"));
    tiles.push(("Time", format_seconds(totals.seconds), threads));
    tiles.push(("Memory", format_bytes(totals.peak_rss_bytes), "peak resident".to_string()));
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

/// A relative change: `-25.0%`.
fn change(fraction: f64) -> String {
    if fraction.is_finite() { format!("{:+.1}%", 100.0 * fraction) } else { number(fraction) }
}

/// The charts of one run.
pub(super) fn charts(record: &Record, projections: &Projections) -> String {
    let alone = [(0, String::new(), record)];
    let mut out = perplexity("Perplexity", &alone);
    out.push_str(&tasks(&[(String::new(), record)]));
    out.push_str(&recovery::cards(record));
    if !record.layers.is_empty() {
        out.push_str(&decoder_error(&alone));
        out.push_str(&projection_errors(record, projections));
        out.push_str(&times(record));
        out.push_str(&heat(record, projections));
    }
    cards(&out)
}

/// A run in a chart: its number on the page, which is its color, and its name.
pub(super) type Charted<'a> = (usize, String, &'a Record);

/// Perplexity against pruned layers, of runs with one dense model; nothing if it
/// was not measured.
pub(super) fn perplexity(title: &str, runs: &[Charted<'_>]) -> String {
    let pruned = |e: &EvaluationRecord| e.after_layer.map_or(0.0, |layer| layer as f64 + 1.0);
    let series: Vec<Series> = (runs.iter())
        .map(|(number, name, record)| Series {
            number: *number,
            name: name.clone(),
            points: record.evaluations.iter().map(|e| (pruned(e), e.token_perplexity)).collect(),
        })
        .filter(|one| !one.points.is_empty())
        .collect();
    if series.is_empty() {
        return String::new();
    }
    let points = || series.iter().flat_map(|one| &one.points);
    let last = points().map(|point| point.0).fold(1.0, f64::max);
    let x = Scale::exact(0.0, last);
    let y = Scale::around(points().map(|point| point.1));
    let mut positions: Vec<f64> = points().map(|point| point.0).collect();
    positions.sort_by(f64::total_cmp);
    positions.dedup();
    let tip = |position: f64| {
        let mut tip = match position {
            0.0 => "dense".to_string(),
            layers => format!("{} pruned", count(layers as usize, "layer")),
        };
        for one in &series {
            for point in one.points.iter().filter(|point| point.0 == position) {
                let _ = write!(tip, "\n{}  {}", number(point.1), one.name);
            }
        }
        tip
    };
    let middle = |a: f64, b: f64| (a + b) / 2.0;
    let hits: Vec<Hit> = (0..positions.len())
        .map(|i| Hit {
            from: if i == 0 { 0.0 } else { middle(positions[i - 1], positions[i]) },
            to: positions.get(i + 1).map_or(last, |&next| middle(positions[i], next)),
            tip: tip(positions[i]),
        })
        .collect();
    let dense = runs.iter().find_map(|(_, _, record)| record.dense());
    let level = dense.map(|e| format!("dense {}", number(e.token_perplexity)));
    let frame = Frame {
        label: "Perplexity against the number of pruned layers",
        x_label: "layers pruned",
        y_label: if y.is_log() {
            "perplexity per token (log scale)"
        } else {
            "perplexity per token"
        },
        x_ticks: whole(x.ticks()),
        y_ticks: y.ticks(),
        level: dense.and_then(|e| y.place(e.token_perplexity)),
        height: "plain",
    };
    let shapes = chart::lines(&series, x, y) + &chart::hits(&hits, x);
    let about = match dense {
        Some(_) => "At each evaluation during the run.",
        None => "At each evaluation during the run; the dense model was not evaluated.",
    };
    card(title, about, false, &(legend(&series, level.as_deref()) + &frame.around(&shapes)))
}

/// Only ticks that are whole numbers.
pub(super) fn whole(ticks: Vec<(f64, String)>) -> Vec<(f64, String)> {
    ticks.into_iter().filter(|(_, label)| !label.contains('.')).collect()
}

fn legend(series: &[Series], level: Option<&str>) -> String {
    // A single line needs no name.
    let named = if series.len() > 1 { series } else { &[] };
    if named.is_empty() && level.is_none() {
        return String::new();
    }
    chart::legend(named.iter().map(|one| (one.number, one.name.as_str())), "line", level)
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

/// A chart of one line per series over the layers.
pub(super) fn by_layer(label: &str, layers: usize, series: &[Series]) -> String {
    let (x, x_ticks) = layer_axis(layers);
    let y = Scale::from_zero(series.iter().flat_map(|one| &one.points).map(|point| point.1));
    let tip = |layer: usize| {
        let mut tip = format!("layer {layer}");
        for one in series {
            let found =
                one.points.iter().find(|point| point.0 == layer as f64 && !point.1.is_nan());
            if let Some((_, value)) = found {
                let _ = write!(tip, "\n{}  {}", number(*value), one.name);
            }
        }
        tip
    };
    let hits: Vec<Hit> = (0..layers)
        .map(|i| Hit { from: i as f64 - 0.5, to: i as f64 + 0.5, tip: tip(i) })
        .collect();
    let frame = Frame {
        label,
        x_label: "layer",
        y_label: "relative output error",
        x_ticks,
        y_ticks: y.ticks(),
        level: None,
        height: "plain",
    };
    legend(series, None) + &frame.around(&(chart::lines(series, x, y) + &chart::hits(&hits, x)))
}

/// Points at layers 0, 1, 2, ..
pub(super) fn over_layers(values: impl Iterator<Item = f64>) -> Vec<(f64, f64)> {
    values.enumerate().map(|(layer, value)| (layer as f64, value)).collect()
}

/// Output error of the decoder layers, of one or more runs; nothing if no run
/// has layers.
pub(super) fn decoder_error(runs: &[Charted<'_>]) -> String {
    let layers = runs.iter().map(|(_, _, record)| record.layers.len()).max().unwrap_or(0);
    if layers == 0 {
        return String::new();
    }
    let series: Vec<Series> = (runs.iter())
        .map(|(number, name, record)| Series {
            number: *number,
            name: name.clone(),
            points: over_layers(record.layers.iter().map(|layer| layer.decoder_error)),
        })
        .collect();
    card(
        "Decoder error",
        "Relative change of each decoder layer's output when the layer is pruned.",
        false,
        &by_layer("Decoder error by layer", layers, &series),
    )
}

fn projection_errors(record: &Record, projections: &Projections) -> String {
    let cells = projections.cells(record);
    let series: Vec<Series> = (projections.names.iter().enumerate())
        .map(|(i, name)| Series {
            number: i,
            name: name.clone(),
            points: over_layers((0..cells.layers).map(|l| cells.error(l, i).unwrap_or(f64::NAN))),
        })
        .filter(|one| one.points.iter().any(|point| !point.1.is_nan()))
        .collect();
    if series.is_empty() {
        return String::new();
    }
    card(
        "Error by projection",
        "Relative output error of each pruned linear on its calibration inputs.",
        false,
        &by_layer("Error of each projection by layer", cells.layers, &series),
    )
}

fn heat(record: &Record, projections: &Projections) -> String {
    let cells = projections.cells(record);
    let errors = record.linears().filter(|l| l.method.is_some()).map(|l| l.error);
    let worst = errors.filter(|e| e.is_finite()).fold(0.0, f64::max);
    let heat = Heat {
        label: "Error by layer and projection",
        rows: &projections.names,
        columns: record.layers.iter().map(|layer| layer.index.to_string()).collect(),
        tone: "one",
        ends: ("0".to_string(), number(worst)),
    };
    let drawn = heat.draw(|layer, projection| {
        let linear = cells.get(layer, projection)?;
        let name = &projections.names[projection];
        let mut tip = format!("layer {}  {name}\n", record.layers[layer].index);
        match &linear.method {
            None => tip.push_str("dense"),
            Some(_) => {
                let (error, density) = (number(linear.error), percent(linear.density));
                let _ = write!(tip, "error {error}\ndensity {density}");
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
        "Error by layer and projection",
        "The same errors as a heat map: the stronger the color, the larger the error.",
        true,
        &drawn,
    )
}

fn times(record: &Record) -> String {
    const PARTS: [&str; 3] = ["forward passes", "pruning", "reading and writing"];
    let parts: Vec<Vec<f64>> = (record.layers.iter())
        .map(|l| {
            let rest = (l.seconds - l.forward_seconds - l.prune_seconds).max(0.0);
            vec![l.forward_seconds, l.prune_seconds, rest]
        })
        .collect();
    let sum = |bar: &Vec<f64>| bar.iter().filter(|s| s.is_finite()).sum::<f64>();
    let y = Scale::from_zero(parts.iter().map(sum));
    let (x, x_ticks) = layer_axis(parts.len());
    let hits: Vec<Hit> = (parts.iter().zip(&record.layers).enumerate())
        .map(|(i, (bar, layer))| {
            let mut tip = format!("layer {}  {}", layer.index, format_seconds(layer.seconds));
            for (seconds, name) in bar.iter().zip(PARTS) {
                let _ = write!(tip, "\n{}  {name}", format_seconds(*seconds));
            }
            Hit { from: i as f64 - 0.5, to: i as f64 + 0.5, tip }
        })
        .collect();
    let frame = Frame {
        label: "Time by layer",
        x_label: "layer",
        y_label: "seconds",
        x_ticks,
        y_ticks: y.ticks(),
        level: None,
        height: "plain",
    };
    let plot = frame.around(&(chart::stacks(&parts, x, y) + &chart::hits(&hits, x)));
    let keys = chart::legend(PARTS.into_iter().enumerate(), "bar", None);
    card("Time by layer", "Wall time of each layer, without evaluation.", false, &(keys + &plot))
}
