//! The tokenizer of a model.

use super::error::TextError;
use super::guard;
use crate::checkpoint::{Checkpoint, CheckpointError, Fault};
use serde_json::Value;
use std::collections::HashMap;
use tokenizers::ModelWrapper;

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
    special: Special,
}

/// The tokens with a meaning of their own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Special {
    pub bos: Option<u32>,
    pub eos: Vec<u32>,
    pub adds_bos: bool,
}

impl Tokenizer {
    /// The tokenizer in `tokenizer.json` beside a model's tensors.
    pub(crate) fn from_files(model: &Checkpoint) -> Result<Self, CheckpointError> {
        let bytes = model.companion("tokenizer.json")?.ok_or_else(|| {
            CheckpointError::new(model.path(), Fault::Incomplete { what: "tokenizer.json" })
        })?;
        let path = model.path().join("tokenizer.json");
        let wrong = |why: String| CheckpointError::new(&path, Fault::Tokenizer(why));
        check_merges(&bytes).map_err(wrong)?;
        guard::check(&bytes).map_err(wrong)?;
        let mut inner =
            tokenizers::Tokenizer::from_bytes(&bytes).map_err(|why| wrong(why.to_string()))?;
        whole(&mut inner).map_err(wrong)?;
        let json = |name: &str| match model.companion(name)? {
            None => Ok(Value::Null),
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                CheckpointError::new(&model.path().join(name), Fault::Json(error))
            }),
        };
        let (options, generation) =
            (json("tokenizer_config.json")?, json("generation_config.json")?);
        let config = model.config();

        // A token is named by its text in tokenizer_config.json, or by its ids elsewhere.
        let by_text = |key: &str| {
            let token = &options[key];
            let text = token.as_str().or_else(|| token["content"].as_str())?;
            inner.token_to_id(text)
        };
        let by_id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let bos = by_text("bos_token").or_else(|| by_id(&config["bos_token_id"]));
        let mut eos: Vec<u32> = by_text("eos_token").into_iter().collect();
        for (name, source) in [("generation_config.json", &generation), ("config.json", config)] {
            let found = &source["eos_token_id"];
            let ids = match found {
                Value::Null => Some(Vec::new()),
                Value::Array(ids) => ids.iter().map(by_id).collect(),
                id => by_id(id).map(|id| vec![id]),
            };
            eos.extend(ids.ok_or_else(|| {
                let why =
                    format!("eos_token_id is {found}, not a token's number or a list of them");
                CheckpointError::new(&model.path().join(name), Fault::Shape(why))
            })?);
        }
        let adds_bos = match options["add_bos_token"].as_bool() {
            Some(adds) => adds && bos.is_some(),
            // Not said: see what the file's own template does.
            None => {
                let empty = inner.encode("", true).map_err(|why| wrong(why.to_string()))?;
                bos.is_some() && empty.get_ids().first().copied() == bos
            }
        };
        Self::new(inner, Special { bos, eos, adds_bos }).map_err(wrong)
    }

    /// A tokenizer with its special tokens, which must be among its own.
    pub(crate) fn new(inner: tokenizers::Tokenizer, mut special: Special) -> Result<Self, String> {
        let largest = inner.get_vocab(true).into_values().max();
        let count = largest.map_or(0, |id| id as usize + 1);
        if count == 0 {
            return Err("the vocabulary is empty".to_string());
        }
        special.eos.sort_unstable();
        special.eos.dedup();
        Ok(Self { inner, count, special })
    }

    /// The tokens of `text`, no special token added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let encoding = called(|| self.inner.encode_fast(text, false))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The tokens of `text`, no special token added, and for each the byte
    /// after its last in `text`. A token begins where the one before it ends,
    /// so that every byte up to the last end belongs to one token.
    pub fn encode_with_ends(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>), TextError> {
        let encoding = called(|| self.inner.encode(text, false))?;
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
        called(|| self.inner.decode(tokens, false))
    }

    /// Decodes token by token, for text that appears as it is generated.
    pub fn stream(&self) -> Stream<'_> {
        Stream { tokenizer: self, ids: Vec::new(), start: 0, shown: 0 }
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
        // A tokenizer that was read can be written.
        let tokenizer = self.inner.to_string(true).unwrap_or_default();
        vec![
            ("tokenizer.json", tokenizer),
            ("tokenizer_config.json", pretty(options)),
            ("generation_config.json", pretty(generation)),
        ]
    }
}

/// What the library returns, its panics as errors too.
fn called<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, TextError> {
    let result = guard::caught(call).map_err(TextError::Tokenizer)?;
    result.map_err(|why| TextError::Tokenizer(why.to_string()))
}

/// Undoes what some files carry from their training run: here no text is cut
/// or filled up, and the same text gives the same tokens.
fn whole(inner: &mut tokenizers::Tokenizer) -> Result<(), String> {
    inner.with_truncation(None).map_err(|why| why.to_string())?;
    inner.with_padding(None);
    if let ModelWrapper::BPE(bpe) = inner.get_model()
        && bpe.dropout.is_some()
    {
        let mut model = bpe.clone();
        model.dropout = None;
        inner.with_model(model);
    }
    Ok(())
}

/// That every merge of a BPE model in a `tokenizer.json` makes a token: on
/// some that do not, the library panics.
fn check_merges(bytes: &[u8]) -> Result<(), String> {
    #[derive(serde::Deserialize)]
    struct File<Model> {
        model: Model,
    }
    #[derive(serde::Deserialize)]
    struct Kind {
        r#type: Option<String>,
    }
    #[derive(serde::Deserialize)]
    struct Bpe {
        vocab: HashMap<String, u32>,
        merges: Vec<Merge>,
        continuing_subword_prefix: Option<String>,
    }
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Merge {
        Pair(String, String),
        Text(String),
    }
    let json = |why: serde_json::Error| format!("not valid JSON for a tokenizer: {why}");
    let file: File<Kind> = serde_json::from_slice(bytes).map_err(json)?;
    // Old files do not say; the library then takes what fits, BPE among others.
    if file.model.r#type.is_some_and(|kind| kind != "BPE") {
        return Ok(());
    }
    let file: File<Bpe> = serde_json::from_slice(bytes).map_err(json)?;
    let prefix = file.model.continuing_subword_prefix.map_or(0, |prefix| prefix.len());
    for (i, merge) in file.model.merges.iter().enumerate() {
        let (a, b) = match merge {
            Merge::Pair(a, b) => (a.as_str(), b.as_str()),
            Merge::Text(text) => text.split_once(' ').unwrap_or((text, "")),
        };
        let made = b.get(prefix..).map(|rest| format!("{a}{rest}"));
        if !made.is_some_and(|token| file.model.vocab.contains_key(&token)) {
            return Err(format!("merge {i}, {a:?} and {b:?}, does not make a token"));
        }
    }
    Ok(())
}

/// Decodes token by token. A character may need several tokens, so some
/// tokens show nothing and a later one shows more.
#[derive(Clone, Debug)]
pub struct Stream<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<u32>,
    /// Tokens from here on are decoded together: what a token shows can depend
    /// on the one before it.
    start: usize,
    /// Tokens before this one have been shown.
    shown: usize,
}

impl Stream<'_> {
    /// Takes the next token; returns the text that is certain by now.
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        self.ids.push(id);
        let text = self.rest()?;
        // The replacement character means a character still lacks bytes.
        if text.is_empty() || text.ends_with('\u{fffd}') {
            return Ok(String::new());
        }
        self.start = self.shown;
        self.shown = self.ids.len();
        Ok(text)
    }

    /// The text still held back: characters that never became complete.
    pub fn finish(self) -> Result<String, TextError> {
        self.rest()
    }

    fn rest(&self) -> Result<String, TextError> {
        let before = self.tokenizer.decode(&self.ids[self.start..self.shown])?;
        let after = self.tokenizer.decode(&self.ids[self.start..])?;
        Ok(after.strip_prefix(before.as_str()).unwrap_or_default().to_string())
    }
}
