//! Pre-tokenizers of byte-level BPE, by the name a GGUF file gives in
//! `tokenizer.ggml.pre`.

use serde_json::{Value, json};

/// How text is split into pieces before BPE merges are applied.
pub(super) struct PreTokenizer {
    /// Its names in GGUF files.
    names: &'static [&'static str],
    cut: Splitting,
    /// Whether text is normalized to Unicode NFC first.
    pub nfc: bool,
    /// Whether a piece that is a token is taken whole, without applying merges.
    pub ignore_merges: bool,
    /// Whether BOS is added if the file does not say.
    pub adds_bos: bool,
}

enum Splitting {
    /// GPT-2's regular expression.
    Gpt2,
    /// Single digits, then GPT-2's regular expression.
    Digits,
    /// Another regular expression.
    Split(&'static str),
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen3.5's, in which combining marks belong to words.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// OpenAI's o200k, of Phi-4-mini.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Every supported pre-tokenizer. The expressions are those of the models' own
/// `tokenizer.json`.
const PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer {
        names: &["default", "gpt-2", "olmo"],
        cut: Splitting::Gpt2,
        nfc: false,
        ignore_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "command-r"],
        cut: Splitting::Digits,
        nfc: false,
        ignore_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe"],
        cut: Splitting::Split(LLAMA3),
        nfc: false,
        ignore_merges: true,
        adds_bos: true,
    },
    // OpenAI's cl100k, of OLMo 2, Phi-4 and GLM-4.
    PreTokenizer {
        names: &["dbrx", "chatglm-bpe", "glm4"],
        cut: Splitting::Split(LLAMA3),
        nfc: false,
        ignore_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["gpt-4o"],
        cut: Splitting::Split(GPT4O),
        nfc: false,
        ignore_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen", "megrez"],
        cut: Splitting::Split(QWEN2),
        nfc: true,
        ignore_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["qwen35"],
        cut: Splitting::Split(QWEN35),
        nfc: true,
        ignore_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["tekken"],
        cut: Splitting::Split(TEKKEN),
        nfc: false,
        ignore_merges: true,
        adds_bos: true,
    },
];

impl PreTokenizer {
    /// The pre-tokenizer that GGUF calls `name`.
    pub fn find(name: &str) -> Option<&'static Self> {
        PRE_TOKENIZERS.iter().find(|pre| pre.names.contains(&name))
    }

    /// GGUF's name for the pre-tokenizer of a `tokenizer.json`, if it has one.
    pub fn gguf_name(
        pre_tokenizer: &Value,
        normalizer: &Value,
        ignore_merges: bool,
    ) -> Option<&'static str> {
        let nfc = match normalizer["type"].as_str() {
            None if normalizer.is_null() => false,
            Some("NFC") => true,
            _ => return None,
        };
        let found = steps(pre_tokenizer);
        PRE_TOKENIZERS
            .iter()
            .find(|pre| {
                pre.nfc == nfc
                    && pre.ignore_merges == ignore_merges
                    && steps(&pre.pre_tokenizer()) == found
            })
            // llama.cpp warns about "default".
            .map(|pre| if pre.names[0] == "default" { "gpt-2" } else { pre.names[0] })
    }

    /// All names, for error messages.
    pub fn known() -> String {
        PRE_TOKENIZERS.iter().flat_map(|pre| pre.names).copied().collect::<Vec<_>>().join(", ")
    }

    /// The equivalent `pre_tokenizer` of a `tokenizer.json`.
    pub fn pre_tokenizer(&self) -> Value {
        let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
        let steps = match self.cut {
            Splitting::Gpt2 => json!([bytes(true)]),
            Splitting::Digits => {
                json!([{"type": "Digits", "individual_digits": true}, bytes(true)])
            }
            Splitting::Split(regex) => json!([
                {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
                bytes(false),
            ]),
        };
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}

/// The steps of a pre-tokenizer, without options that do not affect tokens.
fn steps(pre_tokenizer: &Value) -> Vec<Value> {
    let steps = match &pre_tokenizer["pretokenizers"] {
        Value::Array(steps) => steps.clone(),
        _ => vec![pre_tokenizer.clone()],
    };
    let plain = |mut step: Value| {
        if let Some(step) = step.as_object_mut() {
            step.remove("trim_offsets");
        }
        step
    };
    steps.into_iter().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pre_tokenizer_is_recognized() {
        for pre in PRE_TOKENIZERS {
            let normalizer = if pre.nfc { json!({"type": "NFC"}) } else { Value::Null };
            let name =
                PreTokenizer::gguf_name(&pre.pre_tokenizer(), &normalizer, pre.ignore_merges)
                    .unwrap();
            assert!(pre.names.contains(&name));
            assert!(
                PreTokenizer::gguf_name(&Value::Null, &normalizer, pre.ignore_merges).is_none()
            );
            // Some differ only in their merges.
            let other =
                PreTokenizer::gguf_name(&pre.pre_tokenizer(), &normalizer, !pre.ignore_merges);
            assert!(other.is_none_or(|other| !pre.names.contains(&other)));
        }
    }
}
