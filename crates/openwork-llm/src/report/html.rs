//! The report page: runs as one self-contained HTML file.

use super::compare::compare;
use super::facts::{facts, tables};
use super::projections::Projections;
use super::record::{Record, distinct};
use super::run::{charts, headline};
use crate::format::count;
use openwork::viz::escape_html;
use std::fs::File;
use std::io::Read;
use std::path::Path;

const CSS: &str = include_str!("page.css");
const JS: &str = include_str!("page.js");

/// Identifies a page that openwork wrote.
const GENERATOR: &str = "<meta name=\"generator\" content=\"openwork\">";

/// Whether a file is a page that openwork wrote.
pub fn is_page(path: &Path) -> bool {
    let mut start = Vec::new();
    let mut read = || File::open(path).and_then(|file| file.take(512).read_to_end(&mut start));
    // Opening a pipe would block.
    path.is_file() && read().is_ok() && String::from_utf8_lossy(&start).contains(GENERATOR)
}

/// One HTML page of named runs: charts, tables, notes. It contains its style and
/// script, loads nothing, and is readable without the script.
///
/// ```
/// let page = openwork_llm::report::page(&[]);
/// assert!(page.starts_with("<!doctype html>"));
/// ```
pub fn page(runs: &[(String, Record)]) -> String {
    let projections = Projections::new(runs.iter().map(|(_, record)| record));
    let title = match runs {
        [] => "No runs".to_string(),
        [(name, _)] => name.clone(),
        many => format!("{} runs", many.len()),
    };
    let mut body = String::new();
    match runs {
        [] => body.push_str("<header><h1>No runs</h1></header>"),
        [(name, record)] => {
            body.push_str(&header(&record.model, &subtitle(name, record)));
            body.push_str(&headline(record));
            body.push_str(&inside(record));
        }
        many => {
            let models = distinct(many.iter().map(|(_, record)| record.model.as_str())).join(", ");
            body.push_str(&header(&models, &format!("{} compared", count(many.len(), "run"))));
            body.push_str(&compare(many, &projections));
            body.push_str("<h2>Each run</h2>");
            for (name, record) in many {
                body.push_str(&format!(
                    "<details class=\"run\"><summary><b>{}</b> {} <code>{}</code></summary>{}{}</details>",
                    escape_html(name),
                    spec_code(record),
                    escape_html(&record.method),
                    headline(record),
                    inside(record)
                ));
            }
        }
    }
    document(&title, &body)
}

/// A whole page around its body.
pub(super) fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         {GENERATOR}\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{} \u{b7} openwork</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n\
         <div id=\"tip\" role=\"status\" hidden></div>\n<script>\n{JS}</script>\n</body>\n</html>\n",
        escape_html(title)
    )
}

/// Everything about one run except its headline.
fn inside(record: &Record) -> String {
    let projections = Projections::new([record].into_iter());
    charts(record, &projections) + &facts(record, &projections) + &tables(record)
}

/// The head of a page; the subtitle is HTML.
pub(super) fn header(title: &str, subtitle: &str) -> String {
    format!(
        "<header><div><h1>{}</h1><p>{subtitle}</p></div>\
         <button id=\"theme\" type=\"button\" hidden>Theme</button></header>",
        escape_html(title)
    )
}

fn subtitle(name: &str, record: &Record) -> String {
    format!(
        "{}: {} pruned by <code>{}</code>",
        escape_html(name),
        spec_code(record),
        escape_html(&record.method)
    )
}

/// The spec as the user wrote it, with its expansion on hover.
pub(super) fn spec_code(record: &Record) -> String {
    let written = record.spec_as_written();
    let title = match written == record.spec {
        true => String::new(),
        false => format!(" title=\"{}\"", escape_html(&record.spec)),
    };
    format!("<code{title}>{}</code>", escape_html(&written))
}
