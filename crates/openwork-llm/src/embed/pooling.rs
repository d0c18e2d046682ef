//! How the states of a text become one vector: the files of sentence-transformers.
//!
//! ```text
//! modules.json                 Transformer, Pooling, and Normalize if vectors have length 1
//! 1_Pooling/config.json        cls, mean or max
//! sentence_bert_config.json    max_seq_length, do_lower_case
//! ```

use super::EmbedError;
use crate::checkpoint::Checkpoint;
use crate::model::{Model, ModelError, vector};
use crate::tokens::{TextError, Tokenizer};
use rayon::prelude::*;
use serde_json::Value;
use std::path::PathBuf;

/// How the states of a text become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The state of the first token.
    Cls,
    /// The mean of all states.
    Mean,
    /// The largest of each entry.
    Max,
}

impl Pooling {
    /// Every one.
    pub const ALL: [Pooling; 3] = [Pooling::Cls, Pooling::Mean, Pooling::Max];

    /// `cls`, `mean` or `max`.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Cls => "cls",
            Pooling::Mean => "mean",
            Pooling::Max => "max",
        }
    }

    /// Its key in the config of a pooling module.
    fn key(self) -> &'static str {
        match self {
            Pooling::Cls => "pooling_mode_cls_token",
            Pooling::Mean => "pooling_mode_mean_tokens",
            Pooling::Max => "pooling_mode_max_tokens",
        }
    }
}

/// From texts to tokens, and from states to vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentencePooling {
    /// How states become one vector.
    pub pooling: Pooling,
    /// Whether vectors are divided by their length.
    pub normalized: bool,
    /// Longer texts are cut to this many tokens, special ones included.
    pub max_tokens: usize,
    /// Whether texts are converted to lower case first.
    pub lowercase: bool,
    /// Notes for the user.
    pub notes: Vec<String>,
}

const MODULES: &str = "modules.json";
const POOLING: &str = "1_Pooling/config.json";
const SENTENCES: &str = "sentence_bert_config.json";
const PROMPTS: &str = "config_sentence_transformers.json";

/// A file of sentence-transformers, if there is one.
fn json(source: &Checkpoint, name: &str) -> Result<Option<Value>, EmbedError> {
    let Some(bytes) = source.companion(name)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| EmbedError::Files {
        path: source.path().join(name),
        why: format!("not valid JSON: {error}"),
    })
}

impl SentencePooling {
    /// As the files of sentence-transformers in the model's folder say; without them, the
    /// mean of all states, with a note.
    pub fn read(model: &Model<'_>) -> Result<Self, EmbedError> {
        model.check_encoder()?;
        let source = model.checkpoint();
        let limit = model.config().max_positions;
        let path = |name: &str| -> PathBuf { source.path().join(name) };
        let mut notes = Vec::new();
        let normalized = match json(source, MODULES)? {
            Some(modules) => normalizes(&modules)
                .map_err(|why| EmbedError::Files { path: path(MODULES), why })?,
            None => false,
        };
        let pooling = match json(source, POOLING)? {
            Some(config) => {
                mode(&config).map_err(|why| EmbedError::Files { path: path(POOLING), why })?
            }
            None => {
                notes.push(format!(
                    "the model has no {POOLING}: a vector is the mean of all states"
                ));
                Pooling::Mean
            }
        };
        let config = json(source, SENTENCES)?.unwrap_or_default();
        let asked = match &config["max_seq_length"] {
            Value::Null => limit,
            found => match found.as_u64() {
                Some(n) if n > 0 => usize::try_from(n).unwrap_or(usize::MAX),
                _ => {
                    let why = format!("max_seq_length is {found}, not a number of tokens");
                    return Err(EmbedError::Files { path: path(SENTENCES), why });
                }
            },
        };
        let lowercase = config["do_lower_case"].as_bool().unwrap_or(false);
        let prompts = json(source, PROMPTS)?.unwrap_or_default();
        if let Some(name) = prompts["default_prompt_name"].as_str() {
            notes.push(format!(
                "{PROMPTS}: the default prompt {name:?} is not added; put it before each text"
            ));
        }
        Ok(Self { pooling, normalized, max_tokens: asked.min(limit), lowercase, notes })
    }

    /// Cuts texts to at most this many tokens.
    pub fn limit(&mut self, most: usize, model: &Model<'_>) -> Result<(), ModelError> {
        let limit = model.config().max_positions;
        if most > limit {
            return Err(ModelError::TooLong { tokens: most, limit });
        }
        self.max_tokens = most;
        Ok(())
    }

    /// The tokens of each text with the special tokens around them, cut where they are too
    /// long.
    pub fn encode<T: AsRef<str> + Sync>(
        &self,
        tokenizer: &Tokenizer,
        texts: &[T],
    ) -> Result<Vec<Vec<u32>>, TextError> {
        let (before, after) = tokenizer.template()?;
        let room = self.max_tokens.saturating_sub(before.len() + after.len());
        if room == 0 {
            return Err(TextError::Window(self.max_tokens));
        }
        let encode = |text: &T| -> Result<Vec<u32>, TextError> {
            let tokens = match self.lowercase {
                true => tokenizer.encode(&text.as_ref().to_lowercase())?,
                false => tokenizer.encode(text.as_ref())?,
            };
            let kept = tokens.iter().take(room);
            let all: Vec<u32> = before.iter().chain(kept).chain(&after).copied().collect();
            // A tokenizer without special tokens makes nothing of an empty text.
            if all.is_empty() { Err(TextError::NoTokens) } else { Ok(all) }
        };
        texts.par_iter().map(encode).collect()
    }

    /// The vector of a text, given its states one after the other.
    pub fn pool(&self, states: &[f32], out: &mut [f32]) {
        let d = out.len();
        out.copy_from_slice(&states[..d]);
        for state in states.chunks_exact(d).skip(1) {
            match self.pooling {
                Pooling::Cls => break,
                Pooling::Mean => vector::add(out, state),
                Pooling::Max => out.iter_mut().zip(state).for_each(|(x, y)| *x = x.max(*y)),
            }
        }
        if self.pooling == Pooling::Mean {
            vector::scale(out, d as f32 / states.len() as f32);
        }
        let length = vector::sum_of_squares(out).sqrt();
        if self.normalized && length > 0.0 {
            vector::scale(out, length.recip());
        }
    }
}

/// Whether the modules end with a normalization.
fn normalizes(modules: &Value) -> Result<bool, String> {
    let list = modules.as_array().ok_or("not a list of modules")?;
    let mut kinds = Vec::new();
    for module in list {
        let kind = module["type"].as_str().unwrap_or_default();
        let kind = kind.rsplit('.').next().unwrap_or_default();
        if kind == "Pooling" && module["path"] != "1_Pooling" {
            return Err(format!("the path of Pooling is {}, not 1_Pooling", module["path"]));
        }
        kinds.push(kind);
    }
    match kinds[..] {
        ["Transformer"] | ["Transformer", "Pooling"] => Ok(false),
        ["Transformer", "Pooling", "Normalize"] => Ok(true),
        _ => Err(format!(
            "the modules {} are not supported (only Transformer, Pooling and Normalize, in this order)",
            kinds.join(", ")
        )),
    }
}

/// The one mode that is set.
fn mode(config: &Value) -> Result<Pooling, String> {
    let names = Pooling::ALL.map(Pooling::name).join(", ");
    // Later versions name the mode instead of setting a flag.
    if let Some(name) = config["pooling_mode"].as_str() {
        let known = Pooling::ALL.into_iter().find(|mode| mode.name() == name);
        return known.ok_or(format!("pooling_mode = {name:?} is not supported (only {names})"));
    }
    let object = config.as_object().ok_or("not an object")?;
    let flags = object.iter().filter(|(key, value)| {
        key.starts_with("pooling_mode_") && value.as_bool().unwrap_or(false)
    });
    let set: Vec<&str> = flags.map(|(key, _)| key.as_str()).collect();
    match set[..] {
        [key] => Pooling::ALL
            .into_iter()
            .find(|mode| mode.key() == key)
            .ok_or(format!("{key} is not supported (only {names})")),
        [] => Err("no pooling mode is set".to_string()),
        _ => Err(format!("{} are set, but only one is supported", set.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn modes_that_are_not_supported_are_refused_by_name() {
        for pooling in Pooling::ALL {
            assert_eq!(mode(&json!({pooling.key(): true})), Ok(pooling));
            assert_eq!(mode(&json!({"pooling_mode": pooling.name()})), Ok(pooling));
        }
        let refused = |config: Value| mode(&config).unwrap_err();
        assert_eq!(
            refused(json!({"pooling_mode_lasttoken": true})),
            "pooling_mode_lasttoken is not supported (only cls, mean, max)"
        );
        assert_eq!(
            refused(json!({"pooling_mode_cls_token": true, "pooling_mode_max_tokens": true})),
            "pooling_mode_cls_token, pooling_mode_max_tokens are set, but only one is supported"
        );
        assert_eq!(refused(json!({"pooling_mode_cls_token": false})), "no pooling mode is set");
        let module = |kind: &str| json!({"type": format!("sentence_transformers.models.{kind}")});
        let modules = json!([module("Transformer"), module("Dense")]);
        assert_eq!(
            normalizes(&modules).unwrap_err(),
            "the modules Transformer, Dense are not supported (only Transformer, Pooling and Normalize, in this order)"
        );
    }
}
