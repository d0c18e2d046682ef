//! The section of the page on tasks: accuracies of the dense and the pruned model.

use super::record::{Record, TaskRecord};
use super::run::card;
use crate::format::{grouped, number};
use openwork::viz::escape_html;
use std::fmt::Write;

/// A card with one table of all tasks; a run has a column. Nothing if no run was
/// scored.
pub(super) fn tasks(runs: &[(String, &Record)]) -> String {
    let mut names: Vec<(&str, &str)> = Vec::new();
    let all = runs.iter().flat_map(|(_, record)| &record.tasks);
    for task in all {
        if !names.contains(&(&task.name, &task.sha256)) {
            names.push((&task.name, &task.sha256));
        }
    }
    if names.is_empty() {
        return String::new();
    }
    let mut table = "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Tasks\"><table><thead><tr>\
        <th scope=\"col\">task</th><th scope=\"col\">documents</th><th scope=\"col\">dense</th>"
        .to_string();
    for (name, _) in runs {
        let name = if name.is_empty() { "pruned" } else { name };
        let _ = write!(table, "<th scope=\"col\">{}</th>", escape_html(name));
    }
    table.push_str("</tr></thead><tbody>");
    for (name, sha256) in names {
        let find = |record: &'_ Record, pruned: bool| -> Option<TaskRecord> {
            let same = |task: &&TaskRecord| {
                task.after_layer.is_some() == pruned
                    && (&*task.name, &*task.sha256) == (name, sha256)
            };
            record.tasks.iter().rfind(same).cloned()
        };
        let dense = runs.iter().find_map(|(_, record)| find(record, false));
        let docs = runs.iter().find_map(|(_, record)| {
            record.tasks.iter().find(|task| task.sha256 == sha256).map(|task| task.docs)
        });
        let _ = write!(
            table,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td>",
            escape_html(name),
            grouped(docs.unwrap_or(0) as u64),
            cell(dense.as_ref())
        );
        for (_, record) in runs {
            let _ = write!(table, "<td>{}</td>", cell(find(record, true).as_ref()));
        }
        table.push_str("</tr>");
    }
    table.push_str("</tbody></table></div>");
    let about = "Share of correct answers with its standard error; below it, by log-likelihood per byte of the choice.";
    card("Tasks", about, runs.len() > 1, &table)
}

/// The accuracies of a score; a dash if it was not measured.
fn cell(task: Option<&TaskRecord>) -> String {
    let Some(task) = task else { return "\u{2013}".to_string() };
    let error = task.stderr.map_or(String::new(), |error| format!(" \u{b1} {error:.4}"));
    let perplexity = task
        .perplexity
        .map_or(String::new(), |perplexity| format!(", perplexity {}", number(perplexity)));
    format!("{:.4}{error}<br><small>{:.4}{perplexity}</small>", task.acc, task.acc_norm)
}
