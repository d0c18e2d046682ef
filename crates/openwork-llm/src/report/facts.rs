//! What a run used and said: patterns, options, damping, notes, and every figure.

use super::kinds::Kinds;
use super::record::Record;
use super::run::card;
use crate::format::{count, format_bytes, format_seconds, grouped, number, percent, windows};
use openwork::Pattern;
use openwork::viz::escape_html;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Patterns, options, damping, notes.
pub(super) fn facts(record: &Record, kinds: &Kinds) -> String {
    let mut out = "<div class=\"cards\">".to_string();
    out.push_str(&patterns(record));
    out.push_str(&card("How it was run", "What was asked for.", false, &options(record)));
    out.push_str(&damping(record, kinds));
    out.push_str(&notes(record));
    out + "</div>"
}

/// A picture of each pattern in use.
fn patterns(record: &Record) -> String {
    // More would be a gallery.
    const MOST: usize = 4;
    let mut specs: Vec<&str> = Vec::new();
    for spec in record.linears().filter_map(|linear| linear.spec.as_deref()) {
        if !specs.contains(&spec) {
            specs.push(spec);
        }
    }
    let mut content = String::new();
    for spec in specs.iter().take(MOST) {
        let _ = write!(content, "<div class=\"pic\"><code>{}</code>", escape_html(spec));
        content.push_str(&picture(spec).unwrap_or_default());
        content.push_str("</div>");
    }
    if specs.len() > MOST {
        let _ = write!(
            content,
            "<p>And {} more; the table of linears lists them.</p>",
            specs.len() - MOST
        );
    }
    let about = match specs.len() {
        0 => "Nothing was pruned.",
        1 => "On a small matrix: colours are blocks, outlines are scopes.",
        _ => "Each on a small matrix: colours are blocks, outlines are scopes.",
    };
    card("Pattern", about, false, &content)
}

/// The pattern on the first of some small shapes that it fits.
fn picture(spec: &str) -> Option<String> {
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
    // In a page the name space goes without saying.
    Some(openwork::viz::svg(&spec, 1).replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1))
}

fn options(record: &Record) -> String {
    let (options, calibration) = (&record.options, &record.calibration);
    let mut rows = vec![
        ("model", format!("{} ({})", record.model, record.family)),
        ("spec", record.spec.clone()),
        ("method", record.method.clone()),
        (
            "calibration",
            format!(
                "{}: {}, {}",
                calibration.text,
                windows(calibration.samples, calibration.seq_len, calibration.single_tokens),
                count(calibration.tokens, "token")
            ),
        ),
        ("seed", record.seed.to_string()),
        (
            "inputs",
            if options.sequential { "captured anew at each site" } else { "captured once a layer" }
                .to_string(),
        ),
        ("written as", options.dtype.clone()),
        ("threads", options.threads.to_string()),
        ("memory", format_bytes(record.totals.peak_rss_bytes)),
    ];
    rows.extend(options.include.iter().map(|text| ("include", text.clone())));
    rows.extend(options.exclude.iter().map(|text| ("exclude", text.clone())));
    rows.push(("openwork", record.openwork.clone()));
    let mut out = "<dl class=\"facts\">".to_string();
    for (name, value) in rows {
        let _ = write!(out, "<dt>{name}</dt><dd>{}</dd>", escape_html(&value));
    }
    out + "</dl>"
}

/// How often each damping was in force, by projection.
fn damping(record: &Record, kinds: &Kinds) -> String {
    const TITLE: &str = "Damping";
    let mut dampings: Vec<&str> = record.linears().filter_map(|l| l.damping.as_deref()).collect();
    dampings.sort_by(|a, b| strength(a).total_cmp(&strength(b)).then(a.cmp(b)));
    dampings.dedup();
    if dampings.is_empty() {
        return card(TITLE, "None was in force.", false, "");
    }
    let cells = kinds.cells(record);
    let mut table =
        "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th scope=\"col\">projection</th>"
            .to_string();
    for damping in &dampings {
        let _ = write!(table, "<th scope=\"col\">{}</th>", escape_html(damping));
    }
    table.push_str("</tr></thead><tbody>");
    for (kind, name) in kinds.names.iter().enumerate() {
        let _ = write!(table, "<tr><th scope=\"row\">{}</th>", escape_html(name));
        for damping in &dampings {
            let count = (0..cells.layers)
                .filter_map(|layer| cells.get(layer, kind))
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
    card(TITLE, "How many layers used each.", false, &table)
}

/// The number in `diag:0.1`, to sort by.
fn strength(damping: &str) -> f64 {
    damping.rsplit(':').next().and_then(|number| number.parse().ok()).unwrap_or(f64::INFINITY)
}

/// The run's notes, then those of linears, each said once with where it holds.
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
        true => card("Notes", "Nothing out of the ordinary.", false, ""),
        false => card(
            "Notes",
            "What the run has to say.",
            false,
            &format!("<ul class=\"notes\">{list}</ul>"),
        ),
    }
}

/// Every figure of every linear and layer, folded away.
pub(super) fn tables(record: &Record) -> String {
    let mut out = "<details class=\"data\"><summary>Every figure</summary>".to_string();
    out.push_str(&table(
        "Perplexities",
        &["after layer", "per token", "per word", "tokens", "seconds"],
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
            l.spec.clone().unwrap_or_default(),
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

/// A table that scrolls sideways where it must.
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
