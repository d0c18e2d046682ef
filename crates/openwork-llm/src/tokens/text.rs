//! Reading texts from files.

use super::error::TextError;
use crate::{demo, disk};
use std::path::Path;

/// What a text is used for; `demo` names a different text for each use.
#[derive(Clone, Copy, Debug)]
pub enum TextUse {
    /// Calibration.
    Calibrate,
    /// Evaluation.
    Evaluate,
}

/// Reads a file's documents as one text; `demo` is the built-in text.
pub fn load_text(path: &Path, text_use: TextUse) -> Result<String, TextError> {
    if path == Path::new("demo") && !path.exists() {
        let text = match text_use {
            TextUse::Calibrate => demo::CALIBRATION,
            TextUse::Evaluate => demo::EVALUATION,
        };
        return Ok(text.to_string());
    }
    Ok(join(&read_text(path)?))
}

/// The documents of a `.txt` file (one) or of a `.jsonl` file (the `text`
/// field of each line that is not blank).
pub fn read_text(path: &Path) -> Result<Vec<String>, TextError> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let jsonl = match extension {
        Some("txt") => false,
        Some("jsonl") => true,
        _ if !path.exists() => return Err(TextError::Missing(path.to_path_buf())),
        _ => return Err(TextError::Kind(path.to_path_buf())),
    };
    let bytes = disk::read(path, u64::MAX).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => TextError::Missing(path.to_path_buf()),
        _ => TextError::Io { path: path.to_path_buf(), error },
    })?;
    let text = String::from_utf8(bytes).map_err(|error| TextError::Utf8 {
        path: path.to_path_buf(),
        at: error.utf8_error().valid_up_to(),
    })?;
    let documents = if jsonl { lines(path, &text)? } else { vec![text] };
    if documents.iter().all(|document| document.trim().is_empty()) {
        return Err(TextError::Empty(path.to_path_buf()));
    }
    Ok(documents)
}

fn lines(path: &Path, text: &str) -> Result<Vec<String>, TextError> {
    #[derive(serde::Deserialize)]
    struct Document {
        text: String,
    }
    // Some editors put a byte order mark before the first line.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let filled = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    filled
        .map(|(i, line)| {
            let wrong = |why| TextError::Line { path: path.to_path_buf(), line: i + 1, why };
            // serde would accept a list of one text as an object with one field.
            if line.trim_start().starts_with('[') {
                return Err(wrong("it is a list".to_string()));
            }
            let found = serde_json::from_str::<Document>(line);
            found.map(|document| document.text).map_err(|error| {
                // The reader counts every line as line 1.
                let place = format!(" at line {} column {}", error.line(), error.column());
                let why = error.to_string();
                let why = why.strip_suffix(&place).unwrap_or(&why);
                wrong(format!("{why} at column {}", error.column()))
            })
        })
        .collect()
}

/// Joins documents with empty lines between them, as the literature does with
/// WikiText before tokenizing it.
pub fn join(documents: &[String]) -> String {
    documents.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, content: &[u8]) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect("the folder is writable");
        let place = format!("{}/", folder.path().display());
        read_text(&path).map_err(|error| error.to_string().replace(&place, ""))
    }

    #[test]
    fn a_txt_is_one_document_and_a_jsonl_one_for_each_line() {
        assert_eq!(read("a.txt", b"one\n\ntwo\n").unwrap(), ["one\n\ntwo\n"]);
        let lines = b"{\"text\": \"one\", \"url\": 1}\n\n{\"text\": \"two\"}\n";
        let documents = read("a.jsonl", lines).unwrap();
        assert_eq!(documents, ["one", "two"]);
        assert_eq!(join(&documents), "one\n\ntwo");
        assert_eq!(read("a.jsonl", b"\xef\xbb\xbf{\"text\": \"one\"}").unwrap(), ["one"]);
    }

    #[test]
    fn a_bad_text_is_refused_with_its_place() {
        let refused = |name, content| read(name, content).unwrap_err();
        assert_eq!(refused("a.txt", b"ab\xffc"), "a.txt: not UTF-8 at byte 2; convert it to UTF-8");
        assert_eq!(refused("a.txt", b""), "a.txt: the file contains no text");
        assert_eq!(refused("a.txt", b" \n"), "a.txt: the file contains no text");
        assert_eq!(refused("a.jsonl", b"\n"), "a.jsonl: the file contains no text");
        assert_eq!(
            refused("a.jsonl", b"{\"text\": \"x\"}\n{\"body\": \"x\"}"),
            "a.jsonl: line 2: missing field `text` at column 13; \
             every line must be an object with a `text` field"
        );
        assert_eq!(
            refused("a.jsonl", b"[\"only\"]"),
            "a.jsonl: line 1: it is a list; every line must be an object with a `text` field"
        );
        assert!(refused("a.jsonl", b"not json").starts_with("a.jsonl: line 1: expected"));
        assert!(refused("a.bin", b"x").contains("not a text; use a .txt file"));
        let gone = read_text(Path::new("no-such.txt")).unwrap_err().to_string();
        assert_eq!(gone, "no-such.txt: no such file");
    }
}
