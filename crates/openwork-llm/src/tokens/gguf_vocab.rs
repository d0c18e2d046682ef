//! The vocabulary of a `tokenizer.json` in GGUF's form: tokens, token types and
//! merges.

use super::from_gguf::{CONTROL, USER_DEFINED};
use super::pre_tokenizer::PreTokenizer;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;

/// GGUF token types of vocabulary entries and of unused ids.
const NORMAL: i32 = 1;
const UNUSED: i32 = 5;

/// A byte-level BPE tokenizer. Holds, once built:
///
/// 1. every token has a token type;
/// 2. a merge is two tokens separated by a space, and neither contains one.
#[derive(Debug)]
pub(crate) struct GgufVocab {
    /// The pre-tokenizer's name in `tokenizer.ggml.pre`.
    pub pre: &'static str,
    pub tokens: Vec<String>,
    pub token_types: Vec<i32>,
    pub merges: Vec<String>,
}

/// The fields of a `tokenizer.json` that determine its tokens.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    model: Bpe,
}

#[derive(Deserialize)]
struct Added {
    id: usize,
    content: String,
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

#[derive(Deserialize)]
struct Bpe {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    vocab: Value,
    #[serde(default)]
    merges: Vec<Merge>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair(String, String),
}

impl GgufVocab {
    /// The vocabulary of a `tokenizer.json` for an embedding of `rows` rows; rows
    /// without a token get a placeholder. An error says what GGUF cannot express.
    pub fn new(json: &[u8], rows: usize) -> Result<Self, String> {
        let file: File =
            serde_json::from_slice(json).map_err(|why| format!("tokenizer.json: {why}"))?;
        if file.model.kind != "BPE" && !file.model.kind.is_empty() {
            return Err(format!("its tokenizer is {}, not byte-level BPE", file.model.kind));
        }
        if file.model.byte_fallback {
            return Err("its tokenizer is SentencePiece, not byte-level BPE".to_string());
        }
        let pre = PreTokenizer::gguf_name(
            &file.pre_tokenizer,
            &file.normalizer,
            file.model.ignore_merges,
        )
        .ok_or("its pre-tokenizer is none that GGUF has a name for")?;
        let vocabulary: HashMap<String, usize> = serde_json::from_value(file.model.vocab)
            .map_err(|why| format!("tokenizer.json: its vocabulary: {why}"))?;
        let mut tokens: Vec<Option<String>> = vec![None; rows];
        let mut token_types = vec![UNUSED; rows];
        let mut put = |id: usize, token: String, token_type: i32| -> Result<(), String> {
            let Some(place) = tokens.get_mut(id) else {
                return Err(format!("token {id} is out of range: the embedding has {rows} rows"));
            };
            *place = Some(token);
            token_types[id] = token_type;
            Ok(())
        };
        for (token, id) in vocabulary {
            put(id, token, NORMAL)?;
        }
        for added in file.added_tokens {
            if added.single_word || added.lstrip || added.rstrip {
                return Err(format!(
                    "GGUF cannot express the matching options of token {:?}",
                    added.content
                ));
            }
            put(added.id, added.content, if added.special { CONTROL } else { USER_DEFINED })?;
        }
        let fill = |(id, token): (usize, Option<String>)| token.unwrap_or(format!("[PAD{id}]"));
        let tokens = tokens.into_iter().enumerate().map(fill).collect();
        let merges = file.model.merges.into_iter().map(|merge| match merge {
            Merge::Text(text) => text,
            Merge::Pair(a, b) => format!("{a} {b}"),
        });
        let merges: Vec<String> = merges.collect();
        match merges.iter().find(|merge| merge.matches(' ').count() != 1) {
            Some(merge) => Err(format!("tokenizer.json: {merge:?} is not a merge of two tokens")),
            None => Ok(Self { pre, tokens, token_types, merges }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn file(change: impl Fn(&mut Value)) -> Vec<u8> {
        let mut file = json!({
            "added_tokens": [{"id": 3, "content": "<s>", "special": true}],
            "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
        });
        change(&mut file);
        file.to_string().into_bytes()
    }

    #[test]
    fn a_vocabulary_is_listed() {
        for merges in [json!([["a", "b"]]), json!(["a b"])] {
            let json = file(|file| file["model"]["merges"] = merges.clone());
            let found = GgufVocab::new(&json, 6).unwrap();
            assert_eq!(found.tokens, ["a", "b", "ab", "<s>", "[PAD4]", "[PAD5]"]);
            assert_eq!(found.token_types, [1, 1, 1, 3, 5, 5]);
            assert_eq!((found.merges, found.pre), (vec!["a b".to_string()], "gpt-2"));
        }
    }

    #[test]
    fn what_gguf_cannot_express_is_refused() {
        let refused = |change: &dyn Fn(&mut Value), rows: usize| {
            GgufVocab::new(&file(change), rows).expect_err("refused")
        };
        assert!(refused(&|_| {}, 3).contains("token 3 is out of range: the embedding has 3 rows"));
        for (path, value, part) in [
            ("/model/type", json!("Unigram"), "its tokenizer is Unigram"),
            ("/model/merges", json!([["a b", "c"]]), "not a merge of two tokens"),
            ("/model/vocab", json!([["a", 0.0]]), "its vocabulary"),
            ("/pre_tokenizer/add_prefix_space", json!(true), "its pre-tokenizer"),
            ("/pre_tokenizer", json!({"type": "Whitespace"}), "its pre-tokenizer"),
            ("/normalizer", json!({"type": "Lowercase"}), "its pre-tokenizer"),
        ] {
            let change = |file: &mut Value| *file.pointer_mut(path).unwrap() = value.clone();
            let words = refused(&change, 6);
            assert!(words.contains(part), "{path}: {words}");
        }
        let change = |file: &mut Value| file["model"]["byte_fallback"] = true.into();
        assert!(refused(&change, 6).contains("SentencePiece"));
        let change = |file: &mut Value| file["added_tokens"][0]["lstrip"] = true.into();
        assert!(refused(&change, 6).contains("\"<s>\""));
    }
}
