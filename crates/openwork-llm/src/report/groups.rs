//! Decides which runs may be ranked against each other: those evaluated on the
//! same windows of the same text, from the same dense model.

use super::record::{EvaluationText, Record};
use crate::format::{count, number, windows};

/// Largest relative difference between two perplexities of one dense model,
/// measured on machines that round differently.
const SAME_DENSE: f64 = 1e-3;

/// Runs by number, in groups whose perplexities can be compared.
pub(super) fn groups(runs: &[(String, Record)]) -> Vec<Vec<usize>> {
    group_by(runs, comparable)
}

/// What keeps runs from being ranked together, in sentences for the user.
pub fn warnings(runs: &[(String, Record)]) -> Vec<String> {
    let mut warnings = Vec::new();
    let listed = |groups: &[Vec<usize>], describe: &dyn Fn(&Record) -> String| {
        let line = |group: &Vec<usize>| {
            let names: Vec<&str> = group.iter().map(|&run| runs[run].0.as_str()).collect();
            format!("{}: {}", names.join(", "), describe(&runs[group[0]].1))
        };
        groups.iter().map(line).collect::<Vec<_>>().join("; ")
    };
    let evaluated = groups(runs);
    if evaluated.len() > 1 {
        warnings.push(format!(
            "not ranked together, because the runs differ in evaluation text, windows or dense model ({})",
            listed(&evaluated, &describe_evaluation)
        ));
    }
    let calibrated = group_by(runs, same_calibration);
    if calibrated.len() > 1 {
        warnings.push(format!(
            "the runs were calibrated on different windows ({})",
            listed(&calibrated, &describe_calibration)
        ));
    }
    warnings
}

/// Whether two runs of one spec can be ranked: evaluated and calibrated alike.
pub(super) fn rankable(a: &Record, b: &Record) -> bool {
    a.spec_as_written() == b.spec_as_written() && comparable(a, b) && same_calibration(a, b)
}

/// `demo, 64 windows of 256 tokens`; old records do not name the text.
pub(super) fn describe_text(record: &Record) -> Option<String> {
    match (&record.evaluation, record.evaluations.first()) {
        (Some(EvaluationText { text, windows: n, seq_len, .. }), _) => {
            Some(format!("{text}, {}", windows(*n, *seq_len, 0)))
        }
        (None, Some(e)) => Some(format!("text not recorded, {}", count(e.tokens, "token"))),
        (None, None) => None,
    }
}

fn describe_evaluation(record: &Record) -> String {
    let text = describe_text(record).unwrap_or_else(|| "not evaluated".to_string());
    match record.dense() {
        Some(dense) => format!("{text}, dense perplexity {}", number(dense.token_perplexity)),
        None => format!("{text}, {}", record.model),
    }
}

fn describe_calibration(record: &Record) -> String {
    let c = &record.calibration;
    let windows = windows(c.samples, c.seq_len, c.single_tokens);
    format!("{}, {windows}, seed {}", c.text, record.seed)
}

/// Splits runs into groups whose members agree with the first of the group.
fn group_by(runs: &[(String, Record)], same: impl Fn(&Record, &Record) -> bool) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (i, (_, record)) in runs.iter().enumerate() {
        match groups.iter_mut().find(|group| same(&runs[group[0]].1, record)) {
            Some(group) => group.push(i),
            None => groups.push(vec![i]),
        }
    }
    groups
}

fn comparable(a: &Record, b: &Record) -> bool {
    let tokens = |record: &Record| record.evaluations.first().map(|e| e.tokens);
    let same_text = match (&a.evaluation, &b.evaluation) {
        (Some(a), Some(b)) => a.sha256 == b.sha256 && a.seq_len == b.seq_len,
        _ => tokens(a) == tokens(b),
    };
    let same_dense = match (a.dense(), b.dense()) {
        (Some(a), Some(b)) => {
            let (a, b) = (a.token_perplexity, b.token_perplexity);
            (a - b).abs() <= SAME_DENSE * a.abs().max(b.abs()) || a.is_nan() && b.is_nan()
        }
        _ => a.model == b.model,
    };
    // A run that was not evaluated is in nobody's way.
    (same_text || a.evaluations.is_empty() || b.evaluations.is_empty()) && same_dense
}

fn same_calibration(a: &Record, b: &Record) -> bool {
    a.calibration.sha256 == b.calibration.sha256
}
