//! The sections of the page on a run's patterns, options, damping and notes, and
//! the tables of all figures.

use super::groups::describe_text;
use super::projections::Projections;
use super::record::Record;
use super::run::{card, cards};
use crate::format::{count, format_bytes, format_seconds, grouped, number, percent, windows};
use openwork::Pattern;
use openwork::viz::escape_html;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Patterns, options, damping, notes.
pub(super) fn facts(record: &Record, projections: &Projections) -> String {
    let options = card("How it was run", "Options, data and resources.", false, &options(record));
    cards(&(patterns(record) + &options + &damping(record, projections) + &notes(record)))
}

/// A drawing of each pattern in use; nothing if none is.
fn patterns(record: &Record) -> String {
    const MOST: usize = 4;
    // Specs as written, each with the first pattern that it expands to.
    let mut specs: Vec<(&str, &str)> = Vec::new();
    for linear in record.linears() {
        if let (Some(written), Some(spec)) = (linear.spec_as_written(), &linear.spec)
            && !specs.iter().any(|known| known.0 == written)
        {
            specs.push((written, spec));
        }
    }
    if specs.is_empty() {
        return String::new();
    }
    let mut content = String::new();
    for (written, spec) in specs.iter().take(MOST) {
        let _ = write!(content, "<div class=\"pic\"><code>{}</code>", escape_html(written));
        if written != spec {
            content.push_str(&expanded(spec));
        }
        content.push_str(&drawing(spec).unwrap_or_default());
        content.push_str("</div>");
    }
    if specs.len() > MOST {
        let _ =
            write!(content, "<p>{} more in the table of linear layers.</p>", specs.len() - MOST);
    }
    card("Pattern", "Each spec in use, drawn on a small matrix.", false, &content)
}

/// The expansion of a spec, folded away.
fn expanded(spec: &str) -> String {
    format!("<details><summary>expanded</summary><code>{}</code></details>", escape_html(spec))
}

/// The pattern on the first of some small shapes that it fits.
fn drawing(spec: &str) -> Option<String> {
    const SHAPES: &[[usize; 2]] = &[
        [4, 16],
        [8, 16],
        [16, 16],
        [16, 32],
        [32, 32],
        [32, 64],
        [64, 64],
        [128, 128],
        [256, 256],
    ];
    let pattern: Pattern = spec.parse().ok()?;
    let members = pattern.members();
    let spec = SHAPES.iter().find_map(|shape| {
        if members.is_empty() {
            return pattern.bind(shape).ok();
        }
        let tensors: Vec<(&str, &[usize])> = members.iter().map(|&m| (m, &shape[..])).collect();
        pattern.bind_all(&tensors).ok()
    })?;
    // Inline SVG needs no namespace.
    Some(openwork::viz::svg(&spec, 1).replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1))
}

fn options(record: &Record) -> String {
    let (options, calibration) = (&record.options, &record.calibration);
    let written = record.spec_as_written();
    let evaluation = match (&record.evaluation, describe_text(record)) {
        (Some(e), Some(text)) => format!("{text}, {} scored", count(e.tokens, "token")),
        (_, text) => text.unwrap_or_else(|| "none".to_string()),
    };
    let mut rows = vec![
        ("model", format!("{} ({})", record.model, record.family)),
        ("spec", written.clone()),
        ("method", record.method.clone()),
        (
            "calibration",
            format!(
                "{}, {}, {}",
                calibration.text,
                windows(calibration.samples, calibration.seq_len, calibration.single_tokens),
                count(calibration.tokens, "token")
            ),
        ),
        ("seed", record.seed.to_string()),
        ("evaluation", evaluation),
        (
            "inputs",
            if options.sequential {
                "recaptured after each site"
            } else {
                "captured once per layer"
            }
            .to_string(),
        ),
        ("dtype", options.dtype.clone()),
        ("threads", options.threads.to_string()),
        ("time", format_seconds(record.totals.seconds)),
        ("peak memory", format_bytes(record.totals.peak_rss_bytes)),
    ];
    rows.extend(options.include.iter().map(|text| ("include", text.clone())));
    rows.extend(options.exclude.iter().map(|text| ("exclude", text.clone())));
    rows.push(("openwork", record.openwork.clone()));
    let mut out = "<dl class=\"facts\">".to_string();
    for (name, value) in rows {
        let more = match name == "spec" && written != record.spec {
            true => expanded(&record.spec),
            false => String::new(),
        };
        let _ = write!(out, "<dt>{name}</dt><dd>{}{more}</dd>", escape_html(&value));
    }
    out + "</dl>"
}

/// Number of layers that used each damping, by projection; nothing without damping.
fn damping(record: &Record, projections: &Projections) -> String {
    const TITLE: &str = "Damping";
    let mut dampings: Vec<&str> = record.linears().filter_map(|l| l.damping.as_deref()).collect();
    dampings.sort_by(|a, b| strength(a).total_cmp(&strength(b)).then(a.cmp(b)));
    dampings.dedup();
    if dampings.is_empty() {
        return String::new();
    }
    let cells = projections.cells(record);
    let mut table =
        "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th scope=\"col\">projection</th>"
            .to_string();
    for damping in &dampings {
        let _ = write!(table, "<th scope=\"col\">{}</th>", escape_html(damping));
    }
    table.push_str("</tr></thead><tbody>");
    for (projection, name) in projections.names.iter().enumerate() {
        let _ = write!(table, "<tr><th scope=\"row\">{}</th>", escape_html(name));
        for damping in &dampings {
            let count = (0..cells.layers)
                .filter_map(|layer| cells.get(layer, projection))
                .filter(|linear| linear.damping.as_deref() == Some(damping))
                .count();
            let _ = match count {
                0 => write!(table, "<td class=\"none\">\u{b7}</td>"),
                n => write!(table, "<td>{n}</td>"),
            };
        }
        table.push_str("</tr>");
    }
    table.push_str("</tbody></table></div>");
    card(TITLE, "Number of layers that used each value.", false, &table)
}

/// The number in `diag:0.1`, for sorting.
fn strength(damping: &str) -> f64 {
    damping.rsplit(':').next().and_then(|number| number.parse().ok()).unwrap_or(f64::INFINITY)
}

/// The notes of the run, then those of linears, each once with its tensors; nothing
/// if there are none.
fn notes(record: &Record) -> String {
    const MOST_NAMES: usize = 3;
    let mut by_note: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for linear in record.linears() {
        for note in &linear.notes {
            by_note.entry(note).or_default().push(&linear.name);
        }
    }
    let mut list = String::new();
    for note in &record.notes {
        let _ = write!(list, "<li>{}</li>", escape_html(note));
    }
    for (note, names) in by_note {
        let shown = names.iter().take(MOST_NAMES).copied().collect::<Vec<_>>().join(", ");
        let more = match names.len().saturating_sub(MOST_NAMES) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let _ = write!(
            list,
            "<li>{}<br><small>{}{more}</small></li>",
            escape_html(note),
            escape_html(&shown)
        );
    }
    match list.is_empty() {
        true => String::new(),
        false => {
            let list = format!("<ul class=\"notes\">{list}</ul>");
            card("Notes", "About the run and single tensors.", false, &list)
        }
    }
}

/// Tables of all figures, folded away.
pub(super) fn tables(record: &Record) -> String {
    let mut out = "<details class=\"data\"><summary>All figures</summary>".to_string();
    if record.similarity.is_none() {
        out.push_str(&table(
            "Perplexity",
            &["after layer", "per token", "per word", "tokens scored", "time"],
            record.evaluations.iter().map(|e| {
                let after = e.after_layer.map_or("dense".to_string(), |layer| layer.to_string());
                let tokens = grouped(e.tokens as u64);
                vec![
                    after,
                    number(e.token_perplexity),
                    number(e.word_perplexity),
                    tokens,
                    format_seconds(e.seconds),
                ]
            }),
        ));
    }
    if let Some(found) = &record.similarity {
        let row = vec![
            grouped(found.texts as u64),
            number(found.mean),
            number(found.least),
            grouped(found.tokens as u64),
            format_seconds(found.seconds),
        ];
        let head = ["texts", "mean cosine", "lowest cosine", "tokens", "time"];
        out.push_str(&table("Similarity to the dense vectors", &head, [row].into_iter()));
    }
    if !record.tasks.is_empty() {
        let head = [
            "task",
            "after layer",
            "documents",
            "accuracy",
            "normalized",
            "standard error",
            "time",
        ];
        let rows = record.tasks.iter().map(|task| {
            vec![
                task.name.clone(),
                task.after_layer.map_or("dense".to_string(), |layer| layer.to_string()),
                grouped(task.docs as u64),
                number(task.acc),
                number(task.acc_norm),
                task.stderr.map_or(String::new(), number),
                format_seconds(task.seconds),
            ]
        });
        out.push_str(&table("Tasks", &head, rows));
    }
    out.push_str(&table(
        "Layers",
        &["layer", "decoder error", "time", "forward passes", "pruning"],
        record.layers.iter().map(|l| {
            let times = [l.seconds, l.forward_seconds, l.prune_seconds].map(format_seconds);
            [vec![l.index.to_string(), number(l.decoder_error)], times.to_vec()].concat()
        }),
    ));
    let rows = record.linears().map(|l| {
        vec![
            l.name.clone(),
            format!("{} \u{d7} {}", l.shape[0], l.shape[1]),
            l.spec_as_written().unwrap_or_default().to_string(),
            l.method.clone().unwrap_or("dense".to_string()),
            number(l.error),
            percent(l.density),
            l.damping.clone().unwrap_or_default(),
            format_seconds(l.seconds),
        ]
    });
    let head = ["tensor", "shape", "spec", "method", "error", "density", "damping", "time"];
    out.push_str(&table("Linears", &head, rows));
    out + "</details>"
}

/// A table that scrolls horizontally if it is too wide.
fn table(name: &str, head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut out = format!(
        "<h4>{name}</h4><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{name}\"><table><thead><tr>"
    );
    for title in head {
        let _ = write!(out, "<th scope=\"col\">{title}</th>");
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for (i, cell) in row.iter().enumerate() {
            let cell = escape_html(cell);
            let _ = match i {
                0 => write!(out, "<th scope=\"row\">{cell}</th>"),
                _ => write!(out, "<td>{cell}</td>"),
            };
        }
        out.push_str("</tr>");
    }
    out + "</tbody></table></div>"
}
