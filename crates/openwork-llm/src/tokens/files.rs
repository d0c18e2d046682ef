//! Tokenizers of Hugging Face folders: `tokenizer.json` and the files that
//! complete it.

use super::tokenizer::{SpecialTokens, Tokenizer};
use super::validate;
use crate::checkpoint::{Checkpoint, CheckpointError, Fault};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use tokenizers::{AddedToken, Encoding, ModelWrapper, Token};

/// Keys of single special tokens, and of lists of them.
const NAMED: &[&str] =
    &["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
const NAMED_LISTS: &[&str] = &["additional_special_tokens", "extra_special_tokens"];

impl Tokenizer {
    /// Reads `tokenizer.json` and the files beside it.
    pub(crate) fn from_files(model: &Checkpoint) -> Result<Self, CheckpointError> {
        let bytes = model.companion("tokenizer.json")?.ok_or_else(|| {
            CheckpointError::new(model.path(), Fault::Incomplete { what: "tokenizer.json" })
        })?;
        let path = model.path().join("tokenizer.json");
        let wrong = |why: String| CheckpointError::new(&path, Fault::Tokenizer(why));
        let failed = |why: tokenizers::Error| wrong(why.to_string());
        check_merges(&bytes).map_err(wrong)?;
        validate::check(&bytes).map_err(wrong)?;
        let read = || tokenizers::Tokenizer::from_bytes(&bytes);
        let mut inner = validate::catch_panic(read).map_err(wrong)?.map_err(failed)?;
        disable_training_options(&mut inner).map_err(failed)?;
        let json = |name: &str| match model.companion(name)? {
            None => Ok(Value::Null),
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                CheckpointError::new(&model.path().join(name), Fault::Json(error))
            }),
        };
        let options = json("tokenizer_config.json")?;
        let (map, added) = (json("special_tokens_map.json")?, json("added_tokens.json")?);
        let (generation, config) = (json("generation_config.json")?, model.config());
        let named = Named([&options, &map]);
        complete(&mut inner, named, &added).map_err(wrong)?;

        // Some files name a token by its text, others by its id.
        let by_text = |key: &str| named.text(key).and_then(|text| inner.token_to_id(text));
        let by_id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let mut eos: Vec<u32> = by_text("eos_token").into_iter().collect();
        for (name, source) in [("generation_config.json", &generation), ("config.json", config)] {
            let found = &source["eos_token_id"];
            let ids = match found {
                Value::Null => Some(Vec::new()),
                Value::Array(ids) => ids.iter().map(by_id).collect(),
                id => by_id(id).map(|id| vec![id]),
            };
            eos.extend(ids.ok_or_else(|| {
                let why = format!("eos_token_id is {found}, not a token id or a list of token ids");
                CheckpointError::new(&model.path().join(name), Fault::Shape(why))
            })?);
        }
        let name = by_text("bos_token").or_else(|| by_id(&config["bos_token_id"]));
        let template = validate::catch_panic(|| leading(&inner)).map_err(wrong)?.map_err(failed)?;
        let said = options["add_bos_token"].as_bool();
        let (bos, adds_bos) = match said.unwrap_or(template.is_some()) {
            true => (template.or(name), template.or(name).is_some()),
            false => (name.or(template), false),
        };
        let mut notes = Vec::new();
        if said == Some(true) && bos.is_none() {
            notes.push(
                "tokenizer_config.json sets add_bos_token = true, but no file names a BOS token of \
                 the vocabulary; none is added"
                    .to_string(),
            );
        }
        if said.is_some_and(|said| said != template.is_some()) && bos.is_some() {
            let adds = if adds_bos { "none" } else { "one" };
            notes.push(format!(
                "tokenizer_config.json sets add_bos_token = {adds_bos}, which openwork follows, but \
                 the template in tokenizer.json adds {adds}, which transformers 5 follows; make \
                 them agree"
            ));
        }
        Self::new(inner, SpecialTokens { bos, eos, adds_bos }, notes).map_err(wrong)
    }
}

/// The files that name special tokens, in order of precedence.
#[derive(Clone, Copy)]
struct Named<'a>([&'a Value; 2]);

impl<'a> Named<'a> {
    /// The text of the special token `key`.
    fn text(self, key: &str) -> Option<&'a str> {
        self.0.into_iter().find_map(|file| content(&file[key]))
    }

    /// The texts of all special tokens.
    fn all(self) -> impl Iterator<Item = &'a str> {
        let one = NAMED.iter().filter_map(move |key| self.text(key));
        let lists = self.0.into_iter().flat_map(|file| NAMED_LISTS.iter().map(|key| &file[*key]));
        one.chain(lists.filter_map(Value::as_array).flatten().filter_map(content))
    }
}

/// The text of a token given as a string, or as an object with options.
fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// Adds the tokens that only the files beside `tokenizer.json` list, as
/// transformers does: those of `added_tokens_decoder`, or else of
/// `added_tokens.json`, and named special tokens, so that they are matched in
/// texts. A named token that is not in the vocabulary has no id and is not added.
fn complete(
    inner: &mut tokenizers::Tokenizer,
    named: Named<'_>,
    listed: &Value,
) -> Result<(), String> {
    let decoder = named.0[0]["added_tokens_decoder"].as_object();
    let file = if decoder.is_some() { "tokenizer_config.json" } else { "added_tokens.json" };
    let mut added: BTreeMap<u32, AddedToken> = BTreeMap::new();
    let no = |what: &dyn std::fmt::Display| format!("{file}: {what} is not a valid added token");
    for (id, token) in decoder.into_iter().flatten() {
        let id = id.parse().map_err(|_| no(id))?;
        let text = content(token).ok_or_else(|| no(token))?;
        let flag = |key: &str| token[key].as_bool().unwrap_or(false);
        let special = flag("special");
        let token = AddedToken::from(text, special)
            .single_word(flag("single_word"))
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .normalized(token["normalized"].as_bool().unwrap_or(!special));
        added.insert(id, token);
    }
    // added_tokens.json is ignored if added_tokens_decoder exists.
    for (text, id) in listed.as_object().filter(|_| decoder.is_none()).into_iter().flatten() {
        let number = id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| no(id))?;
        let special = named.all().any(|name| name == text);
        added.insert(number, AddedToken::from(text, special));
    }
    let failed = |why: tokenizers::Error| why.to_string();
    inner.add_tokens(added.values().cloned()).map_err(failed)?;
    for (&id, token) in &added {
        let found = inner.token_to_id(&token.content);
        if found != Some(id) {
            let found = found.map_or("none".to_string(), |found| found.to_string());
            return Err(format!(
                "token {:?} has id {id} in {file}, but {found} in this vocabulary; \
                 make the two files agree",
                token.content
            ));
        }
    }
    let known = inner.get_added_vocabulary().get_vocab();
    let missing: Vec<AddedToken> = named
        .all()
        .filter(|text| !known.contains_key(*text) && inner.token_to_id(text).is_some())
        .map(|text| AddedToken::from(text, true))
        .collect();
    inner.add_tokens(missing).map_err(failed)?;
    Ok(())
}

/// Disables truncation, padding and BPE dropout, which some files keep from
/// their training run.
fn disable_training_options(inner: &mut tokenizers::Tokenizer) -> tokenizers::Result<()> {
    inner.with_truncation(None)?;
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

/// The tokens that the tokenizer's template puts before and after every text.
pub(super) fn around(inner: &tokenizers::Tokenizer) -> tokenizers::Result<(Vec<u32>, Vec<u32>)> {
    // The template does not depend on the text.
    let text = Encoding::from_tokens(vec![Token::new(0, "x".to_string(), (0, 1))], 0);
    let all = inner.post_process(text, None, true)?;
    let (ids, special) = (all.get_ids(), all.get_special_tokens_mask());
    let at = special.iter().position(|flag| *flag == 0).unwrap_or(ids.len());
    Ok((ids[..at].to_vec(), ids.get(at + 1..).unwrap_or_default().to_vec()))
}

/// The token that the tokenizer's template prepends to every text, if any.
fn leading(inner: &tokenizers::Tokenizer) -> tokenizers::Result<Option<u32>> {
    Ok(around(inner)?.0.first().copied())
}

/// Checks that every merge of a BPE model in a `tokenizer.json` forms a token:
/// the library panics on some that do not.
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
    // Old files have no type; the library then tries all models, including BPE.
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
            return Err(format!("merge {i}, {a:?} and {b:?}, does not form a token"));
        }
    }
    Ok(())
}
