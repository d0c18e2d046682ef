//! The page of a frontier: the verdict, two charts and the table of points.

use super::chart::{Frame, legend, short};
use super::html::{document, header};
use super::run::{card, cards};
use super::scale::Scale;
use crate::format::{count, format_bytes, number};
use crate::frontier::{Frontier, Kind, Point, TaskAccuracy};
use openwork::viz::escape_html;
use std::fmt::Write;

/// The kinds of points, with their names; their order is that of the colors.
const KINDS: [(Kind, &str); 3] =
    [(Kind::Dense, "unpruned"), (Kind::Pruned, "pruned"), (Kind::Gguf, "GGUF file")];

/// One HTML page of a frontier: the verdict, charts and table. It contains its style and
/// script, and loads nothing.
pub fn frontier_page(frontier: &Frontier) -> String {
    let about = format!(
        "Perplexity on {} ({}, windows of {}), {}",
        escape_html(&frontier.text),
        count(frontier.tokens, "token"),
        count(frontier.seq_len, "token"),
        count(frontier.threads, "thread"),
    );
    let mut body = header(&frontier.model, &about);
    let _ = write!(body, "<p class=\"verdict\">{}</p>", escape_html(&frontier.verdict));
    let by_size = Axis {
        title: "Perplexity against size",
        label: "MB",
        of: |point| Some(point.bytes as f64 / 1e6),
        best: |point| point.best,
        better_right: false,
    };
    let by_speed = Axis {
        title: "Perplexity against speed",
        label: "tokens/s",
        of: |point| point.tokens_per_second,
        best: |point| point.best_for_speed,
        better_right: true,
    };
    let charts = by_size.card(&frontier.points) + &by_speed.card(&frontier.points);
    body.push_str(&cards(&(charts + &table(&frontier.points))));
    document(&format!("{} frontier", frontier.model), &body)
}

/// A horizontal axis: what perplexity is drawn against.
struct Axis {
    title: &'static str,
    label: &'static str,
    of: fn(&Point) -> Option<f64>,
    best: fn(&Point) -> bool,
    /// Whether more is better.
    better_right: bool,
}

impl Axis {
    /// The chart; nothing without points.
    fn card(&self, points: &[Point]) -> String {
        let shown: Vec<(&Point, f64)> =
            points.iter().filter_map(|point| Some((point, (self.of)(point)?))).collect();
        if shown.is_empty() {
            return String::new();
        }
        let x = Scale::around(shown.iter().map(|(_, x)| *x));
        let y = Scale::around(shown.iter().map(|(point, _)| point.token_perplexity));
        let place = |point: &Point, at: f64| Some((x.place(at)?, y.place(point.token_perplexity)?));
        let mut best: Vec<(f64, f64)> = shown
            .iter()
            .filter(|(point, _)| (self.best)(point))
            .filter_map(|(point, at)| place(point, *at))
            .collect();
        best.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut shapes = format!("<path class=\"even\" d=\"{}\"/>", self.steps(&best));
        let mut names = String::new();
        for (point, at) in &shown {
            let Some((px, py)) = place(point, *at) else { continue };
            let path = format!("M{} {}h0", short(1000.0 * px), short(1000.0 * (1.0 - py)));
            let color = KINDS.iter().position(|(kind, _)| *kind == point.kind).unwrap_or(0);
            let marked = if (self.best)(point) { " marked" } else { "" };
            let _ = write!(
                shapes,
                "<g data-tip=\"{}\"><path class=\"reach\" d=\"{path}\"/><path class=\"dots s{color}{marked}\" d=\"{path}\"/></g>",
                escape_html(&tip(point))
            );
            if (self.best)(point) {
                let _ = write!(
                    names,
                    "<span{} style=\"left:{}%;top:{}%\">{}</span>",
                    if px > 0.7 { " class=\"left\"" } else { "" },
                    short(100.0 * px),
                    short(100.0 * (1.0 - py)),
                    escape_html(&point.name)
                );
            }
        }
        let label = format!("{}, {}", self.title, count(shown.len(), "point"));
        let frame = Frame {
            label: &label,
            x_label: self.label,
            y_label: if y.is_log() { "perplexity, log scale" } else { "perplexity" },
            x_ticks: x.ticks(),
            y_ticks: y.ticks(),
            level: None,
            height: "plain tall",
        };
        let kinds = KINDS
            .iter()
            .enumerate()
            .filter(|(_, (kind, _))| shown.iter().any(|(point, _)| point.kind == *kind))
            .map(|(i, (_, name))| (i, *name));
        let plot = frame.around_with_names(&shapes, &names);
        let about = "The dashed line connects the Pareto-optimal points.";
        card(self.title, about, true, &(legend(kinds, "dot", None) + &plot))
    }

    /// The line that bounds what was reached: level from a point towards worse amounts.
    fn steps(&self, best: &[(f64, f64)]) -> String {
        let mut path = String::new();
        for (i, (x, y)) in best.iter().enumerate() {
            let (x, y) = (short(1000.0 * x), short(1000.0 * (1.0 - y)));
            match (i, self.better_right) {
                (0, _) => path = format!("M{x} {y}"),
                (_, false) => path += &format!("H{x}V{y}"),
                (_, true) => path += &format!("V{y}H{x}"),
            }
        }
        path
    }
}

fn tip(point: &Point) -> String {
    let mut tip = format!(
        "{}\nperplexity {}\n{}",
        point.name,
        number(point.token_perplexity),
        format_bytes(point.bytes)
    );
    if let Some(speed) = point.tokens_per_second {
        let _ = write!(tip, "\n{} tokens/s", number(speed));
    }
    for task in &point.tasks {
        let _ = write!(tip, "\n{} {:.4}", task.name, task.acc);
    }
    tip
}

fn table(points: &[Point]) -> String {
    let mut out = "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Points\"><table class=\"runs\"><thead><tr>".to_string();
    // All points are scored on the same tasks.
    let tasks = points.first().map_or(&[][..], |point| &point.tasks);
    let tasks = tasks.iter().map(|task| escape_html(&task.name));
    for name in
        ["model", "size", "perplexity", "tokens/s"].map(String::from).into_iter().chain(tasks)
    {
        let _ = write!(out, "<th scope=\"col\">{name}</th>");
    }
    out.push_str("<th scope=\"col\">best for</th>");
    out.push_str("</tr></thead><tbody>");
    for point in points {
        let color = KINDS.iter().position(|(kind, _)| *kind == point.kind).unwrap_or(0);
        let best = [(point.best, "size"), (point.best_for_speed, "speed")];
        let best: Vec<&str> = best.iter().filter(|(yes, _)| *yes).map(|(_, name)| *name).collect();
        let _ = write!(
            out,
            "<tr><th scope=\"row\"><svg class=\"swatch\" viewBox=\"0 0 20 10\" aria-hidden=\"true\"><circle class=\"f{color}\" cx=\"12\" cy=\"5\" r=\"4\"/></svg>{}<small>{}</small></th>\
             <td>{}</td><td>{}</td><td>{}</td>{}<td>{}</td></tr>",
            escape_html(&point.name),
            escape_html(&point.note),
            format_bytes(point.bytes),
            number(point.token_perplexity),
            point.tokens_per_second.map_or("\u{2013}".to_string(), number),
            point.tasks.iter().map(cell).collect::<String>(),
            best.join(", ")
        );
    }
    let about = match points.first().is_some_and(|point| !point.tasks.is_empty()) {
        true => {
            "Tasks: share of correct answers with its standard error; below it, by log-likelihood per byte of the choice."
        }
        false => "",
    };
    card("Points", about, true, &(out + "</tbody></table></div>"))
}

/// The accuracies on a task.
fn cell(task: &TaskAccuracy) -> String {
    let error = task.stderr.map_or(String::new(), |error| format!(" \u{b1} {error:.4}"));
    format!("<td>{:.4}{error}<br><small>{:.4}</small></td>", task.acc, task.acc_norm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::{mark, tests::point, verdict};

    #[test]
    fn the_page_shows_every_point_and_the_verdict() {
        let mut points = vec![
            point("dense bf16", 270, 22.7, Some(85.0)),
            point("dense int4", 80, 25.0, None),
            point("2:4 <int4>", 60, 49.0, Some(150.0)),
        ];
        points.iter_mut().for_each(|point| {
            let name = "arc <easy>".to_string();
            point.tasks =
                vec![TaskAccuracy { name, docs: 4, acc: 0.25, acc_norm: 0.5, stderr: Some(0.125) }];
        });
        mark(&mut points);
        let frontier = Frontier {
            model: "m".to_string(),
            text: "t.txt".to_string(),
            tokens: 100,
            seq_len: 32,
            threads: 2,
            verdict: verdict(&points, None, None),
            points,
        };
        let page = frontier_page(&frontier);
        assert!(page.contains("<p class=\"verdict\">From 80.0 MB dense int4"));
        assert!(page.contains("2:4 &lt;int4&gt;") && !page.contains("2:4 <int4>"));
        assert!(page.contains("arc &lt;easy&gt;</th>") && !page.contains("arc <easy>"));
        assert_eq!(page.matches("0.2500 \u{b1} 0.1250<br><small>0.5000").count(), 3);
        // Two charts of three and two points, all marked but none beaten.
        assert_eq!(page.matches("class=\"reach\"").count(), 5);
        assert_eq!(page.matches(" marked\"").count(), 5);
        let empty = Frontier { points: Vec::new(), ..frontier };
        assert!(!frontier_page(&empty).contains("class=\"reach\""));
    }
}
