//! The cards that show what training recovered: its stages, the losses of layers, and
//! the curves of stages that train the whole model.

use super::chart::{self, Frame, Series};
use super::record::{LayerRecovery, Record, RecoveryRecord};
use super::run::{by_layer, card, over_layers, whole};
use super::scale::Scale;
use crate::format::{format_seconds, grouped, number};
use openwork::viz::escape_html;
use std::fmt::Write;

/// The cards; nothing if nothing was trained.
pub(super) fn cards(record: &Record) -> String {
    if record.recovery.is_empty() {
        return String::new();
    }
    let mut out = card(
        "Recovery",
        "Loss of the held-out windows before and after each stage.",
        false,
        &stages(&record.recovery),
    );
    out += &layers(record);
    for stage in record.recovery.iter().filter(|stage| !stage.curve.is_empty()) {
        out += &curve(stage);
    }
    out
}

fn stages(stages: &[RecoveryRecord]) -> String {
    let mut out = "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Recovery\"><table><thead><tr><th scope=\"col\">stage</th><th scope=\"col\">before</th><th scope=\"col\">after</th><th scope=\"col\">tokens</th><th scope=\"col\">time</th></tr></thead><tbody>".to_string();
    for stage in stages {
        let _ = write!(
            out,
            "<tr><td><code>{}</code></td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape_html(&stage.stage),
            number(stage.before),
            number(stage.after),
            grouped(stage.tokens),
            format_seconds(stage.seconds)
        );
    }
    out + "</tbody></table></div>"
}

/// The loss of every layer before and after its training.
fn layers(record: &Record) -> String {
    if record.layers.iter().all(|layer| layer.recovery.is_none()) {
        return String::new();
    }
    let series = |number: usize, name: &str, of: fn(&LayerRecovery) -> f64| Series {
        number,
        name: name.to_string(),
        points: over_layers(
            record.layers.iter().map(|layer| layer.recovery.as_ref().map_or(f64::NAN, of)),
        ),
    };
    let series =
        [series(0, "before", |layer| layer.before), series(1, "after", |layer| layer.after)];
    card(
        "Recovery by layer",
        "Squared distance to the dense model's output of the layer, relative to that output.",
        false,
        &by_layer("Held-out loss by layer", record.layers.len(), &series),
    )
}

/// The losses of a stage that trained the whole model.
fn curve(stage: &RecoveryRecord) -> String {
    let start = (0.0, stage.before);
    let held_out = stage.curve.iter().map(|point| (point.step as f64, point.held_out));
    let trained = stage.curve.iter().filter_map(|point| Some((point.step as f64, point.loss?)));
    let series = [
        Series {
            number: 0,
            name: "held out".to_string(),
            points: std::iter::once(start).chain(held_out).collect(),
        },
        Series { number: 1, name: "trained on".to_string(), points: trained.collect() },
    ];
    let last = stage.curve.last().map_or(1.0, |point| point.step as f64);
    let x = Scale::exact(0.0, last);
    let y = Scale::around(series.iter().flat_map(|one| &one.points).map(|point| point.1));
    let frame = Frame {
        label: "Loss against steps",
        x_label: "steps",
        y_label: if y.is_log() { "loss (log scale)" } else { "loss" },
        x_ticks: whole(x.ticks()),
        y_ticks: y.ticks(),
        level: None,
        height: "plain",
    };
    let legend =
        chart::legend(series.iter().map(|one| (one.number, one.name.as_str())), "line", None);
    let rate = stage.lr.map_or("no learning rate lowered the loss".to_string(), |lr| {
        format!("learning rate {lr:e}")
    });
    card(
        &format!("Training: {}", stage.stage),
        &format!("Distance to the dense model's distribution of tokens; {rate}."),
        false,
        &(legend + &frame.around(&chart::lines(&series, x, y))),
    )
}
