//! Summarizes a run in a few lines for the terminal.

use super::{Record, SizeChange};
use crate::format::{count, format_bytes, format_seconds, grouped, percent};
use crate::shrink::{Change, ranges};
use std::fmt::Write;

/// Dropped experts with more than this share of what as many average ones have are hardly
/// redundant.
const LITTLE: f64 = 0.8;

/// The summary that `openwork prune` prints.
pub fn summary(record: &Record) -> String {
    let mut text = String::new();
    let mut put = |line: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    };
    put(format!("model        {} ({})", record.model, record.family));
    if record.passes.is_empty() {
        put(format!("spec         {}", record.spec_as_written()));
        put(format!("method       {}", record.method));
    }
    for (i, pass) in record.passes.iter().enumerate() {
        let change = Change { before: pass.before, after: pass.after };
        put(format!("pass {:<8}{} by {}", i + 1, pass.spec_as_written(), pass.method));
        put(format!("             {change}"));
        if !pass.dropped.is_empty() {
            put(format!("             layers {} dropped", ranges(&pass.dropped)));
        }
        if let Some(lost) = pass.score_lost {
            let dropped = 1.0 - pass.after.experts as f64 / pass.before.experts.max(1) as f64;
            let little =
                if lost > LITTLE * dropped { "; the experts show little redundancy" } else { "" };
            put(format!(
                "             the dropped experts had {} of the score{little}",
                percent(lost)
            ));
        }
    }
    if let Some(SizeChange { before, after }) = record.sizes.filter(|s| s.before != s.after) {
        let (from, to) = (grouped(before.parameters), grouped(after.parameters));
        put(format!("parameters   {to} (before {from})"));
        let (from, to) = (format_bytes(before.bytes), format_bytes(after.bytes));
        put(format!("size         {to} (before {from})"));
    }
    // Where structures were removed, the linears that are left are often dense.
    if record.sizes.is_none() || percent(record.totals.density) != "100%" {
        put(format!(
            "density      {} of the weights in linear layers",
            percent(record.totals.density)
        ));
    }
    put(format!("mean error   {:.4}", record.totals.mean_error));
    for (i, stage) in record.recovery.iter().enumerate() {
        let name = if i == 0 { "recovery" } else { "" };
        put(format!(
            "{name:<13}{}: held-out loss {:.4} before, {:.4} after, {} tokens in {}",
            stage.stage,
            stage.before,
            stage.after,
            grouped(stage.tokens),
            format_seconds(stage.seconds)
        ));
    }
    if let Some(last) = record.last() {
        let dense = record
            .dense()
            .map_or(String::new(), |dense| format!(" (dense {:.3})", dense.token_perplexity));
        put(format!("perplexity   {:.3} per token{dense}", last.token_perplexity));
        put(format!("             {:.3} per word", last.word_perplexity));
    }
    if let Some(found) = &record.similarity {
        put(format!(
            "similarity   {:.4} mean cosine to the dense vectors of {}",
            found.mean,
            count(found.texts, "text")
        ));
        put(format!("             {:.4} least", found.least));
    }
    for (i, (dense, task)) in record.task_pairs().into_iter().enumerate() {
        let name = if i == 0 { "tasks" } else { "" };
        let dense = dense.map_or(String::new(), |dense| format!(" (dense {:.4})", dense.acc));
        put(format!("{name:<13}{} {:.4}{dense}", task.name, task.acc));
    }
    put(format!("time         {}", format_seconds(record.totals.seconds)));
    if record.totals.peak_rss_bytes > 0 {
        put(format!("memory       {}", format_bytes(record.totals.peak_rss_bytes)));
    }
    text
}
