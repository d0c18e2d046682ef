//! The score of a model on tasks.

use super::{Document, Task, TaskError};
use crate::likelihood::{Likelihood, log_likelihoods};
use crate::model::{Layer, Model, ModelError};
use crate::tokens::Tokenizer;
use serde_json::{Value, json};
use std::borrow::Borrow;
use std::ops::ControlFlow;
use std::time::Instant;

/// A model's answers to a task.
#[derive(Clone, Debug)]
pub struct TaskScore {
    /// The task's name.
    pub name: String,
    /// SHA-256 of the documents.
    pub sha256: String,
    /// The answers, in the order of the documents.
    pub documents: Vec<DocumentScore>,
    /// Wall time, from tokenizing on; tasks that are scored together share it by tokens.
    pub seconds: f64,
}

/// A model's answer to a document.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentScore {
    /// How likely each choice is.
    pub choices: Vec<Likelihood>,
    /// Whether the answer is correct.
    pub correct: bool,
    /// Whether it is correct with log-likelihoods per byte of the choice.
    pub correct_normalized: bool,
}

impl DocumentScore {
    fn new(document: &Document, choices: Vec<Likelihood>) -> Self {
        if let [only] = choices[..] {
            let correct = only.greedy;
            return Self { choices, correct, correct_normalized: correct };
        }
        let bytes = |i: usize| document.choices[i].len() as f64;
        let plain = best(choices.iter().map(|choice| choice.log));
        let normalized = best(choices.iter().enumerate().map(|(i, c)| c.log / bytes(i)));
        let correct = |answer: usize| answer == document.gold;
        Self { choices, correct: correct(plain), correct_normalized: correct(normalized) }
    }
}

/// The index of the largest value; of equal ones the first.
fn best(values: impl Iterator<Item = f64>) -> usize {
    let largest = values.enumerate().reduce(|a, b| if b.1 > a.1 { b } else { a });
    largest.map_or(0, |(index, _)| index)
}

impl TaskScore {
    /// Share of correct answers.
    pub fn acc(&self) -> f64 {
        share(self.documents.iter().map(|document| document.correct))
    }

    /// Share of correct answers by log-likelihood per byte of the choice.
    pub fn acc_norm(&self) -> f64 {
        share(self.documents.iter().map(|document| document.correct_normalized))
    }

    /// The standard error of [`acc`](Self::acc); `None` for one document.
    pub fn stderr(&self) -> Option<f64> {
        standard_error(self.acc(), self.documents.len())
    }

    /// The standard error of [`acc_norm`](Self::acc_norm); `None` for one document.
    pub fn acc_norm_stderr(&self) -> Option<f64> {
        standard_error(self.acc_norm(), self.documents.len())
    }

    /// `exp` of the mean negative log-likelihood of the choices of documents that have a
    /// single one, as LAMBADA reports it; `None` if there are none.
    pub fn perplexity(&self) -> Option<f64> {
        let single = self.documents.iter().filter_map(|document| match document.choices[..] {
            [only] => Some(only.log),
            _ => None,
        });
        let (sum, count) = single.fold((0.0, 0usize), |(sum, n), log| (sum - log, n + 1));
        (count > 0).then(|| (sum / count as f64).exp())
    }

    /// An entry of `tasks` in `openwork eval --json`.
    pub fn to_json(&self) -> Value {
        let mut entry = json!({
            "name": self.name,
            "docs": self.documents.len(),
            "acc": self.acc(),
            "acc_norm": self.acc_norm(),
            "stderr": self.stderr(),
            "acc_norm_stderr": self.acc_norm_stderr(),
            "seconds": self.seconds,
        });
        if let Some(perplexity) = self.perplexity() {
            entry["perplexity"] = json!(perplexity);
        }
        entry
    }

    /// One line per document, for `openwork eval --details`.
    pub fn details(&self) -> String {
        let line = |(i, document): (usize, &DocumentScore)| {
            let ll: Vec<f64> = document.choices.iter().map(|choice| choice.log).collect();
            let greedy: Vec<bool> = document.choices.iter().map(|choice| choice.greedy).collect();
            let DocumentScore { correct, correct_normalized, .. } = document;
            let line = json!({
                "task": self.name, "doc": i, "ll": ll, "greedy": greedy, "correct": correct,
                "correct_norm": correct_normalized,
            });
            format!("{line}\n")
        };
        self.documents.iter().enumerate().map(line).collect()
    }
}

/// The share of `true`.
fn share(answers: impl ExactSizeIterator<Item = bool>) -> f64 {
    let count = answers.len();
    answers.filter(|&correct| correct).count() as f64 / count as f64
}

/// The standard error of a mean of `n` zeros and ones, as lm-eval estimates it:
///
/// ```text
/// s / sqrt(n),   s^2 = sum_i (x_i - mean)^2 / (n - 1) = n mean (1 - mean) / (n - 1)
/// ```
fn standard_error(mean: f64, n: usize) -> Option<f64> {
    (n > 1).then(|| (mean * (1.0 - mean) / (n - 1) as f64).sqrt())
}

/// Scores a model with these layers on tasks, all together.
///
/// `layer` gives a layer, as for [`log_likelihoods`].
pub fn score<L: Borrow<Layer>>(
    model: &Model<'_>,
    tokenizer: &Tokenizer,
    layer: &mut dyn FnMut(usize) -> Result<L, ModelError>,
    tasks: &[Task],
    on_progress: &mut dyn FnMut(f64) -> ControlFlow<()>,
) -> Result<Vec<TaskScore>, TaskError> {
    let started = Instant::now();
    let encoded: Vec<_> =
        tasks.iter().map(|task| task.encode(model, tokenizer)).collect::<Result<_, _>>()?;
    let tokens: Vec<usize> =
        encoded.iter().map(|task| task.iter().flatten().map(|c| c.input_len()).sum()).collect();
    let groups: Vec<_> = encoded.into_iter().flatten().collect();
    let mut found = log_likelihoods(model, layer, &groups, on_progress)?.into_iter();
    let seconds = started.elapsed().as_secs_f64();
    let per_token = seconds / tokens.iter().sum::<usize>().max(1) as f64;
    let score = |(task, tokens): (&Task, usize)| TaskScore {
        name: task.name.clone(),
        sha256: task.sha256.clone(),
        documents: task
            .documents
            .iter()
            .zip(found.by_ref())
            .map(|(document, choices)| DocumentScore::new(document, choices))
            .collect(),
        seconds: per_token * tokens as f64,
    };
    Ok(tasks.iter().zip(tokens).map(score).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(choices: &[&str], logs: &[f64], gold: usize) -> DocumentScore {
        let document = Document {
            line: 1,
            contexts: vec![String::new()],
            choices: choices.iter().map(ToString::to_string).collect(),
            gold,
        };
        let likelihoods = logs.iter().map(|&log| Likelihood { log, greedy: log > -1.0 });
        DocumentScore::new(&document, likelihoods.collect())
    }

    #[test]
    fn the_likeliest_choice_is_the_answer_and_bytes_normalize_it() {
        let correct = |a: &DocumentScore| (a.correct, a.correct_normalized);
        // -4 > -5, but -4 / 2 < -5 / 4; two bytes each for "é".
        assert_eq!(correct(&answer(&["ab", "éé"], &[-4.0, -5.0], 0)), (true, false));
        assert_eq!(correct(&answer(&["ab", "éé"], &[-4.0, -5.0], 1)), (false, true));
        // Ties go to the first.
        assert_eq!(correct(&answer(&["a", "b"], &[-4.0, -4.0], 0)), (true, true));
        // A single choice must be what greedy decoding produces.
        assert_eq!(correct(&answer(&["a"], &[-0.5], 0)), (true, true));
        assert_eq!(correct(&answer(&["a"], &[-1.5], 0)), (false, false));
    }

    #[test]
    fn figures_follow_their_definitions() {
        let documents = vec![
            answer(&["a"], &[-0.5], 0),
            answer(&["a"], &[-1.5], 0),
            answer(&["a", "b"], &[-1.0, -2.0], 0),
            answer(&["a", "b"], &[-1.0, -2.0], 1),
        ];
        let sha256 = String::new();
        let score = TaskScore { name: "t".to_string(), sha256, documents, seconds: 0.0 };
        assert_eq!((score.acc(), score.acc_norm()), (0.5, 0.5));
        let values = [1.0, 0.0, 1.0, 0.0f64];
        let variance = values.iter().map(|x| (x - 0.5).powi(2)).sum::<f64>() / 3.0;
        assert!((score.stderr().unwrap() - (variance / 4.0).sqrt()).abs() < 1e-12);
        assert!((score.perplexity().unwrap() - 1f64.exp()).abs() < 1e-12);
        let one = TaskScore { documents: score.documents[3..].to_vec(), ..score.clone() };
        assert_eq!((one.stderr(), one.perplexity()), (None, None));
        let lines: Vec<Value> =
            score.details().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[3]["ll"], json!([-1.0, -2.0]));
        assert_eq!((&lines[3]["task"], &lines[3]["doc"]), (&json!("t"), &json!(3)));
    }
}
