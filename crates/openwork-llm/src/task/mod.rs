//! Tasks: multiple choice and last words, as files of JSON lines.
//!
//! ```text
//! {"context": "Question: ..\nAnswer:", "choices": [" a cat", " a dog"], "gold": 1}
//! {"context": ["The dog", "The cat"], "choices": [" barks.", " barks."], "gold": 0}
//! {"context": "A sentence without its last", "choices": [" word"], "gold": 0}
//! ```
//!
//! A model answers a document with the choice of the highest log-likelihood. With a
//! single choice the answer is correct if greedy decoding produces it, as in LAMBADA.
//! Contexts and choices are tokenized as lm-eval does
//! ([`encode_pair`](crate::Tokenizer::encode_pair)).

mod score;

pub use score::{DocumentScore, TaskScore, score};

use crate::disk;
use crate::format::count;
use crate::likelihood::Continuation;
use crate::model::{Model, ModelError};
use crate::tokens::{TextError, Tokenizer};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Most bytes of a task file.
const MAX_FILE: u64 = 1 << 32;
/// What every line must be.
const FORMAT: &str = "every line must be {\"context\": text or a list with one text per choice, \"choices\": [texts], \"gold\": number of the right choice, from 0}";

/// Why a task cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant's fields are the numbers and names in its message
pub enum TaskError {
    #[error("{}: no such file; give a .jsonl file with a document on every line", .0.display())]
    Missing(PathBuf),
    #[error("{}: cannot be read: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    #[error("{}: not UTF-8 at byte {at}; convert it to UTF-8", path.display())]
    Utf8 { path: PathBuf, at: usize },
    #[error("{}: the file contains no documents; {FORMAT}", .0.display())]
    Empty(PathBuf),
    #[error("a limit of 0 documents leaves nothing to evaluate; use at least 1")]
    Limit,
    #[error("{}: line {line}: {why}", path.display())]
    Line { path: PathBuf, line: usize, why: String },
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl TaskError {
    /// Whether the user's input is at fault, rather than the run.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Model(error) => error.is_input(),
            _ => true,
        }
    }
}

/// A task: its documents.
#[derive(Clone, Debug)]
pub struct Task {
    /// The file's name without its extension.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// SHA-256 of the documents that are used, as they are in the file.
    pub sha256: String,
    /// The documents, in the order of the file.
    pub documents: Vec<Document>,
}

/// A context with its possible continuations.
///
/// Holds, once read: there is a choice, no choice is empty, there is one context or one
/// per choice, and `gold` is a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The line in the file, from 1.
    pub line: usize,
    /// One for all choices, or one per choice.
    pub contexts: Vec<String>,
    /// The continuations.
    pub choices: Vec<String>,
    /// The index of the right one.
    pub gold: usize,
}

impl Task {
    /// Reads a file, at most the first `limit` documents.
    pub fn read(path: &Path, limit: Option<usize>) -> Result<Self, TaskError> {
        if limit == Some(0) {
            return Err(TaskError::Limit);
        }
        let bytes = disk::read(path, MAX_FILE).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => TaskError::Missing(path.to_path_buf()),
            _ => TaskError::Io { path: path.to_path_buf(), error },
        })?;
        let text = std::str::from_utf8(&bytes).map_err(|error| TaskError::Utf8 {
            path: path.to_path_buf(),
            at: error.valid_up_to(),
        })?;
        // Some editors put a byte order mark before the first line.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let filled = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let (mut documents, mut used) = (Vec::new(), String::new());
        for (i, line) in filled.take(limit.unwrap_or(usize::MAX)) {
            let document = document(i + 1, line).map_err(|why| TaskError::Line {
                path: path.to_path_buf(),
                line: i + 1,
                why,
            })?;
            documents.push(document);
            used += line;
            used.push('\n');
        }
        if documents.is_empty() {
            return Err(TaskError::Empty(path.to_path_buf()));
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let sha256 = disk::sha256(used.as_bytes());
        Ok(Self { name, path: path.to_path_buf(), sha256, documents })
    }

    /// The choices of every document as tokens that the model can read.
    pub fn encode(
        &self,
        model: &Model<'_>,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<Vec<Continuation>>, TaskError> {
        let limit = model.config().max_positions;
        let encode = |document: &Document| {
            let wrong =
                |why: String| TaskError::Line { path: self.path.clone(), line: document.line, why };
            let choice = |(i, choice): (usize, &String)| {
                let pair = tokenizer
                    .encode_pair(document.context(i), choice)
                    .map_err(|error| wrong(error.to_string()))?;
                let tokens =
                    Continuation::new(&pair.context, &pair.continuation).ok_or_else(|| {
                        wrong(format!(
                            "choice {i} has no tokens of its own after its context; move some of the context to the choices"
                        ))
                    })?;
                match tokens.input_len() {
                    length if length > limit => Err(wrong(format!(
                        "choice {i} and its context are {}, but the model reads at most {limit} (max_position_embeddings); shorten the context",
                        count(tokens.tokens().len(), "token")
                    ))),
                    _ => Ok(tokens),
                }
            };
            let choices: Vec<Continuation> =
                document.choices.iter().enumerate().map(choice).collect::<Result<_, _>>()?;
            let windows: Vec<Vec<u32>> = choices.iter().map(|c| c.tokens().to_vec()).collect();
            model.check_tokens(&windows)?;
            Ok(choices)
        };
        self.documents.iter().map(encode).collect()
    }
}

impl Document {
    /// The context of a choice.
    pub fn context(&self, choice: usize) -> &str {
        &self.contexts[choice % self.contexts.len()]
    }
}

/// Reads a line, or says what is wrong with it.
fn document(line: usize, text: &str) -> Result<Document, String> {
    let json: Value = serde_json::from_str(text).map_err(|error| {
        // The reader counts every line as line 1.
        let place = format!(" at line {} column {}", error.line(), error.column());
        let why = error.to_string();
        let why = why.strip_suffix(&place).unwrap_or(&why);
        format!("{why} at column {}; {FORMAT}", error.column())
    })?;
    let field = |name: &str| match json.get(name) {
        Some(value) => Ok(value),
        None => Err(format!("there is no `{name}`; {FORMAT}")),
    };
    let texts = |name: &str, value: &Value| -> Result<Vec<String>, String> {
        let list = value.as_array().ok_or_else(|| format!("`{name}` is not a list; {FORMAT}"))?;
        let text = |(i, value): (usize, &Value)| {
            let text = value.as_str().map(String::from);
            text.ok_or_else(|| format!("`{name}` has something else than a text at {i}; {FORMAT}"))
        };
        list.iter().enumerate().map(text).collect()
    };
    let choices = texts("choices", field("choices")?)?;
    if choices.is_empty() {
        return Err("`choices` is empty; give at least one continuation".to_string());
    }
    if let Some(empty) = choices.iter().position(String::is_empty) {
        return Err(format!("choice {empty} is empty; give every choice at least one character"));
    }
    let contexts = match field("context")? {
        Value::String(context) => vec![context.clone()],
        Value::Array(_) => texts("context", &json["context"])?,
        _ => return Err(format!("`context` is neither a text nor a list; {FORMAT}")),
    };
    if !json["context"].is_string() && contexts.len() != choices.len() {
        return Err(format!(
            "`context` has {}, `choices` has {}; give one context per choice, or a single text",
            count(contexts.len(), "text"),
            choices.len()
        ));
    }
    let gold = field("gold")?;
    if !gold.is_i64() && !gold.is_u64() {
        return Err(format!(
            "gold is {gold}, not a whole number; give the number of the right choice, from 0"
        ));
    }
    let in_range = gold.as_u64().and_then(|gold| usize::try_from(gold).ok());
    let gold = in_range.filter(|&gold| gold < choices.len()).ok_or_else(|| {
        format!(
            "gold is {gold}, but there {} {}, numbered from 0; give the number of the right one",
            if choices.len() == 1 { "is" } else { "are" },
            count(choices.len(), "choice")
        )
    })?;
    Ok(Document { line, contexts, choices, gold })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &str, limit: Option<usize>) -> Result<Task, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("cats.jsonl");
        std::fs::write(&path, content).expect("the folder is writable");
        let place = format!("{}/", folder.path().display());
        Task::read(&path, limit).map_err(|error| error.to_string().replace(&place, ""))
    }

    #[test]
    fn documents_have_one_context_or_one_per_choice() {
        let lines = concat!(
            "\u{feff}{\"context\": \"a\", \"choices\": [\" b\", \" c\"], \"gold\": 1, \"id\": 7}\n\n",
            "{\"context\": [\"a\", \"b\"], \"choices\": [\" c\", \" c\"], \"gold\": 0}\r\n",
            "{\"context\": \"\", \"choices\": [\"x\"], \"gold\": 0}",
        );
        let task = read(lines, None).unwrap();
        assert_eq!(task.name, "cats");
        let found: Vec<_> = task.documents.iter().map(|d| (d.line, d.context(1), d.gold)).collect();
        assert_eq!(found, [(1, "a", 1), (3, "b", 0), (4, "", 0)]);
        let part = read(lines, Some(2)).unwrap();
        assert_eq!(part.documents, task.documents[..2]);
        assert_ne!(part.sha256, task.sha256);
    }

    #[test]
    fn a_bad_line_is_named_with_what_to_do() {
        let good = r#"{"context": "a", "choices": ["b"], "gold": 0}"#;
        let cases = [
            (
                r#"{"context": "a", "choices": ["b", "c"], "gold": 2}"#,
                "gold is 2, but there are 2 choices, numbered from 0; give the number of the right one",
            ),
            (
                r#"{"context": "a", "choices": ["b"], "gold": -1}"#,
                "gold is -1, but there is 1 choice",
            ),
            (
                r#"{"context": "a", "choices": ["b"], "gold": "0"}"#,
                "gold is \"0\", not a whole number; give the number of the right choice, from 0",
            ),
            (r#"{"context": "a", "choices": ["b"], "gold": 1.0}"#, "gold is 1.0, not a whole"),
            (r#"{"context": "a", "choices": ["b"], "gold": null}"#, "gold is null, not a whole"),
            (r#"{"context": "a", "choices": ["b"]}"#, "there is no `gold`; every line must be"),
            (
                r#"{"context": "a", "choices": ["b", ""], "gold": 0}"#,
                "choice 1 is empty; give every choice at least one character",
            ),
            (r#"{"context": "a", "choices": [], "gold": 0}"#, "`choices` is empty; give"),
            (r#"{"context": "a", "choices": "b", "gold": 0}"#, "`choices` is not a list; every"),
            (
                r#"{"context": "a", "choices": ["b", 3], "gold": 0}"#,
                "`choices` has something else than a text at 1",
            ),
            (
                r#"{"context": 1, "choices": ["b"], "gold": 0}"#,
                "`context` is neither a text nor a list",
            ),
            (
                r#"{"context": ["a", "b", "c"], "choices": ["b"], "gold": 0}"#,
                "`context` has 3 texts, `choices` has 1; give one context per choice, or a single text",
            ),
            (r#"["a"]"#, "there is no `choices`; every line"),
            ("{", "EOF while parsing an object at column 1; every line"),
        ];
        for (line, words) in cases {
            let found = read(&format!("{good}\n\n{line}\n"), None).unwrap_err();
            let start = format!("cats.jsonl: line 3: {words}");
            assert!(found.starts_with(&start), "{found}\ndoes not start with\n{start}");
        }
        assert!(read("\n", None).unwrap_err().starts_with("cats.jsonl: the file contains no doc"));
        assert!(read(good, Some(0)).unwrap_err().starts_with("a limit of 0 documents"));
        let gone = Task::read(Path::new("no-such.jsonl"), None).unwrap_err().to_string();
        assert!(gone.starts_with("no-such.jsonl: no such file; give"), "{gone}");
    }
}
