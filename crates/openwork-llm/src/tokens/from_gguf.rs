//! Tokenizers from GGUF metadata.
//!
//! There are three kinds: byte-level BPE (`gpt2`), whose merges the file lists;
//! SentencePiece (`llama`), whose merges follow from the scores of its tokens; and
//! SentencePiece whose merges the file lists (`gemma4`). All become the pipeline of the
//! model's own `tokenizer.json`.

use super::pre_tokenizer::PreTokenizer;
use super::tokenizer::{SpecialTokens, Tokenizer};
use crate::checkpoint::{Fault, Metadata};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::HashMap;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
};

/// GGUF token types.
const UNKNOWN: i32 = 2;
pub(super) const CONTROL: i32 = 3;
pub(super) const USER_DEFINED: i32 = 4;
/// The largest token type.
const BYTE: i32 = 6;
/// Tokens of these types are matched in the text before merges are applied.
const CUT_OUT: [i32; 3] = [UNKNOWN, CONTROL, USER_DEFINED];
/// Longest supported SentencePiece token, in bytes; Gemma's longest is below 200.
const MAX_TOKEN: usize = 256;
/// Limit of bytes of implied merges per byte of the vocabulary: most tokens can
/// be split in few places.
const MERGES: usize = 64;
/// SentencePiece's escape for a space.
const SPACE: &str = "\u{2581}";

/// The tokenizer data of a GGUF file.
struct GgufTokenizer<'a> {
    metadata: &'a Metadata,
    tokens: Vec<&'a str>,
    /// One token type per token, or empty.
    token_types: Vec<i32>,
    bytes: &'a [u8],
}

/// The BPE model and the steps around it.
struct Pipeline {
    model: BPE,
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    adds_bos: bool,
}

impl Tokenizer {
    /// The tokenizer described by `metadata` of the file `bytes`.
    pub(crate) fn from_gguf(metadata: &Metadata, bytes: &[u8]) -> Result<Self, Fault> {
        let key = |key: &str| format!("tokenizer.ggml.{key}");
        let lacks = |what: &str| Fault::Tokenizer(format!("the file has no {:?}", key(what)));
        let tokens = metadata.texts(&key("tokens"), bytes)?.ok_or_else(|| lacks("tokens"))?;
        let token_types = metadata.integers(&key("token_type"), bytes)?.unwrap_or_default();
        if !token_types.is_empty() && token_types.len() != tokens.len() {
            let why = format!("{} tokens, but {} token types", tokens.len(), token_types.len());
            return Err(Fault::Tokenizer(why));
        }
        if let Some(token_type) =
            token_types.iter().find(|token_type| !(0..=BYTE).contains(*token_type))
        {
            return Err(Fault::Tokenizer(format!("GGUF has no token type {token_type}")));
        }
        let source = GgufTokenizer { metadata, tokens, token_types, bytes };
        let plan = match metadata.text(&key("model"))?.as_deref() {
            Some("gpt2") => source.byte_level()?,
            Some("llama") => source.sentence_piece(false)?,
            Some("gemma4") => source.sentence_piece(true)?,
            Some(other) => {
                let why = format!(
                    "the tokenizer type {other:?} is not supported; openwork reads \"gpt2\", \"llama\" and \"gemma4\""
                );
                return Err(Fault::Tokenizer(why));
            }
            None => return Err(lacks("model")),
        };
        let id = |name: &str| -> Result<Option<u32>, Fault> {
            let count = source.tokens.len();
            match metadata.number(&key(name))? {
                Some(id) if id as usize >= count => {
                    let why = format!("is {id}, but there are {count} tokens");
                    Err(Fault::Metadata { key: key(name), why })
                }
                id => Ok(id),
            }
        };
        let bos = id("bos_token_id")?;
        let mut eos = Vec::new();
        for name in ["eos_token_id", "eot_token_id", "eom_token_id"] {
            eos.extend(id(name)?);
        }
        let adds_bos = metadata.flag(&key("add_bos_token"))?.unwrap_or(plan.adds_bos);
        let special = SpecialTokens { bos, eos, adds_bos: adds_bos && bos.is_some() };
        let mut inner = source.assemble(plan)?;
        if let Some(bos) = bos.filter(|_| special.adds_bos) {
            inner.with_post_processor(before_every_text(source.tokens[bos as usize], bos)?);
        }
        Self::new(inner, special, Vec::new()).map_err(Fault::Tokenizer)
    }
}

impl GgufTokenizer<'_> {
    /// Byte-level BPE with the merges listed in the file.
    fn byte_level(&self) -> Result<Pipeline, Fault> {
        let name = self.metadata.text("tokenizer.ggml.pre")?;
        let name = name.as_deref().unwrap_or("default");
        let pre = PreTokenizer::find(name).ok_or_else(|| {
            let known = PreTokenizer::known();
            Fault::Tokenizer(format!(
                "the pre-tokenizer {name:?} is not supported (supported: {known})"
            ))
        })?;
        let vocabulary = vocabulary(&self.tokens);
        let pairs = self.listed_merges(&vocabulary)?;
        let model = BPE::builder()
            .vocab_and_merges(vocabulary, pairs)
            .ignore_merges(pre.ignore_merges)
            .build()
            .map_err(|why| Fault::Tokenizer(why.to_string()))?;
        Ok(Pipeline {
            model,
            normalizer: if pre.nfc { json!({"type": "NFC"}) } else { Value::Null },
            pre_tokenizer: pre.pre_tokenizer(),
            decoder: json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}),
            adds_bos: pre.adds_bos,
        })
    }

    /// The merges that the file lists.
    fn listed_merges(&self, vocabulary: &Vocab) -> Result<Merges, Fault> {
        let key = "tokenizer.ggml.merges";
        let lacks = || Fault::Tokenizer(format!("the file has no {key:?}"));
        let merges = self.metadata.texts(key, self.bytes)?.ok_or_else(lacks)?;
        let mut pairs: Merges = Vec::with_capacity(merges.len());
        for (i, merge) in merges.iter().enumerate() {
            // The library would panic on some merges of unknown tokens.
            let known = |(a, b): &(&str, &str)| {
                [a, b, &&*format!("{a}{b}")].iter().all(|&&token| vocabulary.contains_key(token))
            };
            let Some((a, b)) = merge.split_once(' ').filter(known) else {
                let why = format!("merge {i}, {merge:?}, does not join two tokens into a third");
                return Err(Fault::Tokenizer(why));
            };
            pairs.push((a.to_string(), b.to_string()));
        }
        Ok(pairs)
    }

    /// SentencePiece BPE with byte fallback. Gemma differs from Llama: no space is
    /// prepended to the text, runs of spaces are tokens, and merges rank by the
    /// order of tokens, unless they are listed.
    fn sentence_piece(&self, listed: bool) -> Result<Pipeline, Fault> {
        let architecture = self.metadata.text("general.architecture")?.unwrap_or_default();
        let gemma = listed || architecture.starts_with("gemma");
        let prefix = self.metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(!gemma);
        let spelled: Vec<String> = self.tokens.iter().map(|token| respell(token, gemma)).collect();
        let tokens: Vec<&str> = spelled.iter().map(String::as_str).collect();
        let scores = if listed {
            Vec::new()
        } else if gemma {
            (0..tokens.len()).map(|i| -(i as f32)).collect()
        } else {
            let scores = self.metadata.floats("tokenizer.ggml.scores", self.bytes)?;
            let each = |scores: &Vec<f32>| {
                scores.len() == tokens.len() && !scores.iter().any(|score| score.is_nan())
            };
            scores.filter(each).ok_or_else(|| {
                Fault::Tokenizer("the file does not have one score per token".to_string())
            })?
        };
        let unknown = self.metadata.number("tokenizer.ggml.unknown_token_id")?;
        let unknown = unknown.and_then(|id| tokens.get(id as usize).copied());
        let vocabulary = vocabulary(&tokens);
        let merges = match listed {
            true => self.listed_merges(&vocabulary)?,
            false => implied_merges(&tokens, &scores)?,
        };
        let mut model =
            BPE::builder().vocab_and_merges(vocabulary, merges).fuse_unk(true).byte_fallback(true);
        if let Some(unknown) = unknown {
            model = model.unk_token(unknown.to_string());
        }
        let model = model.build().map_err(|why| Fault::Tokenizer(why.to_string()))?;
        let (normalizer, pre_tokenizer) = if gemma && !prefix {
            let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
            (spaces, Value::Null)
        } else {
            let scheme = if prefix { "first" } else { "never" };
            let metaspace = json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": false});
            (Value::Null, metaspace)
        };
        let mut steps = vec![
            json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prefix {
            steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let decoder = json!({"type": "Sequence", "decoders": steps});
        Ok(Pipeline { model, normalizer, pre_tokenizer, decoder, adds_bos: true })
    }

    fn assemble(&self, plan: Pipeline) -> Result<tokenizers::Tokenizer, Fault> {
        let wrong = |why: tokenizers::Error| Fault::Tokenizer(why.to_string());
        let mut inner = tokenizers::Tokenizer::new(plan.model);
        inner.with_normalizer(part::<NormalizerWrapper>(plan.normalizer)?).map_err(wrong)?;
        inner.with_pre_tokenizer(part::<PreTokenizerWrapper>(plan.pre_tokenizer)?);
        inner.with_decoder(part::<DecoderWrapper>(plan.decoder)?);
        // Gemma's runs of spaces are respelled in the vocabulary, so merges form them.
        let known = |token: &str| !token.is_empty() && inner.token_to_id(token).is_some();
        let marked = self.tokens.iter().zip(&self.token_types);
        let marked =
            marked.filter(|(token, token_type)| CUT_OUT.contains(token_type) && known(token));
        let added: Vec<AddedToken> = marked
            .map(|(token, &token_type)| {
                AddedToken::from(*token, token_type != USER_DEFINED).normalized(false)
            })
            .collect();
        inner.add_tokens(added).map_err(wrong)?;
        Ok(inner)
    }
}

/// The template that prepends `bos` to every text; transformers follows it in a
/// folder converted from the file.
fn before_every_text(bos: &str, id: u32) -> Result<Option<PostProcessorWrapper>, Fault> {
    let special = json!({"SpecialToken": {"id": bos, "type_id": 0}});
    let sequence = |part: &str, n: u32| json!({"Sequence": {"id": part, "type_id": n}});
    part(json!({
        "type": "TemplateProcessing",
        "single": [special, sequence("A", 0)],
        "pair": [special, sequence("A", 0), {"SpecialToken": {"id": bos, "type_id": 1}}, sequence("B", 1)],
        "special_tokens": {bos: {"id": bos, "ids": [id], "tokens": [bos]}},
    }))
}

/// A pipeline step from its JSON; null is no step.
fn part<T: DeserializeOwned>(value: Value) -> Result<Option<T>, Fault> {
    serde_json::from_value(value).map_err(|why| Fault::Tokenizer(why.to_string()))
}

fn vocabulary(tokens: &[&str]) -> Vocab {
    tokens.iter().zip(0..).map(|(token, id)| (token.to_string(), id)).collect()
}

/// Writes runs of spaces, which Gemma's files keep as spaces, in SentencePiece's
/// escape.
fn respell(token: &str, gemma: bool) -> String {
    let spaces = gemma && !token.is_empty() && token.chars().all(|c| c == ' ');
    if spaces { SPACE.repeat(token.len()) } else { token.to_string() }
}

/// The merges implied by the vocabulary: every split of a token into two tokens,
/// by descending score, then longer left parts, then longer right parts. A
/// spelling listed twice counts once, as its last token.
fn implied_merges(tokens: &[&str], scores: &[f32]) -> Result<Merges, Fault> {
    let ids: HashMap<&str, usize> = tokens.iter().copied().zip(0..).collect();
    let room = MERGES * tokens.iter().map(|token| token.len()).sum::<usize>();
    let mut taken = 0;
    let mut merges = Vec::new();
    for (id, (&token, &score)) in tokens.iter().zip(scores).enumerate() {
        if ids.get(token) != Some(&id) {
            continue;
        }
        if token.len() > MAX_TOKEN {
            let why = format!(
                "token {id} has {} bytes, which exceeds the limit of {MAX_TOKEN}",
                token.len()
            );
            return Err(Fault::Tokenizer(why));
        }
        let mut splits = Vec::new();
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(l), Some(r)) = (ids.get(left), ids.get(right)) {
                splits.push((l, r, left, right));
            }
        }
        taken += splits.len() * token.len();
        if taken > room {
            let why = format!("its tokens imply more merges than the limit of {room} bytes");
            return Err(Fault::Tokenizer(why));
        }
        splits.sort_by_key(|&(l, r, ..)| (l, r));
        merges.extend(splits.into_iter().map(|(_, _, left, right)| (score, left, right)));
    }
    let lengths = |left: &str, right: &str| (left.chars().count(), right.chars().count());
    merges.sort_by(|(p, a, b), (q, c, d)| q.total_cmp(p).then(lengths(c, d).cmp(&lengths(a, b))));
    Ok(merges.into_iter().map(|(_, left, right)| (left.to_string(), right.to_string())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spelling_that_is_listed_twice_is_merged_once() {
        let merges = implied_merges(&["ab", "a", "b", "ab"], &[0.0, 1.0, 1.0, 2.0]).unwrap();
        assert_eq!(merges, [("a".to_string(), "b".to_string())]);
    }

    #[test]
    fn tokens_that_split_everywhere_are_refused() {
        let runs: Vec<String> = (1..=MAX_TOKEN).map(|length| "a".repeat(length)).collect();
        let tokens: Vec<&str> = runs.iter().map(String::as_str).collect();
        let refusal = |tokens: &[&str]| {
            let scores = vec![0.0; tokens.len()];
            implied_merges(tokens, &scores).err().map(|fault| fault.to_string())
        };
        assert_eq!(refusal(&tokens[..32]), None);
        assert!(refusal(&tokens).is_some_and(|words| words.contains("imply more merges")));
        let long = "a".repeat(MAX_TOKEN + 1);
        assert_eq!(
            refusal(&[&long]).unwrap(),
            "the tokenizer cannot be built: token 0 has 257 bytes, which exceeds the limit of 256"
        );
    }
}
