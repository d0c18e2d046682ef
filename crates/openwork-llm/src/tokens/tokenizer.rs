//! A model's tokenizer: encoding, decoding, special tokens.

use super::decode_stream::DecodeStream;
use super::error::TextError;
use super::files;
use super::validate;
use serde_json::Value;

/// Encodes text as a model's tokens and decodes tokens to text.
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
    /// The largest id plus one.
    count: usize,
    special: SpecialTokens,
    notes: Vec<String>,
}

/// BOS and EOS.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpecialTokens {
    pub bos: Option<u32>,
    pub eos: Vec<u32>,
    pub adds_bos: bool,
}

impl Tokenizer {
    /// A tokenizer with its special tokens, and notes for the user.
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

    /// The tokens of `text`, without special tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let encoding = call_library(|| self.inner.encode_fast(text, false))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The special tokens that the tokenizer's template puts before and after every text,
    /// such as `[CLS]` and `[SEP]`.
    pub fn template(&self) -> Result<(Vec<u32>, Vec<u32>), TextError> {
        call_library(|| files::around(&self.inner))
    }

    /// The tokens of `text`, without special tokens, and the end of each as a
    /// byte offset. A token starts where the previous one ends, so every byte up
    /// to the last end belongs to exactly one token.
    pub fn encode_with_ends(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>), TextError> {
        let encoding = call_library(|| self.inner.encode(text, false))?;
        // Some tokenizers trim spaces from a token's offsets: these spaces count
        // to the next token. Offsets never decrease.
        let mut last = 0;
        let ends = encoding.get_offsets().iter().map(|&(_, end)| {
            last = end.clamp(last, text.len());
            last
        });
        let ends = ends.collect();
        Ok((encoding.get_ids().to_vec(), ends))
    }

    /// The text of `tokens`, including special tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= self.count) {
            return Err(TextError::Token { id, count: self.count });
        }
        call_library(|| self.inner.decode(tokens, false))
    }

    /// Starts decoding token by token, for text that is shown as it is generated.
    pub fn stream(&self) -> DecodeStream<'_> {
        DecodeStream::new(self)
    }

    /// Number of token ids. The model's embedding may have a few more rows.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The id of the token spelled `text`.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// The spelling of a token, such as `<|im_end|>`.
    pub fn spelling(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// The end-of-sequence tokens, in ascending order.
    pub fn eos(&self) -> &[u32] {
        &self.special.eos
    }

    /// Whether [`bos`](Self::bos) is prepended to every text.
    pub fn adds_bos(&self) -> bool {
        self.special.adds_bos
    }

    /// Notes for the user about contradictions between the model's files.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The contents of an equivalent `tokenizer.json`.
    pub(crate) fn json(&self) -> String {
        // A tokenizer that was read can be written.
        self.inner.to_string(true).unwrap_or_default()
    }

    /// The names of what [`Tokenizer::files`] gives.
    pub const FILES: [&str; 3] =
        ["tokenizer.json", "tokenizer_config.json", "generation_config.json"];

    /// The files of an equivalent tokenizer in a Hugging Face folder, by name.
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
        Self::FILES.into_iter().zip([self.json(), pretty(options), pretty(generation)]).collect()
    }
}

/// Calls the tokenizers library; its panics become errors.
fn call_library<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, TextError> {
    let result = validate::catch_panic(call).map_err(TextError::Tokenizer)?;
    result.map_err(|why| TextError::Tokenizer(why.to_string()))
}
