//! The tokenizer of a model.

use super::decode_stream::DecodeStream;
use super::error::TextError;
use super::validate;
use serde_json::Value;

/// Turns text into a model's tokens and back.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = openwork_llm::Checkpoint::open("../../testdata/gguf/qwen2.gguf".as_ref())?;
/// let tokenizer = model.tokenizer()?;
/// let ids = tokenizer.encode("an assertion")?;
/// assert_eq!(tokenizer.decode(&ids)?, "an assertion");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// One more than the largest id.
    count: usize,
    special: SpecialTokens,
    notes: Vec<String>,
}

/// The tokens with a meaning of their own.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpecialTokens {
    pub bos: Option<u32>,
    pub eos: Vec<u32>,
    pub adds_bos: bool,
}

impl Tokenizer {
    /// A tokenizer with its special tokens, which must be among its own, and
    /// what the user should know of it.
    pub(crate) fn new(
        inner: tokenizers::Tokenizer,
        mut special: SpecialTokens,
        notes: Vec<String>,
    ) -> Result<Self, String> {
        let largest = inner.get_vocab(true).into_values().max();
        let count = largest.map_or(0, |id| id as usize + 1);
        if count == 0 {
            return Err("the vocabulary is empty".to_string());
        }
        special.eos.sort_unstable();
        special.eos.dedup();
        Ok(Self { inner, count, special, notes })
    }

    /// The tokens of `text`, no special token added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let encoding = call_library(|| self.inner.encode_fast(text, false))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The tokens of `text`, no special token added, and for each the byte
    /// after its last in `text`. A token begins where the one before it ends,
    /// so that every byte up to the last end belongs to one token.
    pub fn encode_with_ends(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>), TextError> {
        let encoding = call_library(|| self.inner.encode(text, false))?;
        // Some tokenizers trim spaces off a token's place: such spaces go to
        // the next token, and places never run backwards.
        let mut last = 0;
        let ends = encoding.get_offsets().iter().map(|&(_, end)| {
            last = end.clamp(last, text.len());
            last
        });
        let ends = ends.collect();
        Ok((encoding.get_ids().to_vec(), ends))
    }

    /// The text of `tokens`, special tokens included.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= self.count) {
            return Err(TextError::Token { id, count: self.count });
        }
        call_library(|| self.inner.decode(tokens, false))
    }

    /// Decodes token by token, for text that appears as it is generated.
    pub fn stream(&self) -> DecodeStream<'_> {
        DecodeStream::new(self)
    }

    /// How many token ids there are; a model may have a few more rows.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The id of the token spelled `text`.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// The tokens that end a text, in rising order.
    pub fn eos(&self) -> &[u32] {
        &self.special.eos
    }

    /// Whether the model was trained with [`bos`](Self::bos) before every text.
    pub fn adds_bos(&self) -> bool {
        self.special.adds_bos
    }

    /// Where the model's files contradict each other, in words for the user.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// As a `tokenizer.json` says it.
    pub(crate) fn json(&self) -> String {
        // A tokenizer that was read can be written.
        self.inner.to_string(true).unwrap_or_default()
    }

    /// The files that make this tokenizer anew in a Hugging Face folder, by name.
    pub fn files(&self, chat_template: Option<&str>) -> Vec<(&'static str, String)> {
        let text = |id: u32| self.inner.id_to_token(id);
        let mut options = serde_json::Map::new();
        options.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
        options.insert("add_bos_token".into(), self.special.adds_bos.into());
        options.insert("clean_up_tokenization_spaces".into(), false.into());
        for (key, id) in
            [("bos_token", self.special.bos), ("eos_token", self.special.eos.first().copied())]
        {
            if let Some(token) = id.and_then(text) {
                options.insert(key.into(), token.into());
            }
        }
        if let Some(template) = chat_template {
            options.insert("chat_template".into(), template.into());
        }
        let mut generation = serde_json::Map::new();
        if let Some(bos) = self.special.bos {
            generation.insert("bos_token_id".into(), bos.into());
        }
        if !self.special.eos.is_empty() {
            generation.insert("eos_token_id".into(), self.special.eos.clone().into());
        }
        let pretty = |map| format!("{:#}\n", Value::Object(map));
        vec![
            ("tokenizer.json", self.json()),
            ("tokenizer_config.json", pretty(options)),
            ("generation_config.json", pretty(generation)),
        ]
    }
}

/// What the library returns, its panics as errors too.
fn call_library<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, TextError> {
    let result = validate::catch_panic(call).map_err(TextError::Tokenizer)?;
    result.map_err(|why| TextError::Tokenizer(why.to_string()))
}
