//! Names on the Hub: what the user writes, checked.

use super::error::HubError;
use std::fmt;

/// What kind of repository a name is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepoKind {
    /// A model.
    Model,
    /// A dataset.
    Dataset,
}

impl RepoKind {
    /// `models` or `datasets`, as in the Hub's addresses and the cache.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }

    /// What precedes `org/name` in the address of a page or file.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Model => "",
            Self::Dataset => "datasets/",
        }
    }
}

/// A repository or a file in it, at a revision.
///
/// Holds, once parsed: owner and name are one path component each, and the file is a
/// relative path without `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    /// Model or dataset.
    pub kind: RepoKind,
    /// The owner.
    pub owner: String,
    /// The repository.
    pub name: String,
    /// A file in it; `None` for all that a model needs.
    pub file: Option<String>,
    /// A branch, tag or commit.
    pub revision: String,
}

/// The revision if none is given.
const MAIN: &str = "main";
/// What precedes the name of a dataset.
const DATASETS: &str = "datasets:";

impl HubName {
    /// The name of a model, `org/name[@revision]` or `org/name/file.gguf[@revision]`;
    /// `None` if the text does not look like one.
    pub fn model(text: &str) -> Result<Option<Self>, HubError> {
        let (path, revision) = split_revision(text)?;
        let parts: Vec<&str> = path.split('/').collect();
        let [owner, name, file @ ..] = &parts[..] else { return Ok(None) };
        if !is_component(owner) || !is_component(name) {
            return Ok(None);
        }
        let file = (!file.is_empty()).then(|| file.join("/"));
        if file.as_ref().is_some_and(|file| !file.ends_with(".gguf") || !is_safe_path(file)) {
            return Ok(None);
        }
        let (owner, name) = (owner.to_string(), name.to_string());
        Ok(Some(Self { kind: RepoKind::Model, owner, name, file, revision }))
    }

    /// The name of a text file in a dataset, `datasets:org/name/file.jsonl[@revision]`;
    /// `None` if the text does not begin like one.
    pub fn dataset(text: &str) -> Result<Option<Self>, HubError> {
        let Some(rest) = text.strip_prefix(DATASETS) else { return Ok(None) };
        let wrong =
            |why: &str| Err(HubError::Name { name: text.to_string(), why: why.to_string() });
        let (path, revision) = split_revision(rest)?;
        let parts: Vec<&str> = path.split('/').collect();
        let [owner, name, file @ ..] = &parts[..] else {
            return wrong("give datasets:org/name/file.jsonl");
        };
        if !is_component(owner) || !is_component(name) || !is_safe_path(&file.join("/")) {
            return wrong("give datasets:org/name/file.jsonl");
        }
        let file = file.join("/");
        if !file.ends_with(".jsonl") && !file.ends_with(".txt") {
            return wrong(
                "only .jsonl files with a `text` field and .txt files can be read; for others, such as .parquet, download and convert the file first",
            );
        }
        let (owner, name) = (owner.to_string(), name.to_string());
        Ok(Some(Self { kind: RepoKind::Dataset, owner, name, file: Some(file), revision }))
    }

    /// What the user may have meant by a model that is neither a path nor a name; `None`
    /// if the text does not suggest it.
    pub(super) fn model_hint(text: &str) -> Option<HubError> {
        let weights = [".gguf", ".safetensors"].iter().any(|end| text.ends_with(end));
        (text != "demo" && is_component(text) && !weights)
            .then(|| HubError::NoOwner { name: text.to_string() })
    }

    /// As [`model_hint`](Self::model_hint), for a text.
    pub(super) fn dataset_hint(text: &str) -> Option<HubError> {
        let parts: Vec<&str> = text.split('/').collect();
        let named = parts.len() > 2 && is_component(parts[0]) && is_component(parts[1]);
        (named && is_safe_path(text)).then(|| HubError::NoPrefix { name: text.to_string() })
    }

    /// `org/name`.
    pub fn repo(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == RepoKind::Dataset {
            write!(f, "{DATASETS}")?;
        }
        write!(f, "{}/{}", self.owner, self.name)?;
        if let Some(file) = &self.file {
            write!(f, "/{file}")?;
        }
        if self.revision != MAIN {
            write!(f, "@{}", self.revision)?;
        }
        Ok(())
    }
}

/// Splits `@revision` off.
fn split_revision(text: &str) -> Result<(&str, String), HubError> {
    let Some((path, revision)) = text.split_once('@') else { return Ok((text, MAIN.to_string())) };
    match is_safe_path(revision) {
        true => Ok((path, revision.to_string())),
        false => Err(HubError::Name {
            name: text.to_string(),
            why: "give a branch, tag or commit after @".to_string(),
        }),
    }
}

/// Whether a text can be the owner or name of a repository.
fn is_component(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    text.len() <= 96
        && text.chars().all(plain)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether a path of a server stays within the folder that it is put in, on any system.
pub(super) fn is_safe_path(path: &str) -> bool {
    let plain = |c: char| !c.is_control() && !"\\:*?\"<>|%#".contains(c);
    !path.is_empty()
        && path.len() <= 1024
        && path.chars().all(plain)
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_written_and_paths_are_left_alone() {
        for text in [
            "org/name",
            "HuggingFaceTB/SmolLM2-135M",
            "org/name@v1.0",
            "org/name@refs/pr/3",
            "org/name/model-q4.gguf",
            "org/name/sub/model.gguf@0123abc",
        ] {
            let name = HubName::model(text).unwrap().expect(text);
            assert_eq!(name.to_string(), text);
        }
        for path in [
            "demo",
            "model.gguf",
            "/org/name",
            "./org/name",
            "../org/name",
            "org/name/",
            "org//name",
            "org/name/config.json",
            "org/name/../x.gguf",
            "a b/c",
            "org/name/x\\y.gguf",
            "",
            "C:/models",
            "~/models/x",
        ] {
            assert_eq!(HubName::model(path).unwrap(), None, "{path}");
        }
        let text = "datasets:org/name/data/a.jsonl@v2";
        assert_eq!(HubName::dataset(text).unwrap().expect("a name").to_string(), text);
        assert_eq!(HubName::dataset("c4.jsonl").unwrap(), None);
    }

    #[test]
    fn wrong_names_say_what_to_give() {
        for (text, words) in [
            ("datasets:org", "give datasets:org/name/file.jsonl"),
            ("datasets:org/name", "give datasets:org/name/file.jsonl"),
            ("datasets:org/name/../a.jsonl", "give datasets:org/name/file.jsonl"),
            ("datasets:org/name/a.parquet", "only .jsonl files"),
        ] {
            let error = HubName::dataset(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text}: {words}")), "{error}");
        }
        for (text, words) in [
            ("SmolLM2-135M", Some("SmolLM2-135M: no such file or folder; a model on the Hugging")),
            ("demo", None),
            ("model.gguf", None),
            ("a/b/c", None),
            ("./x", None),
        ] {
            let hint = HubName::model_hint(text).map(|hint| hint.to_string());
            assert_eq!(hint.is_some(), words.is_some(), "{text}");
            assert!(hint.is_none_or(|hint| hint.starts_with(words.unwrap_or_default())));
        }
        let hint = HubName::dataset_hint("org/name/a.jsonl").expect("a hint").to_string();
        assert!(hint.ends_with("is written datasets:org/name/a.jsonl"), "{hint}");
        for path in ["c4.jsonl", "data/c4.jsonl", "/a/b/c.txt", "../a/b/c.txt"] {
            assert!(HubName::dataset_hint(path).is_none(), "{path}");
        }
        assert!(HubName::model("org/name@").unwrap_err().to_string().contains("after @"));
        assert!(HubName::model("org/name@../x").is_err());
    }
}
